"""Writes the files of this folder that follow from the library: python collector/generate.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rag_eval_otel.alerting.rules import render
from rag_eval_otel.alerting.target import Target
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.semconv import (
    EVALUATION_LABEL,
    EVALUATION_STATUS,
    GEN_AI_EVALUATION_NAME,
    LEAF_NORMALIZED_SCORE,
    LEAF_SCORE,
    SCORE_BOUNDS,
    SPAN_SCORE,
    SPAN_TURNS,
    metric_attribute,
)

FOLDER = Path(__file__).parent
OTHER_SCALES = frozenset({"correctness", "instance_rubric", "rubric"})
"""Metrics that are not on [0, 1], and whose spans say what their score is there."""

_HEAD = f"""\
# Written by `python collector/generate.py`: one entry for each metric of `rag-eval-otel metrics`.
# A metric of your own is one entry more. Needed where applications export no metrics, or are asked
# for what only spans have; where both come, the rules prefer what the application has counted.
connectors:
  signal_to_metrics:
    error_mode: ignore
    spans:
      - name: {SPAN_TURNS}
        description: Turns on exported spans, by what became of them.
        unit: "{{turn}}"
        include_resource_attributes:
          - key: service.name
        attributes:
          - key: {EVALUATION_STATUS}
          - key: {EVALUATION_LABEL}
            optional: true
        sum:
          value: Int(AdjustedCount())
          monotonic: true
"""

_SCORE = """\
      - name: {name}
        description: Evaluation scores on exported spans.
        unit: "1"
        include_resource_attributes:
          - key: service.name
        attributes:
          - key: {key}
            default_value: {metric}
        conditions:
          - span.attributes["{attribute}"] != nil
        histogram:
          count: Int(AdjustedCount())
          value: span.attributes["{attribute}"]
          buckets: {buckets}
"""


def scores() -> str:
    """Return ``scores.yaml``: the histograms that the gateway takes from spans."""
    return "".join((_HEAD, *_entries()))


def generated() -> Mapping[Path, str]:
    """Return each generated file and what is to be in it."""
    return {
        FOLDER / "scores.yaml": scores(),
        FOLDER / "prometheus" / "rules.yaml": render(Target()),
    }


def _entries() -> Iterator[str]:
    buckets = f"[{', '.join(f'{bound:g}' for bound in SCORE_BOUNDS)}]"
    for metric in sorted(METRICS):
        leaf = LEAF_NORMALIZED_SCORE if metric in OTHER_SCALES else LEAF_SCORE
        yield _SCORE.format(
            name=SPAN_SCORE,
            key=GEN_AI_EVALUATION_NAME,
            metric=metric,
            attribute=metric_attribute(metric, leaf),
            buckets=buckets,
        )


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")

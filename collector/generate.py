"""Writes the files of this folder that follow from the library: python collector/generate.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rag_eval_otel.alerting.rules import Target, render
from rag_eval_otel.capture.dialects import DIALECTS, native
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.semconv import (
    EVALUATION_JUDGE,
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

_CONTENT = """\
# Written by `python collector/generate.py`: what attributes are called that hold texts, in every
# dialect that the library reads. They have been evaluated: the texts go, the scores stay.
#
# In two groups: of one with both, all would be run for events, and not for spans that have none.
processors:
  transform/content:
    error_mode: ignore
    trace_statements:
"""

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
          - key: {judge}
            optional: true
        conditions:
          - span.attributes["{attribute}"] != nil
        histogram:
          count: Int(AdjustedCount())
          value: span.attributes["{attribute}"]
          buckets: {buckets}
"""


def content() -> str:
    """Return ``content.yaml``: the texts that the gateway removes."""
    return "".join((_CONTENT, *_group(_of_spans()), *_group(_of_events())))


def _group(statements: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a group of ``statements``; of equal ones the last is kept."""
    unique = reversed(list(dict.fromkeys(reversed([*statements]))))
    yield "      - statements:\n"
    yield from (f"          - '{statement}'\n" for statement in unique)


def scores() -> str:
    """Return ``scores.yaml``: the histograms that the gateway takes from spans."""
    return "".join((_HEAD, *_entries()))


def generated() -> Mapping[Path, str]:
    """Return each generated file and what is to be in it."""
    return {
        FOLDER / "content.yaml": content(),
        FOLDER / "scores.yaml": scores(),
        FOLDER / "prometheus" / "rules.yaml": render(Target()),
    }


def _of_spans() -> Iterator[str]:
    for pattern in (*(p for dialect in DIALECTS for p in dialect.content), *native.CONTENT):
        yield f'delete_matching_keys(span.attributes, "{_whole(pattern)}")'


def _of_events() -> Iterator[str]:
    for dialect in DIALECTS:
        for event, pattern in dialect.content_events:
            yield f'{_of_event(pattern)} where IsMatch(spanevent.name, "{_whole(event)}")'
    yield from map(_of_event, native.CONTENT)


def _of_event(pattern: str) -> str:
    """Return what removes ``pattern``, which may be all names but those after ``(?!``."""
    opening, closing = "(?!(", ")$).+"
    if pattern.startswith(opening) and pattern.endswith(closing):
        kept = pattern.removeprefix(opening).removesuffix(closing)
        return f'keep_matching_keys(spanevent.attributes, "{_whole(kept)}")'
    return f'delete_matching_keys(spanevent.attributes, "{_whole(pattern)}")'


def _whole(pattern: str) -> str:
    """Return ``pattern`` for whole names, in the collector's spelling, which looks not ahead."""
    plain = pattern.replace("(?!type$)", "")
    return f"^(?:{plain})$".replace("\\", "\\\\")


def _entries() -> Iterator[str]:
    buckets = f"[{', '.join(f'{bound:g}' for bound in SCORE_BOUNDS)}]"
    for metric in sorted(METRICS):
        leaf = LEAF_NORMALIZED_SCORE if metric in OTHER_SCALES else LEAF_SCORE
        yield _SCORE.format(
            name=SPAN_SCORE,
            key=GEN_AI_EVALUATION_NAME,
            metric=metric,
            judge=EVALUATION_JUDGE,
            attribute=metric_attribute(metric, leaf),
            buckets=buckets,
        )


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")

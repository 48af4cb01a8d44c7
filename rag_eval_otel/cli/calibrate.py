"""Run ``rag-eval-otel calibrate``: compare the scores in a file with its human labels."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_eval_otel.calibration.calibrate import FULL, Calibration, calibration_of, form_agreement
from rag_eval_otel.calibration.labels import Observation, observations, scores_of
from rag_eval_otel.cli.options import AS_JSON
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.results.files import source_of
from rag_eval_otel.thresholds import written_thresholds

DESCRIPTION = """\
Compares the scores of a metric with human labels: agreement, the errors of its pass and fail, the
threshold that fits the labels best, and the pass rate of the rows without a label, corrected for
these errors. FILE is .jsonl, .csv or .parquet, each row one of

  {"score": 0.8, "label": "pass"}
  {"scores": {"faithfulness": 0.8}, "labels": {"faithfulness": 1}}
  {"faithfulness": 0.8, "faithfulness.human": 1}
  what `rag-eval-otel evaluate --output` wrote, with <metric>.human or human added
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=".jsonl, .csv or .parquet")
    parser.add_argument("--metric", metavar="NAME", help="only this metric")
    parser.add_argument(
        "--threshold", type=float, help="lowest score that passes (default: the metric's own)"
    )
    parser.add_argument(
        "--label-threshold",
        type=float,
        help="lowest label that passes, if labels are numbers on a scale",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE.toml",
        help="write the thresholds that fit, for --thresholds of `evaluate` and `rules`",
    )
    parser.add_argument("--json", **AS_JSON)


def run(options: argparse.Namespace) -> int:
    """Print for each metric in the file how its scores agree with the human labels."""
    rows = list(_rows(options.file))
    found = [
        _with_full_form(
            calibration_of(
                seen,
                threshold=_threshold(name) if options.threshold is None else options.threshold,
                label_threshold=options.label_threshold,
                metric=name,
            ),
            rows,
            seen,
        )
        for name, seen in observations(rows, metric=options.metric).items()
    ]
    sys.stdout.write(f"{_text(found, options.form)}\n")
    if options.write is not None:
        _write(options.write, found)
    return 0


def _with_full_form(
    found: Calibration, rows: Sequence[tuple[str, Any]], seen: Sequence[Observation]
) -> Calibration:
    """Add to ``found`` how the scores of a metric agree with the scores of its full form.

    In the full form of a metric, the judge breaks up the answer into claims. If the rows do not
    have scores of the full form, ``found`` is returned unchanged.
    """
    full = scores_of(f"{found.metric}{FULL}", rows)
    if len(full) != len(seen) or not any(one.score is not None for one in full):
        return found
    return replace(found, full_form=form_agreement(seen, full, threshold=found.threshold))


def _write(path: Path, found: Iterable[Calibration]) -> None:
    """Write the thresholds that fit the human labels to the file ``path``.

    If there is no fitting threshold for a metric, print the metric and the reason to stderr.
    """
    chosen = []
    for one in found:
        threshold, expected = one.fit.threshold, one.fit.cross_validated
        if threshold.value is None:
            sys.stderr.write(f"rag-eval-otel: no threshold for {one.metric}: {threshold.reason}\n")
            continue
        youden = "unknown" if expected.value is None else f"{expected.value:.2f}"
        comment = f"chosen on {one.labelled} labelled rows; Youden's J to expect: {youden}"
        chosen.append((one.metric, threshold.value, comment))
    if not chosen:
        msg = f"nothing was written to {path}: no threshold fits"
        raise ConfigError(msg)
    try:
        path.write_text(written_thresholds(chosen), encoding="utf-8")
    except OSError as error:
        msg = f"the thresholds cannot be written to {path}: {error}"
        raise ConfigError(msg) from error


def _rows(file: str) -> Iterator[tuple[str, Any]]:
    for index, record in enumerate(source_of(file).records()):
        line = "" if record.line is None else f" (line {record.line})"
        yield f"{file}, row {index}{line}", record.cells


def _threshold(name: str) -> float | None:
    """Return the default threshold of the built-in metric ``name``; None for other metrics."""
    plain = name.removesuffix(FULL)
    made = METRICS[plain]() if plain in METRICS else None
    return getattr(made, "threshold", None)


def _text(found: list[Calibration], form: str) -> str:
    if form == "json":
        return json.dumps([one.to_dict() for one in found], indent=2, ensure_ascii=False)
    return "\n\n".join(map(repr, found))

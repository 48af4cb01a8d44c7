"""``rag-eval-otel calibrate``: the scores of a file against its human labels."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.thresholds import written_thresholds

if TYPE_CHECKING:
    from rag_eval_otel.calibration import Calibration
    from rag_eval_otel.calibration.labels import Observation


DESCRIPTION = """\
Says how far the scores of a metric can be trusted: agreement with human labels, the errors of its
pass and fail, the threshold that fits, and the pass rate of the rows without a label, corrected
for those errors. FILE is .jsonl, .csv or .parquet, each row one of

  {"score": 0.8, "label": "pass"}
  {"scores": {"faithfulness": 0.8}, "labels": {"faithfulness": 1}}
  {"faithfulness": 0.8, "faithfulness.human": 1}
  what `rag-eval-otel evaluate --output` wrote, with <metric>.human or human added
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=".jsonl, .csv or .parquet")
    parser.add_argument("--metric", metavar="NAME", help="this metric alone")
    parser.add_argument(
        "--threshold", type=float, help="a score passes from here (default: the metric's own)"
    )
    parser.add_argument(
        "--label-threshold",
        type=float,
        help="a label passes from here, where labels are a scale of more than pass and fail",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE.toml",
        help="write the thresholds that fit, for --thresholds of `evaluate` and `rules`",
    )
    parser.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        default="text",
        help="print the figures as JSON",
    )


def run(options: argparse.Namespace) -> int:
    """Print the calibration of each metric in the file."""
    from rag_eval_otel.calibration.calibrate import calibration_of  # noqa: PLC0415  # numpy
    from rag_eval_otel.calibration.labels import observations  # noqa: PLC0415

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
    """Add how the metric agrees with its full form, where each row has its place for both."""
    from rag_eval_otel.calibration.calibrate import FULL, form_agreement  # noqa: PLC0415
    from rag_eval_otel.calibration.labels import scores_of  # noqa: PLC0415

    full = scores_of(f"{found.metric}{FULL}", rows)
    if len(full) != len(seen) or not any(one.score is not None for one in full):
        return found
    return replace(found, full_form=form_agreement(seen, full, threshold=found.threshold))


def _write(path: Path, found: Iterable[Calibration]) -> None:
    """Write the thresholds that fit; say of which metrics there is none, and why."""
    chosen = []
    for one in found:
        threshold, expected = one.fit.threshold, one.fit.cross_validated
        if threshold.value is None:
            told = f"no threshold for {one.metric}: {threshold.reason}"
            sys.stderr.write(f"rag-eval-otel: {told}\n")
            continue
        youden = "unknown" if expected.value is None else f"{expected.value:.2f}"
        told = f"chosen on {one.labelled} labelled rows; Youden's J to expect: {youden}"
        chosen.append((one.metric, threshold.value, told))
    if not chosen:
        msg = f"nothing was written to {path}: no threshold fits"
        raise ConfigError(msg)
    try:
        path.write_text(written_thresholds(chosen), encoding="utf-8")
    except OSError as error:
        msg = f"the thresholds cannot be written to {path}: {error}"
        raise ConfigError(msg) from error


def _rows(file: str) -> Iterator[tuple[str, Any]]:
    from rag_eval_otel.results.files import source_of  # noqa: PLC0415

    for index, record in enumerate(source_of(file).records()):
        line = "" if record.line is None else f" (line {record.line})"
        yield f"{file}, row {index}{line}", record.cells


def _threshold(name: str) -> float | None:
    """Return the threshold of our metric of that name; None for any other."""
    from rag_eval_otel.calibration.calibrate import FULL  # noqa: PLC0415
    from rag_eval_otel.metrics import METRICS  # noqa: PLC0415

    plain = name.removesuffix(FULL)
    made = METRICS[plain]() if plain in METRICS else None
    return getattr(made, "threshold", None)


def _text(found: list[Calibration], form: str) -> str:
    if form == "json":
        return json.dumps([one.to_dict() for one in found], indent=2, ensure_ascii=False)
    return "\n\n".join(map(repr, found))

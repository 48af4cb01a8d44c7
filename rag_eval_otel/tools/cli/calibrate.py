"""Compare scores with human labels, or a judge with known verdicts."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from rag_eval_otel.arguments import count_up_to
from rag_eval_otel.config import Config, written_thresholds
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.models import build_plain_judge
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.prices import load_prices
from rag_eval_otel.tools.calibrate import (
    PERIODS,
    Calibration,
    Check,
    agreement_by,
    calibration_of,
    check_judge,
    check_table,
)
from rag_eval_otel.tools.cli.options import AS_JSON, Options, add_all
from rag_eval_otel.tools.files import source_of
from rag_eval_otel.tools.labels import Observation, Timed, observations, rated
from rag_eval_otel.tools.scores import read_feedback, read_scores, sample_in
from rag_eval_otel.types import Form

_GOOD = 0.5
_MOST_LISTED = 1000
_LINE = 300  # characters of a text in a line of the terminal

DESCRIPTION = """\
Compares the scores of a metric with human labels: agreement, the errors of its pass and fail, the
threshold that fits the labels best, and the pass rate of the rows without a label, corrected for
these errors. FILE is .jsonl, .csv or .parquet, each row one of

  {"score": 0.8, "label": "pass"}
  {"scores": {"faithfulness": 0.8}, "labels": {"faithfulness": 1}}
  {"faithfulness": 0.8, "faithfulness.human": 1}
  what `rag-eval-otel evaluate --output` wrote, with <metric>.human or human added

With --feedback, the labels are the feedback of people on the same turns, and FILE may also be OTLP
JSON from the OpenTelemetry Collector. docs/feedback.md says more.

With --built-in, a judge is asked about 84 cases with known verdicts, in six languages, with the
real prompts: numbers, negations, half-supported and over-long answers, refusals, contexts without
content, injected instructions. The command prints how often it is right in each task, in the short
form (set default) and as the sources define the metrics (set dual), where it is weak, and the price
of 1,000 turns.

Exit status: 0 done, 1 with --built-in a judge is right in less than --bound of a task, 2 misuse.
"""


_OPTIONS: Options = {
    "file FILE": (".jsonl, .csv or .parquet", {"nargs": "?"}),
    "--feedback FILE": (
        "feedback of people: OTLP JSON, or a table with trace_id and score",
        {"type": Path},
    ),
    "--feedback-name NAME": ("only the feedback of this name", {}),
    "--by": ("with --feedback: the accuracy in each period, too", {"choices": PERIODS}),
    "--metric NAME": ("only this metric", {}),
    "--threshold": ("lowest score that passes (default: the metric's own)", {"type": float}),
    "--label-threshold": (
        "lowest label that passes, if labels are numbers on a scale",
        {"type": float},
    ),
    "--write FILE.toml": (
        "write the thresholds that fit, for --thresholds of `evaluate` and `rules`",
        {"type": Path},
    ),
    "--disagreements N": (
        "list N rows on which metric and label disagree the most, with their texts",
        {"type": count_up_to(_MOST_LISTED), "default": 0},
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_all(parser, _OPTIONS)
    parser.add_argument("--json", **{**AS_JSON, "dest": "form_of_output"})
    judge: Options = {
        "--built-in": (
            "compare a judge with known verdicts; without FILE",
            {"action": "store_true"},
        ),
        "--judge": ("the judge (default: RAG_EVAL_JUDGE, else lexical)", {}),
        "--form": ("form of the replies (default: both)", {"choices": tuple(_FORMS)}),
        "--bound SHARE": (
            f"share of right replies that every task must reach (default: {_BOUND})",
            {"type": _share},
        ),
        "--concurrency": ("cases at once (default: 16)", {"type": count_up_to()}),
        "--prices FILE": ("prices of judge tokens, JSON", {}),
    }
    add_all(parser.add_argument_group("checking a judge on built-in cases"), judge)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        msg = f"must be from 0 to 1, not {text}"
        raise argparse.ArgumentTypeError(msg)
    return value


def run(options: argparse.Namespace) -> int:
    """Print for each metric in the file how its scores agree with the human labels.

    With ``--built-in``, print how often a judge is right on the built-in cases instead.
    """
    _check_usage(options)
    if options.built_in:
        return _run_on_built_in_cases(options)
    if options.feedback is not None:
        return _run_on_feedback(options)
    rows = dict(_rows(options.file))
    observed = observations(rows.items(), metric=options.metric)
    calibrations = [
        calibration_of(
            seen,
            threshold=_threshold(name, options),
            label_threshold=options.label_threshold,
            metric=name,
        )
        for name, seen in observed.items()
    ]
    listed = {
        c.metric: _disagreements(c, observed[c.metric], rows)[: options.disagreements]
        for c in calibrations
    }
    _print(_output(calibrations, options.form_of_output, listed))
    if options.write is not None:
        _write(options.write, calibrations)
    return 0


def _run_on_feedback(options: argparse.Namespace) -> int:
    """Print for each metric how its scores agree with the feedback of people."""
    joined = rated(
        read_scores(Path(options.file)),
        read_feedback(options.feedback),
        metric=options.metric,
        name=options.feedback_name,
    )
    calibrations, shown, blocks = [], [], []
    for (name, version), timed in joined.observations.items():
        calibration = calibration_of(
            [seen for _, seen in timed],
            threshold=_threshold(name, options),
            label_threshold=_passing_label(options, timed),
            metric=f"{name} {version}" if name in joined.mixed else name,
        )
        calibrations.append(calibration)
        periods = agreement_by(timed, options.by, like=calibration) if options.by else {}
        shown.append(calibration.to_dict())
        if periods:
            shown[-1]["periods"] = [
                {"period": period, "labelled": c.labelled, "accuracy": c.accuracy.to_dict()}
                for period, c in periods.items()
            ]
        lines = [
            f"  {period:<10} {c.labelled:>6} labelled  accuracy {c.accuracy}"
            for period, c in periods.items()
        ]
        blocks.append("\n".join([repr(calibration), *lines]))
    _print(shown if options.form_of_output == "json" else "\n\n".join(blocks))
    if joined.unmatched:
        first = joined.unmatched[0]
        sys.stderr.write(
            f"rag-eval-otel: {len(joined.unmatched)} feedback on turns without scores was left out"
            f" (the first: {first.place})\n"
        )
    if options.write is not None:
        if joined.mixed:
            msg = (
                f"--write {options.write}: a metric has one threshold, and FILE has scores of"
                f" several versions of {', '.join(joined.mixed)}; pass the scores of one version"
            )
            raise ConfigError(msg)
        _write(options.write, calibrations)
    return 0


def _print(output: object) -> None:
    """Print a text as it is, and any other object as JSON."""
    is_text = isinstance(output, str)
    text = output if is_text else json.dumps(output, indent=2, ensure_ascii=False)
    sys.stdout.write(f"{text}\n")


# --- a judge on built-in cases --------------------------------------------------------------------

_FORMS: Mapping[str, tuple[Form, ...]] = {
    "both": ("short", "full"),
    "short": ("short",),
    "full": ("full",),
}
_BOUND = 0.8
_OF_JUDGE = ("judge", "concurrency", "prices")


def _check_usage(options: argparse.Namespace) -> None:
    """Raise `ConfigError` if neither FILE nor --built-in is named, or options of both."""
    of_judge = [
        name for name in (*_OF_JUDGE, "form", "bound") if getattr(options, name) is not None
    ]
    msg = ""
    if options.built_in == (options.file is not None):
        msg = "name a FILE with human labels, or --built-in to check a judge"
    elif of_judge and not options.built_in:
        msg = f"--{of_judge[0].replace('_', '-')} needs --built-in"
    elif options.feedback is None and (options.by or options.feedback_name):
        msg = "--by and --feedback-name need --feedback FILE"
    elif options.feedback is not None and options.disagreements:
        msg = "--disagreements lists rows with a label, not with --feedback"
    if msg:
        raise ConfigError(msg)


def _run_on_built_in_cases(options: argparse.Namespace) -> int:
    settings = {name: getattr(options, name) for name in _OF_JUDGE}
    config = Config.from_env(**{name: v for name, v in settings.items() if v is not None})
    bound = _BOUND if options.bound is None else options.bound
    prices = load_prices(config.prices)
    judge = build_plain_judge(config)

    async def check() -> list[Check]:
        return [
            await check_judge(judge, form=form, prices=prices, concurrency=config.concurrency)
            for form in _FORMS[options.form or "both"]
        ]

    checks = asyncio.run(check())
    if options.form_of_output == "json":
        results = [
            {**each.to_dict(), "below": each.below(bound), "weak": each.weak(bound)}
            for each in checks
        ]
        _print({"bound": bound, "currency": prices.currency, "checks": results})
    else:
        _print(check_table(checks, bound=bound, currency=prices.currency))
    return 1 if any(each.below(bound) for each in checks) else 0


# --- labels and feedback --------------------------------------------------------------------------


def _passing_label(options: argparse.Namespace, timed: Sequence[Timed]) -> float | None:
    """Return the lowest label that passes: 0.5 on the scale of `record_feedback`, from 0 to 1."""
    labels = [one.label for _, one in timed if one.label is not None]
    is_unit = all(0 <= label <= 1 for label in labels)
    return _GOOD if options.label_threshold is None and is_unit else options.label_threshold


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


def _threshold(name: str, options: argparse.Namespace) -> float | None:
    """Return ``--threshold``, or else the default threshold of a built-in metric."""
    metric = METRICS[name]() if options.threshold is None and name in METRICS else None
    threshold: float | None = getattr(metric, "threshold", options.threshold)
    return threshold


def _disagreements(
    found: Calibration, seen: Sequence[Observation], cells: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows on which metric and label disagree, the farthest from the threshold first.

    ``cells`` has the cells of each row by its name. Without both thresholds, there are none.
    """
    limit, passing = found.threshold, found.label_threshold
    if limit is None or passing is None:
        return []
    rows = [
        (abs(o.score - limit), {"row": o.where, "score": o.score, "label": o.label})
        for o in seen
        if o.score is not None and o.label is not None
        if (o.score >= limit) != (o.label >= passing)
    ]
    rows.sort(key=lambda pair: -pair[0])
    return [{**row, **_texts(cells[str(row["row"])])} for _, row in rows]


def _texts(cells: Mapping[str, Any]) -> dict[str, Any]:
    sample = sample_in(cells)
    texts = {
        "question": sample.question,
        "contexts": [passage.text for passage in sample.contexts],
        "answer": sample.answer,
        "reference": sample.reference,
    }
    return {name: value for name, value in texts.items() if value}


def _output(
    calibrations: list[Calibration], form: str, listed: Mapping[str, Sequence[Mapping[str, Any]]]
) -> object:
    if form == "json":
        return [
            c.to_dict() | ({"disagreements": listed[c.metric]} if listed[c.metric] else {})
            for c in calibrations
        ]
    return "\n\n".join(map(repr, calibrations)) + "".join(
        f"\n\n{name}, rows on which metric and label disagree:\n" + "\n".join(map(_line, rows))
        for name, rows in listed.items()
        if rows
    )


def _line(row: Mapping[str, Any]) -> str:
    texts = {name: row[name] for name in row if name not in {"row", "score", "label"}}
    lines = [f"  {row['row']}: score {row['score']:.3f}, label {row['label']:g}"]
    for name, value in texts.items():
        several = value if isinstance(value, list) else [value]
        lines += [f"    {name}: {shorten(text, _LINE, placeholder='...')}" for text in several]
    return "\n".join(lines)

"""Compare scores with human labels, or a judge with known verdicts."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from rag_eval_otel.arguments import count_up_to
from rag_eval_otel.config import Config, written_thresholds
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.models import build_plain_judge
from rag_eval_otel.metrics import METRICS
from rag_eval_otel.prices import Prices, load_prices
from rag_eval_otel.tools.calibrate import (
    FULL,
    PERIODS,
    Calibration,
    Check,
    agreement_by,
    calibration_of,
    check_judge,
    check_table,
    form_agreement,
)
from rag_eval_otel.tools.cli.options import AS_JSON
from rag_eval_otel.tools.files import source_of
from rag_eval_otel.tools.labels import (
    Observation,
    Timed,
    observations,
    rated,
    scores_of,
)
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
form (set default) and as the sources define the metrics (set dual), where it fails, and the price
of 1,000 turns.

Exit status: 0 done, 1 with --built-in a judge is right in less than --bound of a task, 2 misuse.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help=".jsonl, .csv or .parquet")
    parser.add_argument(
        "--feedback",
        type=Path,
        metavar="FILE",
        help="feedback of people: OTLP JSON, or a table with trace_id and score",
    )
    parser.add_argument("--feedback-name", metavar="NAME", help="only the feedback of this name")
    parser.add_argument(
        "--by", choices=PERIODS, help="with --feedback: the agreement in each period, too"
    )
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
    parser.add_argument(
        "--disagreements",
        type=count_up_to(_MOST_LISTED),
        default=0,
        metavar="N",
        help="list N rows on which metric and label disagree the most, with their texts",
    )
    parser.add_argument("--json", **{**AS_JSON, "dest": "form_of_output"})
    _add_judge_options(parser)


def _add_judge_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("checking a judge on built-in cases")
    group.add_argument(
        "--built-in", action="store_true", help="compare a judge with known verdicts; without FILE"
    )
    group.add_argument("--judge", help="the judge (default: RAG_EVAL_JUDGE, else lexical)")
    group.add_argument("--form", choices=tuple(_FORMS), help="form of the replies (default: both)")
    group.add_argument(
        "--bound",
        type=_share,
        metavar="SHARE",
        help=f"share of right replies that every task must reach (default: {_BOUND})",
    )
    group.add_argument("--concurrency", type=count_up_to(), help="cases at once (default: 16)")
    group.add_argument("--prices", metavar="FILE", help="prices of judge tokens, JSON")


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
        if options.disagreements:
            msg = "--disagreements lists rows with a label, not with --feedback"
            raise ConfigError(msg)
        return _run_on_feedback(options)
    if options.by or options.feedback_name:
        msg = "--by and --feedback-name need --feedback FILE"
        raise ConfigError(msg)
    rows = list(_rows(options.file))
    observed = observations(rows, metric=options.metric)
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
        for name, seen in observed.items()
    ]
    listed = {
        one.metric: _disagreements(one, observed[one.metric], dict(rows))[: options.disagreements]
        for one in found
    }
    sys.stdout.write(f"{_text(found, options.form_of_output, listed)}\n")
    if options.write is not None:
        _write(options.write, found)
    return 0


def _run_on_feedback(options: argparse.Namespace) -> int:
    """Print for each metric how its scores agree with the feedback of people."""
    joined = rated(
        read_scores(Path(options.file)),
        read_feedback(options.feedback),
        metric=options.metric,
        name=options.feedback_name,
    )
    found, periods = [], []
    for (name, version), timed in joined.observations.items():
        calibration = calibration_of(
            [one for _, one in timed],
            threshold=_threshold(name) if options.threshold is None else options.threshold,
            label_threshold=_passing_label(options, timed),
            metric=f"{name} {version}" if name in joined.mixed else name,
        )
        found.append(calibration)
        periods.append(agreement_by(timed, options.by, like=calibration) if options.by else [])
    if options.form_of_output == "json":
        shown = json.dumps(
            [
                {**one.to_dict(), **({"periods": [p.to_dict() for p in of]} if of else {})}
                for one, of in zip(found, periods, strict=True)
            ],
            indent=2,
            ensure_ascii=False,
        )
    else:
        shown = "\n\n".join(
            "\n".join(map(str, [one, *of])) for one, of in zip(found, periods, strict=True)
        )
    sys.stdout.write(f"{shown}\n")
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
        _write(options.write, found)
    return 0


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
    if msg:
        raise ConfigError(msg)


def _run_on_built_in_cases(options: argparse.Namespace) -> int:
    settings = {name: getattr(options, name) for name in _OF_JUDGE}
    config = Config.from_env(**{name: v for name, v in settings.items() if v is not None})
    bound = _BOUND if options.bound is None else options.bound
    prices = load_prices(config.prices)
    checks = asyncio.run(_checks(config, _FORMS[options.form or "both"], prices))
    if options.form_of_output == "json":
        results = [
            {**check.to_dict(), "below": check.below(bound), "means": check.meaning(bound)}
            for check in checks
        ]
        report = {"bound": bound, "currency": prices.currency, "checks": results}
        text = json.dumps(report, indent=2, ensure_ascii=False)
    else:
        text = check_table(checks, bound=bound, currency=prices.currency)
    sys.stdout.write(f"{text}\n")
    return 1 if any(check.below(bound) for check in checks) else 0


async def _checks(config: Config, forms: Sequence[Form], prices: Prices) -> list[Check]:
    judge = build_plain_judge(config)
    return [
        await check_judge(judge, form=form, prices=prices, concurrency=config.concurrency)
        for form in forms
    ]


# --- labels and feedback --------------------------------------------------------------------------


def _passing_label(options: argparse.Namespace, timed: Sequence[Timed]) -> float | None:
    """Return the lowest label that passes: 0.5 on the scale of `record_feedback`, from 0 to 1."""
    labels = [one.label for _, one in timed if one.label is not None]
    is_unit = all(0 <= label <= 1 for label in labels)
    return _GOOD if options.label_threshold is None and is_unit else options.label_threshold


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


def _disagreements(
    found: Calibration, seen: Sequence[Observation], cells: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows of which metric and label pass one and fail the other, with their texts.

    The row whose score is the farthest from the threshold comes first. ``cells`` has the cells of
    each row by its name. Without thresholds of score and label, there are none.
    """
    limit, passing = found.threshold, found.label_threshold
    if limit is None or passing is None:
        return []
    known = [(one.score, one.label, one.where) for one in seen]
    rows = [
        (abs(score - limit), {"row": where, "score": score, "label": label, **_texts(cells[where])})
        for score, label, where in known
        if score is not None and label is not None and (score >= limit) != (label >= passing)
    ]
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _texts(cells: Mapping[str, Any]) -> dict[str, Any]:
    sample = sample_in(cells)
    texts = {
        "question": sample.question,
        "contexts": [passage.text for passage in sample.contexts],
        "answer": sample.answer,
        "reference": sample.reference,
    }
    return {name: value for name, value in texts.items() if value}


def _text(
    found: list[Calibration], form: str, listed: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    if form == "json":
        told = [
            one.to_dict() | ({"disagreements": listed[one.metric]} if listed[one.metric] else {})
            for one in found
        ]
        return json.dumps(told, indent=2, ensure_ascii=False)
    return "\n\n".join(map(repr, found)) + "".join(
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

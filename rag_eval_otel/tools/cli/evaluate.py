"""Score the rows of a file."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rag_eval_otel.config import Config, thresholds_of
from rag_eval_otel.environment import names_in
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.metrics import metric_names, resolve_metrics, scale_of
from rag_eval_otel.tools.cli.options import (
    AS_JSON,
    INTERRUPTED,
    Options,
    add_all,
    add_scoring_options,
    count_up_to,
    measurement_for,
    print_result,
    require_another_file,
    say,
    scoring_config,
)
from rag_eval_otel.tools.compare import LEVEL, Gate, GateCheck, GateResult
from rag_eval_otel.tools.dataset import Budget, Run
from rag_eval_otel.tools.read import check_output, open_dataset, writing
from rag_eval_otel.tools.rows import TEXTS, Row
from rag_eval_otel.tools.stats import Totals, aligned


def _pairs(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(column for _, _, column in pairs):
        raise argparse.ArgumentTypeError(f"must be FIELD=COLUMN,..., not {text!r}")
    return {field: column for field, _, column in pairs}


_PATH: Mapping[str, Any] = {"type": Path}
_COUNT: Mapping[str, Any] = {"type": count_up_to()}
_SHARE: Mapping[str, Any] = {"type": float}
_FLAG: Mapping[str, Any] = {"action": "store_true"}
_MANY: Mapping[str, Any] = {"action": "append", "default": []}
_FILE: Options = {
    "file FILE": (".jsonl, .csv or .parquet", {"nargs": "?"}),
    "--list-metrics": ("list the metrics, also of other packages: name, needs, range", _FLAG),
}
_OPTIONS: Options = {
    "--repairs N": (
        "repeat a request at most N times if its reply is not usable (default: 1)",
        {"type": count_up_to(), "default": 1},
    ),
    "--columns FIELD=COLUMN,...": (
        "columns, as in question=prompt,answer=output",
        {"type": _pairs},
    ),
    "--limit N": ("evaluate the first N rows only", _COUNT),
    "--output FILE": ("write the scores of each row: .jsonl or .csv", _PATH),
    "--with-texts": (
        "write question, contexts, answer and reference to OUTPUT, too (default: on)",
        {"choices": ("on", "off"), "default": "on"},
    ),
    "--cache FILE": ("cache of scores (default: OUTPUT.cache, deleted at the end)", _PATH),
    "--max-requests N": ("send at most N judge requests", _COUNT),
    "--max-tokens N": ("send no judge request after N tokens", _COUNT),
    "--progress": (
        "the number of rows done, on stderr (default: auto, on a terminal)",
        {"choices": ("auto", "on", "off"), "default": "auto"},
    ),
    "--raise-on-failure": ("stop at the first row with an error instead of a score", _FLAG),
    "--fail-under METRIC=MEAN": ("exit with 3 if the mean is lower; repeatable", _MANY),
    "--fail-under-pass-rate SHARE": ("exit with 3 if fewer rows have the label pass", _SHARE),
    "--baseline FILE": ("scores of an earlier run over the same questions", _PATH),
    "--no-worse METRIC[=DROP]": (
        "exit with 3 if it fell below the baseline, by more than DROP and chance; repeatable",
        _MANY,
    ),
    "--level SHARE": (f"share of false alarms of --no-worse (default: {LEVEL})", _SHARE),
    "--versions": (
        "any: compare also with a baseline of another judge, metric or prompt",
        {"choices": ("same", "any")},
    ),
    **AS_JSON,
}


DESCRIPTION = """\
Scores every row of FILE (.jsonl, .csv or .parquet) and prints a summary. Columns of ragas,
LlamaIndex and Haystack are recognised. Memory grows by 8 bytes a score.

Scores are cached on disk as each row ends. After an interrupt or a kill, run the same command
again: it asks only for scores that are missing, and writes the complete output.

Exit status: 0 every row was scored, and the gate passed; 1 a row has an error instead of a score,
or no metric could use the judge's replies on a row; 2 misuse; 3 the gate failed: a condition is not
met; 130 interrupted.
"""
_GATE_FAILED = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    add_all(parser, _FILE)
    add_scoring_options(parser)
    add_all(parser, _OPTIONS)


def run(options: argparse.Namespace) -> int:
    if options.list_metrics:
        _list_metrics(options)
        return 0
    if options.file is None:
        raise ConfigError("name the FILE to evaluate, or --list-metrics")
    cache = options.cache
    if cache is None and options.output is not None:
        cache = options.output.with_name(f"{options.output.name}.cache")
    try:
        config = scoring_config(options)
        if options.output is not None:
            check_output(options.output)
            read = [Path(options.file), *filter(None, [options.baseline])]
            require_another_file(options.output, *read, option="--output")
        scoring = _run(config, options, cache)
        check = _gate_check(options, scoring)
        dataset = open_dataset(options.file, options.columns, limit=options.limit)
        with ExitStack() as stack:
            sinks: list[Callable[[Row], object]] = [] if check is None else [check.add]
            if options.output is not None:
                texts = TEXTS if options.with_texts == "on" else ()
                further = (*texts, *dataset.origin)
                add = writing(options.output, scoring.names, further=further)
                sinks.append(stack.enter_context(add))
            totals = asyncio.run(scoring.score(dataset, *sinks))
    except FailedRowError as error:
        say(f"{error}; {_kept(cache)}")
        return 1
    except KeyboardInterrupt:
        say(f"interrupted; {_kept(cache)}")
        return INTERRUPTED
    is_complete = not (totals.failed or totals.unscored or totals.stopped)
    result = _report(options, totals, check)
    # After the report: if the baseline is refused, the next run need not ask the judge again.
    if cache is not None and options.cache is None and is_complete:
        cache.unlink(missing_ok=True)
    _remark(options.file, totals, cache)
    if not is_complete:
        return 1
    return 0 if result is None or result.passed else _GATE_FAILED


def _list_metrics(options: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for metric in (resolve_metrics([name])[0] for name in metric_names()):
        low, high = scale_of(metric)
        known = f"{low:g} to {high:g}" if math.isfinite(high - low) else ""
        rows.append({"name": metric.name, "needs": sorted(metric.needs), "range": known})
    cells = [(r["name"], ", ".join(r["needs"]), r["range"]) for r in rows]
    print_result(options, rows, aligned([tuple(rows[0]), *cells], left=len(rows[0])))


def _report(
    options: argparse.Namespace, totals: Totals, check: GateCheck | None
) -> GateResult | None:
    """Print ``totals`` and the verdicts of the gate ``check``, and return the verdicts.

    If the gate raises an error, ``totals`` are printed first.
    """
    result = None
    try:
        result = None if check is None else check.result(totals)
    finally:
        gate = {} if result is None else {"gate": result.to_dict()}
        text = repr(totals) if result is None else f"{totals!r}\n\n{result!r}"
        print_result(options, totals.to_dict() | gate, text)
    return result


def _remark(file: str, totals: Totals, cache: Path | None) -> None:
    remarks = [] if totals.rows else [f"{file} has no rows: nothing was scored"]
    if totals.stopped:
        remarks.append(
            f"stopped after {totals.rows} rows ({totals.stopped}); check the judge, its key and its"
            f" address; {_kept(cache)}"
        )
    elif totals.failed:
        remarks.append(f"{totals.failed} rows have errors instead of scores; {_kept(cache)}")
    if totals.unscored:
        reasons = sum((Counter(metric.reasons) for metric in totals.metrics), Counter[str]())
        why = ", ".join(reason for reason, _ in reasons.most_common(2))
        rows = "1 row" if totals.unscored == 1 else f"{totals.unscored} rows"
        remarks.append(
            f"{rows} without a score: no metric can use what the judge says ({why}); {_kept(cache)}"
        )
    for remark in remarks:
        say(remark)


def _kept(cache: Path | None) -> str:
    if cache is None:
        return "nothing was kept: name an --output or a --cache"
    return f"finished scores are kept in {cache}: run the same command again to continue"


def _gate_check(options: argparse.Namespace, scoring: Run) -> GateCheck | None:
    for option, given in (("--fail-under", options.fail_under), ("--no-worse", options.no_worse)):
        if not all(map(names_in, given)):  # a variable that is not set: the gate would always pass
            raise ConfigError(f"{option} is empty: name a metric, as in {option} faithfulness=0.8")
    if not options.no_worse and (options.level is not None or options.versions is not None):
        raise ConfigError("--level and --versions need --no-worse METRIC and --baseline FILE")
    # A metric without a drop gets the drop 0.
    drops = [
        item if "=" in item else f"{item}=0" for text in options.no_worse for item in names_in(text)
    ]
    gate = Gate(
        means=thresholds_of(",".join(options.fail_under), where="--fail-under"),
        pass_rate=options.fail_under_pass_rate,
        no_worse=thresholds_of(",".join(drops), where="--no-worse"),
        baseline=options.baseline,
        versions=options.versions or "same",
        level=LEVEL if options.level is None else options.level,
    )
    if not (gate.means or gate.no_worse) and gate.pass_rate is None:
        return None
    return GateCheck(gate, {each.name: scale_of(each) for each in scoring.measurement.metrics})


def _run(config: Config, options: argparse.Namespace, cache: Path | None) -> Run:
    budget = Budget(requests=options.max_requests, tokens=options.max_tokens)
    return Run(
        measurement=measurement_for(config, repairs=options.repairs, budget=budget.counted()),
        concurrency=config.concurrency,
        raise_on_failure=options.raise_on_failure,
        progress=options.progress,
        cache=cache,
    )

"""Score the rows of a file."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rag_eval_otel.arguments import add_scoring_options, count_up_to, scoring_config
from rag_eval_otel.capture.otlp_files import read_messages
from rag_eval_otel.config import Config, thresholds_of
from rag_eval_otel.environment import names_in, sdk_disabled
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.evaluation import measurement_of
from rag_eval_otel.judge.models import build_embedder, build_plain_judge
from rag_eval_otel.metrics import metric_names, resolve_metrics, scale_of, with_thresholds
from rag_eval_otel.tools.cli.options import AS_JSON, Options, add_all, require_another_file
from rag_eval_otel.tools.collect import Collected, Selection, collect
from rag_eval_otel.tools.dataset import Budget, Run
from rag_eval_otel.tools.export import Exported, Targets, export
from rag_eval_otel.tools.files import check_output, write_whole, writing_samples
from rag_eval_otel.tools.gate import LEVEL, Gate, GateCheck, GateResult, junit
from rag_eval_otel.tools.read import Dataset, open_dataset
from rag_eval_otel.tools.stats import Totals, aligned
from rag_eval_otel.untrusted import redactor, visible


def _pairs(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(column for _, _, column in pairs):
        msg = f"must be FIELD=COLUMN,..., not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return {field: column for field, _, column in pairs}


_MANY: Mapping[str, Any] = {"action": "append", "default": []}
_OPTIONS: Options = {
    "--repairs N": (
        "repeat a request at most N times if its reply is not usable (default: 1)",
        {"type": count_up_to(), "default": 1},
    ),
    "--columns FIELD=COLUMN,...": (
        "columns with other names: question=prompt,answer=output",
        {"type": _pairs},
    ),
    "--traces": (
        "FILE has traces as the file exporter of a collector writes them (OTLP), not rows",
        {"action": "store_true"},
    ),
    "--limit N": ("evaluate the first N rows only", {"type": count_up_to()}),
    "--output FILE": ("write the scores of each row: .jsonl, .csv or .parquet", {"type": Path}),
    "--with-texts": (
        "write question, contexts, answer and reference to OUTPUT, too (default: on)",
        {"choices": ("on", "off"), "default": "on"},
    ),
    "--otlp": (
        "send a trace for each row to OTEL_EXPORTER_OTLP_ENDPOINT",
        {"action": "store_const", "const": "on", "default": "off"},
    ),
    "--backend NAMES": (
        (
            "send each score to phoenix, mlflow, langsmith, langfuse or opik as its own object"
            " (default: RAG_EVAL_BACKENDS, if each row has a span)"
        ),
        {"type": names_in},
    ),
    "--cache FILE": (
        "cache of scores (default: OUTPUT.cache, deleted when all rows are scored)",
        {"type": Path},
    ),
    "--max-requests N": ("send at most N judge requests", {"type": count_up_to()}),
    "--max-tokens N": ("send no judge request after N tokens", {"type": count_up_to()}),
    "--progress": (
        "the number of rows done, on stderr (default: auto, on a terminal)",
        {"choices": ("auto", "on", "off"), "default": "auto"},
    ),
    "--raise-on-failure": (
        "stop at the first row with an error instead of a score",
        {"action": "store_true"},
    ),
    "--fail-under METRIC=MEAN": (
        "exit with 3 if the mean of a metric is lower; may be given several times",
        _MANY,
    ),
    "--fail-under-pass-rate SHARE": (
        "exit with 3 if a smaller share of rows has the label pass",
        {"type": float},
    ),
    "--baseline FILE": (
        "scores of an earlier run over the same questions, for --no-worse",
        {"type": Path},
    ),
    "--no-worse METRIC[=DROP]": (
        (
            "exit with 3 if a metric is lower than in the baseline, by more than DROP and more"
            " than chance; may be given several times"
        ),
        _MANY,
    ),
    "--level SHARE": (
        f"share of unchanged runs that fail --no-worse by chance (default: {LEVEL})",
        {"type": float},
    ),
    "--versions": (
        "any: compare also with a baseline of another judge, metric or prompt",
        {"choices": ("same", "any")},
    ),
    "--junit FILE": ("write the gate's result as JUnit XML", {"type": Path}),
}


DESCRIPTION = """\
Scores every row of FILE (.jsonl, .csv or .parquet) and prints a summary. Columns of ragas,
LlamaIndex and Haystack are recognised. Memory grows by 8 bytes a score.

Scores are cached on disk as each row ends. After an interrupt or a kill, run the same command
again: it asks only for scores that are missing, and writes the complete output.

Exit status: 0 every row was scored, and the gate passed; 1 a row has an error instead of a score,
a trace or a score could not be sent, or no metric could use the judge's replies on a row; 2 misuse;
3 the gate failed: a condition is not met; 130 interrupted.
"""
_GATE_FAILED = 3
_INTERRUPTED = 130  # the exit status of shells after an interrupt


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help=".jsonl, .csv or .parquet, or see --traces"
    )
    parser.add_argument(
        "--list-metrics",
        action="store_true",
        help="list the metrics, also of installed packages: name, needs, range",
    )
    add_scoring_options(parser)
    add_all(parser, _OPTIONS)
    parser.add_argument("--json", **AS_JSON)


def run(options: argparse.Namespace) -> int:
    """Score the rows of the file, print a summary, and return the exit status.

    The status is 0 after success, 130 after an interrupt, 1 if scores are missing or traces could
    not be sent, and 3 if all scores are there and a condition of the gate is not met.
    """
    if options.list_metrics:
        sys.stdout.write(f"{_metrics(options.form)}\n")
        return 0
    if options.file is None:
        msg = "name the FILE to evaluate, or --list-metrics"
        raise ConfigError(msg)
    cache = _cache(options)
    try:
        config = scoring_config(options)
        _check_paths(options)
        scoring = _run(config, options, cache)
        check = _gate_check(options, scoring)
        exported = _export(config, options, scoring, check=check)
    except FailedRowError as error:
        sys.stderr.write(f"rag-eval-otel: {visible(str(error))}\n{_kept(cache)}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"\nrag-eval-otel: interrupted; {_kept(cache)}\n")
        return _INTERRUPTED
    totals = exported.totals
    is_complete = not (totals.failed or totals.unscored or totals.stopped)
    result = _report(options, exported.totals, check)
    # After the report: if the baseline is refused, the next run need not ask the judge again.
    if cache is not None and options.cache is None and is_complete:
        cache.unlink(missing_ok=True)
    _remark(options.file, exported, cache)
    if not is_complete or exported.unsent or exported.undelivered:
        return 1
    return 0 if result is None or result.passed else _GATE_FAILED


def _metrics(form: str) -> str:
    """Return the metrics by name, with the fields of a sample that each needs, as text or JSON."""
    rows: list[dict[str, Any]] = []
    for name in metric_names():
        (metric,) = resolve_metrics([name])
        low, high = scale_of(metric)
        rows.append(
            {
                "name": metric.name,
                "needs": sorted(metric.needs),
                "range": f"{low:g} to {high:g}" if math.isfinite(high - low) else "",
            }
        )
    if form == "json":
        return json.dumps(rows, indent=2, ensure_ascii=False)
    cells = [(r["name"], ", ".join(r["needs"]), r["range"]) for r in rows]
    return aligned([tuple(rows[0]), *cells], left=len(rows[0]))


def _report(
    options: argparse.Namespace, totals: Totals, check: GateCheck | None
) -> GateResult | None:
    """Print the summary ``totals`` and the result of the gate, and write the gate's JUnit file.

    If the gate's baseline cannot be compared, the summary is printed before the error is raised.
    """
    try:
        result = None if check is None else check.result(totals)
    except ConfigError:
        sys.stdout.write(f"{_shown(totals, None, options.form)}\n")
        raise
    sys.stdout.write(f"{_shown(totals, result, options.form)}\n")
    if result is not None and options.junit is not None:
        write_whole(options.junit, junit(result, totals), option="--junit")
    return result


def _remark(file: str, exported: Exported, cache: Path | None) -> None:
    """Write to stderr what is missing: rows, traces and scores."""
    totals = exported.totals
    remarks = [
        *([f"{file} has no rows: nothing was scored"] if not totals.rows else []),
        *([f"{exported.unsent} traces could not be sent"] if exported.unsent else []),
        *(
            f"{backend} did not get {number} scores ({reason}); docs/backends.md"
            for (backend, reason), number in exported.undelivered.items()
        ),
    ]
    if totals.stopped:
        stopped = visible(f"stopped after {totals.rows} rows ({totals.stopped})")
        remarks.append(f"{stopped}; check the judge, its key and its address; {_kept(cache)}")
    elif totals.failed:
        remarks.append(f"{totals.failed} rows have errors instead of scores; {_kept(cache)}")
    if totals.unscored:
        reasons = sum((Counter(metric.reasons) for metric in totals.metrics), Counter[str]())
        why = ", ".join(reason for reason, _ in reasons.most_common(2))
        rows = "1 row" if totals.unscored == 1 else f"{totals.unscored} rows"
        remarks.append(
            f"{rows} without a score: no metric can use what the judge says ({why}); {_kept(cache)}"
        )
    sys.stderr.writelines(f"rag-eval-otel: {remark}\n" for remark in remarks)


def _shown(totals: Totals, result: GateResult | None, form: str) -> str:
    """Return the summary ``totals`` and the ``result`` of the gate as text or JSON."""
    if form == "json":
        gate = {} if result is None else {"gate": result.to_dict()}
        return json.dumps(totals.to_dict() | gate, indent=2)
    return repr(totals) if result is None else f"{totals!r}\n\n{result!r}"


def _cache(options: argparse.Namespace) -> Path | None:
    """Return the path of the score cache, if any: ``--cache``, or else beside the output file."""
    cache: Path | None = options.cache
    output: Path | None = options.output
    return cache if cache or not output else output.with_name(f"{output.name}.cache")


def _kept(cache: Path | None) -> str:
    if cache is None:
        return "nothing was kept: name an --output or a --cache"
    return f"finished scores are kept in {cache}: run the same command again to continue"


def _check_paths(options: argparse.Namespace) -> None:
    """Raise `ConfigError` if a file cannot be written, or would replace one that is read."""
    read = [Path(options.file), *([options.baseline] if options.baseline else [])]
    if options.output is not None:
        check_output(options.output)
        require_another_file(options.output, *read, option="--output")
    if (path := options.junit) is not None:
        require_another_file(path, *read, option="--junit")
        is_output = options.output is not None and options.output.resolve() == path.resolve()
        if is_output or path.is_dir() or not path.absolute().parent.is_dir():
            msg = f"--junit {path} cannot be written: name another file in a folder that exists"
            raise ConfigError(msg)


def _export(
    config: Config, options: argparse.Namespace, scoring: Run, *, check: GateCheck | None
) -> Exported:
    with _rows(options) as file:
        dataset = open_dataset(file, options.columns, limit=options.limit)
        targets = Targets(
            check=check,
            output=options.output,
            texts=options.with_texts,
            otlp=options.otlp,
            explanations=config.explanations,
            score_events=config.score_events,
            backends=_backends(config, options, dataset),
        )
        return asyncio.run(export(dataset, scoring, targets))


def _backends(config: Config, options: argparse.Namespace, dataset: Dataset) -> Sequence[str]:
    """Return the backends of ``--backend``; without this option, the configured backends.

    Configured backends are for live scoring, too. So a dataset without spans is no error, and
    stderr says that they get no scores.
    """
    if options.backend is not None:
        given: Sequence[str] = options.backend
        return given
    if not config.backends or sdk_disabled():
        return ()
    if options.otlp == "off" and dataset.spanless is not None:
        sys.stderr.write(
            f"rag-eval-otel: {', '.join(config.backends)} (RAG_EVAL_BACKENDS) gets no scores,"
            f" because row {dataset.spanless} names no span; --otlp sends a span for each row\n"
        )
        return ()
    return config.backends


@contextmanager
def _rows(options: argparse.Namespace) -> Iterator[str]:
    """Return the file with the rows: FILE itself, or a temporary file with the turns in traces."""
    if not options.traces:
        yield options.file
        return
    counts = Collected()
    with TemporaryDirectory() as folder:
        rows = Path(folder) / f"{Path(options.file).name}.jsonl"
        selection = Selection.of_config(Config.from_env())
        with writing_samples(rows) as write:
            for turn in collect(read_messages(Path(options.file)), selection, counts):
                write(turn.to_dict())
        sys.stderr.write(f"rag-eval-otel: {options.file}: {counts}\n")
        yield str(rows)


def _gate_check(options: argparse.Namespace, scoring: Run) -> GateCheck | None:
    """Return the check of the conditions in ``options``; None if there is no condition."""
    _require_conditions(options)
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
    if gate.has_conditions:
        ranges = {metric.name: scale_of(metric) for metric in scoring.measurement.metrics}
        return GateCheck(gate, ranges)
    if options.junit is not None:
        msg = "--junit needs a condition: --fail-under, --fail-under-pass-rate or --no-worse"
        raise ConfigError(msg)
    return None


def _require_conditions(options: argparse.Namespace) -> None:
    """Raise `ConfigError` for an empty condition, and for options without their condition.

    A condition is empty if it is a variable that is not set. Then the gate would always pass.
    """
    for option, given in (("--fail-under", options.fail_under), ("--no-worse", options.no_worse)):
        if not all(map(names_in, given)):
            msg = f"{option} is empty: name a metric, as in {option} faithfulness=0.8"
            raise ConfigError(msg)
    if (options.baseline is None) != (not options.no_worse):
        msg = "--baseline FILE and --no-worse METRIC need each other"
        raise ConfigError(msg)
    if not options.no_worse and (options.level is not None or options.versions is not None):
        msg = "--level and --versions need --no-worse METRIC and --baseline FILE"
        raise ConfigError(msg)


def _run(config: Config, options: argparse.Namespace, cache: Path | None) -> Run:
    metrics = with_thresholds(resolve_metrics(config.metrics), config.passing_scores)
    budget = Budget(requests=options.max_requests, tokens=options.max_tokens)
    measurement = measurement_of(
        metrics,
        judge=build_plain_judge(config),  # a circuit breaker would fail all rows during an outage
        embedder=build_embedder(config),
        label_metrics=config.label_metrics,
        repairs=options.repairs,
        timeout=config.evaluation_timeout,
        prompts=config.prompts,
        explanations=config.explanations,
        prices=config.prices,
        max_text_chars=config.max_text_chars,
    )
    measurement = replace(measurement, redactor=redactor(config.redact), budget=budget.counted())
    return Run(
        measurement=measurement,
        concurrency=config.concurrency,
        raise_on_failure=options.raise_on_failure,
        progress=options.progress,
        cache=cache,
    )

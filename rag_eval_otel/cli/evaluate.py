"""Run ``rag-eval-otel evaluate``: score the rows of a file."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_eval_otel.cli.options import AS_JSON, THRESHOLDS, chosen_thresholds, names
from rag_eval_otel.config import Config
from rag_eval_otel.dataset.export import Exported, Targets, export
from rag_eval_otel.dataset.read import open_dataset
from rag_eval_otel.dataset.run import Budget, Plan
from rag_eval_otel.dataset.summary import Totals
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.evaluation import chosen_labelling
from rag_eval_otel.judge.models import (
    build_embedder,
    build_plain_judge,
    chosen_prices,
    chosen_prompts,
)
from rag_eval_otel.metrics import resolve_metrics, with_thresholds
from rag_eval_otel.redaction import redactor
from rag_eval_otel.results.files import check_output
from rag_eval_otel.untrusted import visible


def _pairs(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(column for _, _, column in pairs):
        msg = f"must be FIELD=COLUMN,..., not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return {field: column for field, _, column in pairs}


def _count(text: str) -> int:
    if not text.isdecimal():
        msg = f"must be a whole number, 0 or more, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--metrics": {"type": names, "help": "metrics or sets of them, by comma (default: default)"},
    **THRESHOLDS,
    "--judge": {
        "metavar": "lexical|PROVIDER/MODEL",
        "help": "the judge (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
    },
    "--embedder": {
        "metavar": "hashing|PROVIDER/MODEL",
        "help": "the embedder (default: RAG_EVAL_EMBEDDER, else that of the judge's provider)",
    },
    "--judge-base-url": {"metavar": "URL", "help": "address of the judge's server"},
    "--prompts": {"metavar": "FOLDER", "help": "prompt files that replace the built-in ones"},
    "--fusion": {
        "choices": ("on", "off"),
        "help": "questions of one row may share a judge request (default: on)",
    },
    "--explanations": {
        "choices": ("on", "off"),
        "help": "ask the judge for reasons, which cost most of its tokens (default: off)",
    },
    "--prices": {
        "metavar": "FILE",
        "help": "prices of judge tokens, JSON (default: RAG_EVAL_PRICES, else list prices)",
    },
    "--max-text-chars": {
        "type": _count,
        "metavar": "N",
        "help": "cut each text after N characters, and all of a row after 4 N (default: 100000)",
    },
    "--repairs": {
        "type": _count,
        "default": 1,
        "metavar": "N",
        "help": "repeat a request at most N times if its reply is not usable (default: 1)",
    },
    "--concurrency": {"type": _count, "metavar": "N", "help": "rows at once (default: 16)"},
    "--timeout": {
        "type": float,
        "dest": "evaluation_timeout",
        "metavar": "SECONDS",
        "help": "time limit of a row (default: 60)",
    },
    "--columns": {
        "type": _pairs,
        "metavar": "FIELD=COLUMN,...",
        "help": "columns with other names: question=prompt,answer=output",
    },
    "--limit": {"type": _count, "metavar": "N", "help": "evaluate the first N rows only"},
    "--output": {
        "type": Path,
        "metavar": "FILE",
        "help": "write the scores of each row: .jsonl, .csv or .parquet",
    },
    "--otlp": {
        "action": "store_const",
        "const": "on",
        "default": "off",
        "help": "send a trace for each row to OTEL_EXPORTER_OTLP_ENDPOINT",
    },
    "--cache": {
        "type": Path,
        "metavar": "FILE",
        "help": "cache of scores (default: OUTPUT.cache, deleted when all rows are scored)",
    },
    "--max-requests": {"type": _count, "metavar": "N", "help": "send at most N judge requests"},
    "--max-tokens": {
        "type": _count,
        "metavar": "N",
        "help": "send no judge request after N tokens",
    },
    "--progress": {
        "choices": ("auto", "on", "off"),
        "default": "auto",
        "help": "a bar on stderr; needs tqdm (default: auto, on a terminal)",
    },
    "--raise-on-failure": {
        "action": "store_true",
        "help": "stop at the first row with a failed score",
    },
    "--json": AS_JSON,
}
"""The keyword arguments of ``add_argument`` for each option of the command."""


DESCRIPTION = """\
Scores every row of FILE (.jsonl, .csv or .parquet) and prints a summary. Columns of ragas,
LlamaIndex and Haystack are recognised. Memory does not grow with FILE.

Scores are cached on disk as each row ends. After an interrupt or a kill, run the same command
again: it asks for missing and failed scores only, and writes the complete output.

Exit status: 0 every row was scored; 1 a score or trace failed, or no metric could use the judge's
replies on a row; 2 misuse; 130 interrupted.
"""
_INTERRUPTED = 130  # the exit status of shells after an interrupt


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=".jsonl, .csv or .parquet")
    for name, arguments in OPTIONS.items():
        parser.add_argument(name, **arguments)


def run(options: argparse.Namespace) -> int:
    """Score the rows of the file, print a summary, and return the exit status.

    The status is 0 after success, 130 after an interrupt, and 1 if scores are missing or traces
    could not be sent.
    """
    cache = _cache(options)
    try:
        config = _config(options)
        exported = _export(options, cache, config=config)
    except FailedRowError as error:
        sys.stderr.write(f"rag-eval-otel: {visible(str(error))}\n{_kept(cache)}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"\nrag-eval-otel: interrupted; {_kept(cache)}\n")
        return _INTERRUPTED
    totals = exported.totals
    sys.stdout.write(f"{_shown(totals, options.form)}\n")
    if not totals.rows:
        sys.stderr.write(f"rag-eval-otel: {options.file} has no rows: nothing was scored\n")
    if exported.unsent:
        sys.stderr.write(f"rag-eval-otel: {exported.unsent} traces could not be sent\n")
    if totals.failed:
        sys.stderr.write(
            f"rag-eval-otel: {totals.failed} rows have failed scores; {_kept(cache)}\n"
        )
    if totals.unscored:
        sys.stderr.write(f"rag-eval-otel: {_unscored(totals)}; {_kept(cache)}\n")
    if cache is not None and options.cache is None and not (totals.failed or totals.unscored):
        cache.unlink(missing_ok=True)
    return 1 if totals.failed or totals.unscored or exported.unsent else 0


def _unscored(totals: Totals) -> str:
    """Return a message that counts the rows without scores, and gives the reasons."""
    reasons: Counter[str] = Counter()
    for metric in totals.metrics:
        reasons.update(metric.reasons)
    rows = "1 row" if totals.unscored == 1 else f"{totals.unscored} rows"
    why = ", ".join(reason for reason, _ in reasons.most_common(2))
    return f"{rows} without a score: no metric can use what the judge says ({why})"


def _config(options: argparse.Namespace) -> Config:
    given = {name: getattr(options, name) for name in _OF_CONFIG}
    given["thresholds"] = chosen_thresholds(options)
    return Config.from_env(**{name: value for name, value in given.items() if value is not None})


def _shown(totals: Totals, form: str) -> str:
    """Return the summary ``totals`` as text or JSON."""
    return json.dumps(totals.to_dict(), indent=2) if form == "json" else repr(totals)


def _cache(options: argparse.Namespace) -> Path | None:
    """Return the path of the score cache: ``--cache``, or else a path beside the output file.

    If neither option is given, return None.
    """
    if options.cache is not None or options.output is None:
        given: Path | None = options.cache
        return given
    output: Path = options.output
    return output.with_name(f"{output.name}.cache")


def _kept(cache: Path | None) -> str:
    if cache is None:
        return "nothing was kept: name an --output or a --cache"
    return f"finished scores are kept in {cache}: run the same command again to continue"


def _export(options: argparse.Namespace, cache: Path | None, *, config: Config) -> Exported:
    if options.output is not None:
        check_output(options.output)
        _require_another_file(options.output, Path(options.file))
    plan = _plan(config, options, cache)
    dataset = open_dataset(options.file, options.columns, limit=options.limit)
    return asyncio.run(export(dataset, plan, _targets(config, options)))


_OF_CONFIG = (
    "metrics",
    "label_metrics",
    "judge",
    "embedder",
    "judge_base_url",
    "prompts",
    "fusion",
    "concurrency",
    "evaluation_timeout",
    "explanations",
    "prices",
    "max_text_chars",
)


def _require_another_file(output: Path, file: Path) -> None:
    if output.resolve() == file.resolve():
        msg = f"--output {output} is the file that is read; name another"
        raise ConfigError(msg)


def _plan(config: Config, options: argparse.Namespace, cache: Path | None) -> Plan:
    metrics = with_thresholds(resolve_metrics(config.metrics), config.passing_scores)
    return Plan(
        metrics=metrics,
        label_metrics=chosen_labelling(metrics, config.label_metrics),
        judge=build_plain_judge(config),  # a circuit breaker would fail all rows during an outage
        embedder=build_embedder(config),
        fusion=config.fusion,
        repairs=options.repairs,
        concurrency=config.concurrency,
        timeout=config.evaluation_timeout,
        raise_on_failure=options.raise_on_failure,
        cache=cache,
        budget=Budget(requests=options.max_requests, tokens=options.max_tokens),
        redactor=redactor(config.redact),
        prompts=chosen_prompts(config.prompts),
        explanations=config.explanations,
        prices=chosen_prices(config.prices),
        max_text_chars=config.max_text_chars,
    )


def _targets(config: Config, options: argparse.Namespace) -> Targets:
    return Targets(
        output=options.output,
        otlp=options.otlp,
        explanations=config.explanations,
        progress=options.progress,
    )

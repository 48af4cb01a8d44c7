"""Run a small offline RAG app, and show its traces with their scores."""

from __future__ import annotations

import argparse
import sys

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli.options import AS_JSON

DESCRIPTION = """\
Runs a LangChain RAG app over a small handbook with the callback installed, prints its traces, and
exports them to OTEL_EXPORTER_OTLP_ENDPOINT as well if that is set. Needs no key and no network.

With --minutes it plays traffic for dashboards and alerts instead: healthy answers, a deployment
with wrong answers, a judge outage, and recovery. docs/collector.md has the rules for a look:

  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 rag-eval-otel demo --minutes 10 --rate 2
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--judge",
        metavar="lexical|PROVIDER/MODEL",
        help="the judge (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
    )
    parser.add_argument("--json", **AS_JSON)
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="play traffic for M minutes, to a backend"
    )
    parser.add_argument(
        "--rate", type=float, metavar="N", help="with --minutes: questions a second (default: 2)"
    )


def run(options: argparse.Namespace) -> int:
    if options.minutes is not None:
        from rag_eval_otel.tools.demo import run_traffic  # noqa: PLC0415  # imports LangChain

        if options.judge or options.form != "text":
            msg = "--minutes plays traffic with its own judge: leave out --judge and --json"
            raise ConfigError(msg)
        rate = 2.0 if options.rate is None else options.rate
        return run_traffic(minutes=options.minutes, rate=rate, write=_write)
    if options.rate is not None:
        msg = "--rate is for traffic: add --minutes"
        raise ConfigError(msg)
    from rag_eval_otel.tools.demo import run_demo  # noqa: PLC0415  # imports LangChain

    chosen = {"judge": options.judge} if options.judge else {}
    return run_demo(form=options.form, options=chosen, write=sys.stdout.write)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

"""Run a small offline RAG app, and show its traces with their scores."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from rag_eval_otel.tools.cli.options import AS_JSON, Options, add_all

DESCRIPTION = """\
Runs a LangChain RAG app over a small handbook with the callback installed, prints its traces, and
exports them to OTEL_EXPORTER_OTLP_ENDPOINT as well if that is set. Needs no key and no network.
"""
_OPTIONS: Options = {
    "--judge lexical|PROVIDER/MODEL": (
        "the judge (default: RAG_EVAL_JUDGE, else lexical, which is offline)",
        {},
    ),
    **AS_JSON,
}
add_options = partial(add_all, options=_OPTIONS)


def run(options: argparse.Namespace) -> int:
    from rag_eval_otel.tools.demo import run_demo  # noqa: PLC0415  # imports LangChain

    chosen = {"judge": options.judge} if options.judge else {}
    return run_demo(form=options.form, options=chosen, write=sys.stdout.write)

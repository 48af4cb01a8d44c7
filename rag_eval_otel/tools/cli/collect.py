"""Write the samples in recorded traces to a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rag_eval_otel.config import Config
from rag_eval_otel.environment import switch
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli.options import (
    Options,
    add_all,
    check_period,
    moment_of,
    require_another_file,
)
from rag_eval_otel.tools.collect import Collected, Selection, collect, phoenix_messages
from rag_eval_otel.tools.files import check_output, writing_samples
from rag_eval_otel.tools.otlp import Message, messages_in

DESCRIPTION = """\
Reads the traces in FILE... and writes question, contexts and answer of each RAG turn to OUTPUT, as
`rag-eval-otel evaluate OUTPUT` reads them. FILE is what the file exporter of an OpenTelemetry
Collector wrote: OTLP JSON of spans and log records, also compressed by gzip. The spans of a trace
may be in several files. With --phoenix, the spans of a project in Phoenix are read.
Turns are read by the code that reads live traces; a turn that cannot be reconstructed with
certainty is skipped and counted with its reason.

Exit status: 0 written, 1 no sample was found, 2 misuse.
"""


_OPTIONS: Options = {
    "files FILE": ("traces of a collector's file exporter", {"type": Path, "nargs": "*"}),
    "--phoenix PROJECT": ("read a project in Phoenix (PHOENIX_ENDPOINT, PHOENIX_API_KEY)", {}),
    "--since TIME": ("of Phoenix, spans from this time on: 2026-11-22T09:00Z", {"type": moment_of}),
    "--until TIME": ("of Phoenix, only spans that started before this time", {"type": moment_of}),
    "-o --output OUTPUT": (".jsonl", {"type": Path, "required": True}),
    "--failed": (
        "only turns whose span has the label fail (rag.evaluation.label)",
        {"action": "store_const", "const": "fail", "default": "any", "dest": "label"},
    ),
    "--share SHARE": ("a random share of the traces (default: 1)", {"type": float, "default": 1.0}),
    "--seed N": ("draw other traces (default: 0)", {"type": int, "default": 0}),
    "--contexts-from-prompt on|off": (
        "read contexts in prompts, if a trace has no retrieval (default: off)",
        {"type": switch},
    ),
    "--value-limit N": (
        "length to which the application cut texts (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)",
        {"type": int},
    ),
}
add_options = partial(add_all, options=_OPTIONS)


def run(options: argparse.Namespace) -> int:
    check_output(options.output)
    if options.output.suffix.lower() not in {".jsonl", ".ndjson"}:
        raise ConfigError(f"{options.output}: samples have lists of contexts; use .jsonl")
    require_another_file(options.output, *options.files, option="--output")
    _check_sources(options)
    prompts = options.contexts_from_prompt
    config = Config.from_env(**({} if prompts is None else {"contexts_from_prompt": prompts}))
    selection = Selection(
        contexts_from_prompt=config.contexts_from_prompt,
        max_text_chars=config.max_text_chars,
        share=options.share,
        seed=options.seed,
        label=options.label,
        value_limit=options.value_limit,
    )
    counts = Collected()
    with writing_samples(options.output) as write:
        for turn in collect(_messages(options), selection, counts):
            write(turn.to_dict())
    sys.stderr.write(f"rag-eval-otel: {options.output}: {counts}\n")
    if not counts.samples:
        sys.stderr.write(
            "rag-eval-otel: no sample was found; spans have texts only if the instrumentation"
            " captures content (docs/doctor.md says what the reasons mean)\n"
        )
    return 0 if counts.samples else 1


def _check_sources(options: argparse.Namespace) -> None:
    msg = ""
    if not options.files and options.phoenix is None:
        msg = "name a FILE or a backend: rag-eval-otel collect FILE, or --phoenix PROJECT"
    elif (options.since or options.until) and options.phoenix is None:
        msg = "--since and --until are for a backend: all traces of a FILE are read"
    elif options.value_limit is not None and options.value_limit < 1:
        msg = f"--value-limit must be 1 or more, not {options.value_limit}"
    if msg:
        raise ConfigError(msg)
    check_period(options)


def _messages(options: argparse.Namespace) -> Iterator[Message]:
    yield from messages_in(options.files)
    if options.phoenix is not None:
        yield from phoenix_messages(options.phoenix, since=options.since, until=options.until)

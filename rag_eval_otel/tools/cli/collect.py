"""Write the samples in recorded traces to a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rag_eval_otel.config import Config
from rag_eval_otel.environment import switch
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli.options import (
    PERIOD,
    Options,
    add_all,
    check_period,
    require_another_file,
    say,
)
from rag_eval_otel.tools.collect import Collected, Selection, collect
from rag_eval_otel.tools.files import check_output, writing_samples
from rag_eval_otel.tools.otlp import Message, read_messages
from rag_eval_otel.tools.sources import names_source, open_source

DESCRIPTION = """\
Reads the traces in SOURCE... and writes question, contexts and answer of each RAG turn to OUTPUT,
as `rag-eval-otel evaluate OUTPUT` reads them. SOURCE is what the file exporter of an OpenTelemetry
Collector wrote (OTLP JSON of spans and log records, also compressed by gzip; the spans of a trace
may be in several files), or phoenix:PROJECT, mlflow:EXPERIMENT or langfuse, as for `backfill`.
Turns are read by the code that reads live traces; a turn that cannot be reconstructed with
certainty is skipped and counted with its reason.

Exit status: 0 written, 1 no sample was found, 2 misuse.
"""


_OPTIONS: Options = {
    "sources SOURCE": ("files, or a backend", {"nargs": "+"}),
    **PERIOD,
    "-o --output OUTPUT": (".jsonl", {"type": Path, "required": True}),
    "--failed": (
        "only turns whose span has the label fail (rag.evaluation.label)",
        {"action": "store_const", "const": "fail", "default": "any", "dest": "label"},
    ),
    "--share SHARE": ("a random share of the traces (default: 1)", {"type": float, "default": 1.0}),
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
    require_another_file(options.output, *map(Path, options.sources), option="--output")
    check_period(options)
    if options.value_limit is not None and options.value_limit < 1:
        raise ConfigError(f"--value-limit must be 1 or more, not {options.value_limit}")
    prompts = options.contexts_from_prompt
    config = Config.from_env(**({} if prompts is None else {"contexts_from_prompt": prompts}))
    selection = Selection(
        contexts_from_prompt=config.contexts_from_prompt,
        max_text_chars=config.max_text_chars,
        share=options.share,
        since=options.since,
        until=options.until,
        label=options.label,
        value_limit=options.value_limit,
    )
    counts = Collected()
    with writing_samples(options.output) as write:
        for turn in collect(_messages(options), selection, counts):
            write(turn.to_dict())
    say(f"{options.output}: {counts}")
    if not counts.samples:
        say(
            "no sample was found; spans have texts only if the instrumentation captures content"
            " (docs/doctor.md says what the reasons mean)"
        )
    return 0 if counts.samples else 1


def _messages(options: argparse.Namespace) -> Iterator[Message]:
    for source in options.sources:
        if names_source(source):
            yield from open_source(source, options.since, options.until).messages()
        else:
            yield from read_messages(Path(source))

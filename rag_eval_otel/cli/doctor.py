"""Run ``rag-eval-otel doctor``: check the settings or a program's run, and print advice."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rag_eval_otel.cli.options import AS_JSON
from rag_eval_otel.doctor.report import as_data, as_text, diagnose, run_program
from rag_eval_otel.errors import ConfigError

DESCRIPTION = """\
Prints the installed versions, checks whether judge, embedder and OTLP endpoints answer, and says
what to do about each problem. With a COMMAND it runs the command and reports what the pipelines in
it have captured, scored and skipped, and why:

  rag-eval-otel doctor -- python app.py --its-own options

The program keeps its input and output. The report follows on stderr; without a COMMAND, and as
JSON, it goes to stdout.

Exit status: 0 no problem, 1 problems, 2 misuse, 3 the program itself failed.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "rag-eval-otel doctor [-h] [--json] [--output FILE] [--timeout SECONDS] [-- COMMAND]"
    )
    parser.add_argument("--json", **AS_JSON)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report to FILE")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="time limit for judge, embedder and each endpoint (default: 10)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:  # noqa: PLR2004  # an hour
        msg = f"must be more than 0 and at most 3600, not {text}"
        raise argparse.ArgumentTypeError(msg)
    return value


def run(options: argparse.Namespace) -> int:
    command = _command(options.command)
    _check_output(options.output)
    program = run_program(command) if command else None
    diagnosis = diagnose(program, timeout=options.timeout)
    if options.form == "json":
        report = json.dumps(as_data(diagnosis), indent=2, ensure_ascii=False) + "\n"
    else:
        report = as_text(diagnosis)
    if options.output is not None:
        options.output.write_text(report, encoding="utf-8")
    else:
        stream = sys.stderr if command and options.form == "text" else sys.stdout
        stream.write(report)
    return diagnosis.status


def _command(given: Sequence[str]) -> Sequence[str]:
    """Return the command of the user's program: ``given`` without a leading ``--``.

    If nothing follows the ``--``, raise `ConfigError`.
    """
    command = given[1:] if given[:1] == ["--"] else given
    if given and not command:
        msg = "there is no command after --; try: doctor -- python app.py"
        raise ConfigError(msg)
    return command


def _check_output(output: Path | None) -> None:
    """Raise `ConfigError` if the report cannot be written to ``output``.

    This is checked before the user's program runs.
    """
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        msg = f"--output {output}: there is no such folder, or it is one"
        raise ConfigError(msg)

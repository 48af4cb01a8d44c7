"""OTLP files: spans and their parents, and memory for files that are larger than they look."""

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from processes import ran
from rag_eval_otel.capture.span import Span
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.otlp import parts_of, read_messages, spans_of

MOST_MB = 400

RUN = """
import contextlib, io, json, sys
from rag_eval_otel.tools.cli import main

for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(err):
        status = main(command)
    with open("/proc/self/status") as file:  # getrusage counts the memory of the parent, too
        peak = next(int(row.split()[1]) // 1024 for row in file if row.startswith("VmHWM"))
    print(json.dumps({"status": status, "told": err.getvalue(), "peak": peak}), flush=True)
"""


def collected(*files: Path) -> list[dict[str, Any]]:
    """Return exit status, output and memory of `collect` for each file, all in one new process."""
    commands = [["collect", str(file), "-o", str(file.with_suffix(".jsonl"))] for file in files]
    done = ran(f"import sys; sys.argv.append({json.dumps(commands)!r})\n{RUN}")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


FILES: Mapping[str, Callable[[], bytes]] = {
    "text": lambda: b'{"resourceSpans":[{"a":"' + b"a" * 2**27 + b'"}]}\n',
    "spaces": lambda: b"{" + b" " * 2**27 + b"}\n",
    "second line": lambda: b'{"resourceSpans":[]}\n' + b" " * 2**27,
    "empty objects": lambda: b'{"resourceSpans":[' + b"{}," * 2**23 + b"{}]}\n",
}


@pytest.mark.slow
def test_a_small_file_does_not_take_all_memory(tmp_path: Path) -> None:
    """What would be too large when it is parsed is refused, and the message says a way out."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(gzip.compress(content(), compresslevel=1))
    found = collected(*(tmp_path / name for name in FILES))
    for name, one in zip(FILES, found, strict=True):
        assert (one["status"], name) == (2, name)
        assert "has more than 64 MiB or 2,097,152 values, which is too much" in one["told"]
        assert one["peak"] < MOST_MB, name


def spans(trace: int, *, many: int, text: str = "") -> bytes:
    found = [
        {
            "traceId": f"{trace:032x}",
            "spanId": f"{number:016x}",
            "attributes": [{"key": "text", "value": {"stringValue": text}}],
        }
        for number in range(1, many + 1)
    ]
    message = {"resourceSpans": [{"scopeSpans": [{"spans": found}]}]}
    return json.dumps(message).encode() + b"\n"


@pytest.mark.slow
def test_a_large_trace_is_skipped(tmp_path: Path) -> None:
    """One with more than 64 MiB, of which no span is read."""
    with gzip.open(tmp_path / "trace.json", "wb", compresslevel=1) as file:
        for start in range(70):
            line = spans(1, many=100, text="a" * 10_000)
            file.write(line.replace(b'"spanId": "0000', b'"spanId": "%04x' % start))
    (trace,) = collected(tmp_path / "trace.json")
    assert "0 samples of 1 traces; skipped: 1 evicted" in trace["told"]


def test_gzip_that_is_broken_is_refused(tmp_path: Path) -> None:
    """An error in the middle of the data is no traceback."""
    path = tmp_path / "file"
    content = bytearray(gzip.compress(spans(1, many=1)))
    content[12:] = bytes(len(content) - 12)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_messages(path))


PARENT = "0000000000000007"


def read(**fields: Any) -> Span:
    span = {"traceId": "1" * 32, "spanId": "2" * 16, **fields}
    message = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    (found,) = spans_of(parts_of(message))
    return found


@pytest.mark.parametrize(
    ("fields", "is_remote"),
    [
        ({"flags": 0x300}, True),
        ({"flags": 0x100, "kind": 2}, False),
        ({"kind": 2}, True),  # a server
        ({"kind": "SPAN_KIND_CONSUMER"}, True),  # as protobuf writes it in JSON
        ({"kind": 3}, False),  # a client
        ({}, False),
    ],
)
def test_a_parent_in_another_service(fields: dict[str, Any], is_remote: object) -> None:
    """The flags say so, or the kind if the SDK does not write these flags, as in a worker."""
    assert read(parentSpanId=PARENT, **fields).parent_is_remote is is_remote


@pytest.mark.parametrize("given", [{}, {"parentSpanId": ""}, {"parentSpanId": "0" * 16}])
def test_a_span_without_a_parent(given: dict[str, Any]) -> None:
    """An id of zeros is none. A root has no parent in another service, whatever its kind is."""
    found = read(kind=2, **given)
    assert (found.parent_id, found.parent_is_remote) == (None, False)

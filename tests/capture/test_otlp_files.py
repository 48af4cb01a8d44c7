"""Memory for files that are much larger than they look, and for large files that are as usual."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.capture.otlp_files import read_messages
from rag_eval_otel.errors import ConfigError

MOST_MB = 400
"""Below a quarter of what the files took before there were limits; half of it was measured."""

TOO_MUCH = "more than 64 MiB or 2,097,152 values"
TOO_MANY = "more than 64 MiB or 1,048,576 fields"
MANY = 10_000_000

RUN = """
import contextlib, io, json, sys
from rag_eval_otel.tools.cli import main

for line in sys.stdin:
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(err):
        status = main(json.loads(line))
    with open("/proc/self/status") as file:  # getrusage counts the memory of the parent, too
        peak = next(int(row.split()[1]) // 1024 for row in file if row.startswith("VmHWM"))
    print(json.dumps({"status": status, "told": err.getvalue(), "peak": peak}), flush=True)
"""


def run(folder: Path, *commands: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Return exit status, output and memory of each command, all run in one new process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input="".join(json.dumps(list(map(str, one))) + "\n" for one in commands),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def field(number: int, content: bytes) -> bytes:
    size, length = b"", len(content)
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + content


EMPTY = b'{"resourceSpans":[' + b"{}," * MANY + b"{}]}\n"
SPANS = field(1, field(2, field(2, b"") * MANY))

FILES: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "objects": (lambda: EMPTY, TOO_MUCH),
    "lists": (lambda: EMPTY.replace(b"{},", b"[],"), TOO_MUCH),
    "keys": (lambda: EMPTY[: MANY // 2].replace(b"{}", b'{"":0}') + b"{}]}\n", TOO_MUCH),
    "lines": (lambda: EMPTY.replace(b",", b",\n"), TOO_MUCH),
    "second line": (lambda: b'{"resourceSpans":[]}\n' + EMPTY, TOO_MUCH),
    "depth": (lambda: b'{"resourceSpans":' + b"[" * MANY + b"]" * MANY + b"}\n", TOO_MUCH),
    "text": (lambda: b'{"resourceSpans":[{"a":"' + b"a" * 2**27 + b'"}]}\n', TOO_MUCH),
    "spaces": (lambda: b"{" + b" " * 2**27 + b"}\n", TOO_MUCH),
    "gzip": (lambda: gzip.compress(EMPTY, compresslevel=1), "neither OTLP JSON nor OTLP protobuf"),
    "protobuf": (lambda: SPANS, TOO_MANY),
    "length": (lambda: len(SPANS).to_bytes(4, "big") + SPANS, TOO_MANY),
    "within": (lambda: field(1, field(2, field(2, field(9, b"") * MANY))), TOO_MANY),
}


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[dict[str, Path]]:
    paths = {}
    for name, (content, _) in FILES.items():
        paths[name] = tmp_path / f"{name}.json"
        paths[name].write_bytes(gzip.compress(content(), compresslevel=1))
    return (yield paths)


@pytest.mark.slow
def test_a_small_file_does_not_take_all_memory(tmp_path: Path, packed: dict[str, Path]) -> None:
    """What would be too large when it is parsed is refused, and the message says a way out."""
    found = run(tmp_path, *(["collect", path, "-o", "out.jsonl"] for path in packed.values()))
    for (name, (_, told)), one in zip(FILES.items(), found, strict=True):
        assert (one["status"], name) == (2, name)
        assert told in one["told"]
        assert str(packed[name]) in one["told"]
        assert one["peak"] < MOST_MB, name
    assert "divide it, for example by jq" in found[0]["told"]


@pytest.mark.slow
def test_all_commands_that_read_traces_have_the_limit(tmp_path: Path) -> None:
    """Also scores, rows and cells, compressed or not."""
    files = {
        "packed.json": gzip.compress(EMPTY, compresslevel=1),
        "plain.jsonl": EMPTY,
        "cell.csv": b'question,contexts,answer\nQ,"['
        + (b"{}," * 1000 + b"\n") * 10_000
        + b'{}]",A\n',
        "line.csv": b"question,contexts,answer\n" + b"a" * 2**27,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = run(
        tmp_path,
        ["drift", "packed.json"],
        ["report", "packed.json", "-o", "a.html"],
        ["collect", "packed.json", "-o", "rows.jsonl"],
        ["serve", "--file", "packed.json", "--endpoint", "http://127.0.0.1:1"],
        ["drift", "plain.jsonl"],
        ["report", "plain.jsonl", "-o", "a.html"],
        ["evaluate", "plain.jsonl", "--judge", "lexical"],
        ["evaluate", "cell.csv", "--judge", "lexical"],
        ["evaluate", "line.csv", "--judge", "lexical"],
    )
    assert [one["status"] for one in found] == [2] * 9
    assert [TOO_MUCH in one["told"] or "field limit" in one["told"] for one in found] == [True] * 9
    assert max(one["peak"] for one in found) < MOST_MB


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
def test_a_large_file_is_read_and_a_large_trace_is_skipped(tmp_path: Path) -> None:
    """Memory does not grow with 120 MB of lines, nor with a trace of 400,000 spans."""
    with gzip.open(tmp_path / "large.json", "wb", compresslevel=1) as file:
        for trace in range(1, 121):
            file.write(spans(trace, many=100, text="a" * 10_000))
    with gzip.open(tmp_path / "trace.json", "wb", compresslevel=1) as file:
        for start in range(40):
            line = spans(1, many=10_000)
            file.write(line.replace(b'"spanId": "0000', b'"spanId": "%04x' % start))
    large, trace = run(
        tmp_path, *(["collect", f"{name}.json", "-o", "out.jsonl"] for name in ("large", "trace"))
    )
    assert "0 samples of 120 traces" in large["told"]
    assert "0 samples of 1 traces; skipped: 1 evicted" in trace["told"]
    assert max(large["peak"], trace["peak"]) < MOST_MB


@pytest.mark.parametrize(
    "content", [b"\x0a\xff", b"\x0a\xff" * 40, b"\x0a\x03\x12\xff\xff", b"\x0a"]
)
def test_protobuf_that_ends_too_early_is_refused(tmp_path: Path, content: bytes) -> None:
    """Its fields are counted up to the end."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="neither OTLP JSON nor OTLP protobuf"):
        list(read_messages(path))


def test_gzip_that_is_broken_is_refused(tmp_path: Path) -> None:
    """An error in the middle of the data is no traceback."""
    path = tmp_path / "file"
    content = bytearray(gzip.compress(spans(1, many=1)))
    content[12:] = bytes(len(content) - 12)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_messages(path))

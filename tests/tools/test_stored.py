"""`rag-eval-otel collect --phoenix`. The client is a fake here; `make e2e` runs the real one."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from rag_eval_otel.capture.otlp import ExportedSpan
from rag_eval_otel.tools.cli import main
from tools.test_collect import TOLD, turn_spans


def phoenix_span(span: ExportedSpan) -> dict[str, Any]:
    assert span.end is not None
    return {
        "id": "U3BhbjoxMTA=",
        "name": span.name,
        "context": {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"},
        "span_kind": span.attributes["openinference.span.kind"],
        "parent_id": None if span.parent_id is None else f"{span.parent_id:016x}",
        "start_time": datetime.fromtimestamp(span.start / 1e9, timezone.utc).isoformat(),
        "end_time": datetime.fromtimestamp(span.end / 1e9, timezone.utc).isoformat(),
        "status_code": "UNSET",
        "status_message": "",
        "attributes": dict(span.attributes),
        "events": [],
    }


@pytest.fixture
def phoenix(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    answers: list[object] = []

    class Spans:
        def get_spans(self, **asked: object) -> list[object]:
            if isinstance(answers[0], Exception):
                raise answers[0]
            return [one for one in answers if asked["project_identifier"] == "shop"]

    class Client:
        spans = Spans()

    for name in ("phoenix", "phoenix.client"):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        module.Client = Client  # type: ignore[attr-defined]
    return answers


def test_spans_of_phoenix_give_the_turns(tmp_path: Path, phoenix: list[object]) -> None:
    """Phoenix keeps no scope; OpenInference is recognised by its attributes."""
    later = turn_spans(2, label="fail", start=10**18 + 10**9)
    phoenix += map(phoenix_span, [*turn_spans(1), *later])
    output = tmp_path / "samples.jsonl"
    assert main(["collect", "-o", str(output), "--phoenix", "shop", "--since", "2001-01-01"]) == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["trace_id"], row["answer"], row["service"]) for row in found] == [
        (f"{1:032x}", TOLD, "shop"),
        (f"{2:032x}", TOLD, "shop"),
    ]
    assert [row.get("live_label") for row in found] == [None, "fail"]


def refused(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://phoenix.example/v1/projects/shop/spans")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (refused(404), "Phoenix answered 404 for the project 'shop'"),
        (refused(401), "check PHOENIX_ENDPOINT and PHOENIX_API_KEY"),
        (httpx.ConnectError("refused"), "cannot be reached: refused; set PHOENIX_ENDPOINT"),
    ],
)
def test_phoenix_that_does_not_answer(
    tmp_path: Path,
    phoenix: list[object],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    says: str,
) -> None:
    """The message says what to set; nothing is written."""
    phoenix.append(error)
    output = tmp_path / "samples.jsonl"
    assert main(["collect", "--phoenix", "shop", "-o", str(output)]) == 2
    assert says in capsys.readouterr().err
    assert not output.exists()

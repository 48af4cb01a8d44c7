"""What the real client of Langfuse returns becomes samples."""

import json
from pathlib import Path

import pytest

pytest.importorskip("langfuse.api", reason="the client of Langfuse is not installed")

from e2e.recorded import KEY, Langfuse, langfuse_observation, serving
from rag_eval_otel.tools.cli import main
from tools.test_collect import TOLD, turn_spans

TURNS = 12

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client and its connections


def test_observations_of_langfuse_are_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pages of observations and of scores, which have the labels."""
    observations = [
        langfuse_observation(span, flat=trace % 2 == 0)
        for trace in range(1, TURNS + 1)
        for span in turn_spans(trace, page="Founded in 1949. " * 20)
    ]
    service = Langfuse(observations=observations)
    for trace in (2, 3):
        service.stored[str(trace)] = {
            "id": str(trace),
            "name": "rag.evaluation",
            "value": "fail",
            "dataType": "CATEGORICAL",
            "timestamp": "2026-11-22T09:00:00Z",
            "traceId": f"{trace:032x}",
            "observationId": f"{1:016x}",
        }
    output = tmp_path / "samples.jsonl"
    with serving(service):
        monkeypatch.setenv("LANGFUSE_BASE_URL", service.url)
        monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "public")
        monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEY)
        since = ["--since", "2001-01-01", "--until", "2002-01-01T00:00Z"]
        assert main(["collect", "--langfuse", "-o", str(output), *since]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["trace_id"] for row in rows] == [f"{n:032x}" for n in range(1, TURNS + 1)]
    assert {row["answer"] for row in rows} == {TOLD}
    assert {len(row["contexts"][0]) for row in rows} == {len("Founded in 1949. " * 20)}
    assert [n for n, row in enumerate(rows, 1) if row.get("live_label") == "fail"] == [2, 3]
    pages = service.sent("GET", "/api/public/v2/observations")
    assert pages[-1].query["fromStartTime"][0].startswith("2001-01-01T00:00:00")
    assert "attributes.retrieval.documents.0.document.content" in "".join(
        pages[-1].query["expandMetadata"]
    )

"""Reading scores that a pipeline exported, in the JSON of the collector."""

from __future__ import annotations

from pathlib import Path

from live import attached
from rag_eval_otel.results import CounterPoint, Row, read_scores
from score_files import exported, jsonl, page_of

TURNS = 12


def test_exported_turns_are_read(tmp_path: Path) -> None:
    """Spans, events and counters agree: each score once, with judge, version and duration."""
    with attached(hold_seconds=30) as app:
        for number in range(TURNS):
            app.turn(number)
        assert app.handle.flush()
        path = jsonl(tmp_path / "otlp.json", exported(app))
        spans = [s for s in app.exported() if "rag.evaluation.status" in (s.attributes or {})]
    found = list(read_scores(path))
    rows = [record for record in found if isinstance(record, Row)]
    assert len(spans) == TURNS
    traces = {f"trace {span.context.trace_id:032x}" for span in spans}
    assert {row.place for row in rows} == traces
    first = spans[0].attributes or {}
    names = [score.name for score in rows[0].scores]
    assert [len(row.scores) for row in rows] == [len(set(names))] * TURNS
    for score in rows[0].scores:
        assert score.value == first[f"rag.evaluation.{score.name}.score"]
        assert score.version == first[f"rag.evaluation.{score.name}.version"]
    assert rows[0].evaluation.judge == first["rag.evaluation.judge"]
    assert rows[0].evaluation.duration > 0
    points = [record for record in found if isinstance(record, CounterPoint)]
    total = sum(point.value for point in points if point.name == "rag.evaluation.judge.calls")
    assert total > 0
    page = page_of(path)
    assert f"judge requests</th><td>{total:,.0f}</td>" in page
    assert page.count("<h3>Time line</h3>") == len(names)

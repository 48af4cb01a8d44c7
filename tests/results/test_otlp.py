"""Reading scores that a pipeline exported, in the JSON of the collector."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from live import App, attached
from rag_eval_otel.results import CounterPoint, Row, read_scores
from score_files import jsonl, page_of

TURNS = 12


def otlp_json(message: Any) -> Any:
    """Return ``message`` as OTLP JSON: enumerations are numbers, and ids hexadecimal."""
    text = json.dumps(MessageToDict(message, use_integers_for_enums=True))
    ids = re.compile(r'"((?:trace|span|parentSpan)Id)": "([^"]*)"')
    return json.loads(ids.sub(lambda m: f'"{m[1]}": "{b64decode(m[2]).hex()}"', text))


def exported(app: App) -> list[Any]:
    """Return the export requests of ``app``."""
    metrics = app.reader.get_metrics_data()
    assert metrics is not None
    return [
        otlp_json(encode_spans(app.exported())),
        otlp_json(encode_logs(app.events.get_finished_logs())),
        otlp_json(encode_metrics(metrics)),
    ]


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

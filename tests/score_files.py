"""Score files for tests of their reader and of the page."""

import json
import random
import re
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from live import App
from rag_eval_otel.tools.cli import main


def jsonl(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def page_of(path: Path, *options: str) -> str:
    output = path.with_name("page.html")
    assert main(["report", str(path), "-o", str(output), *options]) == 0
    return output.read_text(encoding="utf-8")


def falling(count: int, *, at: int, seed: int = 0) -> list[float]:
    dice = random.Random(seed)
    return [dice.betavariate(*((8, 2) if i < at else (2, 3))) for i in range(count)]


def row(index: int, **scores: dict[str, Any]) -> dict[str, Any]:
    return {"row": index, "status": "scored", "judge": "a-judge", "scores": scores}


EPOCH = 1_700_000_000


def attributes(**found: Any) -> list[dict[str, Any]]:
    """Return attributes as OTLP JSON has them; in names ``__`` stands for a dot."""
    kinds = {str: "stringValue", float: "doubleValue", int: "intValue"}
    return [
        {"key": key.replace("__", "."), "value": {kinds[type(value)]: value}}
        for key, value in found.items()
    ]


def _resource(service: str) -> dict[str, Any]:
    return {"attributes": attributes(service__name=service)}


def span(index: int, *, service: str = "shop", **found: Any) -> dict[str, Any]:
    """Return an export request with a span that ended ``index`` seconds after the epoch."""
    one = {
        "traceId": f"{index:032x}",
        "spanId": f"{index:016x}",
        "endTimeUnixNano": str((EPOCH + index) * 10**9),
        "attributes": attributes(**{f"rag__evaluation__{key}": v for key, v in found.items()}),
    }
    return {"resourceSpans": [{"resource": _resource(service), "scopeSpans": [{"spans": [one]}]}]}


def event(index: int, *, service: str = "shop", **found: Any) -> dict[str, Any]:
    """Return an export request with the event of a score."""
    one = {
        "eventName": "gen_ai.evaluation.result",
        "traceId": f"{index:032x}",
        "spanId": f"{index:016x}",
        "timeUnixNano": str((EPOCH + index) * 10**9),
        "attributes": attributes(**found),
    }
    return {
        "resourceLogs": [{"resource": _resource(service), "scopeLogs": [{"logRecords": [one]}]}]
    }


def otlp_json(message: Any) -> Any:
    text = json.dumps(MessageToDict(message, use_integers_for_enums=True))
    ids = re.compile(r'"((?:trace|span|parentSpan)Id)": "([^"]*)"')
    return json.loads(ids.sub(lambda m: f'"{m[1]}": "{b64decode(m[2]).hex()}"', text))


def exported(app: App) -> list[Any]:
    metrics = app.reader.get_metrics_data()
    assert metrics is not None
    return [
        otlp_json(encode_spans(app.exported())),
        otlp_json(encode_logs(app.events.get_finished_logs())),
        otlp_json(encode_metrics(metrics)),
    ]

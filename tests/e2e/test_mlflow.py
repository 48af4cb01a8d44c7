"""Scores as feedback in a real MLflow: each once, and equal to the scores on the span."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from e2e.backfilled import backfill, kill_in_the_middle
from e2e.fickle import BAD, GOOD, fickle
from e2e.programs import free_ports, get, running
from e2e.proxy import Fault, Proxy, proxied

COMMAND = Path(sys.executable).with_name("mlflow")
TURNS, BAD_TURNS = 60, 6
PATIENCE = 900.0  # MLflow takes one feedback in a request, which are up to 1,350
TRACES = "api/3.0/mlflow/traces"

pytestmark = [
    pytest.mark.skipif(not COMMAND.exists(), reason="mlflow is not installed"),
    pytest.mark.timeout(2400),
    # MLflow and its parts warn at their import.
    pytest.mark.filterwarnings("ignore"),
]

Found = Mapping[str, Counter[tuple[Any, ...]]]


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """A running MLflow."""

    http: str
    grpc: str = ""

    def create_experiment(self, name: str) -> str:
        asked = Request(  # noqa: S310
            f"{self.http}/api/2.0/mlflow/experiments/create",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(asked, timeout=30) as answer:  # noqa: S310
            return str(json.load(answer)["experiment_id"])

    def feedback(self, trace: int) -> Counter[tuple[Any, ...]]:
        told = json.loads(get(f"{self.http}/{TRACES}/tr-{trace:032x}"))
        found: Counter[tuple[Any, ...]] = Counter()
        for one in told["trace"]["trace_info"].get("assessments", []):
            kind, metadata = one["source"]["source_type"], one["metadata"]
            said = (one["assessment_name"], one["feedback"]["value"], one["span_id"])
            found[(*said, kind, metadata.get("version"), metadata.get("threshold"))] += 1
        return found


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflow]:
    folder = tmp_path_factory.mktemp("mlflow")
    (port,) = free_ports(1)
    store = f"sqlite:///{folder / 'mlflow.db'}"
    found = MLflow(http=f"http://127.0.0.1:{port}")
    options = ("--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port))
    with running(
        [str(COMMAND), "server", *options, "--workers", "2"],
        ready=f"{found.http}/health",
        log=folder / "mlflow.log",
        environment={
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        patience=PATIENCE,
    ):
        yield found


@pytest.fixture
def proxy(mlflow: MLflow, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxied(mlflow.http) as made:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", made.url)
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        # The client repeats a failed request after two seconds and more; here, at once.
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
        yield made


def expected(spans: InMemorySpanExporter) -> Found:
    found: dict[str, Counter[tuple[Any, ...]]] = {}
    for span in spans.get_finished_spans():
        attributes: Any = span.attributes or {}
        if "rag.evaluation.status" not in attributes or span.context is None:
            continue
        own = f"{span.context.span_id:016x}"
        scores = found[f"{span.context.trace_id:x}"] = Counter()
        scores["rag.evaluation", attributes["rag.evaluation.label"], own, "CODE", None, None] += 1
        for name in [one.split(".")[2] for one in attributes if one.endswith(".score")]:
            prefix = f"rag.evaluation.{name}"
            version = attributes[f"{prefix}.version"]
            rest = (own, "CODE", version, str(attributes[f"{prefix}.threshold"]))
            scores[(name, attributes[f"{prefix}.score"], *rest)] += 1
            scores[(f"{name}.label", attributes[f"{prefix}.label"], *rest)] += 1
    return found


@pytest.mark.parametrize("fault", ["none", "errors"])
def test_feedback_equals_the_scores(mlflow: MLflow, proxy: Proxy, fault: Fault) -> None:
    """Also with MLflow failing a tenth of the requests."""
    experiment = mlflow.create_experiment(f"shop-{fault}")
    proxy.fault = fault
    headers = {"x-mlflow-experiment-id": experiment}
    memory = InMemorySpanExporter()
    otlp = OTLPSpanExporter(endpoint=f"{mlflow.http}/v1/traces", headers=headers, timeout=120)
    traces = [otlp, memory]
    options: dict[str, Any] = {"signals": "traces", "traces": traces, "backends": ["mlflow"]}
    options["score_attributes"] = "rag"  # with version and threshold of each score
    if fault != "none":
        options["metrics"] = ["faithfulness", "context_relevance"]
    with fickle(mlflow, "shop", **options) as app:
        app.run(TURNS - BAD_TURNS, GOOD)
        app.run(BAD_TURNS, BAD)
        assert app.handle.flush(PATIENCE)
    scores = expected(memory)
    assert len(scores) == TURNS
    assert {trace: mlflow.feedback(int(trace, 16)) for trace in scores} == scores
    assert (proxy.failed > 0) == (fault == "errors")


def test_backfill_equals_live_scores(mlflow: MLflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle and run again: each once. A third run writes nothing."""
    count = 150
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.http)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    headers = {"x-mlflow-experiment-id": mlflow.create_experiment("past")}
    memory = InMemorySpanExporter()
    otlp = OTLPSpanExporter(endpoint=f"{mlflow.http}/v1/traces", headers=headers, timeout=120)
    options: dict[str, Any] = {"signals": "traces", "traces": [otlp, memory]}
    options |= {"export_content": "all", "score_attributes": "rag"}
    with fickle(mlflow, "shop", **options) as app:
        app.run(count - BAD_TURNS, GOOD)
        app.run(BAD_TURNS, BAD)
        assert app.handle.flush(PATIENCE)
    scores = expected(memory)
    assert len(scores) == count

    def written() -> dict[str, Counter[tuple[Any, ...]]]:
        found = {trace: mlflow.feedback(int(trace, 16)) for trace in scores}
        return {trace: feedback for trace, feedback in found.items() if feedback}

    kill_in_the_middle("mlflow:past", lambda: len(written()), turns=count)
    backfill("mlflow:past")
    assert written() == scores

    def ids() -> set[str]:
        answers = (get(f"{mlflow.http}/{TRACES}/tr-{int(trace, 16):032x}") for trace in scores)
        return {id_ for text in answers for id_ in re.findall(r'"assessment_id":"([^"]+)"', text)}

    before = ids()
    backfill("mlflow:past")
    assert ids() == before

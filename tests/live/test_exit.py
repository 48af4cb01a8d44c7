"""Programs that end: held spans are scored and exported."""

from __future__ import annotations

import pytest

from openai_server import ScriptedOpenAI
from otlp_receiver import OtlpReceiver
from processes import ran

CHAIN = """
from apps.parts import rag
from rag_eval_otel import RagEvalCallbackHandler
handler = RagEvalCallbackHandler()
"""

ENDINGS = {
    "falls off the end": "CHAIN.invoke(QUESTION, config={'callbacks': [handler]})",
    "an exception": "CHAIN.invoke(QUESTION, config={'callbacks': [handler]}); raise RuntimeError",
}


def reply_to(body: dict) -> object:
    schema = body["response_format"]["json_schema"]["schema"]
    return {name: REPLIES[name] for name in schema["properties"]}


REPLIES = {
    "question": ["When was Borealis Kites founded?"] * 3,
    "noncommittal": 0,
    "supported": [1],
    "context_relevance_1": 2,
    "groundedness_1": 2,
}
"""Of the default set, for an answer of one sentence."""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_scores_arrive_though_the_program_ends_at_once(ending: str) -> None:
    """A script that ends right after its answer still delivers the turn, scored remotely."""
    script = CHAIN + ending.replace("CHAIN", "rag()").replace(
        "QUESTION", "'When was Borealis Kites founded?'"
    )
    with (
        OtlpReceiver() as receiver,
        ScriptedOpenAI(reply_to, lambda _: [1.0, 0.0], latency=0.3) as judge,
    ):
        # A name, not an address: looking it up needs a thread when the interpreter is exiting.
        base_url = judge.base_url.replace("127.0.0.1", "localhost")
        ran(
            script,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            RAG_EVAL_JUDGE="openai/judge",
            OPENAI_BASE_URL=base_url,
            OPENAI_API_KEY="none",
            RAG_EVAL_HOLD_SECONDS="60",  # a busy machine imports the judge's client for long
            RAG_EVAL_SHUTDOWN_SECONDS="60",
        )
        roots = [s for s in receiver.spans() if s.parent_span_id is None]
    assert [root.attributes["rag.evaluation.status"] for root in roots] == ["scored"]
    assert roots[0].attributes["rag.evaluation.judge"].startswith("judge")


METRICS_AT_EXIT = """
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
set_meter_provider(MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter())]))
from apps.parts import rag
from rag_eval_otel import RagEvalCallbackHandler
from rag_eval_otel.drift import DriftOptions
handler = RagEvalCallbackHandler(drift=DriftOptions(targets={"faithfulness": 0.9}))
rag().invoke("When was Borealis Kites founded?", config={"callbacks": [handler]})
"""


@pytest.mark.slow
def test_the_last_collection_of_metrics_has_the_evidence_of_drift() -> None:
    """The pipeline ends before the meter provider of the application collects a last time."""
    ended = ran(METRICS_AT_EXIT, OTEL_TRACES_EXPORTER="none")
    assert ended.returncode == 0, ended.stderr
    assert "rag.evaluation.drift.log10_evidence" in ended.stdout
    assert "rag.evaluation.score" in ended.stdout

"""Programs that end: held spans are scored and exported."""

from __future__ import annotations

import pytest

from processes import ran

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

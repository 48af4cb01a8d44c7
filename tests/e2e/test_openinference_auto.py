"""`opentelemetry-instrument` with OpenInference installed: LangChain is traced once."""

from pathlib import Path

import pytest

from e2e.test_auto import COMMAND, exporting, run_instrumented, turn_of
from otlp_receiver import OtlpReceiver

APP = """
from apps.parts import rag
print(rag().invoke("When was Borealis Kites founded?"))
"""
pytestmark = pytest.mark.skipif(COMMAND is None, reason="opentelemetry-instrument is not installed")


def test_langchain_is_traced_once_beside_openinference(tmp_path: Path) -> None:
    """OpenInference's spans arrive with the scores, and no span of ours repeats them."""
    pytest.importorskip("openinference.instrumentation.langchain")
    script = tmp_path / "app.py"
    script.write_text(APP)
    with OtlpReceiver() as receiver:
        run_instrumented(script, **exporting(receiver.http_endpoint))
        turn = turn_of(receiver)
        scopes = {span.scope for span in receiver.spans()}
        roots = [span for span in receiver.spans() if span.parent_span_id is None]
    assert scopes == {"openinference.instrumentation.langchain"}
    assert turn.attributes["rag.evaluation.status"] == "scored"
    assert len(roots) == 1

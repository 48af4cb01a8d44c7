"""An unchanged app, started by ``opentelemetry-instrument``."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from openai_server import ScriptedOpenAI
from otlp_receiver import OtlpReceiver, ReceivedSpan
from processes import environment
from support import good_parts

APP = """
from apps.parts import rag
print(rag().invoke("When was Borealis Kites founded?"))
"""
COMMAND = shutil.which("opentelemetry-instrument", path=str(Path(sys.executable).parent))

pytestmark = [
    pytest.mark.skipif(COMMAND is None, reason="opentelemetry-instrument is not installed"),
    pytest.mark.skipif(
        not entry_points(group="opentelemetry_instrumentor", name="rag_eval_otel"),
        reason="rag-eval-otel is not installed: its entry point is missing",
    ),
]


def ended(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(COMMAND), sys.executable, str(script)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=240,  # two Python processes with all imports, on a busy machine
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def exporting(endpoint: str, protocol: str = "http/protobuf") -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_SERVICE_NAME": "kites",
    }


def judged_by(server: ScriptedOpenAI) -> dict[str, str]:
    """Return the environment with ``server`` as judge; its client is slow to import."""
    return {
        "RAG_EVAL_JUDGE": "openai/judge-model",
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": "judge",
        "RAG_EVAL_HOLD_SECONDS": "60",
        "RAG_EVAL_SHUTDOWN_SECONDS": "60",
    }


def turn_of(backend: OtlpReceiver) -> ReceivedSpan:
    """Return the only span that stands for a turn."""
    spans = backend.spans()
    (turn,) = [span for span in spans if "rag.evaluation.status" in span.attributes]
    assert len({span.span_id for span in spans}) == len(spans)
    return turn


@pytest.fixture
def judge() -> Iterator[ScriptedOpenAI]:
    with ScriptedOpenAI(good_parts, lambda _: [1.0, 0.0]) as server:
        yield server


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_app_is_scored_without_code_changes(
    script: Path, backend: OtlpReceiver, judge: ScriptedOpenAI, protocol: str
) -> None:
    """With endpoint and judge from the environment, the turn arrives scored once."""
    over_http = protocol.startswith("http")
    endpoint = backend.http_endpoint if over_http else backend.grpc_endpoint
    done = ended(script, **exporting(endpoint, protocol), **judged_by(judge))
    assert done.stdout == "It was founded in 1987. [History; Founder]\n"
    turn = turn_of(backend)
    assert turn.attributes["rag.evaluation.status"] == "scored"
    assert turn.attributes["rag.evaluation.faithfulness.score"] == 1.0
    assert turn.attributes["rag.evaluation.judge"] == "judge-model-2026-01-01"
    assert turn.resource["service.name"] == "kites"


def test_defaults_need_no_key(script: Path, backend: OtlpReceiver) -> None:
    """With only an endpoint in the environment the offline judge scores the turn."""
    ended(script, **exporting(backend.http_endpoint))
    assert turn_of(backend).attributes["rag.evaluation.judge"] == "lexical"


def test_sdk_disabled(script: Path, backend: OtlpReceiver) -> None:
    """With ``OTEL_SDK_DISABLED`` the app runs without tracing and scores."""
    done = ended(script, **exporting(backend.http_endpoint), OTEL_SDK_DISABLED="true")
    assert done.stdout.startswith("It was founded")
    assert backend.spans() == backend.logs() == []


def test_langchain_is_traced_once_beside_openinference(script: Path, backend: OtlpReceiver) -> None:
    """OpenInference's spans arrive with the scores, and no span of ours repeats them."""
    pytest.importorskip("openinference.instrumentation.langchain")
    ended(script, **exporting(backend.http_endpoint))
    assert turn_of(backend).attributes["rag.evaluation.status"] == "scored"
    spans = backend.spans()
    assert {span.scope for span in spans} == {"openinference.instrumentation.langchain"}
    assert len([span for span in spans if span.parent_span_id is None]) == 1

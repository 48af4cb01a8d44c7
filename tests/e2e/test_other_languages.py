"""Applications in Java and TypeScript, without a line of this library, whose spans a worker scores.

The folder other_languages has the applications. Their packages are downloaded once, into the user's
cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.programs import CACHE, MAVEN, PATIENCE, downloaded, recent
from e2e.serve import serving
from openai_server import HttpReply, ScriptedOpenAI, chat_reply
from otlp_receiver import OtlpReceiver
from rag_eval_otel import semconv
from rag_eval_otel.tools.collect import Selection, read_trace
from rag_eval_otel.tools.otlp import parts_in, spans_of
from rag_eval_otel.types import Sample

pytestmark = pytest.mark.timeout(1200)  # with the downloads
FOLDER = Path(__file__).parent / "other_languages"
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid"}
TRUTH = {
    f"What is the capital of {country}?": (
        [f"{city} is the capital of {country}.", f"{country} has three long rivers."],
        f"The capital of {country} is {city}.",
    )
    for country, city in CAPITALS.items()
}
NPM = ("npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund")
JSON = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
AGENT = {  # the agent records texts in log records, if at all; a source file makes java a "tool"
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
    "OTEL_JAVAAGENT_ENABLED": "true",
}
SPRING = {  # Spring AI records texts in its log, if at all
    "MANAGEMENT_TRACING_SAMPLING_PROBABILITY": "1",
    "MANAGEMENT_OPENTELEMETRY_TRACING_EXPORT_SCHEDULE_DELAY": "60s",
    "SPRING_MAIN_WEB_APPLICATION_TYPE": "none",
}


@dataclass(frozen=True)
class Way:
    """An application with its instrumentation, and what becomes of its turns."""

    program: str
    outcome: str  # "exact" or the reason to skip each turn
    variables: dict[str, str] = field(default_factory=dict)


WAYS = {
    "LangChain.js, OpenInference": Way("typescript/langchain.ts", "exact"),
    "LangChain.js, OpenInference, JSON": Way("typescript/langchain.ts", "exact", JSON),
    "AI SDK, own telemetry, JSON": Way("typescript/vercel.ts", "exact", JSON),
    "AI SDK, OpenInference": Way(
        "typescript/vercel.ts", "exact", {"INSTRUMENTATION": "openinference"}
    ),
    "LangChain4j, Java agent": Way("langchain4j/LangChain4j.java", "no_retrieval", AGENT),
    "Spring AI, Micrometer": Way("spring_ai/SpringAi.java", "no_answer", SPRING),
}


def reply(body: dict[str, Any]) -> HttpReply:
    """Answer the question, after a search if the model has a tool."""
    (country, *_) = re.findall(r"capital of (\w+)\?", json.dumps(body["messages"]))
    question = f"What is the capital of {country}?"
    if body.get("tools") and all(message["role"] != "tool" for message in body["messages"]):
        return chat_reply(body, "", [("search", {"query": question})])
    return chat_reply(body, TRUTH[question][1])


def embed(text: str) -> Sequence[float]:
    return [float(word in text) for word in (*CAPITALS, "capital")]


def installed(name: str) -> Path:
    """Return a folder with the applications in the folder ``name`` and their packages."""
    command, manifest = (NPM, "package.json") if name == "typescript" else (MAVEN, "pom.xml")
    version = hashlib.sha256((FOLDER / name / manifest).read_bytes()).hexdigest()[:12]
    return downloaded(CACHE / f"{name}-{version}", command, FOLDER / name)


def command_of(way: Way) -> tuple[Path, list[str]]:
    name, _, file = way.program.partition("/")
    if name == "typescript":
        node = recent("node", 20)
        return installed(name), [node, "--import", "tsx", file]
    java = recent("java", 17)
    recent("javac", 17)
    folder = installed(name)
    agents = [f"-javaagent:{jar}" for jar in (folder / "libs").glob("opentelemetry-javaagent-*")]
    return folder, [java, *agents, "-cp", "libs/*", file]


def run(way: Way, model: ScriptedOpenAI, endpoint: str, receiver: OtlpReceiver) -> None:
    """Run the application until it has asked its questions and exported its spans."""
    folder, command = command_of(way)
    documents = folder / "documents.txt"
    documents.write_text("".join(f"{text}\n" for texts, _ in TRUTH.values() for text in texts))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL", "OPENAI", "SPRING"))}
    variables = {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": model.base_url,
        "SPRING_AI_OPENAI_API_KEY": "none",
        "SPRING_AI_OPENAI_BASE_URL": model.base_url.removesuffix("/v1"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{receiver.http_endpoint}/v1/logs",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "MANAGEMENT_OTLP_TRACING_ENDPOINT": f"{endpoint}/v1/traces",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "60000",  # a trace arrives whole, as behind a collector
        **way.variables,
    }
    done = subprocess.run(
        [*command, str(documents), *TRUTH],
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"


def captured(receiver: OtlpReceiver) -> tuple[dict[str, tuple[list[str], str]], list[str]]:
    """Return contexts and answer by question, and the reasons of the skipped turns."""
    traces = defaultdict(list)
    for request in receiver.requests:
        for part in parts_in(request):
            traces[part.trace_id].append(part)
    results = [o.result for t in traces.values() for o in read_trace(spans_of(t), Selection())]
    samples = [result for result in results if isinstance(result, Sample)]
    found = {s.question: ([passage.text for passage in s.contexts], s.answer) for s in samples}
    assert len(found) == len(samples)
    return found, [result for result in results if not isinstance(result, Sample)]


@pytest.mark.parametrize("name", WAYS)
def test_a_turn_is_exact_or_refused(name: str) -> None:
    """What the worker has captured is what the application has asked, shown and answered."""
    way = WAYS[name]
    command_of(way)
    with OtlpReceiver() as receiver, ScriptedOpenAI(reply, embed) as model:
        variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with serving(receiver.http_endpoint, **variables) as worker:
            run(way, model, f"http://127.0.0.1:{worker.ports['HTTP']}", receiver)
            assert worker.end() == 0
            counts = worker.counts
        samples, reasons = captured(receiver)
        spans = receiver.spans()
        prompts = [json.dumps(r.body["messages"]) for r in model.requests if "messages" in r.body]
    for question, (contexts, _) in TRUTH.items():  # the model was really shown the contexts
        assert any(all(text in prompt for text in (question, *contexts)) for prompt in prompts)
    is_exact = way.outcome == "exact"
    assert (samples, reasons) == ((TRUTH, []) if is_exact else ({}, [way.outcome] * 3))
    assert len({span.span_id for span in spans}) == len(spans) == counts.pop("sent")
    assert counts == ({"scored": 3} if is_exact else {"refused": 3, way.outcome: 3})
    statuses = {s.attributes.get(semconv.EVALUATION_STATUS) for s in spans} - {None}
    is_on_span = way.outcome != "no_retrieval"  # nothing shows which call was the turn
    assert statuses == ({"scored" if is_exact else "skipped"} if is_on_span else set())

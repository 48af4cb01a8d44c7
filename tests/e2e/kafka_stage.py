"""An application, a collector, a Kafka broker, workers, a judge, and the backend behind them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from e2e.kafka_broker import Broker, fresh, serving
from e2e.programs import PATIENCE, eventually, free_ports, get
from e2e.stack import Collector, collector
from e2e.turns import turn
from openai_server import HttpReply, ScriptedOpenAI
from otlp_receiver import OtlpReceiver, ReceivedSpan, _Verdict
from support import names_asked, text_asked

ROOT = Path(__file__).parents[2]
PARTITIONS = 6
MOST_SPANS = 16  # of a turn
SLOW = 60  # seconds that a receiver may take on a busy machine: a repeated request doubles spans

COLLECTOR = """
extensions:
  health_check: {{endpoint: "${{env:RAG_HEALTH}}"}}
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "${{env:RAG_GRPC}}"}}
exporters:
  kafka:
    brokers: ["{broker}"]
    traces: {{topic: {topic}, encoding: otlp_proto}}
    partition_traces_by_id: true
    producer: {{required_acks: -1, allow_auto_topic_creation: false}}
    retry_on_failure: {{initial_interval: 200ms, max_interval: 2s, max_elapsed_time: 0s}}
service:
  extensions: [health_check]
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [kafka]}}
"""


Tracing: TypeAlias = Callable[[TracerProvider], AbstractContextManager[Callable[[int], object]]]
"""How an application is traced: during the block, the result makes the turn of a number."""


class Ended(SpanProcessor):
    """Counts the spans that have ended, on any thread."""

    def __init__(self) -> None:
        self.number = 0
        self._lock = threading.Lock()

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            self.number += 1


@contextmanager
def by_hand(provider: TracerProvider) -> Iterator[Callable[[int], object]]:
    """Make turns of three spans, which have the attributes of OpenInference."""
    yield partial(turn, provider.get_tracer("openinference.instrumentation.fake"))


class Backend(OtlpReceiver):
    """A tracing backend that may be down."""

    is_down = False

    def _admit(self, records: Iterable[Any]) -> _Verdict:
        return _Verdict(status=503) if self.is_down else super()._admit(records)


class Judge:
    """A judge whose ratings depend on the question alone."""

    def __init__(self) -> None:
        self.is_down = False
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reply(self, body: Mapping[str, Any]) -> Any:
        if self.is_down:
            return HttpReply(status=503, body={"error": {"message": "down"}})
        text = text_asked(body)
        with self._lock:
            found = re.search(r"company \d+\b", text)
            company = found[0] if found else ""
            self.asked[company] += 1
        rating = hashlib.sha256(company.encode()).digest()[0] % 3
        return {name: {"rating": rating} for name in names_asked(body)}


@dataclass(kw_only=True)
class Stage:
    """All parts, in this process or started by it."""

    folder: Path
    broker: Broker
    gateway: Collector
    backend: Backend
    judge: Judge
    server: ScriptedOpenAI
    topic: str
    group: str
    number: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))
    made: int = 0
    ended: int = 0

    def make(self, turns: int, by: Tracing = by_hand) -> None:
        """Make turns in an application that knows nothing of the workers, and is traced ``by``."""
        resource = Resource({"service.name": "shop"})
        provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(f"http://{self.gateway.grpc}", insecure=True, timeout=SLOW)
        provider.add_span_processor(
            BatchSpanProcessor(
                exporter, max_queue_size=MOST_SPANS * turns + 512, schedule_delay_millis=200
            )
        )
        counter = Ended()
        provider.add_span_processor(counter)
        with by(provider) as ask:
            for _ in range(turns):
                ask(next(self.number))
        self.made += turns
        self.ended += counter.number
        provider.shutdown()

    def spans(self) -> list[ReceivedSpan]:
        """Return the spans that have arrived at the backend."""
        return self.backend.spans()

    def arrived(self) -> Counter[tuple[int, int]]:
        """Return how often each span has arrived."""
        return Counter((span.trace_id, span.span_id) for span in self.spans())

    def statuses(self) -> Counter[Any]:
        """Return the number of turns by status; a turn that arrived twice counts once."""
        of = {span.trace_id: status_of(span) for span in self.spans() if status_of(span)}
        return Counter(of.values())

    def without_scores(self) -> list[ReceivedSpan]:
        """Return copies without scores of spans that have arrived with scores, too."""
        scored = {one.span_id for one in self.spans() if status_of(one) == "scored"}
        return [one for one in self.spans() if one.span_id in scored and status_of(one) != "scored"]

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of a worker."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYTHONUNBUFFERED": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.backend.grpc_endpoint,
            "OTEL_EXPORTER_OTLP_TIMEOUT": str(SLOW),
            "OTEL_METRICS_EXPORTER": "none",
            "RAG_EVAL_JUDGE": "openai/judge",
            "OPENAI_BASE_URL": self.server.base_url,
            "OPENAI_API_KEY": "none",
            "RAG_EVAL_METRICS": "response_groundedness",
            "RAG_EVAL_EMBEDDER": "hashing",
            "RAG_EVAL_HOLD_SECONDS": "600",
            "RAG_EVAL_EVALUATION_TIMEOUT": "600",
            **more,
        }

    @contextmanager
    def worker(self, name: str, *options: str, **more: str) -> Iterator[Worker]:
        """Run a worker during the block; end it by SIGTERM, if it runs."""
        (port,) = free_ports(1)
        command = [
            *(sys.executable, "-m", "rag_eval_otel", "serve", "--kafka", self.broker.address),
            *("--topic", self.topic, "--group", self.group, "--probes", f"127.0.0.1:{port}"),
            *options,
        ]
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                command, env=self.environment(**more), stdout=out, stderr=subprocess.STDOUT
            )
        worker = Worker(process, log, port)
        try:
            yield worker
        finally:
            worker.end()

    def share(self, workers: int) -> None:
        """Wait until this number of workers share the partitions."""
        self.broker.wait_for_members(self.group, workers)

    def is_committed(self) -> bool:
        """Return True if all messages of the topic are committed."""
        return self.broker.is_consumed(self.topic, self.group)

    def wait(self) -> None:
        """Wait until all spans that have ended have arrived, and all messages are committed."""
        spans = self.ended
        eventually(lambda: len(self.arrived()) >= spans, f"{spans} spans arrive", 4 * PATIENCE)
        eventually(self.is_committed, "all is committed")


@dataclass
class Worker:
    """A worker process."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int

    @property
    def is_live(self) -> bool:
        """Whether its liveness probe succeeds."""
        return bool(get(f"http://127.0.0.1:{self.port}/livez"))

    @property
    def is_ready(self) -> bool:
        """Whether its readiness probe succeeds."""
        return bool(get(f"http://127.0.0.1:{self.port}/readyz"))

    def told(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> None:
        """Wait until it is ready."""
        eventually(lambda: self.process.poll() is not None or self.is_ready, f"see {self.log}")
        assert self.process.poll() is None, self.told()[-3000:]

    def end(self) -> int:
        """End it by SIGTERM; return its status."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
            self.process.kill()
        return self.process.wait()


def status_of(span: ReceivedSpan) -> Any:
    """Return the status of a turn's evaluation, or None."""
    return span.attributes.get("rag.evaluation.status")


def scores_of(span: ReceivedSpan) -> tuple[tuple[str, Any], ...]:
    """Return what was written on a turn's span, but for the time that it took."""
    return tuple(
        sorted(
            (name, value)
            for name, value in span.attributes.items()
            if name.startswith("rag.evaluation.") and name != "rag.evaluation.duration"
        )
    )


@contextmanager
def stage(folder: Path, **options: Any) -> Iterator[Stage]:
    """Run all parts but the workers."""
    with serving(folder / "broker") as broker, staged(broker, folder, **options) as found:
        yield found


@contextmanager
def staged(
    broker: Broker,
    folder: Path,
    *,
    latency: float = 0.0,
    slots: int | None = None,
    backend: Backend | None = None,
) -> Iterator[Stage]:
    """Run all parts but the workers around a ``broker`` that runs, with a topic of their own."""
    with ExitStack() as stack:
        topic = broker.create(fresh("otlp_spans"), PARTITIONS)
        config = folder / "collector.yaml"
        config.write_text(COLLECTOR.format(broker=broker.address, topic=topic))
        gateway = stack.enter_context(collector(folder / "collector", str(config)))
        backend = backend or Backend()
        stack.enter_context(backend)
        judge = Judge()
        server = ScriptedOpenAI(judge.reply, lambda _: [1.0, 0.0], latency=latency, slots=slots)
        stack.enter_context(server)
        yield Stage(
            folder=folder,
            broker=broker,
            gateway=gateway,
            backend=backend,
            judge=judge,
            server=server,
            topic=topic,
            group=topic,
        )

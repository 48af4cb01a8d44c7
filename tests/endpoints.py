"""Endpoints of judges, and a service with every kind of failure, for tests of what is reported."""

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.trace import SpanContext

from acme import lose_a_score
from drifts import drifted
from rag_eval_otel.config import Config
from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.export.drift import DriftSink
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.judge.endpoint import Endpoint, Limits, Outcome
from rag_eval_otel.live.store import Store
from rag_eval_otel.models import ProtectedModel
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Evaluation, Feedback, Sampling, Score, Usage


def measurement(endpoint: Endpoint) -> Measurement:
    judge = ProtectedModel(FakeJudge(lambda _: {}), endpoint)
    return Measurement(metrics=(), judge=judge, embedder=HashingEmbedder())


def report(endpoint: Endpoint, *outcomes: Outcome, not_sent: str | None = None) -> None:
    for outcome in outcomes:
        for observe in endpoint.observers:
            observe(outcome, 0.4)
    for tell in endpoint.refusal_observers if not_sent else ():
        tell(not_sent or "")


class Desk:
    """A service that records something by every instrument, as long as somebody holds it."""

    def __init__(self, meters: MeterProvider, service: str) -> None:
        self._meters = meters
        self._service = service
        self._sink = InstrumentSink(meters)
        self._held = Store(Config(hold_seconds=600, max_held=10))
        self._endpoint = Endpoint("judge judge-model", Limits(concurrency=16))
        self._sink.watch(self._held, [measurement(self._endpoint)])
        self._sink.watch_budget(self.left)
        self._drift = DriftSink(DriftOptions(), meter_provider=meters)
        self._backends = lose_a_score(meters)

    def left(self) -> list[Observation]:
        """Return that half of a budget is left."""
        return [Observation(0.5, {"limit": "1 USD/day"})]

    def work(self) -> None:
        usage = Usage(
            judge_requests=3, embedding_requests=1, prompt_tokens=900, completion_tokens=90
        )
        scores = (Score(name="faithfulness", value=0.9, label="pass", cost=0.01),)
        offline = (Score(name="faithfulness", value=0.8),)
        self._sink(
            Evaluation(
                span=SpanContext(trace_id=1, span_id=1, is_remote=False),
                scores=scores,
                duration=0.4,
                lag=0.7,
                judge="judge-model",
                usage=usage,
                offline=Evaluation(
                    scores=offline, judge="lexical", sampling=Sampling(stage="offline")
                ),
            )
        )
        report(self._endpoint, "ok", "transport", not_sent="circuit_open")
        self._sink.found(4)
        self._sink.released("scored")
        self._sink.turn("dropped", "overload")
        self._sink.turn("error", "transport")
        self._sink.turn("skipped", "budget")
        self._sink.internal_error("sink")
        self._drift.report(drifted(self._service))
        self._drift.monitor.update(drifted(self._service).stream, 0.5)
        self._rate()
        assert self._meters.force_flush()

    def _rate(self) -> None:
        rated = Feedback(trace_id=1, span_id=1, score=1.0)
        self._sink.feedback(rated, "joined")
        self._backends.emit_feedback(rated)

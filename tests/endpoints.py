"""Endpoints of judges for tests of what is reported about them."""

from opentelemetry.metrics import Observation

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.limits import Endpoint, Outcome
from rag_eval_otel.judge.models import ProtectedJudge
from rag_eval_otel.testing import FakeJudge


def measurement(endpoint: Endpoint) -> Measurement:
    judge = ProtectedJudge(FakeJudge(lambda _: {}), endpoint)
    return Measurement(metrics=(), judge=judge, embedder=HashingEmbedder())


class Left:
    """Half of a budget that is left."""

    def observe(self) -> list[Observation]:
        return [Observation(0.5, {"limit": "1 USD/day"})]


def report(endpoint: Endpoint, *outcomes: Outcome, not_sent: str | None = None) -> None:
    for outcome in outcomes:
        for observe in endpoint.observers:
            observe(outcome, 0.4)
    for tell in endpoint.refusal_observers if not_sent else ():
        tell(not_sent or "")

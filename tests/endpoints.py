"""Endpoints of judges for tests of what is reported about them."""

from __future__ import annotations

import random
import threading

from opentelemetry.metrics import Observation

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.models import ProtectedJudge
from rag_eval_otel.judge.outcomes import Outcome
from rag_eval_otel.judge.protection import AttemptResult, Endpoint
from rag_eval_otel.judge.throttling import RateLimiter
from rag_eval_otel.testing import FakeJudge


def measurement(endpoint: Endpoint) -> Measurement:
    """Return a measurement with a judge that is asked by way of ``endpoint``."""
    judge = ProtectedJudge(FakeJudge(lambda _: {}), endpoint)
    return Measurement(metrics=(), judge=judge, embedder=HashingEmbedder())


class Left:
    """Half of a budget that is left."""

    def observe(self) -> list[Observation]:
        """Return the share that is left."""
        return [Observation(0.5, {"limit": "1 USD/day"})]


def report(endpoint: Endpoint, *outcomes: Outcome, not_sent: str | None = None) -> None:
    """Tell the observers of ``endpoint`` of attempts, and of a request that was not sent."""
    for outcome in outcomes:
        for observe in endpoint.observers:
            observe(AttemptResult(endpoint=endpoint.name, outcome=outcome, seconds=0.4))
    for tell in endpoint.refusal_observers if not_sent else ():
        tell(endpoint.name, not_sent or "")


def times_of_64_threads(limiter: RateLimiter) -> list[float]:
    """Return when 64 threads send, in 200 s of a virtual clock; they want 100 a second."""
    lock, now, times = threading.Lock(), [0.0], list[float]()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        while now[0] < 200:
            with lock:
                now[0] += draw.random() * 0.02
                at = now[0]
            place = limiter.reserve(at, 1, most=5.0)
            if place is not None:
                with lock:
                    times.append(place.at)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times)

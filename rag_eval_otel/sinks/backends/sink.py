"""`BackendSink`: the sink that passes the scores of a pipeline to its backends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from typing import Literal

from opentelemetry.metrics import MeterProvider, Observation, get_meter_provider

from rag_eval_otel import semconv
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import ConfigError, MissingDependencyError
from rag_eval_otel.registry import Registry
from rag_eval_otel.sinks.backends.annotations import Annotation, annotation_of, annotations_of
from rag_eval_otel.sinks.backends.client import Client
from rag_eval_otel.sinks.backends.delivery import Delivery, Limits, Outcome
from rag_eval_otel.sinks.backends.langfuse import PUBLIC_KEY, SECRET_KEY
from rag_eval_otel.sinks.health import Gauge, add_gauge_source
from rag_eval_otel.types import Evaluation, Feedback

_HERE = "rag_eval_otel.sinks.backends"

BACKENDS = Registry(
    kind="backend",
    built_in={
        "phoenix": f"{_HERE}.phoenix:Phoenix",
        "mlflow": f"{_HERE}.mlflow:MLflow",
        "langsmith": f"{_HERE}.langsmith:LangSmith",
        "langfuse": f"{_HERE}.langfuse:Langfuse",
        "opik": f"{_HERE}.opik:Opik",
    },
)
"""Finds the class of a backend. Its instances are clients (see `client.Client`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """The package of a backend's client, and the variables without which the client cannot work."""

    package: str
    variables: tuple[str, ...] = ()


_NEEDS = {
    "phoenix": _Needs(package="arize-phoenix-client"),
    "mlflow": _Needs(package="mlflow", variables=("MLFLOW_TRACKING_URI",)),
    "langsmith": _Needs(package="langsmith"),
    "langfuse": _Needs(package="langfuse", variables=(PUBLIC_KEY, SECRET_KEY)),
    "opik": _Needs(package="opik"),
}

_QUEUED = Gauge(
    name=semconv.BACKEND_QUEUED,
    unit="{score}",
    description="Scores that wait to be sent to a backend.",
    join=sum,
)


def check_backends(names: Iterable[str]) -> None:
    """Raise an error if a backend in ``names`` cannot be used.

    `ConfigError` names an unknown backend or a missing variable, and `MissingDependencyError` the
    package to install. Nothing is imported and no request is sent.
    """
    for name in names:
        BACKENDS.find(name)
        needs = _NEEDS.get(name)
        if needs is None:
            continue
        try:
            distribution(needs.package)
        except PackageNotFoundError:
            raise MissingDependencyError(needs.package, extra=name) from None
        missing = [one for one in needs.variables if first_set([one]) is None]
        if missing:
            msg = f"the backend {name!r} needs the variable {' and '.join(missing)}"
            raise ConfigError(msg)


class BackendSink:
    """Pass each score to a `Delivery` for each of the backends ``names``.

    ``asking`` has the names of the metrics that ask a judge. If ``explanations`` is "on", the
    explanations of scores are sent, too. The counter ``rag.evaluation.backend.scores`` counts what
    became of each score, and a gauge shows how many wait. ``ended`` has the counts, too.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        asking: frozenset[str] = frozenset(),
        explanations: Literal["off", "on"] = "off",
        meter_provider: MeterProvider | None = None,
        limits: Limits | None = None,
    ) -> None:
        check_backends(names)
        meter = (meter_provider or get_meter_provider()).get_meter(
            semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
        )
        self._ended = meter.create_counter(
            semconv.BACKEND_SCORES,
            unit="{score}",
            description="Scores for backends, by what became of them.",
        )
        self._errors = meter.create_counter(
            semconv.ERRORS, unit="{error}", description="Failures of this library, by place."
        )
        self.ended: Counter[tuple[str, Outcome]] = Counter()
        self._asking = asking
        self._explanations: Literal["off", "on"] = explanations
        self.deliveries = tuple(self._delivery(name, limits) for name in dict.fromkeys(names))
        add_gauge_source(meter_provider, _QUEUED, source=self._observe_queues)

    def emit(self, evaluation: Evaluation) -> None:
        """Queue the scores of ``evaluation``; the backends get them later."""
        self._put(annotations_of(evaluation, asking=self._asking, explanations=self._explanations))

    def emit_feedback(self, feedback: Feedback) -> None:
        """Queue the ``feedback`` of a person."""
        self._put([annotation_of(feedback)])

    def flush(self, timeout: float) -> bool:
        """Send what waits; return False if not all backends took all of it in ``timeout`` s."""
        deadline = time.monotonic() + timeout
        begun = [(one, one.begin_flush()) for one in self.deliveries]
        done = True
        for one, limit in begun:
            done = one.end_flush(limit, timeout=max(0.0, deadline - time.monotonic())) and done
        return done

    def close(self) -> None:
        for delivery in self.deliveries:
            delivery.close()

    def _put(self, annotations: Iterable[Annotation]) -> None:
        found = list(annotations)
        if found:
            for delivery in self.deliveries:
                delivery.put(found)

    def _delivery(self, name: str, limits: Limits | None) -> Delivery:
        return Delivery(
            partial(_connect, name),
            name=name,
            report=partial(self._count, name),
            on_error=lambda place: self._errors.add(1, {semconv.PLACE: place}),
            limits=limits,
        )

    def _count(self, name: str, outcome: Outcome, number: int) -> None:
        self.ended[name, outcome] += number
        is_delivered = outcome == "delivered"
        found = {semconv.BACKEND: name, semconv.OUTCOME: "delivered" if is_delivered else "dropped"}
        self._ended.add(number, found if is_delivered else {**found, semconv.REASON: outcome})

    def _observe_queues(self) -> list[Observation]:
        return [Observation(len(one), {semconv.BACKEND: one.name}) for one in self.deliveries]


def _connect(name: str) -> Client:
    client: Client = BACKENDS.make(name)
    return client

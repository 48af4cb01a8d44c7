"""Report how well the evaluator itself works: gauges of its queues, judges, embedders and budgets.

`add_gauge_source` lets several pipelines report values for one gauge.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, Protocol, TypeAlias
from weakref import WeakKeyDictionary, WeakMethod

from opentelemetry.metrics import (
    CallbackOptions,
    Meter,
    MeterProvider,
    Observation,
    get_meter_provider,
)

from rag_eval_otel import semconv
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.environment import sdk_metrics_enabled
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.protection import AttemptResult, Endpoint, EndpointState
from rag_eval_otel.judge.throttling import BreakerState
from rag_eval_otel.runtime.fork import call_in_child

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""The bucket bounds of histograms of durations."""

Source: TypeAlias = Callable[[], Iterable[Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The name, unit and description of an observable gauge.

    If several pipelines report values with equal attributes, ``join`` computes one value from them.
    """

    name: str
    unit: str
    description: str
    join: Callable[[Iterable[float]], float]
    kind: Literal["gauge", "up_down_counter"] = "gauge"


@dataclass(slots=True)
class _SharedGauge:
    """A gauge of one meter provider, and the functions that return its values.

    Several pipelines may report values for one gauge, which OpenTelemetry allows only once.
    """

    gauge: Gauge
    sources: list[WeakMethod[Source]] = field(default_factory=list)

    def observe(self, _: CallbackOptions) -> Iterator[Observation]:
        """Call the functions in ``sources``, and yield one observation for each attribute set."""
        found: dict[frozenset[tuple[str, object]], list[Observation]] = {}
        for source in filter(None, [reference() for reference in tuple(self.sources)]):
            for seen in source():
                found.setdefault(frozenset((seen.attributes or {}).items()), []).append(seen)
        for same in found.values():
            yield Observation(self.gauge.join(seen.value for seen in same), same[0].attributes)


_of_global: dict[
    str, _SharedGauge
] = {}  # the global provider may be a proxy now and replaced later
_of_others: WeakKeyDictionary[MeterProvider, dict[str, _SharedGauge]] = WeakKeyDictionary()


def meter_of(provider: MeterProvider | None) -> Meter:
    """Return this library's meter of ``provider``, by default of the global meter provider."""
    return (provider or get_meter_provider()).get_meter(
        semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
    )


def add_gauge_source(
    provider: MeterProvider | None, gauge: Gauge, *, source: Source
) -> Callable[[], None]:
    """Report the values that ``source()`` returns in the gauge that ``gauge`` describes.

    The gauge belongs to ``provider``, by default the global meter provider. ``source`` is a bound
    method and is called at each collection of metrics; its object is referenced weakly. Returns a
    function that ends the reports from ``source``. The function is not thread-safe; `instrument`
    calls it under a lock.
    """
    used = provider or get_meter_provider()
    known = _of_others.get(used)
    if known is None:
        is_global = used is get_meter_provider()
        known = _of_global if is_global else _of_others.setdefault(used, {})
    if gauge.name not in known:
        shared = known[gauge.name] = _SharedGauge(gauge)
        meter = meter_of(used)
        create = getattr(meter, f"create_observable_{gauge.kind}")
        create(
            gauge.name, callbacks=[shared.observe], unit=gauge.unit, description=gauge.description
        )
    sources, reference = known[gauge.name].sources, WeakMethod(source)
    sources[:] = [*(kept for kept in sources if kept() is not None), reference]

    def stop() -> None:
        if reference in sources:
            sources.remove(reference)

    return stop


# --- the state of a pipeline ----------------------------------------------------------------------

_HELD = Gauge(
    name=semconv.HELD, unit="{span}", description="Spans that wait for their scores.", join=sum
)
_HELD_BYTES = Gauge(
    name=semconv.HELD_BYTES,
    unit="By",
    description="About how much memory the spans that wait for their scores take.",
    join=sum,
)
_PENDING = Gauge(
    name=semconv.PENDING,
    unit="{turn}",
    description="RAG turns that were found and have no outcome yet.",
    join=sum,
)
_BREAKER = Gauge(
    name=semconv.ENDPOINT_BREAKER,
    unit="{state}",
    description="State of the circuit breaker: 0 closed, 0.5 sends a probe, 1 open.",
    join=max,
)
_LIMIT = Gauge(
    name=semconv.ENDPOINT_LIMIT,
    unit="{request}",
    description="Requests that may be under way at the same time.",
    join=sum,
)
_IN_FLIGHT = Gauge(
    name=semconv.ENDPOINT_IN_FLIGHT,
    unit="{request}",
    description="Requests that are under way.",
    join=sum,
)
_PAUSE = Gauge(
    name=semconv.ENDPOINT_PAUSE,
    unit="s",
    description="Time until the next request may be sent after a refusal (429).",
    join=max,
)
_QUEUE_SIZE = Gauge(
    name=semconv.SDK_QUEUE_SIZE,
    unit="{span}",
    description="The number of spans in the queue of a given instance of an SDK span processor.",
    join=sum,
    kind="up_down_counter",
)
_QUEUE_CAPACITY = Gauge(
    name=semconv.SDK_QUEUE_CAPACITY,
    unit="{span}",
    description="The maximum number of spans the queue of a given instance of an SDK span"
    " processor can hold.",
    join=sum,
    kind="up_down_counter",
)

_BREAKER_VALUES: Mapping[BreakerState, float] = {"closed": 0.0, "half_open": 0.5, "open": 1.0}
_COMPONENT = "rag_eval_otel.RagEvalSpanProcessor"
_numbers = count()


class Held(Protocol):
    """The spans of one pipeline that wait for scores."""

    def __len__(self) -> int:
        """Return the number of spans."""

    @property
    def size(self) -> int:
        """About how many bytes the spans take in memory."""

    @property
    def capacity(self) -> int:
        """The most spans that may wait at the same time."""


class Health:
    """Report the state of one pipeline in the metrics of ``provider``, by default the global one.

    ``held`` are the spans that wait for scores, and ``pending()`` is the number of turns without an
    outcome. The judges and embedders of ``measurements`` that have an `Endpoint` are reported by
    its name, until `stop`: attempts by outcome with their latency, requests that were not sent, and
    the state of the breaker and the other limits.

    If ``OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED`` is set, the spans that wait are also reported as
    the queue of a span processor, in the way of the SDK. Processed spans are not, because the
    processor that exports them counts them.
    """

    def __init__(
        self,
        provider: MeterProvider | None = None,
        *,
        held: Held,
        pending: Callable[[], int],
        measurements: Iterable[Measurement] = (),
    ) -> None:
        self._held = held
        self._pending = pending
        self._component = {
            semconv.OTEL_COMPONENT_TYPE: _COMPONENT,
            semconv.OTEL_COMPONENT_NAME: f"{_COMPONENT}/{next(_numbers)}",
        }
        self._add_gauges(provider)
        endpoints = dict.fromkeys(endpoints_of(measurements))  # two measurements may share one
        reports = [_reports.join(endpoint, provider) for endpoint in endpoints]
        self._leave = weakref.finalize(self, _reports.leave, reports)
        self._leave.atexit = False

    def stop(self) -> None:
        """Stop reporting the endpoints, except those that another pipeline reports, too."""
        self._leave()

    def _add_gauges(self, provider: MeterProvider | None) -> None:
        sources: list[tuple[Gauge, Source]] = [
            (_HELD, self._observe_held),
            (_HELD_BYTES, self._observe_bytes),
            (_PENDING, self._observe_pending),
        ]
        if sdk_metrics_enabled():
            sources += [
                (_QUEUE_SIZE, self._observe_queue),
                (_QUEUE_CAPACITY, self._observe_capacity),
            ]
        for gauge, source in sources:
            add_gauge_source(provider, gauge, source=source)

    def _observe_held(self) -> list[Observation]:
        return [Observation(len(self._held))]

    def _observe_bytes(self) -> list[Observation]:
        return [Observation(self._held.size)]

    def _observe_pending(self) -> list[Observation]:
        return [Observation(self._pending())]

    def _observe_queue(self) -> list[Observation]:
        return [Observation(len(self._held), self._component)]

    def _observe_capacity(self) -> list[Observation]:
        return [Observation(self._held.capacity, self._component)]


# --- the endpoints of judges and embedders --------------------------------------------------------


class _EndpointReport:
    """Reports ``endpoint`` in the metrics of ``provider``, by default the global one.

    ``pipelines`` is the number of pipelines that use the report.
    """

    def __init__(self, endpoint: Endpoint, provider: MeterProvider | None) -> None:
        self._endpoint = endpoint
        self._provider = provider
        self.pipelines = 0
        self._add_instruments(provider)
        sources: list[tuple[Gauge, Source]] = [
            (_BREAKER, self._observe_breaker),
            (_LIMIT, self._observe_limit),
            (_IN_FLIGHT, self._observe_in_flight),
            (_PAUSE, self._observe_pause),
        ]
        self._stops = [add_gauge_source(provider, one, source=source) for one, source in sources]
        endpoint.observers = [*endpoint.observers, self._count_attempt]
        endpoint.refusal_observers = [*endpoint.refusal_observers, self._count_not_sent]

    def is_of(self, provider: MeterProvider | None) -> bool:
        """Return True if the metrics of ``provider`` are those of this report."""
        return (self._provider or get_meter_provider()) is (provider or get_meter_provider())

    def stop(self) -> None:
        """Report nothing any more. The lists are replaced, because another thread may read them."""
        endpoint = self._endpoint
        endpoint.observers = [one for one in endpoint.observers if one != self._count_attempt]
        endpoint.refusal_observers = [
            one for one in endpoint.refusal_observers if one != self._count_not_sent
        ]
        for stop in self._stops:
            stop()

    def _add_instruments(self, provider: MeterProvider | None) -> None:
        meter = meter_of(provider)
        self._attempts = meter.create_counter(
            semconv.ENDPOINT_ATTEMPTS,
            unit="{request}",
            description="Requests to judge and embedder, with each retry, by outcome.",
        )
        self._latency = meter.create_histogram(
            semconv.ENDPOINT_DURATION,
            unit="s",
            description="Time from sending a request to its reply or its failure.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._not_sent = meter.create_counter(
            semconv.ENDPOINT_NOT_SENT,
            unit="{request}",
            description="Requests to judge and embedder that were not sent, by reason.",
        )

    # --- requests, on the thread that sends them --------------------------------------------------

    def _count_attempt(self, attempt: AttemptResult) -> None:
        attributes = {**_named(attempt.endpoint), semconv.OUTCOME: attempt.outcome}
        self._attempts.add(1, attributes)
        self._latency.record(attempt.seconds, attributes)

    def _count_not_sent(self, endpoint: str, reason: str) -> None:
        self._not_sent.add(1, {**_named(endpoint), semconv.REASON: reason})

    # --- gauges, at each collection of metrics ----------------------------------------------------

    def _observe_breaker(self) -> list[Observation]:
        return self._observe(lambda state: _BREAKER_VALUES[state.breaker])

    def _observe_limit(self) -> list[Observation]:
        return self._observe(lambda state: state.limit)

    def _observe_in_flight(self) -> list[Observation]:
        return self._observe(lambda state: state.in_flight)

    def _observe_pause(self) -> list[Observation]:
        return self._observe(lambda state: state.pause)

    def _observe(self, value: Callable[[EndpointState], float]) -> list[Observation]:
        state = self._endpoint.state
        return [Observation(value(state), _named(state.name))]


class _EndpointReports:
    """The reports on all endpoints: one for each endpoint and meter provider.

    Several pipelines may use one judge, at the same time or one after another, and each request is
    counted once.
    """

    def __init__(self) -> None:
        self._create_lock()
        call_in_child(self._create_lock)

    def _create_lock(self) -> None:
        self._lock = threading.RLock()  # `leave` is also called by the garbage collector

    def join(self, endpoint: Endpoint, provider: MeterProvider | None) -> _EndpointReport:
        """Return the report on ``endpoint`` for a further pipeline; make it at the first call."""
        with self._lock:
            owners = [getattr(observe, "__self__", None) for observe in endpoint.observers]
            known = [one for one in owners if isinstance(one, _EndpointReport)]
            found = [one for one in known if one.is_of(provider)]
            report = found[0] if found else _EndpointReport(endpoint, provider)
            report.pipelines += 1
            return report

    def leave(self, reports: Iterable[_EndpointReport]) -> None:
        """End the use of ``reports`` by one pipeline; the last one stops the report."""
        with self._lock:
            for report in reports:
                report.pipelines -= 1
                if not report.pipelines:
                    report.stop()


_reports = _EndpointReports()


def endpoints_of(measurements: Iterable[Measurement]) -> Iterator[Endpoint]:
    """Yield the endpoints of the judges and embedders of ``measurements``.

    An offline judge or embedder has none.
    """
    for measurement in measurements:
        for model in (measurement.judge, measurement.embedder):
            endpoint = getattr(model, "endpoint", None)
            if isinstance(endpoint, Endpoint):
                yield endpoint


def _named(endpoint: str) -> dict[str, str]:
    return {semconv.ENDPOINT: exportable(endpoint)}

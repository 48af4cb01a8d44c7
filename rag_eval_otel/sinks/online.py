"""The sinks that every live pipeline has, built from its options."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rag_eval_otel.config import Config
from rag_eval_otel.drift.monitor import DriftMonitor, Report
from rag_eval_otel.drift.settings import DriftOptions
from rag_eval_otel.drift.store import StateFile
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.sinks.drift import DriftTelemetry
from rag_eval_otel.sinks.events import EventSink
from rag_eval_otel.types import Evaluation, Sink

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

_SAVED_EVERY = 100  # evaluations


class DriftSink:
    """Feeds a monitor, and keeps its state in a file where there is one."""

    def __init__(
        self,
        monitor: DriftMonitor,
        store: StateFile | None = None,
        *,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        """Go on from what ``store`` has."""
        self.monitor = monitor
        self._store = store
        self._on_close = on_close
        self._unsaved = 0
        state = store.load() if store else None
        if state is not None:
            monitor.restore(state)

    def emit(self, evaluation: Evaluation) -> None:
        """Take the scores of ``evaluation``; what whoever is told of drift raises is passed on."""
        try:
            self.monitor.emit(evaluation)
        finally:
            self._unsaved += 1
            if self._unsaved >= _SAVED_EVERY:
                self.save()

    def save(self) -> None:
        """Write the state, if there is anything new."""
        if self._store is not None and self._unsaved:
            self._unsaved = 0
            self._store.save(self.monitor.to_state())

    def close(self) -> None:
        """Show no evidence any more, and write the state a last time."""
        atexit.unregister(self.save)
        self._on_close()
        self.save()


def online_sinks(
    config: Config,
    *,
    provider: object,
    meters: MeterProvider | None = None,
    logs: LoggerProvider | None = None,
) -> Iterator[Sink]:
    """Yield the sinks that ``config`` asks for; ``provider`` knows the name of the service."""
    yield EventSink(logs, explanations=config.explanations)
    if config.drift == "off" or config.sdk_disabled:
        return
    options = DriftOptions() if config.drift == "on" else config.drift
    telemetry = DriftTelemetry(meter_provider=meters, logger_provider=logs)
    sink = drift_sink(options, telemetry, service=service_name(provider))
    telemetry.watch(sink.monitor.evidence)
    if options.state is not None:
        # Before the pipeline's own, so that it runs after it: the last scores are in it.
        atexit.register(sink.save)
    yield sink


def drift_sink(options: DriftOptions, telemetry: DriftTelemetry, *, service: str) -> DriftSink:
    """Return a sink that watches scores as ``options`` say and reports to ``telemetry``."""

    def report(found: Report) -> None:
        telemetry.report(found)
        if options.on_drift is not None:
            options.on_drift(found)

    monitor = DriftMonitor(
        report,
        make=options.make_detector,
        stratum=options.stratum,
        service=service,
        capacity=options.streams,
    )
    store = StateFile(options.state) if options.state is not None else None
    return DriftSink(monitor, store, on_close=telemetry.stop)


def check_targets(config: Config) -> None:
    """Raise `ConfigError` for a target of what ``config`` does not measure."""
    known = {metric.name for metric in resolve_metrics(config.metrics)}
    unknown = ", ".join(sorted(set(getattr(config.drift, "targets", ())) - known))
    if unknown:
        msg = f"drift has targets for {unknown}, but metrics has {', '.join(sorted(known))}"
        raise ConfigError(msg)


def service_name(provider: Any) -> str:
    """Return ``service.name`` of the provider's resource; blank where there is none."""
    attributes = getattr(getattr(provider, "resource", None), "attributes", {})
    return str(attributes.get("service.name", ""))

"""Providers from the environment, for applications that have none."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace
from opentelemetry._logs import _internal as logs_internal
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.util._once import Once

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.sdk import Providers, exporters, global_or_new_tracer_provider


@pytest.fixture
def no_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (trace, "TRACER_PROVIDER"),
        (metrics_internal, "METER_PROVIDER"),
        (logs_internal, "LOGGER_PROVIDER"),
    ):
        monkeypatch.setattr(module, f"_{name}", None)
        monkeypatch.setattr(module, f"_{name}_SET_ONCE", Once())
    for signal in ("TRACES", "METRICS", "LOGS"):
        monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")


@pytest.mark.usefixtures("no_globals")
def test_all_three_are_made_and_set() -> None:
    """Where there is no tracer provider, all three are made, set, and found again."""
    made = global_or_new_tracer_provider()
    assert isinstance(made, TracerProvider)
    assert global_or_new_tracer_provider() is made is trace.get_tracer_provider()
    assert isinstance(metrics.get_meter_provider(), MeterProvider)
    assert isinstance(_logs.get_logger_provider(), LoggerProvider)


@pytest.mark.usefixtures("no_globals")
def test_providers_that_are_set_stay() -> None:
    """Meter and logger providers of the application's own are left alone."""
    meters, loggers = MeterProvider(), LoggerProvider()
    metrics.set_meter_provider(meters)
    _logs.set_logger_provider(loggers)
    global_or_new_tracer_provider()
    assert metrics.get_meter_provider() is meters
    assert _logs.get_logger_provider() is loggers


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("console", [ConsoleSpanExporter]), ("none", []), ("console,none", [ConsoleSpanExporter])],
)
def test_exporters_follow_the_environment(
    variable: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard variable names the exporters."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", variable)
    assert [type(exporter) for exporter in exporters("traces")] == expected


def test_unknown_exporter_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the exporter that is not installed, and the alternatives."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeon")
    with pytest.raises(ConfigError, match=r"OTEL_TRACES_EXPORTER names 'pigeon'.*use otlp"):
        list(exporters("traces"))


@pytest.mark.parametrize(("environment", "name"), [({}, "demo"), ({"OTEL_SERVICE_NAME": "s"}, "s")])
def test_the_environment_names_the_service(
    environment: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it does not, the caller may."""
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    made = Providers.exporting(traces=(), metrics=(), logs=(), service="demo")
    assert made.tracer_provider.resource.attributes["service.name"] == name
    made.shutdown()

"""The tracer providers and OTLP exporters of a watched process, whoever makes them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rag_eval_otel.config import Signal
from rag_eval_otel.doctor.notes import ExportNote, ProviderNote
from rag_eval_otel.doctor.patches import after, before
from rag_eval_otel.doctor.watched import Pipelines
from rag_eval_otel.runtime.guard import Edge

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span, TracerProvider

    from rag_eval_otel.doctor.counter import SpanCounter


class Providers:
    """Counts the spans of every SDK provider, and has the global one attached at its first."""

    def __init__(
        self, pipelines: Pipelines, *, edge: Edge, on_made: Callable[[], object] = lambda: None
    ) -> None:
        """Know of none yet; ``on_made`` is told of each."""
        self._on_made = on_made
        self._pipelines = pipelines
        self._edge = edge
        self._known: list[tuple[TracerProvider, SpanCounter]] = []
        self.refused: list[str] = []
        self.asked: set[str] = set()
        """Who has asked the API's stand-in for a tracer, which it may use once there is one."""

    def reset(self) -> None:
        """Count from zero, in a forked child."""
        for _, counter in self._known:
            counter.reset()

    def watch_made(self, module: ModuleType) -> None:
        """Look on while providers of the SDK are made."""
        add = module.TracerProvider.add_span_processor  # some override it to replace their own

        def made(_: None, provider: TracerProvider, *_args: Any, **_options: Any) -> None:
            with self._edge:
                from rag_eval_otel.doctor.counter import SpanCounter  # noqa: PLC0415

                if any(one is provider for one, _ in self._known):
                    return
                counter = SpanCounter(
                    lambda span: self._first_span(provider, span), edge=self._edge
                )
                add(provider, counter)
                self._known.append((provider, counter))
                self._on_made()

        after(module.TracerProvider, "__init__", made)

    def watch_global(self, module: ModuleType) -> None:
        """Look on while a provider is made the global one, or refused, or there is none yet."""

        # Called as the program likes, by position or by name.
        def was_set(_: None, *args: Any, **named: Any) -> None:
            provider = next(iter((*args, *named.values())))
            if module.get_tracer_provider() is not provider:
                self.refused.append(_type_of(provider))

        def asked(_: Any, *args: Any, **named: Any) -> None:
            name = args[0] if args else named.get("instrumenting_module_name", "")
            self.asked.add(str(name))

        after(module, "set_tracer_provider", was_set)
        before(module.ProxyTracerProvider, "get_tracer", asked)

    def global_name(self) -> str:
        """Return the type of the global provider; empty where nobody has asked for one."""
        found = _global()
        return "" if found is None else _type_of(found)

    def _first_span(self, provider: TracerProvider, span: Span) -> None:
        """Attach, if nobody has, and tell the watch of the span that it has missed."""
        if self._pipelines.any or _global() is not provider:
            return
        handle = self._pipelines.attach()
        if handle is not None and handle.processor is not None:
            handle.pipeline.buffer.note_start(span)

    def notes(self) -> Iterator[ProviderNote]:
        """Yield what there is to tell of each provider."""
        for provider, counter in list(self._known):
            yield ProviderNote(
                type=_type_of(provider),
                is_global=_global() is provider,
                is_attached=self._is_attached(provider),
                sampler=provider.sampler.get_description(),
                spans=counter.ended,
                scopes=dict(counter.scopes),
                dialects=dict(counter.dialects),
            )

    def _is_attached(self, provider: TracerProvider) -> bool:
        """Tell whether a pipeline is, or was, in front of it; one by ``wrap=`` may be anywhere."""
        if not self._pipelines.handles():
            return False
        from rag_eval_otel.live.processor import find_seat  # noqa: PLC0415

        seats = [handle.seat for handle in self._pipelines.handles()]
        multi = find_seat(provider).multi
        return any(seat is None or seat.multi is multi for seat in seats)


class Exports:
    """Counts what OTLP exporters could deliver."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._counts: Counter[tuple[str, str, str, bool]] = Counter()

    def reset(self) -> None:
        """Count from zero, in a forked child."""
        self._counts.clear()

    def watch(self, exporter: type[Any], *, signal: Signal, protocol: str) -> None:
        """Look on at what exporters of a class deliver."""

        def exported(result: Any, one: Any, *_args: Any, **_options: Any) -> None:
            endpoint = str(getattr(one, "_endpoint", ""))
            succeeded = getattr(result, "name", "") == "SUCCESS"
            self._counts[signal, protocol, endpoint, succeeded] += 1

        after(exporter, "export", exported)

    def notes(self) -> Iterator[ExportNote]:
        """Yield how the exports of each exporter went."""
        counts = dict(self._counts)
        for signal, protocol, endpoint in sorted({key[:3] for key in counts}):
            yield ExportNote(
                signal=signal,
                protocol=protocol,
                endpoint=endpoint,
                succeeded=counts.get((signal, protocol, endpoint, True), 0),
                failed=counts.get((signal, protocol, endpoint, False), 0),
            )


def _global() -> Any:
    """Return the global tracer provider, unless nobody has asked for the API yet."""
    module = sys.modules.get("opentelemetry.trace")
    return None if module is None else module.get_tracer_provider()


def _type_of(provider: object) -> str:
    return f"{type(provider).__module__}.{type(provider).__qualname__}"

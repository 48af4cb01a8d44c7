"""`watch`: observable gauges that all pipelines of one meter provider report to.

The SDK keeps the first callback of an instrument's name and passes over those that come later: of
two pipelines, or of one that is taken off and put on again, only the first would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakMethod

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from rag_eval_otel import semconv

Source: TypeAlias = Callable[[], Iterable[Observation]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """What a gauge is called, and how values with the same attributes are made one."""

    name: str
    unit: str
    description: str
    join: Callable[[Iterable[float]], float]


@dataclass(slots=True)
class _Watched:
    """A gauge of one meter provider, and who reports to it."""

    gauge: Gauge
    sources: list[WeakMethod[Source]] = field(default_factory=list)

    def observe(self, _: CallbackOptions) -> Iterator[Observation]:
        """Yield what the sources see together."""
        found: dict[frozenset[tuple[str, object]], list[Observation]] = {}
        for source in filter(None, [reference() for reference in tuple(self.sources)]):
            for one in source():
                found.setdefault(frozenset((one.attributes or {}).items()), []).append(one)
        for same in found.values():
            yield Observation(self.gauge.join(one.value for one in same), same[0].attributes)


_of_global: dict[str, _Watched] = {}  # which may be a stand-in now and another object later
_of_others: WeakKeyDictionary[MeterProvider, dict[str, _Watched]] = WeakKeyDictionary()


def watch(provider: MeterProvider | None, gauge: Gauge, source: Source) -> Callable[[], None]:
    """Report what ``source()`` sees at every collection, as ``gauge`` of ``provider``.

    ``source`` is a bound method, whose object is not kept; what is returned ends it. None is the
    global provider. To be called by one thread at a time, as `instrument` does.
    """
    used = provider or get_meter_provider()
    known = _of_others.get(used)
    if known is None:
        is_global = used is get_meter_provider()
        known = _of_global if is_global else _of_others.setdefault(used, {})
    if gauge.name not in known:
        watched = known[gauge.name] = _Watched(gauge)
        used.get_meter(semconv.SCOPE, schema_url=semconv.GEN_AI_SCHEMA_URL).create_observable_gauge(
            gauge.name, callbacks=[watched.observe], unit=gauge.unit, description=gauge.description
        )
    sources, reference = known[gauge.name].sources, WeakMethod(source)
    sources[:] = [*(one for one in sources if one() is not None), reference]

    def stop() -> None:
        if reference in sources:
            sources.remove(reference)

    return stop

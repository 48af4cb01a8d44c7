"""Objects found by name: judges, embedders, metrics, dialects, detectors and sinks.

Our own are listed in the registries, as ``module:attribute``, and are imported when they are
first used. Another package adds one by an entry point in the group of the registry::

    [project.entry-points."rag_eval_otel.metrics"]
    politeness = "acme.scores:Politeness"

A package cannot replace a name of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rag_eval_otel.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Objects of one ``kind`` by name; ``built_in`` maps our names to ``module:attribute``.

    ``also`` are names that may stand in the place of one, which errors list, too.
    """

    kind: str
    built_in: Mapping[str, str]
    also: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The entry-point group in which other packages name theirs."""
        return f"rag_eval_otel.{self.kind}s"

    def __contains__(self, name: str) -> bool:
        return name in self.built_in or bool(entry_points(group=self.group, name=name))

    def names(self) -> tuple[str, ...]:
        """Return all names: ours in their order, then those of other packages, sorted."""
        others = sorted(entry.name for entry in entry_points(group=self.group))
        return tuple(dict.fromkeys((*self.built_in, *others)))

    def find(self, name: str) -> Any:
        """Return the object called ``name``.

        Raises `ConfigError` for an unknown name, and for an entry point that cannot be imported.
        """
        entry = self._entry(name)
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            msg = f"the {self.kind} {name!r} ({entry.value}) could not be imported: {error}"
            raise ConfigError(msg) from error

    def make(self, name: str, *arguments: object) -> Any:
        """Call the object called ``name`` and return the result.

        Raises `ConfigError` as `find`, and if the object cannot be called with ``arguments``.
        """
        found = self.find(name)
        try:
            return found(*arguments)
        except TypeError as error:
            msg = f"the {self.kind} {name!r} ({self._entry(name).value}) could not be made: {error}"
            raise ConfigError(msg) from error

    def _entry(self, name: str) -> EntryPoint:
        if name in self.built_in:
            return EntryPoint(name=name, group=self.group, value=self.built_in[name])
        found = tuple(entry_points(group=self.group, name=name))
        if found:
            return found[0]
        names = (*self.names(), *self.also)
        near = get_close_matches(name, names, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        msg = f"unknown {self.kind} {name!r}; {meant}There are: {', '.join(names)}"
        raise ConfigError(msg)

"""Find judges, embedders, metrics, conventions, backends and sinks by name or entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rag_eval_otel.errors import ConfigError

_IMPORT_ERRORS = (  # of a module that is missing or broken
    *(AttributeError, ImportError, LookupError, NameError, OSError),
    *(RuntimeError, SyntaxError, TypeError, ValueError),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Finds objects of one ``kind`` by name: those in ``built_in`` and those of other packages."""

    kind: str
    built_in: Mapping[str, str]
    also: tuple[str, ...] = ()  # further names for error messages

    @property
    def group(self) -> str:
        return f"rag_eval_otel.{self.kind}s"

    def __contains__(self, name: str) -> bool:
        return name in self.built_in or bool(entry_points(group=self.group, name=name))

    def names(self) -> tuple[str, ...]:
        others = sorted(entry.name for entry in entry_points(group=self.group))
        return tuple(dict.fromkeys((*self.built_in, *others)))

    def find(self, name: str) -> Any:
        entry = self._entry(name)
        try:
            return entry.load()
        except _IMPORT_ERRORS as error:
            cause = f"could not be imported: {str(error) or repr(error)}"
            raise ConfigError(f"the {self.kind} {name!r} ({entry.value}) {cause}") from error

    def make(self, name: str, *arguments: object, **options: object) -> Any:
        factory = self.find(name)
        try:
            return factory(*arguments, **options)
        except TypeError as error:
            raise ConfigError(
                f"the {self.kind} {name!r} ({self._entry(name).value}) could not be made: {error}"
            ) from error

    def _entry(self, name: str) -> EntryPoint:
        if name in self.built_in:
            return EntryPoint(name=name, group=self.group, value=self.built_in[name])
        for entry in entry_points(group=self.group, name=name):
            return entry
        names = (*self.names(), *self.also)
        near = get_close_matches(name, names, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        known = f"There are: {', '.join(names)}" if names else "No package brings one."
        raise ConfigError(f"unknown {self.kind} {name!r}{meant} {known}")

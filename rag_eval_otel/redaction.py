"""`Redactor`: pass each text through a function of the user before anybody else gets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, TypeAlias

from rag_eval_otel.errors import ConfigError, RedactionError
from rag_eval_otel.log import cause_of
from rag_eval_otel.types import Sample

Redaction: TypeAlias = Callable[[str], str]
"""A function that gets a text, and returns it without its private parts."""


@dataclass(frozen=True, slots=True)
class Redactor:
    """Pass texts through ``function``; without a function, texts stay as they are.

    If the function raises an exception or returns no text, `RedactionError` is raised, so that no
    text leaves unredacted.
    """

    function: Redaction | None = None

    def __bool__(self) -> bool:
        """Return True if there is a function."""
        return self.function is not None

    def text(self, text: str) -> str:
        """Return ``text`` without its private parts; raise `RedactionError` if that fails."""
        if self.function is None:
            return text
        with ExitStack() as stack:
            stack.push(self._refuse)
            clean: object = self.function(text)
        if not isinstance(clean, str):
            msg = f"redact: a function must return a str, not {type(clean).__name__}"
            raise RedactionError(msg)
        return clean

    def _refuse(self, _: type | None, error: BaseException | None, __: object) -> None:
        """Turn an exception of the function into a `RedactionError` without its message."""
        if isinstance(error, Exception):  # its message may quote the text
            name = getattr(self.function, "__qualname__", type(self.function).__name__)
            msg = f"redact: the function {name} raised {cause_of(error)}"
            raise RedactionError(msg) from None

    def sample(self, sample: Sample) -> Sample:
        """Return ``sample`` with all texts redacted, except the rubric.

        Raise `RedactionError` if the function fails.
        """
        if self.function is None:
            return sample
        contexts = [replace(passage, text=self.text(passage.text)) for passage in sample.contexts]
        reference = None if sample.reference is None else self.text(sample.reference)
        return replace(
            sample,
            question=self.text(sample.question),
            contexts=tuple(contexts),
            answer=self.text(sample.answer),
            reference=reference,
            extra={name: self.text(text) for name, text in sample.extra.items()},
        )

    def value(self, value: Any) -> Any:
        """Return the value of a span attribute with its texts redacted.

        ``value`` may be a text, a text with JSON, a number, or a sequence of texts or numbers. The
        function gets each text in it, also those in JSON, and each number as a text.
        """
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                if value.lstrip()[:1] in {"[", "{"}:
                    return json.dumps(self._inside(json.loads(value)), ensure_ascii=False)
            return self.text(value)
        clean = self._inside(value)
        if isinstance(clean, list) and clean != list(value):
            return list(map(str, clean))  # a sequence on a span has values of one type
        return clean

    def _inside(self, data: Any) -> Any:
        if isinstance(data, dict):
            return {self.text(key): self._inside(item) for key, item in data.items()}
        if isinstance(data, list | tuple):
            return [self._inside(item) for item in data]
        if data is None or isinstance(data, bool):
            return data
        text = str(data)
        clean = self.text(text)
        return data if clean == text else clean


def redactor(function: Redaction | str | None) -> Redactor:
    """Return a `Redactor` with ``function``, or with that at ``"package.module:function"``.

    Raise `ConfigError` if the text names no function, and for a value of another type.
    """
    if function is None or callable(function):
        return Redactor(function)
    try:
        found = resolve_name(function)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        msg = (
            "redact (RAG_EVAL_REDACT) must be a function that takes and returns a text, or its"
            f" place as 'package.module:function', not {function!r}: {error}"
        )
        raise ConfigError(msg) from error
    if not callable(found):
        msg = f"redact (RAG_EVAL_REDACT): {function!r} is no function"
        raise ConfigError(msg)
    return Redactor(found)

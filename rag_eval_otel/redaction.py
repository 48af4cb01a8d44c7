"""`Redactor`: replace matches of regular expressions in texts by ``[redacted]``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Sample

MARK: Final = "[redacted]"


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replace each match of the regular expressions in ``patterns`` by ``[redacted]``."""

    patterns: tuple[re.Pattern[str], ...] = ()

    def __bool__(self) -> bool:
        """Return True if there is at least one pattern."""
        return bool(self.patterns)

    def text(self, text: str) -> str:
        """Return ``text`` with each match of a pattern replaced by ``[redacted]``."""
        for pattern in self.patterns:
            text = pattern.sub(MARK, text)
        return text

    def sample(self, sample: Sample) -> Sample:
        """Return ``sample`` with each match of a pattern replaced by ``[redacted]``.

        All texts are redacted, except the rubric.
        """
        if not self.patterns:
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
        """Return the value of a span attribute with each match replaced by ``[redacted]``.

        ``value`` may be a text, a text with JSON, or a sequence of texts.
        """
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                if value.lstrip()[:1] in {"[", "{"}:
                    return json.dumps(self._inside(json.loads(value)), ensure_ascii=False)
            return self.text(value)
        return self._inside(value)

    def _inside(self, data: Any) -> Any:
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {self._inside(key): self._inside(item) for key, item in data.items()}
        if isinstance(data, list | tuple):
            return [self._inside(item) for item in data]
        return data


def redactor(patterns: Sequence[str]) -> Redactor:
    """Return a `Redactor` for the regular expressions in ``patterns``.

    Raise `ConfigError` if a pattern is not a regular expression, or if it matches the empty text.
    """
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        msg = f"redact must be a sequence of regular expressions, not {patterns!r}"
        raise ConfigError(msg)
    return Redactor(tuple(map(_compiled, patterns)))


def _compiled(pattern: object) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        msg = f"redact (RAG_EVAL_REDACT) takes regular expressions as str, not {pattern!r}"
        raise ConfigError(msg)
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        msg = f"redact (RAG_EVAL_REDACT): {pattern!r} is not a regular expression: {error}"
        raise ConfigError(msg) from error
    if not all(match[0] for probe in ("", "a b") for match in compiled.finditer(probe)):
        msg = f"redact (RAG_EVAL_REDACT): {pattern!r} matches the empty text, which is everywhere"
        raise ConfigError(msg)
    return compiled

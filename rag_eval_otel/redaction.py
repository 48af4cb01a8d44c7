"""`Redactor`: replace private parts of texts by ``[redacted]``, by patterns and by functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, TypeAlias

from rag_eval_otel.errors import ConfigError, RedactionError
from rag_eval_otel.types import Sample

MARK: Final = "[redacted]"

RedactionRule: TypeAlias = "str | Callable[[str], str]"
"""An entry of the option ``redact``: a name of `NAMED`, a regular expression, or a function."""

Rule: TypeAlias = "re.Pattern[str] | Callable[[str], str]"


class _FailClosed:
    """Turns an exception of the user's function into a `RedactionError` without its message."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self._name = getattr(rule, "__qualname__", type(rule).__name__)

    def __enter__(self) -> None:
        """Do nothing, because all work is done when the ``with`` block ends."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):  # its message may quote the text
            msg = f"redact: the function {self._name} raised {type(error).__name__}"
            raise RedactionError(msg) from None


@dataclass(frozen=True, slots=True)
class Redactor:
    """Apply ``rules`` to texts, in their order.

    A regular expression replaces each match by ``[redacted]``. A function gets a text and returns
    the text without its private parts. If a function raises an exception or does not return a text,
    `RedactionError` is raised, so that no text leaves unredacted.
    """

    rules: tuple[Rule, ...] = ()

    def __bool__(self) -> bool:
        """Return True if there is at least one rule."""
        return bool(self.rules)

    def text(self, text: str) -> str:
        """Return ``text`` after all rules; raise `RedactionError` if a function fails."""
        for rule in self.rules:
            text = rule.sub(MARK, text) if isinstance(rule, re.Pattern) else _applied(rule, text)
        return text

    def sample(self, sample: Sample) -> Sample:
        """Return ``sample`` with all texts redacted, except the rubric.

        Raise `RedactionError` if a function fails.
        """
        if not self.rules:
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


def _applied(rule: Callable[[str], str], text: str) -> str:
    with _FailClosed(rule):
        found: object = rule(text)
    if not isinstance(found, str):
        msg = f"redact: a function must return a str, not {type(found).__name__}"
        raise RedactionError(msg)
    return found


# --- rules with names -----------------------------------------------------------------------------

_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{2,63}){1,8}")
_KEY = re.compile(
    r"(?i)-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.{0,8000}?-----END [A-Z ]{0,20}PRIVATE KEY-----"
    r"|\b(?:sk|pk|rk|gsk|xai|nvapi|hf|npm|glpat|r8|tvly|pplx|lsv2|whsec|dop_v1|ghp|gho|ghu|ghs|ghr"
    r"|github_pat|xox[abeoprs])[-_][\w-]{12,}|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<=bearer )[\w.~+/=-]{8,}"
    r"|(?<=[?&]key=)[^&\s'\"]{6,}"
    r"|\b(?:api[ _-]?key|secret|token|password|passwd)[\"']?\s{0,3}[:=]\s{0,3}[\"']?[^\s\"',;]{6,}",
    re.DOTALL,
)
_DIGITS = re.compile(r"(?<![\w.+])(?:\+|\()?\d(?:[ ().\u2010-\u2013/-]{0,2}\d){5,18}(?![\w])")
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{4}-\d{2}-\d{2}[T ]?[\d:.]*")
_GROUPED = re.compile(r"\(?\d{2,4}\)?[ ./-]\d{3,4}[ ./-]?\d{3,4}")
_CARD = re.compile(r"(?<![\w.])\d(?:[ -]?\d){12,18}(?![\w])")
_PHONE_DIGITS = range(7, 16)


def _is_phone(found: str) -> bool:
    """Return True if ``found``, digits with separators, is written as a telephone number.

    It is if it begins with ``+`` or ``0``, or is grouped as in ``(212) 555-0123``. Dates are not.
    """
    digits = re.sub(r"\D", "", found)
    if len(digits) not in _PHONE_DIGITS or _DATE.fullmatch(found):
        return False
    return found[0] in "+0" or found[:2] == "(0" or _GROUPED.fullmatch(found) is not None


def _is_card(found: str) -> bool:
    """Return True if the digits of ``found`` have the check digit of payment cards (Luhn)."""
    digits = [int(char) for char in reversed(found) if char.isdecimal()]
    doubled = (2 * digit - 9 * (digit > 4) for digit in digits[1::2])  # noqa: PLR2004
    return len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _phones(text: str) -> str:
    return _DIGITS.sub(lambda match: MARK if _is_phone(match[0]) else match[0], text)


def _cards(text: str) -> str:
    return _CARD.sub(lambda match: MARK if _is_card(match[0]) else match[0], text)


def without_keys(text: str) -> str:
    """Return ``text`` with API keys, tokens and passwords replaced by ``[redacted]``."""
    return _KEY.sub(MARK, text)


NAMED: Final[Mapping[str, Rule]] = {
    "email": _EMAIL,
    "phone": _phones,
    "card": _cards,
    "key": _KEY,
}
"""Rules with names: e-mail addresses, telephone numbers, payment cards, API keys and passwords."""


# --- messages of servers --------------------------------------------------------------------------

_WORD = re.compile(r"\w+")
_LONGEST_MESSAGE = 2000  # characters
_LONG_WORD, _RUN = 4, 4  # least characters of a word, and words in a row, that are taken out
_COMMON = re.compile(
    r"access|account|all|allowed|an|and|any|are|argument|array|as|at|available|because"
    r"|been|before|body|but|by|can|cannot|character|characters|code|completion|content"
    r"|context|could|deployment|does|error|exceed|exceeded|exceeds|exist|exists|expected"
    r"|extra|failed|field|fields|filter|float|for|format|found|from|function|given|grammar"
    r"|guided|had|has|have|http|i|if|in|input|integer|internal|invalid|is|it|its|json|key"
    r"|keys|large|length|less|limit|limits|list|logprobs|long|many|max_completion_tokens"
    r"|max_tokens|maximum|may|message|messages|minute|missing|model|models|more|must|name"
    r"|no|not|null|number|object|of|on|one|only|or|output|param|parameter|parameters|parse"
    r"|permitted|please|policy|prompt|property|provided|quota|range|rate|reached|reduce"
    r"|reference|rejected|request|requested|requests|required|resource|response"
    r"|response_format|retry|schema|second|seconds|server|service|should|size|string"
    r"|structured|support|supported|system|temperature|text|than|that|the|their|there|this"
    r"|to|token|tokens|top_logprobs|type|unavailable|unknown|unrecognized|unsupported|used"
    r"|user|using|valid|value|values|version|was|we|when|who|window|with|you|your"
)


def scrubbed(message: str, *, texts: Iterable[str], key: str | None = None) -> str:
    """Return ``message``, a message of a server, without keys and without words of ``texts``.

    ``key`` is the key of the request. Words that occur in ``texts`` become ``[...]`` if they have
    at least four letters, a capital or a digit, and so do runs of four words. Common words of
    error messages stay.
    """
    message = message[:_LONGEST_MESSAGE]
    message = without_keys(message.replace(key, "***") if key else message)
    hay = f" {' '.join(word.casefold() for text in texts for word in _WORD.findall(text))} "
    found = list(_WORD.finditer(message))
    words = [match[0].casefold() for match in found]
    taken = {i for i, one in enumerate(found) if _tells(one[0], hay, is_last=i == len(words) - 1)}
    for start in range(len(words) - _RUN + 1):
        end = start + _RUN
        if f" {' '.join(words[start:end])}{' ' if end < len(words) else ''}" in hay:
            taken.update(range(start, end))
    return _without(message, [found[i].span() for i in sorted(taken)])


def _tells(word: str, hay: str, *, is_last: bool) -> bool:
    """Return True if ``word`` is from the texts ``hay``; the last word may be cut off."""
    plain = word.casefold()
    if not word.isascii():  # scripts without spaces have long runs of letters
        return plain in hay
    is_name = len(word) > 1 and (word[0].isupper() or any(map(str.isdecimal, word)))
    is_telling = (len(word) >= _LONG_WORD or is_name) and _COMMON.fullmatch(plain) is None
    return is_telling and (f" {plain}" if is_last else f" {plain} ") in hay


def _without(message: str, spans: Sequence[tuple[int, int]]) -> str:
    pieces, end = list[str](), 0
    for start, stop in spans:
        between = message[end:start]
        if not pieces or _WORD.search(between):
            pieces += [between, "[...]"]
        end = stop
    return "".join([*pieces, message[end:]])


# --- the option -----------------------------------------------------------------------------------


def redactor(rules: Sequence[RedactionRule]) -> Redactor:
    """Return a `Redactor` for ``rules``: names of `NAMED`, regular expressions and functions.

    Raise `ConfigError` for a rule of another type, for a text that is not a regular expression, and
    for one that matches the empty text.
    """
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        msg = f"redact must be a sequence of regular expressions or functions, not {rules!r}"
        raise ConfigError(msg)
    return Redactor(tuple(map(_rule, rules)))


def _rule(given: object) -> Rule:
    if callable(given):
        return given
    return NAMED.get(given) or _compiled(given) if isinstance(given, str) else _compiled(given)


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

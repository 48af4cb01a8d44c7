"""`Redactor`: replace private parts of texts by ``[redacted]``, by patterns and by functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
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

        ``value`` may be a text, a text with JSON, a number, or a sequence of texts or numbers. A
        number is redacted if a rule matches its digits. A member of a JSON object is redacted as a
        whole if a rule matches ``name: value``, as for ``{"password": "..."}``.
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

    def _inside(self, data: Any, name: str = "") -> Any:
        """Return the JSON value ``data``, the member ``name`` of an object, without private parts.

        Whether a value is private may depend on its name, so both are looked at together, too.
        """
        if isinstance(data, dict):
            return {self.text(key): self._inside(item, key) for key, item in data.items()}
        if isinstance(data, list | tuple):
            return [self._inside(item, name) for item in data]
        if data is None or isinstance(data, bool):
            return data
        told = str(data)
        clean = self.text(told)
        if name and self.text(f"{name}: {told}") != f"{self.text(name)}: {clean}":
            return MARK
        return data if clean == told else clean


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
_DIGITS = re.compile(r"(?<![\w.+])(?:\+|\()?\d(?:[ ().\u2010-\u2013/-]{0,2}\d){5,59}(?![\w])")
_NEXT = re.compile(r"(?<=\d) (?=\(?0\d)")  # where a telephone number may follow another one
_NO_PHONE = re.compile(  # decimal fractions and dates, which are taken out before
    r"(?<![\w.,/(])0\.\d+(?!\w|\.\d|[/-]\d)"
    r"|(?<![\w./-])(?:\d{1,2}([./-])\d{1,2}\1(?:19|20)\d\d|\d{4}([./-])\d{1,2}\2\d{1,2}"
    r"|(?<!\d )\d{1,2}([./-])\d{1,2}\3\d\d)(?![\d/-]|\.\d)(?:[T ]\d\d?:\d\d(?::\d\d(?:\.\d+)?)?)?"
)
_GROUPED = re.compile(r"\(?\d{2,4}\)?(?:[ /-]\d{3,4}[ /-]?\d{3,4}|\.\d{3,4}\.\d{3,4})")
_LONGEST_PHONE = 24  # characters
_AREA = 3  # fewest digits of a group of a number that begins with a lone zero
_CARD = re.compile(r"(?<![\w.])\d(?:[ \xa0.\u2010-\u2013-]?\d){12,}(?![\w])")
_CARD_DIGITS, _GROUP = range(13, 20), 3
_SPELLED = 40  # most single digits among which a card is searched
_SINGLE = frozenset("3456")  # first digits of issuers, of a card in single digits
_SEPARATORS = " \xa0\u2010\u2011\u2012\u2013-"
_ISSUER = re.compile(r"[3-6]|2[2-7]")
_PHONE_DIGITS = range(7, 16)


def _is_phone(found: str) -> bool:
    """Return True if ``found``, digits with separators, is written as a telephone number.

    It is if it begins with ``+`` or ``0``, or is grouped as in ``(212) 555-0123``. Rows of single
    digits, and of small numbers that begin with zero, are not.
    """
    groups = [len(group) for group in re.findall(r"\d+", found)]
    if sum(groups) not in _PHONE_DIGITS:
        return False
    if found[0] == "+":
        return not found.startswith("+0.")
    if found.startswith("0.") and found.count(".") == 1:
        return False
    if groups.count(1) > 1 or (groups[0] == 1 and len(groups) > 1 and max(groups) < _AREA):
        return False
    return found[0] == "0" or found[:2] == "(0" or _GROUPED.fullmatch(found) is not None


def _is_card(number: str) -> bool:
    """Return True if the digits ``number`` have the check digit of payment cards (Luhn)."""
    digits = [int(char) for char in reversed(number)]
    doubled = (2 * digit - 9 * (digit > 4) for digit in digits[1::2])  # noqa: PLR2004
    return len(set(digits)) > 1 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _phones(text: str) -> str:
    pieces, end = list[str](), 0
    for kept in _NO_PHONE.finditer(text):
        pieces += [_without_phones(text[end : kept.start()]), kept[0]]
        end = kept.end()
    return "".join([*pieces, _without_phones(text[end:])])


def _without_phones(text: str) -> str:
    return _DIGITS.sub(_without_numbers, text)


def _without_numbers(run: re.Match[str]) -> str:
    found = [run[0]] if len(run[0]) <= _LONGEST_PHONE else _NEXT.split(run[0])
    return " ".join(MARK if _is_phone(one) else one for one in found)


def _cards(text: str) -> str:
    return _CARD.sub(_without_cards, text)


def _without_cards(run: re.Match[str]) -> str:
    """Return ``run``, digits with separators, without the payment cards between separators."""
    pieces, end = list[str](), 0
    for start, stop in _card_spans(run[0]):
        if start > end or not pieces:
            pieces += [run[0][end:start], MARK]
        end = max(end, stop)
    return "".join([*pieces, run[0][end:]])


def _card_spans(run: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each payment card in ``run``, by start.

    A card has 13 to 19 digits, which are all digits of ``run``, or begin with the digits of an
    issuer and are in groups of at least three digits, or of one.
    """
    groups = [(group[0], group.start(), group.end()) for group in re.finditer(r"\d+", run)]
    whole = "".join(group for group, _, _ in groups)
    if len(whole) in _CARD_DIGITS and _is_card(whole):
        yield 0, len(run)
        return
    least = 1 if len(groups) <= _SPELLED else _GROUP
    for first, (begin, start, _) in enumerate(groups):
        number = ""
        for group, _, stop in groups[first : first + _CARD_DIGITS[-1]] if _may_begin(begin) else ():
            number += group
            is_fitting = len(group) >= _GROUP or len(group) == len(begin) == least
            if not is_fitting or len(number) > _CARD_DIGITS[-1]:
                break
            if len(number) in _CARD_DIGITS and _is_even(run[start:stop]) and _is_card(number):
                yield start, stop


def _may_begin(group: str) -> bool:
    return group in _SINGLE if len(group) == 1 else _ISSUER.match(group) is not None


def _is_even(found: str) -> bool:
    """Return True if dots in ``found``, if there are any, are its only separators."""
    return "." not in found or not any(char in found for char in _SEPARATORS)


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
_READ = 10  # times as many characters are searched for keys
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
    message = message.replace(key, "***") if key else message
    # Cut last, because half of a key would not be found; what is far behind is not even read.
    message = without_keys(message[: _READ * _LONGEST_MESSAGE])[:_LONGEST_MESSAGE]
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

    Raise `ConfigError` for a rule of another type, for a text that is not a regular expression, for
    one that matches the empty text, and for a word or a list of words that resemble a name.
    """
    if isinstance(rules, str) or not isinstance(rules, Sequence):
        msg = f"redact must be a list of names, regular expressions or functions, not {rules!r}"
        raise ConfigError(msg)
    return Redactor(tuple(map(_rule, rules)))


def _rule(given: object) -> Rule:
    if callable(given):
        return given
    if not isinstance(given, str):
        return _compiled(given)
    named = NAMED.get(given)
    if named is None and _is_mistyped(given):
        msg = (
            f"redact (RAG_EVAL_REDACT): {given!r} is not a rule; the rules with names are"
            f" {', '.join(NAMED)}, each an entry (in the variable: a line) of its own; for a"
            f" regular expression, write '(?:{given})'"
        )
        raise ConfigError(msg)
    return named or _compiled(given)


_PLAIN = re.compile(r"[A-Za-z_-]+")
_LIKE = 0.8  # similarity, 0 to 1


def _is_mistyped(given: str) -> bool:
    """Return True if ``given`` is a name in another form, or a list in which there is a name."""
    items = [item.strip() for item in re.split("[,;]", given)]
    return any(map(_is_like_a_name, items)) or all(map(_is_like_a_name, given.split() or [""]))


def _is_like_a_name(item: str) -> bool:
    """Return True if ``item`` is a plain word that is, or resembles, a name of `NAMED`."""
    words = item.lower().replace("-", "_").split("_") if _PLAIN.fullmatch(item) else []
    found = (get_close_matches(word, NAMED, n=1, cutoff=_LIKE) for word in [*words, "".join(words)])
    return any(found)


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

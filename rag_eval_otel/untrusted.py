"""Redact and clean texts of users, documents and models before they are sent or exported."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, Literal, TypeAlias

from rag_eval_otel.environment import variable
from rag_eval_otel.errors import ConfigError, RedactionError
from rag_eval_otel.log import cause_of
from rag_eval_otel.types import Sample

Redaction: TypeAlias = Callable[[str], str]  # returns a text without its private parts


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces texts by what ``function`` returns for them; its failure is a `RedactionError`."""

    function: Redaction | None = None

    def __bool__(self) -> bool:
        return self.function is not None

    def text(self, text: str) -> str:
        if self.function is None:
            return text
        with ExitStack() as stack:
            stack.push(self._refuse)
            clean: object = self.function(text)
        if isinstance(clean, str):
            return clean
        raise RedactionError(f"redact: a function must return a str, not {type(clean).__name__}")

    def _refuse(self, _: type | None, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):  # its message may quote the text
            name = getattr(self.function, "__qualname__", type(self.function).__name__)
            raise RedactionError(f"redact: the function {name} raised {cause_of(error)}") from None

    def sample(self, sample: Sample) -> Sample:
        if self.function is None:
            return sample
        return replace(
            sample,
            question=self.text(sample.question),
            contexts=tuple(replace(p, text=self.text(p.text)) for p in sample.contexts),
            answer=self.text(sample.answer),
            history=tuple(m._replace(text=self.text(m.text)) for m in sample.history),
            query=None if sample.query is None else self.text(sample.query),
            reference=None if sample.reference is None else self.text(sample.reference),
            extra={name: self.text(text) for name, text in sample.extra.items()},
        )

    def value(self, value: Any) -> Any:
        """Redact all texts in the value of a span attribute, also those inside JSON."""
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
    return Redactor(function_of("a text", function, option="redact"))


def function_of(argument: str, function: Any, *, option: str) -> Any:
    """Return ``function`` or None; import ``package.module:function``; else raise `ConfigError`."""
    if function is None or callable(function):
        return function
    shown = f"{option} ({variable(option)})"
    try:
        named = resolve_name(function)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        rule = f"must be a function of {argument}, or its place as 'package.module:function', not"
        raise ConfigError(f"{shown} {rule} {function!r}: {error}") from error
    if not callable(named):
        raise ConfigError(f"{shown}: {function!r} is no function")
    return named


# Signs that a text tries to steer the judge, as in ``Score.detail["injection"]``
Suspicion: TypeAlias = Literal["control_token", "hidden_text"]
_LINE_ENDS = re.compile("\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN = (  # control characters, marks of direction, tags, lone surrogates, blanks without width
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u202a-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff"
)
_JOINERS = "\u200c-\u200f\ufe00-\ufe0f"  # needed in emoji, Persian, Arabic and Indic words
_HIDDEN = re.compile(f"[{_UNSEEN}{_JOINERS}]{{4,}}|[{_UNSEEN}]+")
_HIDDEN_TEXT = re.compile(
    f"[{_UNSEEN}{_JOINERS}]{{8,}}|[\u202d\u202e]"
    "|(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0020-\U000e007f]"  # flags are spelled in tags
)
_CONTROL_TOKEN = re.compile(
    r"<(?=\|[^|<>\n]{1,40}\|>|</?SYS>>|/?(?:s|bos|eos|think|tool_call|(?:start|end)_of_turn)>"
    r"|/?(?:system|user|assistant)>)|\[(?=/?(?:INST|SYSTEM_PROMPT|TOOL_RESULTS|AVAILABLE_TOOLS)\])",
    re.IGNORECASE,
)


def visible(text: str) -> str:
    r"""Return ``text`` without characters that a reader does not see; line ends become ``\n``."""
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub("", _LINE_ENDS.sub("\n", text))


def harmless(text: str) -> str:
    """Return ``text`` safe for a prompt: only what is `visible`, control tokens escaped."""
    return _CONTROL_TOKEN.sub(r"\g<0>\\", visible(text))


def suspicions(texts: Iterable[str]) -> tuple[Suspicion, ...]:
    """Return the signs that ``texts`` try to steer the judge: control tokens, hidden text."""
    shown = list(texts)
    signs: tuple[Suspicion, ...] = ()
    if any(map(_CONTROL_TOKEN.search, shown)):
        signs += ("control_token",)
    if any(_HIDDEN_TEXT.search(text) for text in shown if not text.isascii()):
        signs += ("hidden_text",)
    return signs


_NO_LETTERS = re.compile("(?:[^\\w\x00-\x7f]|[\uff9e\uff9f]){30}")  # two accents are letters


def accents_apart(text: str) -> str:
    """Break runs of 30 accents by a space: Unicode normalisation of long runs is quadratic."""

    def apart(match: re.Match[str]) -> str:
        has_accents = any(map(unicodedata.combining, unicodedata.normalize("NFKD", match[0])))
        return f"{match[0]} " if has_accents else match[0]

    return text if text.isascii() else _NO_LETTERS.sub(apart, text)


def normal_form(text: str) -> str:
    return unicodedata.normalize("NFKC", accents_apart(text))


_LONGEST_OPENER = 120
_OPENERS = re.compile(
    r"(?:my |the )?(?:thought|thinking|reasoning) process|chain of thought"
    r"|(?:let's |let us |let me |we need to |i will )?(?:solve|think|break|work|reason|analy[sz]e)"
    r"\b[\w ]{0,40}\bstep[ -]by[ -]step|step[ -]by[ -]step(?: solution| reasoning| explanation)?"
    r"|(?:here is |the )?(?:final )?(?:answer|solution|explanation) is",
    re.IGNORECASE,
)
_HEADINGS = re.compile(
    r"(?:the |my )?(?:final )?"
    r"(?:answer|solution|explanation|response|analysis|reasoning|thoughts?)",
    re.IGNORECASE,
)


def says_nothing(answer: str) -> bool:
    """Return True if ``answer`` is only punctuation, or only announces a reasoning or an answer."""
    text = visible(answer).strip()
    if len(text) > _LONGEST_OPENER:
        return not any(map(_is_content, text))
    places = [at for at, char in enumerate(text) if _is_content(char)]
    if not places:
        return True
    words = text[places[0] : places[-1] + 1].replace("\u2019", "'")
    has_colon = ":" in text[places[-1] + 1 :]
    return bool(_OPENERS.fullmatch(words) or (has_colon and _HEADINGS.fullmatch(words)))


def _is_content(char: str) -> bool:
    # punctuation, separators and control characters are none
    return unicodedata.category(char)[0] not in "PZC" and char not in "`^"

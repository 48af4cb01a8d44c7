"""Find phrases of many languages in texts, quickly: by their first words, which are literal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_FOLDER = files("rag_eval_otel.untrusted")
_MACROS: Final = {
    "<score>": r"(?:\b(?:grad(?:e|es|ed|ing)|scor(?:e|es|ed|ing)|ratings?|verdicts?|noncommittal)\b"
    r"|\b(?:rate|mark) (?:it|this|the|all|every)\b|\bevery answer\b|\ball answers\b|\bscale\b)",
    "<best>": r"(?:\d|max|highest|full|perfect|top|best|pass\b|true\b)",
}
_OPENINGS = frozenset(".!?:;,)\n")
_JOINED = ("please", "now", "then", "and", "also")
_DENIED = re.compile(r"(?:\b(?:not|never|cannot)|n['\u2019]t)\s+(?:\w+\s+)?$")
_SPACED = "\u0590"  # Latin, Greek and Cyrillic letters are below it


@dataclass(frozen=True, slots=True)
class Phrase:
    """A phrase that begins with one of ``heads``, followed by ``rest``."""

    heads: tuple[str, ...]
    rest: re.Pattern[str]
    opens: bool
    """True if the phrase must begin a sentence."""

    def is_in(self, text: str) -> bool:
        """Return True if the phrase is in ``text``, which is in lower case, and not denied."""
        return any(
            self.rest.match(text, at + len(head)) is not None
            for head in self.heads
            for at in _places(text, head)
            if self.may_begin(text, at)
        )

    def may_begin(self, text: str, at: int) -> bool:
        """Return True if the first word at ``at`` may begin the phrase: it is whole, not denied."""
        before = text[max(0, at - 24) : at]
        if self.opens:
            led = before.rstrip(" \t\"'*#>-(")
            return not led or led[-1] in _OPENINGS or led.endswith(_JOINED)
        is_inside = text[at] < _SPACED and text[at].isalpha() and before[-1:].isalnum()
        return not is_inside and _DENIED.search(before) is None


def _places(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _lines(name: str) -> list[str]:
    lines = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


@cache
def phrases(name: str) -> tuple[Phrase, ...]:
    """Return the phrases of a file; its first lines explain the form of the others."""
    return tuple(map(_phrase, _lines(name)))


def _phrase(line: str) -> Phrase:
    heads, _, rest = line.partition(" :: ")
    for macro, form in _MACROS.items():
        rest = rest.replace(macro, form)
    return Phrase(
        heads=tuple(heads.removeprefix("^").split("|")),
        rest=re.compile(rest),
        opens=heads.startswith("^"),
    )


def has_phrase(name: str, text: str) -> bool:
    """Return True if ``text``, in lower case, has a phrase of the file ``name``."""
    return any(phrase.is_in(text) for phrase in phrases(name))


@cache
def forms_of(name: str) -> re.Pattern[str]:
    """Return the regular expressions of a file (one a line) as one expression."""
    return re.compile("|".join(f"(?:{line})" for line in _lines(name)), re.IGNORECASE)

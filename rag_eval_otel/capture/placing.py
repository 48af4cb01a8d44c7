"""Where a text stands in what an LLM was shown, in whatever form it was written there.

A document that is put into a prompt is escaped, dumped, quoted, numbered, indented or wrapped; what
all of that leaves are its letters and digits in their order. Of a document that was changed beyond
that some of its words are left; of one that is not there, none but those that others have, too.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

from rag_eval_otel.capture.text import place

Place: TypeAlias = "tuple[int, int]"
"""The number of a message, and the letters and digits in front of the text."""

_FEW = 16  # letters and digits, of which fewer may be anywhere: such a text must be there as it is
_CHUNK = 24  # letters and digits in a row that two texts do not have in common by chance
_LAYERS = 3  # of escapes that are taken off: JSON within JSON within a repr
_MOST = 0.6  # the share of a text's own words from which it is there in other words
_SEVERAL = 3  # such words, at least

_UNESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrt]|(.))", re.DOTALL)
_NUMBER = re.compile(r"^[\W_]*\d{1,3}[.):\]]\s+", re.MULTILINE)  # of a line in a list
_NEITHER = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W_]+")


def bare(text: str) -> str:
    """Return the letters and digits of ``text``, without what escapes them."""
    return _NEITHER.sub("", _plain(text))


def _unnumbered(text: str) -> str:
    """Return the same, without the numbers of the lines of a list."""
    return _NEITHER.sub("", _NUMBER.sub("", _plain(text)))


def words(text: str) -> frozenset[str]:
    """Return the words of ``text`` that say something: from four letters on, and numbers."""
    found = _WORD.findall(_plain(text))
    return frozenset(word for word in found if len(word) > 3 or not word.isalpha())  # noqa: PLR2004


def _plain(text: str) -> str:
    text = html.unescape(html.unescape(text))
    for _ in range(_LAYERS if "\\" in text else 0):
        text = _UNESCAPED.sub(_character, text)
    return unicodedata.normalize("NFKC", text).casefold()


def _character(found: re.Match[str]) -> str:
    if found[1] is not None:
        return chr(int(found[1], 16))
    return found[2] if found[2] is not None else "\n"


class Messages:
    """What an LLM was shown, and where texts stand in it."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Look into ``texts``, oldest first."""
        self.texts = tuple(texts)

    @cached_property
    def _bare(self) -> tuple[str, ...]:
        return tuple(map(bare, self.texts))

    @cached_property
    def _unnumbered(self) -> tuple[str, ...]:
        return tuple(map(_unnumbered, self.texts))

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset().union(*map(words, self.texts))

    @property
    def size(self) -> int:
        """How many letters and digits there are."""
        return sum(map(len, self._bare))

    def place(self, text: str) -> Place | None:
        """Return where ``text`` stands as it is, escaped or re-spaced."""
        found = place(text, self.texts)
        return found and (found[0], len(bare(self.texts[found[0]][: found[1]])))

    def place_changed(self, text: str) -> Place | None:
        """Return where ``text`` stands in any form that leaves its letters and digits."""
        own = bare(text)
        if len(own) < _FEW:
            return None
        return _find(own, self._bare) or _find(_unnumbered(text), self._unnumbered)

    def trace(self, text: str, others: Sequence[str]) -> Place | None:
        """Return where a part of ``text`` begins that none of ``others`` has, too."""
        own, beside = bare(text), [bare(other) for other in others]
        for start in range(0, len(own) - _CHUNK + 1, _CHUNK // 2):
            part = own[start : start + _CHUNK]
            found = None if any(part in other for other in beside) else _find(part, self._bare)
            if found is not None:
                return found
        return None

    def resembles(self, text: str, others: Sequence[str]) -> bool:
        """Tell whether ``text`` is there in another form: most words that are its own are."""
        own = words(text).difference(*map(words, others))
        return len(own & self._words) >= max(_MOST * len(own), _SEVERAL)


def _find(part: str, messages: Sequence[str]) -> Place | None:
    for number, message in enumerate(messages):
        at = message.find(part) if part else -1
        if at >= 0:
            return number, at
    return None

"""HTML and SVG from trees of tags: whatever is not made here is text, and escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import TypeAlias

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What HTML may not hold or UTF-8 cannot write: controls, halves of characters, noncharacters."""


class Html(str):
    """Markup that is safe to be put on the page: only this module makes any."""

    __slots__ = ()


Child: TypeAlias = str | int | Iterable["Child"] | None
"""What may be inside of a tag: markup, text, a number, nothing, or several of these."""


def tag(name: str, *children: Child, **attributes: str | float | None) -> Html:
    """Return an element; in names of attributes ``_`` stands for ``-``, at the end for nothing.

    An attribute that is None is left out.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{told}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """Return ``children`` one after the other."""
    return Html("".join(map(_child, children)))


def quoted(text: str, *, most: int = 200) -> Html:
    """Return text of the file, cut after ``most`` characters.

    Its direction of writing stays its own: what reverses it does not reverse what stands beside.
    """
    return tag("bdi", text if len(text) <= most else f"{text[:most]}…")


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int):
        return _text(str(child))
    return joined(*child)


def _attribute(value: str | float) -> str:
    return _text(f"{value:.6g}" if isinstance(value, float) else str(value))


def _text(text: str) -> str:
    return escape(_UNPRINTABLE.sub("\ufffd", text))

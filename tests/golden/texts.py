"""What a judge's text means in the form that the peer asked for; None where it does not follow it.

A judge of ours would have been given a schema, so that there is nothing to read. Where a case says
itself what the judge meant, that counts; these are for cases that have the text alone.
"""

from __future__ import annotations

import re
from contextlib import suppress

_RESULT = re.compile(r".\s*\[RESULT\]\s*(\d+(?:\.\d+)?)\.?\s*$", re.DOTALL)
_YES_OR_NO = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_NUMBERING = "0123456789.-)( \t*"


def number(text: object) -> float | None:
    if isinstance(text, int | float):
        return text
    with suppress(TypeError, ValueError):
        return float(text)  # type: ignore[arg-type]  # which is what is found out
    return None


def first_line(text: str) -> float | None:
    return number(text.partition("\n")[0])


def result(text: str) -> float | None:
    found = _RESULT.search(text)
    return None if found is None else float(found[1])


def yes(text: object) -> bool | None:
    found = _YES_OR_NO.match(str(text))
    return None if found is None else found[1].lower() == "yes"


def lines(text: str) -> list[str]:
    found = (line.strip().lstrip(_NUMBERING).strip() for line in text.splitlines())
    return [line for line in found if line]


def questions(text: str, *, at_most: int) -> list[str]:
    return [line for line in lines(text) if "?" in line][:at_most]

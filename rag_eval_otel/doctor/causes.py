"""Everything the doctor may find, from ``causes.md``, which `docs/doctor.md` shows as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, Literal, get_args

Level = Literal["problem", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that may be found: how bad it is, why it matters, what to do."""

    id: str
    level: Level
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause that was found, at its own level or another; ``seen`` says by what."""

    cause: Cause
    level: Level
    seen: str


def found(cause: str, seen: str, *, level: Level | None = None) -> Finding:
    """Return the finding of ``cause``, at its own level unless another is given."""
    known = CAUSES[cause]
    return Finding(cause=known, level=level or known.level, seen=seen)


_CAUSE = re.compile(
    r"^### `(?P<id>[a-z-]+)`: (?P<level>\w+)\n\n"
    r"(?P<why>.+?)\n\n\*Do:\* (?P<fix>.+?)(?=\n\n#|\n*\Z)",
    re.MULTILINE | re.DOTALL,
)


def causes_text() -> str:
    """Return the text of ``causes.md``."""
    return (files("rag_eval_otel.doctor") / "causes.md").read_text(encoding="utf-8")


def _causes(text: str) -> Iterator[Cause]:
    levels: Mapping[str, Level] = {level: level for level in get_args(Level)}
    for match in _CAUSE.finditer(text):
        why, fix = (" ".join(match[part].split()) for part in ("why", "fix"))
        yield Cause(id=match["id"], level=levels[match["level"]], why=why, fix=fix)


CAUSES: Final[Mapping[str, Cause]] = {cause.id: cause for cause in _causes(causes_text())}
"""By name."""

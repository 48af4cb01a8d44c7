"""Load the texts of the prompts to the judge, from the package or from a folder of the user."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Sample

_BUILT_IN = files("rag_eval_otel.judge") / "prompts"
_SUFFIX = ".md"
_NO_PROMPT = "README.md"
_OPTIONAL = frozenset({"closing"})  # may be missing from a folder: added after folders were in use


@cache
def _built_in(name: str) -> str:
    return (_BUILT_IN / f"{name}{_SUFFIX}").read_text(encoding="utf-8").strip()


def built_in_names() -> list[str]:
    """Return the names of all built-in prompts (their files without ``.md``), sorted."""
    found = (path.name for path in _BUILT_IN.iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The user's own prompts to the judge: ``texts`` maps names of prompts to their texts.

    The built-in text is used for each prompt that is not in ``texts``.
    """

    texts: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def digest(self) -> str:
        """Eight hex digits of a hash of the user's prompts; empty if all prompts are built in."""
        told = "\0".join(f"{name}\0{text}" for name, text in sorted(self.texts.items()))
        return hashlib.sha256(told.encode()).hexdigest()[:8] if told else ""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use these prompts in the ``with`` block, and in asyncio tasks started in the block."""
        token = _IN_USE.set(self)
        try:
            yield
        finally:
            _IN_USE.reset(token)


BUILT_IN = Prompts()

_IN_USE: ContextVar[Prompts] = ContextVar("rag_eval_otel_prompts", default=BUILT_IN)


def prompt_text(name: str) -> str:
    """Return the user's text of the prompt ``name`` if one is in use, else the built-in text."""
    text = _IN_USE.get().texts.get(name)
    return _built_in(name) if text is None else text


def load_prompts(folder: str | PathLike[str]) -> Prompts:
    """Return the prompts in ``folder``, which has one ``.md`` file for each built-in prompt.

    Each file has the name of its prompt; ``README.md`` is ignored. The built-in ``closing`` is used
    if the folder has none. Raises `ConfigError` for a folder or file that is not readable, for a
    file that is missing or empty, and for a file whose name is not the name of a prompt.
    """
    place = Path(folder)
    try:
        paths = sorted(path for path in place.iterdir() if path.suffix == _SUFFIX)
    except OSError as error:
        msg = (
            f"prompts: the folder {place} cannot be read ({error.strerror});"
            f" copy {_BUILT_IN} there and change what you like"
        )
        raise ConfigError(msg) from error
    found = {path.stem: path for path in paths}
    found.pop(Path(_NO_PROMPT).stem, None)
    names = built_in_names()
    _refuse_unknown([name for name in found if name not in names], names, place=place)
    missing = [name for name in names if name not in found and name not in _OPTIONAL]
    if missing:
        msg = (
            f"prompts: {place} has no {', '.join(name + _SUFFIX for name in missing)};"
            f" copy what you do not change from {_BUILT_IN}"
        )
        raise ConfigError(msg)
    return Prompts(texts={name: _read(path) for name, path in found.items()})


def _refuse_unknown(unknown: list[str], names: list[str], *, place: Path) -> None:
    for name in unknown:
        close = get_close_matches(name, names, n=1)
        meant = f"; did you mean {close[0]}{_SUFFIX}?" if close else ""
        msg = f"prompts: {place} has {name}{_SUFFIX}, and there is no prompt of that name{meant}"
        raise ConfigError(msg)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"prompts: {path} cannot be read: {error}"
        raise ConfigError(msg) from error
    if not text:
        msg = f"prompts: {path} is empty; the built-in text is in {_BUILT_IN / path.name}"
        raise ConfigError(msg)
    return text


# --- texts that are too long for one turn ---------------------------------------------------------

_LONG_TURN = 4  # times as long as the longest text
_SEARCHED = 2000  # characters before the limit in which the end of a sentence is searched
_END = re.compile(
    "(?<=[.!?\u2026])[\"'\u201d\u2019\xbb)\\]*]*(?=\\s)"
    "|(?<=[\u0964\u061f\u06d4\u3002\uff01\uff1f])|(?=\n)"
)


class CutText(str):
    """The beginning of a text; a prompt says that the rest, ``lost`` characters, was cut.

    The note is not in the text, because an answer would contain one claim more.
    """

    __slots__ = ("lost",)
    lost: int

    @property
    def note(self) -> str:
        """The note for the reader of a prompt, on a line of its own."""
        return f"\n[... {self.lost:,} characters cut]"


def clipped(sample: Sample, most: int | None) -> tuple[Sample, dict[str, int]]:
    """Return ``sample`` with shorter texts, and the numbers of characters cut, by field.

    A text has at most ``most`` characters, and all texts together four times as many; None means no
    limit. Texts are cut at the end of a sentence if there is one near the limit, and become a
    `CutText`. The contexts are cut last to first.
    """
    if most is None:
        return sample, {}
    cut: dict[str, int] = {}
    left = most * _LONG_TURN

    def shorter(name: str, text: str) -> str:
        nonlocal left
        kept = text[: _end(text, min(most, left))]
        left -= len(kept)
        lost = len(text) - len(kept)
        if not lost:
            return text
        cut[name] = cut.get(name, 0) + lost
        found = CutText(kept)
        found.lost = lost
        return found if kept else ""

    texts = {name: shorter(name, getattr(sample, name)) for name in ("question", "answer")}
    reference = None if sample.reference is None else shorter("reference", sample.reference)
    contexts = [replace(one, text=shorter("contexts", one.text)) for one in sample.contexts]
    if not cut:
        return sample, {}
    return replace(sample, **texts, reference=reference, contexts=tuple(contexts)), cut  # type: ignore[arg-type]


def _end(text: str, most: int) -> int:
    """Return the last end of a sentence, of a line or of a word in ``text``, up to ``most``."""
    if len(text) <= most:
        return len(text)
    start = max(most // 2, most - _SEARCHED)
    ends = [match.end() for match in _END.finditer(text, start, most + 1) if match.end() <= most]
    return max(ends, default=0) or max(0, text.rfind(" ", start, most)) or most

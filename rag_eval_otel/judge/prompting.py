"""Load the texts of the prompts to the judge, from the package or from a folder of the user."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path

from rag_eval_otel.errors import ConfigError

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

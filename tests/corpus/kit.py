"""The definition of an application of the corpus: a function and its truths.

This module imports no framework. A module `<framework>_<topic>.py` beside it registers its
applications with `@app(...)`; `all_apps("<framework>")` imports those modules and returns them.
Modules `doubtful_<framework>.py` are apart: all that is in a doubtful trace may be refused.
"""

import asyncio
import hashlib
import importlib
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any, TypeAlias

from packaging.requirements import Requirement

Config: TypeAlias = "dict[str, Any]"
Run: TypeAlias = "Callable[[Config], Any]"

SPANS = frozenset({"openinference", "traceloop", "langfuse", "genai"})
"""For `not_on_spans`: what instrumentations do not record, but our own callback handler can see."""

V1 = ("langchain>=1",)
"""For `needs`."""


@dataclass(frozen=True)
class Truth:
    """One question-answering turn, as a careful reader of the application states it."""

    question: str
    contexts: tuple[str, ...]
    """The texts that reached the generator, in prompt order; if rewritten, those retrieved."""
    answer: str
    also: tuple[Mapping[str, Any], ...] = ()
    """Other defensible statements, each as the fields in which it differs."""

    def statements(self) -> tuple["Truth", ...]:
        plain = replace(self, also=())
        return (plain, *(replace(plain, **change) for change in self.also))

    def holds_for(self, question: str, contexts: Iterable[str], answer: str) -> bool:
        """Return True if the texts are those of a statement, up to whitespace and spaces of JSON."""
        told = Truth(question, tuple(contexts), answer).squeezed()
        return told in [one.squeezed() for one in self.statements()]

    def squeezed(self) -> tuple[str, tuple[str, ...], str]:
        """Return question, contexts and answer with each run of whitespace as one space."""
        contexts = tuple(_squeezed(text) for text in self.contexts)
        return _squeezed(self.question), contexts, _one_line(self.answer)


@dataclass(frozen=True, eq=False)
class App:
    """A runnable application with its truths; its docstring names the page that it follows."""

    run: Run
    """Runs the application once with the config for its framework; it may be an `async def`."""
    truths: tuple[Truth, ...]
    """The turns that it must give. Without any it must give no sample."""
    optional: tuple[Truth, ...] = ()
    """Turns that may be scored too, for example those of a RAG chain inside a tool."""
    not_on_spans: frozenset[str] = frozenset()
    """The ways of capture in which the truth is not recorded at all."""
    needs: tuple[str, ...] = ()
    """Requirements without which it is skipped."""

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def framework(self) -> str:
        return _framework(self.run.__module__.rpartition(".")[2])

    def missing(self) -> list[str]:
        return [text for text in self.needs if not _is_met(Requirement(text))]


_APPS: dict[tuple[str, str], App] = {}


def app(
    *truths: Truth,
    optional: Iterable[Truth] = (),
    not_on_spans: Iterable[str] = (),
    needs: Iterable[str] = (),
) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        made = App(run, truths, tuple(optional), frozenset(not_on_spans), tuple(needs))
        assert _APPS.setdefault((made.framework, made.name), made) is made, "a name twice"
        return run

    return register


def turn(
    question: str,
    contexts: tuple[str, ...],
    answer: str,
    also: tuple[Mapping[str, Any], ...] = (),
    **options: Any,
) -> Callable[[Run], Run]:
    """Register the function below as an application of one turn.

    It is called with the question, or with the answer for its model, if it has such parameters.
    """
    texts = {"question": question, "answer": answer}

    def register(run: Run) -> Run:
        given = {name: texts[name] for name in texts if name in inspect.signature(run).parameters}
        with_texts = update_wrapper(partial(run, **given), run)
        return app(Truth(question, contexts, answer, also), **options)(with_texts)

    return register


def all_apps(*frameworks: str) -> tuple[App, ...]:
    folder = Path(__file__).parent
    for module in sorted(info.name for info in pkgutil.iter_modules([str(folder)])):
        if _framework(module) in frameworks and not module.endswith("_kit"):
            importlib.import_module(f"{__package__}.{module}")
    return tuple(one for one in _APPS.values() if one.framework in frameworks)


def _framework(module: str) -> str:
    return module if module.startswith("doubtful_") else module.partition("_")[0]


def call(app: App, config: Config) -> None:
    def ran() -> None:
        found = app.run(config)
        if inspect.iscoroutine(found):
            asyncio.run(found)

    copy_context().run(ran)


def words(text: str) -> list[str]:
    """Return the words of ``text`` in lower case; scripts without spaces give pairs of letters."""
    found: list[str] = []
    for word in re.findall(r"\w+", text.lower()):
        if word.isascii() or not _is_unspaced(word):
            found.append(_stem(word))
        else:
            found += [word[i : i + 2] for i in range(max(len(word) - 1, 1))]
    return [word for word in found if word not in _STOP]


def embed(text: str, size: int = 1024) -> list[float]:
    """Return a vector of unit length: texts that share words have a positive dot product."""
    vector = [0.0] * size
    for word in set(words(text)):
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        vector[int.from_bytes(digest, "big") % size] += 1.0
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length else [1.0, *vector[1:]]


def pieces(text: str) -> list[str]:
    return re.findall(r"\S+\s*|^\s+", text)


def _squeezed(text: str) -> str:
    return " ".join(str(text).split())


def _one_line(answer: str) -> str:
    """Return ``answer`` with single spaces; if it is a JSON object, without spaces of JSON."""
    with suppress(ValueError):
        if isinstance(found := json.loads(answer), dict):
            return json.dumps(found, ensure_ascii=False)
    return _squeezed(answer)


def _is_unspaced(word: str) -> bool:
    return any("\u3040" <= letter <= "\u9fff" for letter in word)


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def _is_met(requirement: Requirement) -> bool:
    if requirement.name == "python":
        return requirement.specifier.contains(python_version())
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return False
    return requirement.specifier.contains(installed, prereleases=True)


_STOP = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be by can do does for from have how i if in is it its me my of on or our
        tell that the their there this to was we what when where which who why with you your
        """,
    )
)

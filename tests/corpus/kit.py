"""The definition of an application of the corpus: a function and its truths.

This module imports no framework. A module `<framework>_<topic>.py` beside it registers its
applications with `@app(...)`; `all_apps("<framework>")` imports those modules and returns them.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any, TypeAlias

from packaging.requirements import Requirement

Config: TypeAlias = "dict[str, Any]"
Run: TypeAlias = "Callable[[Config], Any]"

VIAS = (
    "callback",
    "openinference",
    "traceloop",
    "langfuse",
    "genai",
    "openai_v2",
    "llamaindex_native",
    "haystack_native",
)
"""The ways of capture. `callback` is our own LangChain handler, the others are span sources."""

SPANS = frozenset(VIAS) - {"callback"}
"""For `not_on_spans`: what other instrumentations do not record, but our own handler can see."""

NOWHERE = frozenset(VIAS)
"""For `not_on_spans`: nothing in the process records it."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One question-answering turn, as a careful reader of the application states it.

    Attributes:
        question: What the user typed.
        contexts: The texts that reached the generator, each document its own, in prompt order. If
            the application rewrites documents beyond recognition: the retrieved documents.
        answer: What came back to the user.
        also: Other defensible statements, each as the fields in which it differs, for example
            `({"contexts": (...)},)`.
    """

    question: str
    contexts: tuple[str, ...]
    answer: str
    also: tuple[Mapping[str, Any], ...] = ()

    def statements(self) -> tuple[Truth, ...]:
        """Return all defensible statements, the preferred one first."""
        plain = replace(self, also=())
        return (plain, *(replace(plain, **change) for change in self.also))

    def holds_for(self, question: str, contexts: Iterable[str], answer: str) -> bool:
        """Return True if the texts are those of one of the statements, up to whitespace.

        An answer that is a JSON object is compared as an object.
        """
        told = (_squeezed(question), tuple(_squeezed(c) for c in contexts), _one_line(answer))
        return told in [one.squeezed() for one in self.statements()]

    def squeezed(self) -> tuple[str, tuple[str, ...], str]:
        """Return question, contexts and answer with each run of whitespace as one space."""
        return (
            _squeezed(self.question),
            tuple(_squeezed(text) for text in self.contexts),
            _one_line(self.answer),
        )


@dataclass(frozen=True, kw_only=True)
class App:
    """A runnable application with its truths.

    Attributes:
        name: The name of its function, unique in a framework.
        framework: The first part of its module's name.
        run: Runs the application once. It takes the config that the application hands to its
            framework (`{"callbacks": [...]}` or `{}`); frameworks without one ignore it. It may be
            an `async def`.
        page: The tutorial or how-to page that it follows, in words.
        truths: The turns that it must give. Without any it must give no sample.
        optional: Turns that may be scored too, for example those of a RAG chain inside a tool.
        not_on_spans: The ways of capture in which the truth is not recorded at all.
        needs: Requirements without which it is skipped, for example `("langchain>=1",)`. Of
            `python>=3.11`: before it, asynchronous nodes of LangGraph do not pass callbacks on.
    """

    name: str
    framework: str
    run: Run
    page: str
    truths: tuple[Truth, ...]
    optional: tuple[Truth, ...] = ()
    not_on_spans: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return the requirements that are not met."""
        return [text for text in self.needs if not _is_met(Requirement(text))]


@dataclass(frozen=True, kw_only=True)
class Registry:
    """All applications that have been registered in this process."""

    apps: dict[tuple[str, str], App] = field(default_factory=dict)

    def add(self, one: App) -> None:
        """Add an application, whose name must be new to its framework."""
        key = (one.framework, one.name)
        if key in self.apps:
            message = f"two applications of {one.framework} are called {one.name}"
            raise ValueError(message)
        self.apps[key] = one


_REGISTRY = Registry()


def app(
    *truths: Truth,
    page: str,
    optional: Iterable[Truth] = (),
    not_on_spans: Iterable[str] = (),
    needs: Iterable[str] = (),
) -> Callable[[Run], Run]:
    """Register the function below as an application with the truths above it.

    Args:
        truths: The turns that it must give, in any order.
        page: The tutorial or how-to page that it follows, in words.
        optional: Turns that may be scored too.
        not_on_spans: The ways of capture in which the truth is not recorded at all.
        needs: Requirements without which it is skipped.
    """

    def register(run: Run) -> Run:
        framework = run.__module__.rpartition(".")[2].partition("_")[0]
        _REGISTRY.add(
            App(
                name=run.__name__,
                framework=framework,
                run=run,
                page=page,
                truths=truths,
                optional=tuple(optional),
                not_on_spans=frozenset(not_on_spans),
                needs=tuple(needs),
            )
        )
        return run

    return register


def all_apps(*frameworks: str) -> tuple[App, ...]:
    """Import the modules of ``frameworks`` and return their applications in registered order."""
    folder = Path(__file__).parent
    for module in sorted(info.name for info in pkgutil.iter_modules([str(folder)])):
        if module.partition("_")[0] in frameworks and not module.endswith("_kit"):
            importlib.import_module(f"{__package__}.{module}")
    return tuple(one for one in _REGISTRY.apps.values() if one.framework in frameworks)


# --- texts and vectors, for the fakes of every framework ------------------------------------------


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
    """Split ``text`` into words with the whitespace after them, as models stream it."""
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

"""The time to read a text grows no faster than the text, also on the worst text of each reader."""

import ast
import gc
import importlib
import pkgutil
import random
import re
import signal
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pytest

import rag_eval_otel
from rag_eval_otel.capture import documents, values
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.documents import block_in, joined_lines
from rag_eval_otel.capture.sample import _truncated
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.turns import is_verdict
from rag_eval_otel.capture.values import Messages, bare, is_in, json_in, place
from rag_eval_otel.judge.codec import clipped
from rag_eval_otel.judge.lexical import MAX, Passages, claims_of, coverage, relevancy
from rag_eval_otel.metrics.groundedness import sentences_of
from rag_eval_otel.types import Passage, Sample
from rag_eval_otel.untrusted import harmless, says_nothing, suspicions

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_parse  # the only name that Python 3.10 has

pytestmark = pytest.mark.slow

Read: TypeAlias = Callable[[str], object]

LIMIT = 100_000  # characters: the default of `max_text_chars`
RATIO = 2.4  # the most times as long that a text of twice the length may take
MOST = 0.1  # seconds of CPU at the limit
READER, SCORING = 0.3, 1.0  # the same for readers, of several expressions, and for scoring
FLOOR = 0.02  # seconds of CPU: a ratio of shorter times says nothing
SMALL, TRIES, WORST = 1_000, 120, 4  # length and number of the texts tried; how many are measured
SOON = 0.03  # seconds of CPU after which a small text is bad enough to end the search
METHODS = frozenset({"findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"})
CHARACTERS = "a0A .:,;\n\t'\"\\<>[](){}-=*_#&/|!?\u2026\u4e2d\u200f\x00"
BLOCKS = (
    *("a", " ", "\n", "a b ", "a. ", "Word ", "0", "0:", "00:25:", "a:\n", "- a\n", "\n \n"),
    "1.\n",
    *("\u0301\u0316", "\uff9e\u0301", "1<", "([()])+"),
    *("\\'", "\\", "'", '"', "[", "{", "(", "<a", "</a>", "&amp;", "---\n", "Source: a\n", "x, "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A text of any length: ``head``, as many ``block`` as fit, and ``tail``."""

    head: str
    block: str
    tail: str

    def text(self, length: int) -> str:
        count = max(0, length - len(self.head) - len(self.tail)) // len(self.block)
        return f"{self.head}{self.block * count}{self.tail}"


class TooLongError(Exception):
    """A reader took more CPU time than it was given."""


def seconds(read: Read, text: str, *, most: float) -> float:
    """Return the CPU time of ``read(text)``, or infinity after ``most`` seconds.

    `re` looks for signals while it searches, so it can be interrupted on the main thread.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    gc.disable()  # a collection looks at all that a reader has made so far
    start = time.thread_time()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, most)
        read(text)
        took = time.thread_time() - start
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except TooLongError:
        return float("inf")
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return took


def excess(read: Read, shape: Shape, *, most: float = MOST) -> str | None:
    """Return how the time of ``read`` grows too fast with a text of ``shape``, or None.

    On a busy machine it may grow too fast once, but not three times.
    """
    found = _excess(read, shape, most)
    for _ in range(2):
        found = found and _excess(read, shape, most)
    return found


def _excess(read: Read, shape: Shape, most: float) -> str | None:
    shorter = 0.0
    for length in (LIMIT // 8, LIMIT // 4, LIMIT // 2, LIMIT):
        text = shape.text(length)
        allowed = min(most, max(FLOOR, RATIO * shorter) if shorter else most)
        took = float("inf")
        for _ in range(3):
            took = min(took, seconds(read, text, most=4 * most))
            if took <= allowed or took > 3 * most:
                break
        if took > allowed:
            return f"{shape}: {shorter:.4f} s, then {took:.4f} s for {length} characters"
        shorter = took
    return None


def worst_excess(read: Read, samples: Sequence[str], *, most: float = MOST) -> str | None:
    """Search texts on which ``read`` is slow; return how it grows too fast on one, or None."""
    tried: dict[Shape, float] = {}
    for shape in _shapes(samples, random.Random(22)):  # no secret
        tried[shape] = seconds(read, shape.text(SMALL), most=SOON)
        if tried[shape] > SOON:
            break
    slowest = sorted(tried, key=lambda one: -tried[one])[:WORST]
    return next((found for one in slowest if (found := excess(read, one, most=most))), None)


def _shapes(samples: Sequence[str], rng: random.Random) -> Iterator[Shape]:
    tails = ("", "!\n", " \n!")
    yield from (Shape(head="", block=block, tail=tail) for block in BLOCKS for tail in tails)
    for _ in range(TRIES):
        sample = rng.choice(samples) + rng.choice(("", rng.choice(samples)))
        start, end = sorted(rng.randrange(len(sample) + 1) for _ in "12")
        made = "".join(rng.choices(sample + CHARACTERS, k=rng.randint(1, 3)))
        word = rng.choice(sample.split() or "a") + rng.choice(CHARACTERS)
        part = sample[start:end]
        block = rng.choice((part, part + made, made, word, word, rng.choice(BLOCKS)))
        tail = rng.choice(("", sample[end:], "!", "\n", "\x00", "a", " \n"))
        yield Shape(head=sample[:start][-200:], block=block[:40] or "a", tail=tail[:200])


def reader(expression: re.Pattern[str], method: str) -> Read:
    if method in {"fullmatch", "match", "search"}:
        return getattr(expression, method)  # type: ignore[no-any-return]
    return lambda text: sum(1 for _ in expression.finditer(text))


def samples_of(pattern: str, flags: int) -> list[str]:
    rng = random.Random(ascii(pattern))  # no secret
    tree = sre_parse.parse(pattern, flags)
    return [_sample(tree, rng, {}) or "a" for _ in range(40)]


def _sample(tree: Any, rng: random.Random, groups: dict[Any, str]) -> str:
    return "".join(_part(str(op), value, rng, groups) for op, value in tree)


def _part(op: str, value: Any, rng: random.Random, groups: dict[Any, str]) -> str:
    found = ""
    if op in {"LITERAL", "RANGE"}:
        found = chr(value if op == "LITERAL" else rng.choice(value))
    elif op == "IN":
        inner, what = rng.choice(value)
        found = _part(str(inner), what, rng, groups)
    elif op == "CATEGORY":
        kinds = {"CATEGORY_WORD": "aZ0", "CATEGORY_DIGIT": "01", "CATEGORY_SPACE": " \n"}
        found = rng.choice(kinds.get(str(value), ".-\n"))
    elif op in {"ANY", "NOT_LITERAL", "NEGATE"}:
        found = rng.choice(CHARACTERS)
    elif op == "BRANCH":
        found = _sample(rng.choice(value[1]), rng, groups)
    elif op == "SUBPATTERN":
        found = groups[value[0]] = _sample(value[-1], rng, groups)
    elif op.endswith("REPEAT"):
        times = min(value[0], 40) + min(rng.randrange(4), max(0, int(value[1]) - value[0]))
        found = "".join(_sample(value[2], rng, groups) for _ in range(times))
    elif op == "ASSERT":
        found = _sample(value[1], rng, groups)
    elif op == "GROUPREF":
        found = groups.get(value, "")
    return found


@cache
def expressions() -> dict[tuple[str, int], set[str]]:
    """Return all regular expressions of the package with the methods that it calls on them.

    They are the values of its modules, also in tuples and dictionaries, and the literals of calls
    such as ``re.sub("a", "b", text)``.
    """
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for info in pkgutil.walk_packages(rag_eval_otel.__path__, "rag_eval_otel."):
        try:
            module = importlib.import_module(info.name)
        except (ImportError, SystemExit):  # of an extra that is absent; of a program
            continue
        tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        called: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called[node.value.id] |= {node.attr} & METHODS
            if isinstance(node, ast.Call) and ast.unparse(node.func)[:3] == "re.":
                pattern = node.args[0] if node.args else None
                if isinstance(pattern, ast.Constant) and node.func.attr in METHODS:  # type: ignore[attr-defined]
                    found[str(pattern.value), 0].add(node.func.attr)  # type: ignore[attr-defined]
        for name, value in vars(module).items():
            for one in _patterns(value):
                found[one.pattern, one.flags] |= called[name]
    return found


def _patterns(value: object, depth: int = 4) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    if depth and isinstance(value, tuple | list | frozenset | Mapping):  # may contain itself
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _patterns(one, depth - 1)


VIEW = Span(name="a", span_id=1, start=0, end=1)


def _messages(text: str) -> object:
    shown = [{"role": "user", "content": text}, {"role": "tool", "content": [{"text": text}]}]
    return build.llm(VIEW, messages=values.plain(shown), reply=text)


def _spoiled(text: str) -> str:
    return "q".join(text[i : i + 20] for i in range(0, len(text), 20))


READERS: Mapping[str, Read] = {
    "tool": documents.parts_of,
    "tool data": documents.documents_in,
    "repr": values.data_in,
    "json": json_in,
    "value": values.read,
    "usable": values.usable,
    "marker": values.is_marker,
    "lines": joined_lines,
    "ids": lambda text: list(documents.ids_in(text)),
    "verdict": is_verdict,
    "prompt": lambda text: block_in([text]),
    "messages": _messages,
    "chain": lambda text: build.chain(VIEW, "chain", inputs=text, outputs=text),
    "documents": lambda text: build.retrieval(VIEW, inputs=text, documents=[text, {"text": text}]),
    "letters": bare,
    "place": lambda text: place(text, [_spoiled(text), text]),
    "part": lambda text: is_in(text, _spoiled(text)),
    "altered": lambda text: Messages([_spoiled(text)]).places_of_parts([text], [_spoiled(text)]),
    "beginning": lambda text: _truncated(
        [Passage(text=f"{text}{'b' * 50}")], Messages([f"{text}{'c' * 50}"]), known={}
    ),
    "shortening": lambda text: clipped(Sample(answer=text), 50_000),
}

SCORERS: Mapping[str, Read] = {  # of the texts that are scored
    "sentences": sentences_of,
    "prompt text": harmless,
    "suspicions": lambda text: suspicions([text]),
    "content": says_nothing,
    "support": lambda text: Passages([text]).probability(text[:MAX]),
    "claims": lambda text: claims_of(text[:MAX]),
    "relevancy": lambda text: relevancy(text[:MAX], text[:MAX]),
    "coverage": lambda text: coverage("Who wrote the notes?", text),
}


def test_the_time_of_each_expression_grows_with_the_text() -> None:
    """On its own worst text, each takes 2.4 times as long for twice the text, and 0.1 s at most."""
    found = {}
    for (pattern, flags), methods in expressions().items():
        samples = samples_of(pattern, flags)
        for method in methods or ["match"]:  # of a tuple: the readers below use it
            read = reader(re.compile(pattern, flags), method)
            found[method, pattern] = worst_excess(read, samples)
    assert len(found) > 100
    assert {key: why for key, why in found.items() if why} == {}


@pytest.mark.parametrize("name", [*READERS, *SCORERS])
def test_the_time_of_each_reader_grows_with_the_text(name: str) -> None:
    """A reader takes 2.4 times as long for twice the text; it may use several expressions."""
    samples = [one for pattern, flags in expressions() for one in samples_of(pattern, flags)]
    read = READERS.get(name) or SCORERS[name]
    most = READER if name in READERS else SCORING
    assert worst_excess(read, samples[::8], most=most) is None


EXPONENTIAL = r"(\w[\w -]*: *\S+\n?)+"  # of colons, once in this package
QUADRATIC = r"[^\n]*\w[^\n]*[.!?]\W{0,3}"


@pytest.mark.parametrize("pattern", [EXPONENTIAL, QUADRATIC])
def test_the_search_finds_expressions_that_grow_too_fast(pattern: str) -> None:
    """It says which text, and is not stopped by an expression that would never end."""
    read = reader(re.compile(pattern), "fullmatch")
    assert "block=" in str(worst_excess(read, samples_of(pattern, 0)))

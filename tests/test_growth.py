"""The time to read a text grows no faster than the text, also on the worst text of each reader."""

import re
from collections.abc import Mapping
from functools import cache

import pytest

import text_growth as growth
from rag_eval_otel.capture import documents, values
from rag_eval_otel.capture import step as build
from rag_eval_otel.capture.documents import block_in, joined_lines
from rag_eval_otel.capture.sample import _truncated
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.turns import is_verdict
from rag_eval_otel.capture.values import Messages, bare, is_in, json_in, place
from rag_eval_otel.judge.lexical import MAX, Passages, claims_of, coverage, relevancy
from rag_eval_otel.judge.wire import clipped
from rag_eval_otel.metrics.groundedness import sentences_of
from rag_eval_otel.types import Passage, Sample
from rag_eval_otel.untrusted import harmless, says_nothing, suspicions

pytestmark = pytest.mark.slow

VIEW = Span(name="a", span_id=1, start=0, end=1)


def _messages(text: str) -> object:
    shown = [{"role": "user", "content": text}, {"role": "tool", "content": [{"text": text}]}]
    return build.llm(VIEW, messages=values.plain(shown), reply=text)


def _spoiled(text: str) -> str:
    return "q".join(text[i : i + 20] for i in range(0, len(text), 20))


READERS: Mapping[str, growth.Read] = {
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

SCORING: Mapping[str, growth.Read] = {  # of the texts that are scored
    "sentences": sentences_of,
    "prompt text": harmless,
    "suspicions": lambda text: suspicions([text]),
    "content": says_nothing,
    "support": lambda text: Passages([text]).probability(text[:MAX]),
    "claims": lambda text: claims_of(text[:MAX]),
    "relevancy": lambda text: relevancy(text[:MAX], text[:MAX]),
    "coverage": lambda text: coverage("Who wrote the notes?", text),
}


EXPRESSIONS = cache(growth.expressions)


def test_the_time_of_each_expression_grows_with_the_text() -> None:
    """On its own worst text, each takes 2.4 times as long for twice the text, and 0.1 s at most."""
    found = {}
    for (pattern, flags), methods in EXPRESSIONS().items():
        samples = growth.samples_of(pattern, flags)
        for method in methods or ["match"]:  # of a tuple: the readers below use it
            read = growth.reader(re.compile(pattern, flags), method)
            found[method, pattern] = growth.worst_excess(read, samples)
    assert len(found) > 100
    assert {key: why for key, why in found.items() if why} == {}


@pytest.mark.parametrize("name", [*READERS, *SCORING])
def test_the_time_of_each_reader_grows_with_the_text(name: str) -> None:
    """A reader takes 2.4 times as long for twice the text; it may use several expressions."""
    samples = [one for pattern, flags in EXPRESSIONS() for one in growth.samples_of(pattern, flags)]
    read = READERS.get(name) or SCORING[name]
    most = growth.READER if name in READERS else growth.SCORING
    assert growth.worst_excess(read, samples[::8], most=most) is None


EXPONENTIAL = r"(\w[\w -]*: *\S+\n?)+"  # of colons, once in this package
QUADRATIC = r"[^\n]*\w[^\n]*[.!?]\W{0,3}"


@pytest.mark.parametrize("pattern", [EXPONENTIAL, QUADRATIC])
def test_the_search_finds_expressions_that_grow_too_fast(pattern: str) -> None:
    """It says which text, and is not stopped by an expression that would never end."""
    read = growth.reader(re.compile(pattern), "fullmatch")
    assert "block=" in str(growth.worst_excess(read, growth.samples_of(pattern, 0)))

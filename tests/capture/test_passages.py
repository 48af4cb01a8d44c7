"""Documents in one text: JSON, reprs, tags, names, numbers and rules; paragraphs are none."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from rag_eval_otel.capture.documents import passages_in_text

ONE = "It's 12 euros for a single ticket."
TWO = "Children travel free.\n\nThat holds on all lines: trams, buses."
BOTH = [ONE, TWO]
DOCUMENTS = [Document(page_content=ONE, metadata={"source": "a.md"}), Document(page_content=TWO)]


def block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def tutorial(*, source: str = "Source", content: str = "Content") -> str:
    return "\n\n".join(
        f"{source}: {one.metadata}\n{content}: {one.page_content}" for one in DOCUMENTS
    )


SPLIT = {
    "JSON list of texts": json.dumps(BOTH),
    "JSON list of dicts": json.dumps([{"text": text, "score": 0.5} for text in BOTH]),
    "JSON below a name": json.dumps({"query": "q", "results": BOTH}),
    "JSON below an unknown name": json.dumps({"found": BOTH}),
    "JSON within JSON": json.dumps({"result": json.dumps(BOTH)}),
    "repr of a list": str(BOTH),
    "repr of a list of dicts": str([{"content": text, "id": 1} for text in BOTH]),
    "repr of documents": str(DOCUMENTS),
    "str of documents": "\n\n".join(map(str, DOCUMENTS)),
    "block that holds a list": json.dumps([block(json.dumps(BOTH))]),
    "block for each": json.dumps([block(text) for text in BOTH]),
    "block for each, as JSON": json.dumps(
        [block(json.dumps({"text": text, "score": 0.5})) for text in BOTH]
    ),
    "content of MCP": json.dumps({"content": [block(text) for text in BOTH], "isError": False}),
    "tutorial": tutorial(),
    "tutorial, after a line": f"Found 2 documents:\n\n{tutorial()}",
    "title and text": tutorial(source="Title", content="Text"),
    "names of a field of its own": tutorial(source="Article Title", content="Article Snippet"),
    "tags of a field of its own": "\n".join(
        f"<source><title>x</title><article_snippet>{text}</article_snippet></source>"
        for text in BOTH
    ),
    "source alone": "\n\n".join(f"Source: {n}.md\n{text}" for n, text in enumerate(BOTH)),
    "numbers": "\n\n".join(f"Document {n}:\n{text}" for n, text in enumerate(BOTH, 1)),
    "numbers in brackets": "\n".join(f"[{n}] {text}" for n, text in enumerate(BOTH, 1)),
    "named numbers in brackets": "\n".join(f"[Document {n}] {t}" for n, t in enumerate(BOTH, 1)),
    "numbers as headings": "\n\n".join(f"### Result {n}\n{text}" for n, text in enumerate(BOTH)),
    "numbers and rules": "\nRetrieved documents:\n"
    + "".join(f"\n\n===== Document {n} =====\n{text}" for n, text in enumerate(BOTH)),
    "numbers, source": "\n\n".join(
        f"[{n}] Source: {n}.md\n{text}" for n, text in enumerate(BOTH, 1)
    ),
    "rules": "\n\n---\n\n".join(BOTH),
    "tags": "\n".join(f"<document index='1'>\n{text}\n</document>" for text in BOTH),
    "tags and rules": "\n\n---\n\n".join(
        f'<Document href="x"/>\n{text}\n</Document>' for text in BOTH
    ),
    "tags in tags": "<documents>"
    + "".join(
        f"<document><source>a</source><document_content>{text}</document_content></document>"
        for text in BOTH
    )
    + "</documents>",
}
WHOLE = {
    "a sentence": ONE,
    "paragraphs": TWO,
    "nothing": "",
    "a number": "42",
    "numbers": "[1, 2]",
    "other JSON": '{"temperature": 20}',
    "a message": json.dumps({"role": "assistant", "content": ONE}),
    "broken JSON": '["a", "b',
    "a marker": "[REDACTED]",
    "a heading": "Prices\n---\nA ticket costs 12 euros.",
    "a list": "1. Buy a ticket\n2. Get on",
    "a year": "[1987] was the year",
    "a question": "Question: how much?\nAnswer: 12 euros.",
    "a later document": "Document 7: it is the last one",
    "an array": str(np.array(BOTH)),
    "an array of objects": repr(np.array(BOTH, dtype=object)),
    "a result": '{"result": "A single ticket costs 12 euros."}',
}


@pytest.mark.parametrize("name", SPLIT)
def test_documents_are_told_apart(name: str) -> None:
    """Each is one passage, in order, with its own paragraphs and without what only marks it."""
    assert [p.text.strip() for p in passages_in_text(SPLIT[name]) or ()] == BOTH


@pytest.mark.parametrize("name", WHOLE)
def test_one_text_is_not_split(name: str) -> None:
    """Where nothing marks documents, it is for the caller to say what the text is."""
    assert passages_in_text(WHOLE[name]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps({"text": ONE, "score": 0.5}), (ONE, None)),
        (json.dumps([{"id": "a", "content": ONE}]), (ONE, "a")),
        (f"Source: a.md\nContent: {ONE}", (ONE, None)),
        (f"Document 1: {ONE}", (ONE, None)),
        (str(DOCUMENTS[0]), (ONE, None)),
    ],
)
def test_one_document_loses_what_marks_it(text: str, expected: tuple[str, str | None]) -> None:
    """A single document is still marked as one."""
    (found,) = passages_in_text(text) or ()
    assert (found.text, found.id) == expected


@given(st.text(alphabet="[]{}()'\"\\,:\n=-#<>/12 aDocumentSurceText", max_size=200))
def test_any_text_is_read(text: str) -> None:
    """Whatever stands there, there is no exception, and what is found is part of it."""
    for passage in passages_in_text(text) or ():
        assert set(passage.text) <= set(text) | set("\n\\ ")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["[", "Source: a\n", "(", "<doc>", "---\n\n", "'a', ", "[1] a\n"])
def test_long_texts_are_read(unit: str) -> None:
    """A million characters of what looks like the beginning of something are no trouble."""
    found: Any = passages_in_text(unit * (1_000_000 // len(unit)))
    assert found is None or isinstance(found, tuple)

"""Documents in data, in one text and in prompts; paragraphs alone are none."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from rag_eval_otel.capture.documents import (
    block_in,
    consists_of,
    distinct,
    documents_in,
    documents_within,
    ids_in,
    parts_of,
    passages_in,
    passages_in_text,
    window_of,
)
from rag_eval_otel.types import Passage
from recordings import misread

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
    "repr of records": str([{"topic": "A", "length": 9, "summary": text} for text in BOTH]),
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
    "numbers and rules after a word": "Retrieved documents:\n"
    + "".join(f"===== Document {n} =====\n{text}" for n, text in enumerate(BOTH)),
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
    "numbers": "[1, 2]",
    "other JSON": '{"temperature": 20}',
    "a message": json.dumps({"role": "assistant", "content": ONE}),
    "broken JSON": '["a", "b',
    "a marker": "[REDACTED]",
    "a heading": "Prices\n---\nA ticket costs 12 euros.",
    "questions": "How much?\n---\nIt costs 12 euros.\n\nFor whom?\n---\nFor adults.",
    "a list": "1. Buy a ticket\n2. Get on",
    "a question": "Question: how much?\nAnswer: 12 euros.",
    "a later document": "Document 7: it is the last one",
    "an array": str(np.array(BOTH)),
    "a result": '{"result": "A single ticket costs 12 euros."}',
    "a list beside others": json.dumps({"found": BOTH, "count": 2}),
    "one field": f"Content: {ONE}",
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
        (f"\fSource: a.md\nContent: {ONE}", (ONE, None)),  # from a page of a PDF file
        (f"Document 1: {ONE}", (ONE, None)),
        (str(DOCUMENTS[0]), (ONE, None)),
    ],
)
def test_one_document_loses_what_marks_it(text: str, expected: tuple[str, str | None]) -> None:
    """A single document is still marked as one."""
    (found,) = passages_in_text(text) or ()
    assert (found.text, found.id) == expected


def test_documents_in_documents() -> None:
    """Four levels are read: of what is deeper, the text stays as it is."""
    names, texts = BOTH, [ONE]
    for _ in range(5):
        names, texts = {"found": names}, [*texts, json.dumps({"text": texts[-1], "id": 1})]
    assert passages_in_text(json.dumps(names["found"])) == (Passage(text=ONE), Passage(text=TWO))
    assert passages_in_text(json.dumps(names)) is None
    assert [documents_in(text) for text in texts[5:]] == [(Passage(text=ONE, id="1"),)]
    outer = json.dumps({"text": texts[5], "id": 1})
    assert documents_in(outer) == (Passage(text=texts[1], id="1"),)


@given(st.text(alphabet="[]{}()'\"\\,:\n\f\xa0=-#<>/12 aDocumentSurceText", max_size=200))
def test_any_text_is_read(text: str) -> None:
    """Whatever stands there, there is no exception, and what is found is part of it."""
    for passage in passages_in_text(text) or ():
        assert set(passage.text) <= set(text) | set("\n\\ ")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([ONE, {"text": TWO}], [(ONE, None, None), (TWO, None, None)]),
        ({"nodes": [{"node": {"text": ONE, "id_": "n"}, "score": 1}]}, [(ONE, "n", 1.0)]),
        ([{"document": {"content": ONE}, "similarity": 0.5}], [(ONE, None, 0.5)]),
        ([{"content": ONE, "text": TWO, "id": 7, "score": "high"}], [(ONE, "7", None)]),
        ([f'{{"text": "{ONE}"}}'], [(ONE, None, None)]),
        ([{"content": [block(ONE), block(TWO)]}], [(ONE + TWO, None, None)]),
        ([{"content": []}], None),
        ({"documents": []}, []),
        ([{"id": "a"}, {"text": ONE}], None),
        ([{"role": "user", "content": ONE}], None),
        ({"answer": ONE}, None),
        (ONE, None),
    ],
)
def test_lists_of_documents(data: object, expected: list[object] | None) -> None:
    """Text, id and score are found under usual names; without all the texts, there are none."""
    found = passages_in(data)
    assert (None if found is None else [(p.text, p.id, p.score) for p in found]) == expected


def test_documents_in_the_data_of_chains() -> None:
    """At any depth, dicts with metadata are documents; LlamaIndex may tell their ids alone."""
    data = {"state": [{"page_content": ONE, "metadata": {}}, {"content": TWO}, {"meta": {}}]}
    assert [p.text for p in documents_within(data)] == [ONE]
    node = "<NodeWithScore(node=TextNode(id_='n-{}', text='a'), score={})>".format
    plain = "<NodeWithScore(node=TextNode(id_=n-2), score=None)>"
    assert list(ids_in({"nodes": [plain, {"deep": plain[:-1]}, "<NodeWithScore(node=T("]})) == [
        "n-2"
    ]
    assert not list(ids_in(node(1, 0.5) + "\n"))


def test_a_title_in_the_name_of_a_file_is_no_sentence_in_a_window() -> None:
    """A sentence is one, wherever it stands."""
    named = json.dumps({"file_name": f"Trams: {ONE} 2024.docx"})
    assert (window_of("Trams", named), [*window_of(ONE, named)]) == ({}, [ONE])


def test_equal_documents_are_one() -> None:
    """Regardless of white space; the first counts."""
    first, again = Passage(text="a b", id="1"), Passage(text=" a\nb", id="2")
    assert distinct([first, again, Passage(text="c")]) == (first, Passage(text="c"))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([{"name": "Museum", "type": ["museum", "attraction"]}], None),
        ({"role": "tool", "content": ONE, "texts": BOTH}, BOTH),
        ({"role": "tool", "content": json.dumps(BOTH), "texts": [json.dumps(BOTH)]}, BOTH),
        ({"role": "tool", "content": ONE}, None),
        ([block(ONE)], None),
        (json.dumps(BOTH), BOTH),
        ([{"text": json.dumps({"results": BOTH})}], [json.dumps({"results": BOTH})]),
        (f"Document 1: {ONE}", None),
    ],
)
def test_what_a_tool_returned(result: object, expected: list[str] | None) -> None:
    """Data, JSON or blocks of text are documents; one plain text is for the caller to judge."""
    found = documents_in(result)
    assert (None if found is None else [p.text for p in found]) == expected


PAGE, OTHER = "The house was founded in 1949.", "The house has forty rooms."
ABOUT = (f"About A:\n{PAGE}\nYear: 1949", f"About B:\n{OTHER}\nYear: 1950")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PAGE, (PAGE,)),
        (f"{PAGE}\n{OTHER}", (f"{PAGE}\n{OTHER}",)),
        (f"{PAGE}\n\n{OTHER}", (PAGE, OTHER)),
        (f"Source: a.md\nContent: {PAGE}\n\nSource: b.md\nContent: {OTHER}", (PAGE, OTHER)),
        (f"Founding\n\n{PAGE}\n\n- by whom\n- where", None),
        (f"{PAGE} It goes\non in a second line.\n\n{OTHER}", None),
        (f"About A:\n{PAGE}\nYear: 1949\n---\nAbout B:\n{OTHER}\nYear: 1950\n---\n", ABOUT),
        (f"{PAGE}\n---\nAbout B:\n{OTHER}", None),
        (f"Founding\n---\n{PAGE}", None),
        (f"---\ntitle: House\n---\n{PAGE}", None),
        (f'[{{"year": 1949, "what": "{PAGE}"}}, {{"year": 1950, "what": "{OTHER}"}}]', None),
        (" ", ()),
    ],
)
def test_where_documents_begin_in_a_text(text: str, expected: tuple[str, ...] | None) -> None:
    """By its form, or where each paragraph is a line of whole sentences; else nobody can tell."""
    found = parts_of(text)
    assert (None if found is None else tuple(p.text for p in found)) == expected


@pytest.mark.parametrize(
    ("prompt", "text", "asked"),
    [
        (["Context:\nA was.\n\nB is.", "When?"], "A was.\n\nB is.", None),
        (["Use it.\nContext: A was.\n\nQuestion: When?\nAnswer:"], "A was.", "When?"),
        (["Question: What is it?\nContext: A was.\nAnswer:"], "A was.", "What is it?"),
        (["<documents>\nA was.\n</documents>\nUser question: x y"], "A was.", "x y"),
        (["Answer using only this context:\n", "When?"], None, None),
        (["You have access to documents: use the tools."], None, None),
        (["For more information: ask the user."], None, None),
        (["Retrieved document: A was. Is it relevant?"], None, None),
        (["Summarize: A was."], None, None),
        ([f"Use this context {'x' * 221}:\nA was."], "A was.", None),
        ([f"Use this context {'x' * 222}:\nA was."], None, None),
    ],
)
def test_the_block_below_a_heading(prompt: list[str], text: str | None, asked: str | None) -> None:
    """Up to the next heading, and what is asked beside it."""
    found = block_in(prompt)
    told = None if found is None else (found.text, found.question)
    assert told == (None if text is None else (text, asked))


ROCKS = (
    "Rivers have many sources in the hills.",
    "Springs are the sources of most rivers.",
    "Rain feeds them all, and so do glaciers.",
)
APART = "\n\n".join(ROCKS)


@pytest.mark.parametrize(
    ("prompt", "count", "is_read"),
    [
        (f"Use the search results:\n\n{APART}", None, True),
        (f"<context>\n{APART}\n</context>", None, True),
        (f"Context:\n{APART}", 3, True),
        (f"Context:\n{APART}", 2, False),
        ("\n=====\n".join(ROCKS), None, False),
        ("\n=====\n".join(f"Context {n}:\n{t}" for n, t in enumerate(ROCKS)), None, False),
        ("Context:\n" + "\n=====\n".join(ROCKS), None, True),
        ("Retrieved papers:\n" + "\n\n---\n\n".join(ROCKS), None, True),
        ("\n=".join(f"Context {n}:\n{t}" for n, t in zip("ABC", ROCKS, strict=True)), None, False),
        ("".join(f"<context>{text}</context>\n" for text in ROCKS), None, False),
        ("Documents\n========\n" + "\n========\n".join(ROCKS), None, False),
        (f"Article:\nThe Rhine has these sources:\nUse them well.\n{ROCKS[0]}", None, False),
        (f"Context:\nCats purr.\n\nQuestion: Do they?\n\nContext:\n{ROCKS[0]}", None, False),
        (f"Context:\n{APART}\n\nIf it is not in the context, say so.", None, False),
        (f"Context:\n{APART}\n\nNote: be brief.", None, False),
    ],
)
def test_contexts_in_a_prompt(prompt: str, count: int | None, *, is_read: bool) -> None:
    """All are read, or none: a part of the contexts is not all of them."""
    found = block_in([f"{prompt}\n\nQuestion: Where do rivers come from?\nAnswer:"])
    passages = None if found is None else found.passages(count)
    assert passages == (tuple(Passage(text=text) for text in ROCKS) if is_read else None)


def test_recordings() -> None:
    """The spans of recorded applications are read as they were."""
    assert misread() == []


BEE, WAX = "A bee visits a hundred flowers.", "Bees make wax below the abdomen."
_ARTICLES = "\n\n".join(f'Wikipedia article section:\n"""\n{one}\n"""' for one in (BEE, WAX))


@pytest.mark.parametrize(
    ("prompt", "is_read"),
    [
        (_ARTICLES, True),
        (f"{_ARTICLES}\n\nThey are by one author.", True),
        (f'{_ARTICLES}\n\nAnother one:\n"""\nBees dance.\n"""', False),
        (f"Context 1:\n{BEE}\n=====\nContext 2:\n{WAX}\n=====", True),
        (f"Context 1: {BEE}\nContext 2: {WAX}", True),
        (f"Context 1: {BEE}\nContext 3: {WAX}", False),
        (f"Contexts:\n1. {BEE}\n2. {WAX}", True),
        (f"Contexts:\n(1) {BEE}\n(2) {WAX}", True),
        (f"Contexts:\n2. {BEE}\n3. {WAX}", False),
        (f"Contexts:\n# Bee\nhttps://e.org/1\n\n{BEE}\n\n# Wax\nURL: https://e.org/2\n{WAX}", True),
        (f"Contexts:\n# Bees\n{BEE}\n\n# Wax\n{WAX}", False),
    ],
)
def test_forms_of_documents_in_published_prompts(prompt: str, *, is_read: bool) -> None:
    """The texts without their numbers, titles and marks; another form is not read."""
    found = block_in([f"Answer.\n\n{prompt}\n\nQuestion: How many?"])
    passages = None if found is None else found.passages()
    assert ([p.text for p in passages or ()] == [BEE, WAX]) is is_read


@pytest.mark.parametrize(
    ("text", "is_all"),
    [
        (f"{BEE}\n\n{WAX}", True),
        (rf"{BEE}\n\n{WAX}", True),  # "\\n\\n".join(documents)
        (f"Source 1: {BEE}\nTitle: On the making of wax by bees\n{WAX}", True),
        (f"[Document(metadata={{'by': 'an author'}}, page_content='{BEE}'), '{WAX}']", True),
        (f"{BEE} {WAX} They fly.", False),
        (f"{BEE}\nStep 3: fly home.\n{WAX}", False),
        (f"{BEE}\nTitle: {'a' * 73}\n{WAX}", True),
        (f"{BEE}\nTitle: {'a' * 74}\n{WAX}", False),
        (BEE, False),
    ],
)
def test_a_text_that_consists_of_documents(text: str, *, is_all: bool) -> None:
    """Labels and separators are layout; a sentence more is another document."""
    assert consists_of(text, [BEE, WAX]) is is_all

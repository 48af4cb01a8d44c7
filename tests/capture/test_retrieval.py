"""Retrievals that nobody recorded: by tools, by messages, by documents handed on, by a heading."""

from dataclasses import replace

import pytest

from rag_eval_otel.capture.documents import block_in, parts_of
from rag_eval_otel.capture.sample import extract
from rag_eval_otel.capture.step import Result, Step
from rag_eval_otel.capture.turns import Turn, find_turns
from rag_eval_otel.types import Passage, Sample
from steps import chain, llm, retriever, tool

ASKED, TOLD = "When was it founded?", "It was founded in 1949, says the book."
PAGE, OTHER = "The house was founded in 1949.", "The house has forty rooms."
DOCUMENTS = (Passage(text=PAGE), Passage(text=OTHER))


def only(*steps: Step, contexts_from_prompt: bool = False) -> tuple[Turn, Sample]:
    found = find_turns(steps, loss="possible", contexts_from_prompt=contexts_from_prompt)
    (turn,) = found
    sample = extract(turn)
    assert isinstance(sample, Sample), sample
    return turn, sample


def app(told: str | None = TOLD) -> Step:
    return chain("app", at=(0, 100), asked=ASKED, told=told)


def write(*shown: str, said: str = TOLD, under: str | None = "app") -> Step:
    return llm("write", under, at=(50, 60), shown=[*shown, ASKED], said=said)


@pytest.mark.parametrize(
    ("name", "description", "documents", "is_retrieval"),
    [
        ("search_kb", "", (), True),
        ("handbook", "Search the handbook for what an employee may do.", (), True),
        ("ask_company", "Ask the company.", DOCUMENTS, True),
        ("calculator", "Calculates sums.", (), False),
        ("weather", "Get the weather of a city.", (), False),
    ],
)
def test_which_tools_retrieve(
    name: str,
    description: str,
    documents: tuple[Passage, ...],
    is_retrieval: bool,  # noqa: FBT001
) -> None:
    """Those that say so by name or description, and those that returned documents."""
    found = replace(
        tool(name, "app", at=(5, 9), told=PAGE),
        description=description,
        documents=documents or None,
        documents_seen=documents,
    )
    turns = find_turns([app(), found, write(PAGE)], loss="possible")
    assert bool(turns) == is_retrieval
    assert all(turn.contexts_source == "tool" for turn in turns)


@pytest.mark.parametrize(
    ("result", "is_retrieval"),
    [
        (Result(text=PAGE, tool="search_kb"), True),
        (Result(text=PAGE, tool="ask_company", documents=DOCUMENTS[:1]), True),
        (Result(text="5", tool="add"), False),
        (Result(text=PAGE), False),
        (Result(text=" ", tool="search_kb"), False),
        (Result(text="Error: try again with another word.", tool="search_kb"), False),
    ],
)
def test_what_a_tool_found_is_in_the_messages(
    result: Result,
    is_retrieval: bool,  # noqa: FBT001
) -> None:
    """A client's own spans tell of tools only what the LLM was shown; it stands for the turn."""
    call = replace(write(result.text, under=None), tool_results=(result,))
    turns = find_turns([call], loss="possible")
    assert bool(turns) == is_retrieval
    for turn in turns:
        sample = extract(turn)
        assert isinstance(sample, Sample)
        assert (sample.question, sample.context_texts, sample.answer) == (ASKED, (PAGE,), TOLD)
        assert (turn.anchor.name, turn.contexts_source) == ("write", "tool")


def test_a_result_that_a_step_tells_of_counts_once() -> None:
    """The tool itself is there, or the retrieval in it; else the first call that was shown it."""
    result = Result(text=PAGE, tool="search_kb")
    again = replace(llm("l", "app", at=(40, 45), shown=[ASKED]), tool_results=(result,))
    last = replace(write(PAGE), tool_results=(result,))
    recorded = tool("search_kb", "app", at=(5, 9), told=PAGE)
    found = retriever("r", "app", at=(5, 9), query=ASKED, found=[PAGE])
    for steps in ((recorded,), (found,), ()):
        turn, sample = only(app(), *steps, again, last)
        assert (len(turn.retrievers), sample.context_texts) == (1, (PAGE,))


def test_what_an_agent_of_its_own_answered_is_no_context() -> None:
    """The tool has asked a model: what it returned are the words of that."""
    inner = llm("inner", "app", at=(5, 9), shown=["Founded when?"], said="In 1949, it seems.")
    last = replace(
        write("In 1949, it seems."),
        tool_results=(Result(text="In 1949, it seems.", tool="search_kb"),),
    )
    assert find_turns([app(), inner, last], loss="possible") == []


def test_a_retrieval_without_texts_in_a_tool_whose_result_was_shown() -> None:
    """That is what it found."""
    blind = retriever("r", "app", at=(5, 9), query=ASKED, found=None)
    call = replace(write(PAGE), tool_results=(Result(text=PAGE, tool="search_kb"),))
    turn, sample = only(app(), blind, call)
    assert (sample.context_texts, turn.contexts_source) == ((PAGE,), "tool")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PAGE, (PAGE,)),
        (f"{PAGE}\n{OTHER}", (f"{PAGE}\n{OTHER}",)),
        (f"{PAGE}\n\n{OTHER}", (PAGE, OTHER)),
        (f'["{PAGE}", "{OTHER}"]', (PAGE, OTHER)),
        (f"['{PAGE}', '{OTHER}']", (PAGE, OTHER)),
        (f"Source: a.md\nContent: {PAGE}\n\nSource: b.md\nContent: {OTHER}", (PAGE, OTHER)),
        (f"Founding\n\n{PAGE}\n\n- by whom\n- where", None),
        (f"{PAGE} It goes\non in a second line.\n\n{OTHER}", None),
        (" ", ()),
    ],
)
def test_where_documents_begin_in_a_text(text: str, expected: tuple[str, ...] | None) -> None:
    """By its form, or where each paragraph is a line of whole sentences; else nobody can tell."""
    found = parts_of(text)
    assert (None if found is None else tuple(p.text for p in found)) == expected


def test_documents_of_which_only_the_use_is_seen() -> None:
    """A step was handed them, and the application was not."""
    join = replace(
        chain("join", "app", at=(10, 11)), documents_seen=DOCUMENTS, documents_given=DOCUMENTS
    )
    assert only(app(), join, write(f"{PAGE} {OTHER}"))[1].context_texts == (PAGE, OTHER)


def test_documents_that_the_application_was_given() -> None:
    """A summary of given documents is no RAG."""
    given = replace(app(), documents_seen=DOCUMENTS, documents_given=DOCUMENTS)
    join = replace(
        chain("join", "app", at=(10, 11)), documents_seen=DOCUMENTS, documents_given=DOCUMENTS
    )
    assert find_turns([given, join, write(f"{PAGE} {OTHER}")], loss="possible") == []


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
    ],
)
def test_the_block_below_a_heading(prompt: list[str], text: str | None, asked: str | None) -> None:
    """Up to the next heading, and what is asked beside it."""
    block = block_in(prompt)
    assert (None if block is None else (block.text, block.question)) == (
        None if text is None else (text, asked)
    )


def test_contexts_out_of_a_prompt_have_to_be_asked_for() -> None:
    """Without any retrieval they are a guess, and the turn says so."""
    call = write(f"Context:\n{PAGE}\n\n{OTHER}", under=None)
    assert find_turns([call], loss="possible") == []
    turn, sample = only(call, contexts_from_prompt=True)
    assert (sample.question, sample.context_texts, sample.answer) == (ASKED, (PAGE, OTHER), TOLD)
    assert turn.contexts_source == "prompt"


@pytest.mark.parametrize("said", ["yes", '{"binary_score": "yes"}'])
def test_a_verdict_on_contexts_in_a_prompt_is_no_turn(said: str) -> None:
    """It answers nobody."""
    call = write(f"Context:\n{PAGE}", said=said, under=None)
    assert find_turns([call], loss="possible", contexts_from_prompt=True) == []


@pytest.mark.parametrize(("count", "expected"), [(None, 2), (2, 2), (3, None)])
def test_a_retrieval_without_texts_is_read_in_the_prompt(
    count: int | None, expected: int | None
) -> None:
    """It was seen, so its documents are there; as many as it found, if it tells that."""
    blind = replace(retriever("r", "app", at=(5, 9), query=ASKED, found=None), document_count=count)
    (turn,) = find_turns([app(), blind, write(f"Context:\n{PAGE}\n\n{OTHER}")], loss="possible")
    found = extract(turn)
    assert turn.contexts_source == "prompt"
    assert found == "ambiguous" if expected is None else isinstance(found, Sample)

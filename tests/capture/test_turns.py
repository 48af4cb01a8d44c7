"""Grouping: which calls, retrievals and ancestors make up a turn, also where nobody recorded one.

Retrievals may be seen by tools, by messages, by documents handed on, or by a heading.
"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties import examples
from rag_eval_otel.capture.sample import extract, turns_in
from rag_eval_otel.capture.step import Result, Step
from rag_eval_otel.capture.turns import Turn, find_turns, is_verdict
from rag_eval_otel.types import Passage, Sample
from recordings import misread
from steps import chain, forests, llm, retriever, tool


def names(steps: tuple[Step, ...]) -> str:
    return " ".join(step.name for step in steps)


def shape(turn: Turn) -> tuple[str, str, str, str]:
    """Return the names of the path, the retrievals, the calls, and the other calls."""
    path, found, calls, others = turn.path, turn.retrievers, turn.calls, turn.other_calls
    return names(path), names(found), names(calls), names(others)


def plain(prefix: str = "", *, under: str | None = None, at: int = 0) -> tuple[Step, ...]:
    root = f"{prefix}rag"
    return (
        chain(root, under, at=(at, at + 9)),
        retriever(f"{prefix}search", root, at=(at + 1, at + 2)),
        llm(f"{prefix}write", root, at=(at + 3, at + 4)),
    )


APP, SEARCH, WRITE = chain("app"), retriever("search", "app", at=(1, 2)), llm("w", "app", at=(5, 6))
PLAIN = ("rag app", "search", "write", "")
ERROR = "ConnectionError"


def agent(between: int) -> list[Step]:
    """Build an agent with a RAG chain, below ``between`` other chains, as a tool."""
    chains = [chain(f"c{n}", f"c{n - 1}" if n else "ask") for n in range(between)]
    return [
        chain("agent"),
        llm("plan", "agent", at=(0, 1)),
        tool("ask", "agent", at=(2, 30)),
        *chains,
        *plain(under=chains[-1].name if chains else "ask", at=3),
        llm("conclude", "agent", at=(31, 32)),
    ]


OF_AGENT = ("agent", "search", "write conclude", "plan")
ASKED, TOLD = "When was it founded?", "It was founded in 1949, says the book."
PAGE, OTHER = "The house was founded in 1949.", "The house has forty rooms."
GROUPS: dict[str, tuple[list[Step], list[tuple[str, str, str, str]]]] = {
    "nothing": ([], []),
    "no retrieval": ([APP, WRITE], []),
    "no call": ([APP, SEARCH], []),
    "a call before the retrieval": ([APP, llm("w", "app", at=(0, 1)), SEARCH], []),
    "a call elsewhere": ([APP, SEARCH, llm("w", None, at=(5, 6))], []),
    "no root": ([replace(one, parent=None) for one in (SEARCH, WRITE)], []),
    "a missing parent": ([SEARCH, WRITE], []),
    "a retrieval that failed": ([APP, replace(SEARCH, error=ERROR), WRITE], []),
    "a call that failed": ([APP, SEARCH, replace(WRITE, error=ERROR)], []),
    "the anchor is the deepest that holds both": ([APP, *plain(under="app")], [PLAIN]),
    "a step that is delivered twice counts once": ([APP, *plain(under="app") * 2], [PLAIN]),
    "calls before any retrieval are rewrites": (
        [
            APP,
            llm("third", "app", at=(9, 10)),
            llm("condense", "app", at=(0, 1)),
            SEARCH,
            llm("second", "app", at=(5, 6)),
        ],
        [("app", "search", "second third", "condense")],
    ),
    "the outermost retriever and the innermost call count": (
        [
            APP,
            retriever("multi", "app", at=(1, 8)),
            llm("queries", "multi", at=(2, 3)),
            retriever("inner", "multi", at=(4, 5)),
            llm("wrapper", "app", at=(9, 12)),
            llm("model", "wrapper", at=(10, 11)),
        ],
        [("app", "multi", "model", "")],
    ),
    "a retriever that had ended does not hold the call": (
        [APP, SEARCH, replace(WRITE, parent="search", start=3)],
        [("app", "search", "w", "")],
    ),
    "a retriever that ends when the call begins holds it": (
        [APP, SEARCH, replace(WRITE, parent="search", start=2)],
        [],
    ),
    "an evaluator and what it asks are of no turn": (
        [APP, replace(chain("judge", "app"), kind="aside"), *plain("j-", under="judge"), *plain()],
        [("rag", "search", "write", "")],
    ),
    "turns side by side are apart": (
        [APP, *plain("b-", under="app", at=1), *plain("a-", under="app")],
        [("a-rag", "a-search", "a-write", ""), ("b-rag", "b-search", "b-write", "")],
    ),
    "a turn around a turn": (
        [
            APP,
            *plain(under="app"),
            retriever("more", "app", at=(12, 13)),
            llm("conclude", "app", at=(14, 15)),
        ],
        [("rag", "search", "write", ""), ("app", "more", "conclude", "write")],
    ),
    "a turn whose answer comes out is no step of another": (
        [
            chain("app", asked="Why?", told="Because of it."),
            chain("rag", "app", at=(0, 9), asked="Why?", told="Because of it."),
            retriever("search", "rag", at=(1, 2), found=[PAGE]),
            llm("write", "rag", at=(3, 4), shown=[PAGE], said="Because of it."),
            llm("title", "app", at=(20, 21), shown=[PAGE], said="Why it is."),
        ],
        [("rag", "search", "write", "")],
    ),
    "a turn used as a tool is part of the agent's": (agent(0), [OF_AGENT]),
    "a turn deep in a tool": (agent(3), [OF_AGENT]),
    "a turn below a tool of no turn stands alone": (
        [chain("agent"), tool("ask", "agent", at=(1, 20)), *plain(under="ask", at=2)],
        [("rag ask agent", "search", "write", "")],
    ),
    "turns that use each other as tools are refused, and no other": (
        [
            chain("a", "ask-a"),
            tool("ask-a", "b", at=(0, 9)),
            chain("b", "ask-b"),
            tool("ask-b", "a", at=(0, 9)),
            retriever("search-a", "a", at=(1, 2)),
            llm("write-a", "a", at=(3, 4)),
            retriever("search-b", "b", at=(1, 2)),
            llm("write-b", "b", at=(3, 4)),
            *plain(at=20),
        ],
        [("rag", "search", "write", "")],
    ),
}


@pytest.mark.parametrize(("steps", "expected"), GROUPS.values(), ids=GROUPS)
def test_groups(steps: list[Step], expected: list[tuple[str, str, str, str]]) -> None:
    """A turn takes a retrieval, a call that begins after it, and an ancestor of both."""
    assert [shape(turn) for turn in find_turns(steps)] == expected


MS = 1_000_000


@pytest.mark.parametrize(
    ("start", "end", "said", "ids", "is_same"),
    [
        (29, 29, TOLD, (None, None), True),
        (-29, -29, TOLD, (None, None), True),
        (40, -40, TOLD, (None, None), True),
        (0, -40, TOLD, (None, None), True),
        (40, 0, TOLD, (None, None), True),
        (0, 0, None, (None, "y"), True),
        (0, 0, OTHER, (None, None), False),
        (30, 30, TOLD, ("x", None), False),
        (-40, -10, TOLD, (None, None), False),
        (10, 40, TOLD, (None, None), False),
        (400, 400, OTHER, ("x", "x"), True),
        (0, 0, TOLD, ("x", "y"), False),
    ],
)
def test_calls_recorded_twice(
    start: int, end: int, said: str | None, ids: tuple[str | None, ...], *, is_same: bool
) -> None:
    """One call has one id, or one text and nearly one time, or a time within the other's."""
    first = llm("first", "app", at=(100 * MS, 900 * MS), said=TOLD)
    second = llm("second", "app", at=((100 + start) * MS, (900 + end) * MS), said=said)
    first = replace(first, source="x", response_id=ids[0])
    steps = [APP, SEARCH, first, replace(second, source="y", response_id=ids[1])]
    (turn,) = find_turns(steps)
    assert len(turn.calls) == (1 if is_same else 2)
    (turn,) = find_turns([replace(one, source="x") for one in steps])
    assert len(turn.calls) == 2


@pytest.mark.parametrize(
    ("steps", "doubt"),
    [
        ([APP, *(chain(f"c{n}", "gone", at=(n, n)) for n in (100, 200))], "partial"),
        ([APP, chain("inner", "gone", at=(101, 200))], None),
        ([replace(APP, end=None), chain("inner", "gone", at=(200, 300))], "partial"),
        ([replace(APP, parent="gone")], "partial"),
        ([replace(APP, parent="gone", is_remote=True)], None),
        ([replace(APP, parent="top"), chain("top", "gone")], "partial"),
    ],
)
def test_a_parent_that_is_missing(steps: list[Step], doubt: str | None) -> None:
    """Above the turn, or above a step during it, there may be what changes it."""
    (turn,) = find_turns([*steps, SEARCH, WRITE], loss="possible")
    assert turn.doubt == doubt


def test_the_size_of_a_turn() -> None:
    """All texts count, and what is kept beside them."""
    steps = [chain("app", asked="a", told="b"), retriever("r", "app", at=(1, 2), found=["cc"])]
    (turn,) = find_turns([*steps, llm("w", "app", at=(5, 6), shown=["d", "e"], said="f")])
    (plain,) = find_turns([APP, SEARCH, WRITE])
    assert (turn.size - plain.size, plain.size) == (len("abccedef"), 4096)


def test_what_is_around_a_turn() -> None:
    """Its chains and its outermost tools, and which calls were made by a tool."""
    (turn,) = find_turns([*agent(1), retriever("again", "agent", at=(25, 26))])
    assert (names(turn.steps), names(turn.tools)) == ("agent c0 rag", "ask again")
    assert turn.tool_calls == {"write"}


def flat(*numbers: int) -> list[Step]:
    """Build requests below one span that says nothing, such as that of a web server."""
    root = replace(APP, kind="other", flat=True)
    pages = {n: f"The page number {n} tells something." for n in numbers}
    return [
        root,
        *(retriever(f"r{n}", "app", at=(n, n), query=f"{n}?", found=[pages[n]]) for n in numbers),
        *(
            llm(f"w{n}", "app", at=(n + 50, n + 51), shown=[pages[n], f"{n}?"], said=pages[n] * 2)
            for n in numbers
        ),
    ]


def test_requests_below_one_span() -> None:
    """Prompts tell them apart; without them nothing does. More than 200 are not compared."""
    steps = flat(1, 2)
    assert [names(turn.path) for turn in find_turns(steps)] == ["w1", "w2"]
    (turn,) = find_turns([*steps[:-1], replace(steps[-1], output="Yes.")])
    assert shape(turn) == ("app", "r1", "w1", "")
    short = [llm(f"s{n}", "app", at=(50, 60)) for n in range(201)]
    blind = [replace(one, prompt=(), input=None) for one in steps]
    for several, doubt in ((short[1:], None), (short, "ambiguous"), (blind, "ambiguous")):
        (turn,) = find_turns([*steps[:2], *several])
        assert (turn.anchor.name, turn.doubt) == ("app", doubt)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes.", True),
        ("not relevant", True),
        ("yes, it is", False),
        ('{"binary_score": "high"}', True),
        ('{"passed": "yes", "count": 3, "why": null}', True),
        ('{"answer": "Paris"}', False),
        ('{"score": "high enough"}', False),
        ('{"pages": []}', False),
    ],
)
def test_verdicts(text: str, *, expected: bool) -> None:
    """A yes or no, a grade, or JSON of nothing but grades."""
    assert is_verdict(text) is expected


# --- retrievals that nobody recorded ------------------------------------------------------------

DOCUMENTS = (Passage(text=PAGE), Passage(text=OTHER))


def told(*steps: Step, contexts_from_prompt: bool = False) -> tuple[Turn, Sample]:
    found = find_turns(steps, loss="possible", contexts_from_prompt=contexts_from_prompt)
    (turn,) = found
    sample = extract(turn)
    assert isinstance(sample, Sample), sample
    return turn, sample


def app() -> Step:
    return chain("app", asked=ASKED, told=TOLD)


def write(*shown: str, said: str = TOLD, under: str | None = "app") -> Step:
    return llm("write", under, at=(50, 60), shown=[*shown, ASKED], said=said)


@pytest.mark.parametrize(
    ("name", "description", "documents", "is_retrieval"),
    [
        ("search_kb", "", (), True),
        ("handbook", "Search the handbook for what an employee may do.", (), True),
        ("ask_company", "Ask the company.", DOCUMENTS, True),
        ("weather", "Get the weather of a city.", (), False),
        ("check_relevance", "Grade what was retrieved.", (), False),
    ],
)
def test_which_tools_retrieve(
    name: str, description: str, documents: tuple[Passage, ...], *, is_retrieval: bool
) -> None:
    """Those that say so by name or description, but no grader, and if documents were returned."""
    found = replace(
        tool(name, "app", at=(5, 9), told='{"score": "no"}' if "relevance" in name else PAGE),
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
def test_what_a_tool_found_is_in_the_messages(result: Result, *, is_retrieval: bool) -> None:
    """A client's own spans tell of tools only what the LLM was shown; it stands for the turn."""
    call = replace(write(result.text, under=None), tool_results=(result,))
    turns = find_turns([call], loss="possible")
    assert bool(turns) == is_retrieval
    for turn in turns:
        sample = extract(turn)
        assert isinstance(sample, Sample)
        assert (sample.question, sample.context_texts, sample.answer) == (ASKED, (PAGE,), TOLD)
        assert (turn.anchor.name, turn.contexts_source) == ("write", "tool")


@pytest.mark.parametrize(
    ("text", "given", "shown", "is_found"),
    [
        (PAGE, "", PAGE, True),
        (PAGE, PAGE, PAGE, False),
        (PAGE, "", OTHER, False),
        ("x" * 20, "", "x" * 20, True),
        ("x" * 19, "", "x" * 19, False),
        (TOLD, "", TOLD, False),
    ],
)
def test_texts_that_a_chain_returned(text: str, given: str, shown: str, *, is_found: bool) -> None:
    """They are documents if they are long, models saw them, and nobody gave or wrote them."""
    root = replace(app(), texts_given=(Passage(text=given),))
    node = replace(chain("load", "app", asked=ASKED), texts_returned=(Passage(text=text),))
    turns = find_turns([root, node, write(shown)])
    assert [turn.retrievers[0].documents for turn in turns] == [(Passage(text=text),)] * is_found


def test_what_an_agent_of_its_own_answered_is_no_context() -> None:
    """The tool has asked a model: what it returned are the words of that."""
    inner = llm("inner", "app", at=(5, 9), shown=["Founded when?"], said="In 1949, it seems.")
    last = replace(
        write("In 1949, it seems."),
        tool_results=(Result(text="In 1949, it seems.", tool="search_kb"),),
    )
    assert find_turns([app(), inner, last], loss="possible") == []


def test_contexts_out_of_a_prompt_have_to_be_asked_for() -> None:
    """Without any retrieval they are a guess, and the turn says so, or that nothing parts them."""
    call = write(f"Context:\n{PAGE}\n\n{OTHER}", under=None)
    assert find_turns([call], loss="possible") == []
    together = write(f"Context:\n# Bees\n\n{PAGE}\n\n{OTHER}", under=None)
    (refused,) = find_turns([together], contexts_from_prompt=True)
    assert extract(refused) == "ambiguous"
    turn, sample = told(call, contexts_from_prompt=True)
    assert (sample.question, sample.context_texts, sample.answer) == (ASKED, (PAGE, OTHER), TOLD)
    assert turn.contexts_source == "prompt"


@pytest.mark.parametrize("said", ["yes", '{"binary_score": "yes"}'])
def test_a_verdict_on_contexts_in_a_prompt_is_no_turn(said: str) -> None:
    """It answers nobody."""
    call = write(f"Context:\n{PAGE}", said=said, under=None)
    assert find_turns([call], loss="possible", contexts_from_prompt=True) == []


@pytest.mark.parametrize(("count", "expected"), [(None, 2), (2, 2), (3, None)])
def test_a_retrieval_without_texts(count: int | None, expected: int | None) -> None:
    """It was seen, so its documents are there; as many as it found, if it tells that."""
    blind = replace(retriever("r", "app", at=(5, 9), query=ASKED, found=None), document_count=count)
    (turn,) = find_turns([app(), blind, write(f"Context:\n{PAGE}\n\n{OTHER}")], loss="possible")
    found = extract(turn)
    assert turn.contexts_source == "prompt"
    assert found == "ambiguous" if expected is None else isinstance(found, Sample)


# --- any trace ------------------------------------------------------------------------------------


@pytest.mark.parametrize("under", [None, "root"])
def test_a_draft_for_each_context(under: str | None) -> None:
    """Which of several answers to one question was chosen is not to be seen."""
    drafts = [
        llm(f"draft{n}", under, at=(10 * n, 10 * n + 5), shown=[shown], said=f"{TOLD} ({n})")
        for n, page in enumerate((PAGE, OTHER), 1)
        for shown in [f"Context:\n{page}\n\nQuestion: {ASKED}"]
    ]
    root = Step(id="root", parent=None, kind="other", name="ask", start=0, end=100, flat=True)
    found = turns_in([*([root] if under else []), *drafts], contexts_from_prompt=True)
    assert {extract(turn) for turn in found} == {"ambiguous"}


@pytest.mark.slow
@examples(80)
@given(forests())
def test_turns_of_any_trace(steps: list[Step]) -> None:
    """A call is in one turn at most; the parts of a turn are what they should be."""
    turns = find_turns(steps)
    calls = Counter(call.id for turn in turns for call in turn.calls)
    retrievals = Counter(found.id for turn in turns for found in turn.retrievers)
    assert max([*calls.values(), *retrievals.values()], default=1) == 1
    for turn in turns:
        assert turn.retrievers
        assert turn.path[0] is turn.anchor
        assert all(c.kind == "llm" and c.error is None for c in (*turn.calls, *turn.other_calls))
        assert all(r.kind == "retriever" and r.error is None for r in turn.retrievers)
        assert not {c.id for c in turn.calls} & {c.id for c in turn.other_calls}
        assert list(turn.calls) == sorted(turn.calls, key=lambda call: call.start)


@pytest.mark.slow
@examples(80)
@given(st.data())
def test_the_order_of_the_steps_does_not_matter(data: st.DataObject) -> None:
    """They come in the order in which spans end; what counts is when they began."""
    steps = data.draw(forests())
    shuffled = data.draw(st.permutations(steps))
    assert find_turns(shuffled) == find_turns(steps)


@pytest.mark.slow
def test_deep_recursion_is_read_at_once() -> None:
    """Turns within each other, as endless recursion leaves them, are looked through.

    What is done for each must not grow with all the others, or one trace stops all scoring.
    """
    steps: list[Step] = []
    for depth in range(800):
        own, start, end = f"chain {depth}", depth * 10, 10**6 - depth * 10
        steps += [
            chain(own, f"chain {depth - 1}" if depth else None, at=(start, end)),
            retriever(f"search {depth}", own, at=(start + 1, start + 2)),
            llm(f"call {depth}", own, at=(end - 5, end - 1)),
        ]
    assert len(find_turns(steps, loss="possible")) == 800


def test_recordings() -> None:
    """The spans of recorded applications are read as they were."""
    assert misread() == []


def test_searches_are_counted() -> None:
    """All, those that repeat a query, and those that found nothing; a reranker is none."""
    one = retriever("a", "app", at=(1, 2), query=ASKED, found=("x",))
    again = (replace(one, id=name) for name in "bcd")
    made = (one, *again, replace(one, id="e", input="Who?", documents=()))
    others = (replace(one, kind="reranker"), replace(one, contexts_source="prompt"))
    assert Turn(anchor=APP, path=(APP,), retrievers=(*made, *others)).searches == (5, 3, 1)
    assert Turn(anchor=APP, path=(APP,), retrievers=others).searches is None

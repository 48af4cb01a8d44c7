"""Grouping: which calls, retrievals and ancestors make up a turn, also where nobody recorded one.

Retrievals may be seen by tools, by messages, by documents handed on, or by a heading.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

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


def shape(turn: Turn) -> str:
    """Return the names of the path, the retrievals, the calls, and the other calls."""
    parts = (turn.path, turn.retrievers, turn.calls, turn.other_calls)
    return "|".join(map(names, parts))


def plain(prefix: str = "", *, under: str | None = None, at: int = 0) -> tuple[Step, ...]:
    root = f"{prefix}rag"
    return (
        chain(root, under, at=(at, at + 9)),
        retriever(f"{prefix}search", root, at=(at + 1, at + 2)),
        llm(f"{prefix}write", root, at=(at + 3, at + 4)),
    )


APP, SEARCH, WRITE = chain("app"), retriever("search", "app", at=(1, 2)), llm("w", "app", at=(5, 6))
DONE, FULL = replace(APP, output="In 1949."), replace(SEARCH, documents=(Passage(text="1949."),))
STATED = replace(chain("node", "app", at=(4, 8)), recorded=frozenset({"output"}))
PLAIN, ALONE = "rag app|search|write|", "rag|search|write|"
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


def flat(*numbers: int) -> list[Step]:
    """Build requests below one span that says nothing, such as that of a web server."""
    pages = {n: f"The page number {n} tells something." for n in numbers}
    return [
        replace(APP, kind="other", flat=True),
        *(retriever(f"r{n}", "app", at=(n, n), query=f"{n}?", found=[pages[n]]) for n in numbers),
        *(
            llm(f"w{n}", "app", at=(n + 50, n + 51), shown=[pages[n], f"{n}?"], said=pages[n] * 2)
            for n in numbers
        ),
    ]


OF_AGENT = "agent|search|write conclude|plan"
ASKED, TOLD = "When was it founded?", "It was founded in 1949, says the book."
PAGE, OTHER = "The house was founded in 1949.", "The house has forty rooms."
REQUESTS = WEB, *SEARCHES, W1, W2 = flat(1, 2)
BOTH = replace(W2, prompt=(*W1.prompt[:1], *W2.prompt[:1]))
BEFORE, BETWEEN = (
    replace(llm(name, "app", at=(n, n)), calls_tools=True) for name, n in (("b", 40), ("c", 51))
)
SECOND = llm("third", "app", at=(9, 10)), llm("second", "app", at=(5, 6))
DEEP = retriever("multi", "app", at=(1, 8)), retriever("inner", "multi", at=(4, 5))
QUERIES, MODEL = llm("queries", "multi", at=(2, 3)), llm("model", "wrapper", at=(10, 11))
CHAINS = [
    chain(name, up, asked="Why?", told="Because.") for name, up in (("app", None), ("rag", "app"))
]
OUTSIDE = llm("title", "app", at=(20, 21), shown=[PAGE], said="Why it is.")
GROUPS: dict[str, tuple[Any, ...]] = {
    "nothing": ("",),
    "no retrieval": ("", APP, WRITE),
    "no call": ("", APP, SEARCH),
    "nothing found, and an answer": ("app|search||", DONE, SEARCH),
    "a page found, and an answer by no model": ("", DONE, FULL),
    "a recorded answer": ("app|search||", replace(DONE, recorded=STATED.recorded), FULL),
    "a recorded answer around a call": (
        *("app|search|node|w", APP, SEARCH, STATED, llm("w", "node", at=(5, 6))),
    ),
    "a call before the retrieval": ("", APP, llm("w", "app", at=(0, 1)), SEARCH),
    "a call elsewhere": ("", APP, SEARCH, llm("w", None, at=(5, 6))),
    "no root": ("", *(replace(one, parent=None) for one in (SEARCH, WRITE))),
    "a missing parent": ("", SEARCH, WRITE),
    "a retrieval that failed": ("", APP, replace(SEARCH, error=ERROR), WRITE),
    "a call that failed": ("", APP, SEARCH, replace(WRITE, error=ERROR)),
    "the anchor is the deepest that holds both": (PLAIN, APP, *plain(under="app")),
    "a step that is delivered twice counts once": (PLAIN, APP, *plain(under="app") * 2),
    "calls before any retrieval are rewrites": (
        *("app|search|second third|w", APP, *SECOND, replace(WRITE, start=0), SEARCH),
    ),
    "the outermost retriever and the innermost call count": (
        *("app|multi|model|", APP, *DEEP, QUERIES, llm("wrapper", "app", at=(9, 12)), MODEL),
    ),
    "a retriever that had ended does not hold the call": (
        *("app|search|w|", APP, SEARCH, replace(WRITE, parent="search", start=3)),
    ),
    "a retriever that ends when the call begins holds it": (
        *("", APP, SEARCH, replace(WRITE, parent="search", start=2)),
    ),
    "a chain below a call that had ended is apart": (
        *("rag app|search|write|w", APP, llm("w", "app", at=(1, 2)), *plain(under="w", at=3)),
    ),
    "an evaluator and what it asks are of no turn": (
        *(ALONE, APP, replace(chain("judge", "app"), kind="aside"), *plain("j-", under="judge")),
        *plain(),
    ),
    "turns side by side are apart": (
        "a-rag|a-search|a-write|; b-rag|b-search|b-write|",
        *(APP, *plain("b-", under="app", at=1), *plain("a-", under="app")),
    ),
    "a turn around a turn": (
        *("rag|search|write|; app|more|conclude|write", APP, *plain(under="app")),
        *(retriever("more", "app", at=(12, 13)), llm("conclude", "app", at=(14, 15))),
    ),
    "a turn whose answer comes out is no step of another": (
        *(ALONE, *CHAINS, retriever("search", "rag", at=(1, 2), found=[PAGE])),
        *(llm("write", "rag", at=(3, 4), shown=[PAGE], said="Because."), OUTSIDE),
    ),
    "a turn used as a tool is part of the agent's": (OF_AGENT, *agent(0)),
    "a turn deep in a tool": (OF_AGENT, *agent(3)),
    "a turn below a tool of no turn stands alone": (
        "rag ask agent|search|write|",
        *(chain("agent"), tool("ask", "agent", at=(1, 20)), *plain(under="ask", at=2)),
    ),
    "turns that use each other as tools are refused, and no other": (
        ALONE,
        *(one for a, b in ("ab", "ba") for one in plain(f"{a}-", under=f"ask-{a}")),
        *(tool("ask-a", "b-rag", at=(0, 9)), tool("ask-b", "a-rag", at=(0, 9)), *plain(at=20)),
    ),
    "requests below one span": ("w1|r1|w1|; w2|r2|w2|", *REQUESTS),
    "one of them is answered by a word": (
        *("app|r1|w1|", WEB, *SEARCHES, W1, replace(W2, output="Yes.")),
    ),
    "one call with the pages of both": ("app|r1 r2|w2|", WEB, *SEARCHES, BOTH),
    "prompts without questions": (
        *("w1|r1|w1|; w2|r2|w2|", WEB, *SEARCHES, replace(W1, prompt=W1.prompt[:1]), BOTH),
    ),
    "two answers by one page": ("app|r1 r2|w1 w1|", WEB, *SEARCHES, W1, replace(W1, id=3)),
    "the span has the only answer": (
        *("app|r1 r2|w1 w2|", replace(WEB, output=W1.output), *SEARCHES),
        *(W1, replace(W2, prompt=())),
    ),
    "calls of tools": ("w1|r1|w1|b; w2|r2|w2|b c", *REQUESTS, BEFORE, BETWEEN),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name: str) -> None:
    """A turn takes a retrieval, a call that begins after it, and an ancestor of both.

    Below a span of several requests, prompts tell these apart.
    """
    expected, *steps = GROUPS[name]
    assert "; ".join(map(shape, find_turns(steps))) == expected


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
        (0, None, TOLD, (None, None), False),
        (0, None, TOLD, ("x", "x"), True),
    ],
)
def test_calls_recorded_twice(
    start: int, end: int | None, said: str | None, ids: tuple[str | None, ...], *, is_same: bool
) -> None:
    """One call has one id, or one text and nearly one time, or a time within the other's."""
    first = llm("first", "app", at=(100 * MS, 900 * MS), said=TOLD)
    until = None if end is None else (900 + end) * MS
    second = llm("second", "app", at=((100 + start) * MS, until), said=said)
    first = replace(first, source="x", response_id=ids[0])
    steps = [APP, SEARCH, first, replace(second, source="y", response_id=ids[1])]
    (turn,) = find_turns(steps)
    assert len(turn.calls) == (1 if is_same else 2)
    (turn,) = find_turns([replace(one, source="x") for one in steps])
    assert len(turn.calls) == 2


@pytest.mark.parametrize(
    ("own", "around", "expected"),
    [
        ({}, ["m"], (("m?",), "m!")),
        ({}, ["l", "m"], (("l?",), "l!")),
        ({"prompt": ("a",), "output": "b"}, ["m"], (("a",), "b")),
        ({"calls_tools": True}, ["m"], (("m?",), None)),
        ({"hidden": frozenset({"prompt"})}, ["m"], ((), "m!")),
        ({"hidden": frozenset({"output"})}, ["m"], (("m?",), None)),
    ],
)
def test_texts_of_a_span_around_a_call(
    own: dict[str, Any], around: list[str], expected: tuple[tuple[str, ...], str | None]
) -> None:
    """A call that lacks its texts has those of the nearest, if that wraps no other call."""
    wrappers = [
        llm(name, above, at=(5, 40), shown=[f"{name}?"], said=f"{name}!")
        for name, above in zip(reversed(around), ["app", *reversed(around)], strict=False)
    ]
    call = replace(llm("w", around[0], at=(6, 7)), **own)
    failed = llm("f", around[0], at=(5, 6), error="TimeoutError")
    (turn,) = find_turns([APP, SEARCH, *wrappers, failed, call])
    assert [(one.prompt, one.output) for one in turn.calls] == [expected]
    (turn,) = find_turns([APP, SEARCH, *wrappers, call, llm("x", around[0], at=(8, 9))])
    assert (turn.calls[0].prompt, turn.calls[0].output) == (call.prompt, call.output)


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


def test_requests_below_one_span() -> None:
    """Without prompts nothing tells them apart. More than 200 calls are not compared."""
    short = [llm(f"s{n}", "app", at=(50, 60)) for n in range(201)]
    blind = [replace(one, prompt=(), input=None) for one in REQUESTS]
    for several, doubt in ((short[1:], None), (short, "ambiguous"), (blind, "ambiguous")):
        (turn,) = find_turns([*REQUESTS[:2], *several])
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


def app(**changes: Any) -> Step:
    return replace(chain("app", asked=ASKED, told=TOLD), **changes)


def write(*shown: str, said: str = TOLD, under: str | None = "app", **changes: Any) -> Step:
    call = llm("write", under, at=(50, 60), shown=[*shown, ASKED], said=said)
    return replace(call, **changes)


def kb(name: str = "search_kb", description: str = "", **changes: Any) -> Step:
    """Build a tool that has returned a page."""
    return replace(tool(name, "app", at=(5, 9), told=PAGE), description=description, **changes)


def blind(**changes: Any) -> Step:
    """Build a retrieval, in that tool, whose documents were not captured."""
    return replace(retriever("r", "search_kb", at=(6, 8), query=ASKED, found=None), **changes)


def embedded(*ends: int | None, **changes: Any) -> list[Step]:
    """Build embeddings of a, b and c with these ends, and a retrieval in which one is."""
    pairs = enumerate(zip("abc", ends, strict=False), 1)
    texts = [
        replace(tool(a, "app", at=(n, end)), kind="embedding", input=a) for n, (a, end) in pairs
    ]
    inner = retriever("s", "r", at=(11, 12), query=changes.pop("inner", None), found=[PAGE])
    return [*texts, replace(retriever("r", "app", at=(10, 20), found=[PAGE]), **changes), inner]


def result(text: str = PAGE, name: str = "search_kb", **more: Any) -> Step:
    """Build a client's own span: of tools, it tells only what the LLM was shown."""
    return write(text, under=None, tool_results=(Result(text=text, tool=name, **more),))


def loaded(text: str, *, given: str = "", shown: str = "") -> list[Step]:
    root = app(texts_given=(Passage(text=given),))
    node = replace(chain("load", "app", asked=ASKED), texts_returned=(Passage(text=text),))
    return [root, node, write(shown or text)]


def again(n: int, *shown: Result) -> list[Step]:
    """Build a call in a node of an agent's graph."""
    call = write(PAGE, under=f"node{n}", id=n, start=n, tool_results=shown)
    return [chain(f"node{n}", "app", at=(n, n + 9)), call]


DOCUMENTS = FIRST, LAST = Passage(text=PAGE), Passage(text=OTHER)
SEEMS, CALL = "In 1949, it seems.", write(PAGE)
ANY = "Search the handbook for what an employee may do."
LOOP = [
    *again(10),
    *(step for n in (20, 30) for step in again(n, Result(text=PAGE, tool="search_kb"))),
]
HAVING = [replace(chain("n", "app"), id=n, start=n, documents_given=DOCUMENTS[n:]) for n in (1, 0)]
FINDS: dict[str, tuple[Any, ...]] = {
    "a tool by its name": ("search_kb|tool||1", kb(), CALL),
    "by its description": ("handbook|tool||1", kb("handbook", ANY), CALL),
    "by its documents": (
        *("ask|tool||12", kb("ask", documents=DOCUMENTS, documents_seen=DOCUMENTS), CALL),
    ),
    "none": ("", kb("weather", "Get the weather of a city."), CALL),
    "a grader": ("", kb("check_relevance", "Grade it.", output='{"score": "no"}'), CALL),
    "it failed": ("", kb(error=ERROR), CALL),
    "it is recorded": ("", kb(recorded=frozenset({"input"})), CALL),
    "an agent in it": ("", kb(), chain("agent", "search_kb", at=(6, 8)), CALL),
    "a tool in it": ("search_kb|tool||1", kb(), tool("search", "search_kb", at=(6, 8)), CALL),
    "a chain": ("", kb(kind="chain"), CALL),
    "it returned some": ("search_kb|tool||12", kb(kind="chain", documents=DOCUMENTS), CALL),
    "it has some": ("", kb("f", kind="chain", documents_seen=DOCUMENTS), CALL),
    "its tool has the texts": ("r|retrieval|Q|1", kb(), blind(), CALL),
    "its tool has fewer": ("r|retrieval|Q|None", kb(), blind(document_count=2), CALL),
    "its tool has others": ("r|retrieval|Q|2", kb(), blind(documents=(LAST,)), CALL),
    "its tool has all": (
        *("r|retrieval|Q|12", kb(documents=DOCUMENTS), blind(document_count=2), CALL),
    ),
    "it is hidden": ("r|retrieval|Q|hidden", kb(hidden=frozenset({"output"})), blind(), CALL),
    "embedded before": ("r|retrieval|c|1", *embedded(2, 4, 6), CALL),
    "the third is late": ("r|retrieval|b|1", *embedded(2, 10, 11), CALL),
    "the second is late": ("r|retrieval|a|1", *embedded(2, 11, None), CALL),
    "not embedded": ("r|retrieval||1", *embedded(), CALL),
    "a query within": ("r|retrieval|d|1", *embedded(2, inner="d"), CALL),
    "its own query": ("r|retrieval|Q|1", *embedded(2, inner="d", input=ASKED), CALL),
    "hidden": ("r|retrieval||1", *embedded(2, inner="d", hidden=frozenset({"input"})), CALL),
    "a result in a prompt": ("search_kb|tool||1", result()),
    "with documents": ("ask|tool||2", result(name="ask", documents=(LAST,))),
    "of no search": ("", result("5", "add")),
    "of no tool": ("", result(name="")),
    "of no text": ("", result(" ")),
    "of an agent": ("", llm("inner", "app", at=(5, 9), said=SEEMS), result(SEEMS)),
    "of an error": ("", result("Error: try again with another word.")),
    "shown again": ("search_kb|tool||1", *LOOP),
    "of a retrieval": ("r|retrieval|Q|1", *LOOP, blind(documents=(FIRST,), parent="app")),
    "handed on": ("app|retrieval|Q|12", *HAVING, CALL),
    "given to all": ("", app(documents_given=DOCUMENTS), *HAVING, CALL),
    "returned": ("load|retrieval|Q|1", *loaded(PAGE)),
    "it is long": (f"load|retrieval|Q|{'x' * 20}", *loaded("x" * 20)),
    "it is short": ("", *loaded("x" * 19)),
    "it was given": ("", *loaded(PAGE, given=PAGE)),
    "it is not shown": ("", *loaded(PAGE, shown=OTHER)),
    "a model wrote it": ("", *loaded(TOLD)),
}


def told(found: Step) -> str:
    """Return name, source, query and texts of a retrieval."""
    texts = None if found.documents is None else "".join(p.text for p in found.documents)
    parts = found.name, found.contexts_source, found.input or "", texts
    shown = "|".join(map(str, parts)).replace(ASKED, "Q").replace(PAGE, "1").replace(OTHER, "2")
    return shown.replace("None", "hidden") if "documents" in found.hidden else shown


@pytest.mark.parametrize("name", FINDS)
def test_retrievals(name: str) -> None:
    """Tools, results in messages and texts of chains; what is missing is filled in from around."""
    expected, *steps = FINDS[name]
    turns = find_turns([*steps, app()], loss="possible")
    assert "; ".join(told(found) for turn in turns for found in turn.retrievers) == expected


def test_contexts_out_of_a_prompt_have_to_be_asked_for() -> None:
    """Without any retrieval they are a guess, and the turn says so, or that nothing parts them."""
    call = write(f"Context:\n{PAGE}\n\n{OTHER}", under=None)
    assert find_turns([call], loss="possible") == []
    for said in ("yes", '{"binary_score": "yes"}'):  # a verdict answers nobody
        assert find_turns([replace(call, output=said)], contexts_from_prompt=True) == []
    together = write(f"Context:\n# Bees\n\n{PAGE}\n\n{OTHER}", under=None)
    (refused,) = find_turns([together], contexts_from_prompt=True)
    assert extract(refused) == "ambiguous"
    (turn,) = find_turns([call], contexts_from_prompt=True)
    sample = extract(turn)
    assert isinstance(sample, Sample)
    assert (sample.question, sample.context_texts, sample.answer) == (ASKED, (PAGE, OTHER), TOLD)
    assert turn.contexts_source == "prompt"


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
    for n in range(800):
        start, end = n * 10, 10**6 - n * 10
        steps += [
            chain(f"chain {n}", f"chain {n - 1}" if n else None, at=(start, end)),
            retriever(f"search {n}", f"chain {n}", at=(start + 1, start + 2)),
            llm(f"call {n}", f"chain {n}", at=(end - 5, end - 1)),
        ]
    assert len(find_turns(steps, loss="possible")) == 800


def test_recordings() -> None:
    """The spans of recorded applications are read as they were."""
    assert misread() == []


def test_where_contexts_come_from() -> None:
    """What was recorded counts before what a prompt, a tool or a memory showed."""
    found = retriever("r", "app", at=(1, 2), found=[PAGE])
    tools, memory, prompt = (
        replace(found, contexts_source=source) for source in ("tool", "memory", "prompt")
    )
    blind, empty = replace(found, documents=None), replace(tools, documents=())
    for several, source in (
        *(([found, empty], "retrieval"), ([memory, found], "memory"), ([memory, tools], "tool")),
        *(
            ([prompt, memory], "prompt"),
            ([blind, tools], "tool"),
            ([blind, blind, tools], "prompt"),
        ),
        *(([blind, empty], "prompt"), ([replace(blind, recorded={"documents"})], "retrieval")),
    ):
        turn = Turn(anchor=APP, path=(APP,), retrievers=tuple(several))
        assert turn.contexts_source == source


def test_searches_are_counted() -> None:
    """All, those that repeat a query, and those that found nothing; a reranker is none."""
    one = retriever("a", "app", at=(1, 2), query=ASKED, found=("x",))
    again = (replace(one, id=name) for name in "bcd")
    made = (one, *again, replace(one, id="e", input="Who?", documents=()))
    made += (replace(one, id="f", input=None, documents=None),)
    kinds = (replace(one, kind=kind) for kind in ("chain", "reranker", "tool"))
    others = (*kinds, replace(one, contexts_source="prompt"))
    assert Turn(anchor=APP, path=(APP,), retrievers=(*made, *others)).searches == (6, 3, 1)
    assert Turn(anchor=APP, path=(APP,), retrievers=others).searches is None

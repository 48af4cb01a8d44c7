"""Grouping: which calls, retrievals and ancestors make up a turn."""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties import examples
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import StepTree, Turn, find_turns
from steps import chain, forests, llm, retriever, tool


def names(steps: tuple[Step, ...]) -> str:
    return " ".join(step.name for step in steps)


def only(*steps: Step) -> Turn:
    (turn,) = find_turns(steps)
    return turn


def plain(prefix: str = "", *, under: str | None = None, at: int = 0) -> tuple[Step, ...]:
    root = f"{prefix}rag"
    return (
        chain(root, under, at=(at, at + 9)),
        retriever(f"{prefix}search", root, at=(at + 1, at + 2)),
        llm(f"{prefix}write", root, at=(at + 3, at + 4)),
    )


def test_a_chain_that_retrieves_and_asks_is_a_turn() -> None:
    """The anchor is the deepest that holds both; what is above belongs to the turn, too."""
    turn = only(chain("app"), *plain(under="app"))
    assert turn.anchor.name == "rag"
    assert names(turn.path) == "rag app"
    assert names(turn.calls) == "write"
    assert names(turn.retrievers) == "search"
    assert turn.other_calls == ()


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (chain("app"), llm("write", "app", at=(1, 2))),
        (chain("app"), retriever("search", "app", at=(1, 2))),
        (chain("app"), llm("write", "app", at=(1, 2)), retriever("search", "app", at=(3, 4))),
        (chain("app"), retriever("search", "app", at=(1, 2)), llm("write", None, at=(3, 4))),
        (retriever("search", None, at=(1, 2)), llm("write", None, at=(3, 4))),
        (retriever("search", "gone", at=(1, 2)), llm("write", "gone", at=(3, 4))),
    ],
    ids=["empty", "no retrieval", "no call", "call first", "apart", "no root", "missing parent"],
)
def test_what_is_no_turn(steps: tuple[Step, ...]) -> None:
    """A turn takes a retrieval, a call that begins after it, and an ancestor of both."""
    assert find_turns(steps) == []


def test_calls_before_any_retrieval_are_rewrites() -> None:
    """They write the query; those after it are the turn's calls, by their start."""
    turn = only(
        chain("app"),
        llm("third", "app", at=(9, 10)),
        llm("condense", "app", at=(1, 2)),
        retriever("search", "app", at=(3, 4)),
        llm("second", "app", at=(5, 6)),
    )
    assert names(turn.other_calls) == "condense"
    assert names(turn.calls) == "second third"


@pytest.mark.parametrize("name", ["search", "write"])
def test_what_failed_does_not_count(name: str) -> None:
    """Without its only retrieval, or its only call, a chain is no turn."""
    broken = {
        "search": retriever("search", "rag", at=(1, 2), error="ConnectionError"),
        "write": llm("write", "rag", at=(3, 4), error="ConnectionError"),
    }
    steps = [broken[name] if f.name == name else f for f in plain()]
    assert find_turns(steps) == []


def test_the_outermost_retriever_and_the_innermost_call_count() -> None:
    """Retrievers use retrievers and calls; models are wrapped in models."""
    turn = only(
        chain("app"),
        retriever("multi", "app", at=(1, 8)),
        llm("queries", "multi", at=(2, 3)),
        retriever("inner", "multi", at=(4, 5)),
        llm("wrapper", "app", at=(9, 12)),
        llm("model", "wrapper", at=(10, 11)),
    )
    assert names(turn.retrievers) == "multi"
    assert names(turn.calls) == "model"
    assert turn.other_calls == ()


def test_turns_side_by_side_are_apart() -> None:
    """Each has its own retrievals and calls, in whichever order they overlap."""
    first, second = plain("a-", under="app"), plain("b-", under="app", at=1)
    turns = find_turns([chain("app"), *second, *first])
    assert [names(turn.path) for turn in turns] == ["a-rag", "b-rag"]
    assert [names(turn.retrievers) for turn in turns] == ["a-search", "b-search"]
    assert [names(turn.calls) for turn in turns] == ["a-write", "b-write"]


def test_a_turn_around_a_turn() -> None:
    """A chain that retrieves for itself around a RAG chain is a turn; its line is itself."""
    turns = find_turns(
        [
            chain("app"),
            *plain(under="app"),
            retriever("more", "app", at=(12, 13)),
            llm("conclude", "app", at=(14, 15)),
        ]
    )
    assert [names(turn.path) for turn in turns] == ["rag", "app"]
    assert [names(turn.retrievers) for turn in turns] == ["search", "more"]
    assert [names(turn.calls) for turn in turns] == ["write", "conclude"]


def test_a_turn_whose_answer_comes_out_is_no_step() -> None:
    """What is called after it only names what it said."""
    turn = only(
        chain("app", asked="Why?", told="Because of it."),
        chain("rag", "app", at=(0, 9), asked="Why?", told="Because of it."),
        retriever("search", "rag", at=(1, 2), found=["A page that says why."]),
        llm("write", "rag", at=(3, 4), shown=["A page that says why."], said="Because of it."),
        llm("title", "app", at=(20, 21), shown=["A page that says why."], said="Why it is."),
    )
    assert turn.anchor.name == "rag"


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_turn_used_as_a_tool_is_part_of_the_agents(depth: int) -> None:
    """One turn: the agent's line, and the calls and retrievals of both."""
    between = [chain(f"c{n}", f"c{n - 1}" if n else "ask") for n in range(depth)]
    turn = only(
        chain("agent"),
        llm("plan", "agent", at=(0, 1)),
        tool("ask", "agent", at=(2, 30)),
        *between,
        *plain(under=between[-1].name if between else "ask", at=3),
        llm("conclude", "agent", at=(31, 32)),
    )
    assert turn.anchor.name == "agent"
    assert names(turn.path) == "agent"
    assert names(turn.calls) == "write conclude"
    assert names(turn.other_calls) == "plan"
    assert names(turn.retrievers) == "search"


def test_a_turn_below_a_tool_of_no_turn_stands_alone() -> None:
    """An agent that says nothing after its tool has no turn that could take the tool's in."""
    turn = only(chain("agent"), tool("ask", "agent", at=(1, 20)), *plain(under="ask", at=2))
    assert turn.anchor.name == "rag"
    assert names(turn.path) == "rag ask agent"


def test_of_two_steps_with_one_id_the_first_counts() -> None:
    """A step that is delivered twice is in the turn once."""
    steps = plain()
    assert find_turns([*steps, *steps]) == find_turns(steps)
    assert StepTree([*steps, *steps]).steps == steps


def test_turns_that_use_each_other_as_tools_are_refused() -> None:
    """No turn is outermost in a circle; one beside it is found all the same."""
    turns = find_turns(
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
        ]
    )
    assert [turn.anchor.name for turn in turns] == ["rag"]


class CountedId(str):
    """An id that counts how often it is looked up."""

    __slots__ = ()
    looked_up: ClassVar[int] = 0

    def __hash__(self) -> int:
        CountedId.looked_up += 1
        return super().__hash__()


def lookups(turns: int) -> int:
    steps = [chain("app"), *(f for n in range(turns) for f in plain(f"{n}-", under="app", at=n))]
    counted = [
        replace(f, id=CountedId(f.id), parent=CountedId(f.parent) if f.parent else None)
        for f in steps
    ]
    before = CountedId.looked_up
    assert len(find_turns(counted)) == turns
    return CountedId.looked_up - before


def test_twice_as_many_turns_take_twice_as_long() -> None:
    """A trace of very many turns does not stall the application's thread."""
    assert lookups(200) < 2.5 * lookups(100)


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

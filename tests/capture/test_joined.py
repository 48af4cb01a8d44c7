"""A root run and the retrieval before it in its thread are one turn if the texts show it."""

from typing import Any, TypeAlias

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage

from rag_eval_otel.capture.runs import Run
from rag_eval_otel.capture.step import Kind
from recording import ANSWER, PAGE, QUESTION, Capture, begin, capture, finish
from support import ManualClock

Row: TypeAlias = "tuple[Kind, Any, Any]"  # of a root run, with its input and output
GRACE = 5.0  # seconds that no test waits

OTHER = "The museum opens at nine on all days of the week."
REST = f"{PAGE}\n\n{OTHER}\n\nQuestion: {QUESTION}"
SHOWN = f"Answer.\n\n{REST}"
DRAFT = "It is from the 1980s"


def search(*pages: str) -> Row:
    return "retriever", QUESTION, [*map(Document, pages)]


def ask(prompt: str = SHOWN, reply: str = ANSWER) -> Row:
    return "llm", [HumanMessage(prompt)], AIMessage(reply)


def chain(prompt: str = SHOWN, **inputs: Any) -> Row:
    return "chain", {"prompt": prompt, **inputs}, ANSWER


def run(captured: Capture, *rows: Row, before: int = 0) -> None:
    """Record root runs, each of which ended ``before`` ns before the next one began."""
    last: Run | None = None
    for number, (kind, asked, told) in enumerate(rows):
        root = begin(captured, kind, number, asked=asked, told=told)
        if last is not None:
            last.end = root.start - before
        if kind == "chain":
            _, shown, reply = ask(asked["prompt"])
            finish(captured, begin(captured, "llm", 99, under=number, asked=shown, told=reply))
        finish(captured, root)
        last = root


FOUND, OPEN, GIVEN = search(PAGE, OTHER), search(OTHER), [Document(PAGE), Document(OTHER)]
ONE = f"Answer.\n\n{OTHER}\n\nQuestion: {QUESTION}"
BEFORE, AFTER, WORD = "Who?", f"Translate: {ANSWER}", DRAFT[1:]
NONE, SPLIT = "no_retrieval", "split"
RUNS: dict[str, tuple[list[Row], list[str], list[str]]] = {
    "two of three": ([search(PAGE, OTHER, DRAFT), ask()], ["retriever0"], []),
    "used once": ([FOUND, ask(), ask("And?"), ask()], ["retriever0"], [NONE, SPLIT]),
    "a grade": ([FOUND, ask(), ask(f"Grounded?\n{PAGE}\n{ANSWER}", "Yes.")], ["retriever0"], []),
    "improved": ([FOUND, ask(), ask(f"Improve it.\n{PAGE}\n{ANSWER}")], [], [SPLIT, NONE]),
    "translated": ([FOUND, ask(BEFORE), ask(), ask(AFTER)], [], [NONE, SPLIT, NONE]),
    "translated later": ([FOUND, ask(), ask("And?"), ask(AFTER)], ["retriever0"], [NONE, NONE]),
    "asked again": ([FOUND, ask(), ask(f"Answer once more.\n{PAGE}")], [], [SPLIT, NONE]),
    "one of two": ([FOUND, ask(ONE)], [], [SPLIT]),
    "one of one": ([OPEN, ask(ONE)], ["retriever0"], []),
    "more": ([FOUND, ask(SHOWN.replace("\n\nQ", "\n\nIt was of brick.\n\nQ"))], [], [SPLIT]),
    "shown nothing": ([FOUND, ask(QUESTION)], [], [NONE]),
    "two": ([search(PAGE), OPEN, ask()], ["retriever0", "retriever1"], []),
    "the last of two": ([FOUND, FOUND, ask()], ["retriever1"], []),
    "a draft": ([FOUND, ask(BEFORE, DRAFT), ask(f"{DRAFT}\n\n{REST}")], [], [NONE, SPLIT]),
    "a word": ([FOUND, ask(BEFORE, WORD), ask(f"{WORD}\n\n{REST}")], ["retriever0"], [NONE]),
    "given": ([FOUND, chain(context=GIVEN)], ["retriever0"], []),
    "given more": ([FOUND, chain(context=[*GIVEN, Document(DRAFT)])], [], [SPLIT]),
    "answered": ([FOUND, chain(f"{SHOWN}\nANSWER: 1", context=GIVEN)], [], [SPLIT]),
    "not answered": ([FOUND, chain(f"{SHOWN}\nAnswer:", context=GIVEN)], ["retriever0"], []),
    "given as text": ([FOUND, chain(text=f"{PAGE}\n{OTHER}", lang="de")], ["retriever0"], []),
    "with an answer": (
        [FOUND, chain(text=f"{PAGE}\n{OTHER}", q=QUESTION, a="Bo did")],
        [],
        [SPLIT],
    ),
}


@pytest.mark.parametrize(("rows", "retrievals", "reasons"), RUNS.values(), ids=RUNS)
def test_a_retrieval_and_a_run_after_it(
    rows: list[Row], retrievals: list[str], reasons: list[str]
) -> None:
    """They are a turn if the prompt shows its documents only, and the reply is no draft."""
    captured = capture()
    run(captured, *rows)
    captured.flush()
    assert [one.name for _, turn in captured.turns for one in turn.retrievers] == retrievals
    assert captured.reasons == reasons


def test_large_runs_are_not_kept_beside_others() -> None:
    """The size of a run is known at its end; none waits in memory for the next of its thread."""
    captured = capture()
    run(captured, FOUND, ask("x" * 2**21))
    assert not captured.recorder._beside or not any(captured.recorder._beside.values())  # noqa: SLF001


def test_a_call_after_a_retrieval_waits_for_the_next_run() -> None:
    """It is read after the grace; it joins a retrieval that ended a minute before it at most."""
    clock = ManualClock()
    captured = capture(grace=GRACE, clock=clock)
    run(captured, FOUND, ask())
    captured.recorder.flush(GRACE)
    assert not captured.turns
    clock.advance(GRACE)
    captured.recorder.flush(GRACE)
    assert len(captured.turns) == 1
    for before, turns in ((-1, 0), (0, 1), (60 * 10**9, 1), (60 * 10**9 + 1, 0)):
        run(other := capture(), FOUND, ask(), before=before)
        other.flush()
        assert len(other.turns) == turns

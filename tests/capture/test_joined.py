"""A root run and the retrieval before it in its thread are one turn if the texts show it."""

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage

from recording import ANSWER, PAGE, QUESTION, Capture, begin, capture, finish
from support import ManualClock

GRACE = 5.0
"""Seconds that no test waits."""

OTHER = "The museum opens at nine on all days of the week."
SHOWN = f"Answer.\n\n{PAGE}\n\n{OTHER}\n\nQuestion: {QUESTION}"


def search_then_ask(
    captured: Capture,
    prompt: str = SHOWN,
    *,
    after: str | None = None,
    before: int = 0,
) -> None:
    documents = [Document(PAGE), Document(OTHER)]
    search = begin(captured, "retriever", 1, asked=QUESTION, told=documents)
    finish(captured, search)
    asked = [HumanMessage(prompt)]
    call = begin(captured, "llm", 2, asked=asked, told=AIMessage(ANSWER))
    search.end = call.start - before
    finish(captured, call)
    if after is not None:
        told = AIMessage("Founded in 1987, I say." if "Improve" in after else "Yes.")
        finish(captured, begin(captured, "llm", 3, asked=[HumanMessage(after)], told=told))


@pytest.mark.parametrize(
    ("prompt", "after", "reasons"),
    [
        (SHOWN, None, []),
        (SHOWN, "Another question?", []),
        (SHOWN, f"Is it grounded?\n{PAGE}\n{ANSWER}", []),
        (SHOWN, f"Improve it.\n{PAGE}\n{ANSWER}", ["split", "no_retrieval"]),
        (SHOWN, f"Translate: {ANSWER}", ["split"]),
        (SHOWN, f"Answer once more.\n{PAGE}", ["split"]),
        (f"Answer.\n\n{OTHER}\n\nQuestion: {QUESTION}", None, ["split"]),
        (f"{SHOWN}\nAnswer: Ada.\nIs it right?", None, ["split"]),
        (SHOWN.replace("\n\nQ", "\n\nIt was built of brick.\n\nQ"), None, ["split"]),
        (QUESTION, None, ["no_retrieval"]),
    ],
)
def test_a_retrieval_and_a_call_after_it(
    prompt: str, after: str | None, reasons: list[str]
) -> None:
    """They are a turn if the prompt shows its documents only, and the reply is no draft."""
    captured = capture()
    search_then_ask(captured, prompt, after=after)
    captured.flush()
    assert len(captured.turns) == ("split" not in reasons and prompt == SHOWN)
    assert captured.reasons == reasons


def test_large_runs_are_not_kept_beside_others() -> None:
    """The size of a run is known at its end; none waits in memory for the next of its thread."""
    captured = capture()
    search_then_ask(captured, "x" * 2**21)
    assert not captured.recorder._beside or not any(captured.recorder._beside.values())  # noqa: SLF001


def test_a_call_after_a_retrieval_waits_for_the_next_run() -> None:
    """It is read after the grace; it joins a retrieval that ended a minute before it at most."""
    clock = ManualClock()
    captured = capture(grace=GRACE, clock=clock)
    search_then_ask(captured)
    captured.recorder.flush(GRACE)
    assert not captured.turns
    clock.advance(GRACE)
    captured.recorder.flush(GRACE)
    assert len(captured.turns) == 1
    for before, turns in ((-1, 0), (0, 1), (60 * 10**9, 1), (60 * 10**9 + 1, 0)):
        search_then_ask(other := capture(), before=before)
        other.flush()
        assert len(other.turns) == turns

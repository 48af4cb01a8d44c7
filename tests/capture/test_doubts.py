"""Spans get lost and requests get mixed up: what does not fit together is refused."""

from dataclasses import replace

import pytest

from rag_eval_otel.capture.step import Step
from rag_eval_otel.types import Passage, Sample
from steps import chain, llm, outcomes_of_steps, retriever, tool

ASKED, TOLD = "When was it founded?", "It was founded in 1949, says the book."
PAGE, OTHER = "The house was founded in 1949.", "The house has forty rooms."


def found(*steps: Step) -> list[object]:
    results = [one.result for one in outcomes_of_steps(steps)]
    return [one.answer if isinstance(one, Sample) else one for one in results]


def root(*, asked: str | None = ASKED, told: str | None = TOLD) -> Step:
    return chain("app", at=(0, 100), asked=asked, told=told)


def search(name: str = "r", under: str = "app", start: int = 5, page: str = PAGE) -> Step:
    return retriever(name, under, at=(start, start + 3), query=ASKED, found=[page])


def write(name: str = "l", start: int = 50, *, page: str = PAGE, said: str = TOLD) -> Step:
    return llm(name, "app", at=(start, start + 20), shown=[page, ASKED], said=said)


def calls(one: Step) -> Step:
    return replace(one, output=None, calls_tools=True)


LOOSE = chain("inner", "nobody", at=(20, 30))
TORN = replace(root(), parent="nobody")
OTHERS = search(page=OTHER).documents or ()
JOIN = replace(chain("join", "app", at=(10, 11)), documents_seen=OTHERS, documents_given=OTHERS)
SHOWN_BOTH = llm("l", "app", at=(50, 60), shown=[f"{PAGE} {OTHER}", ASKED], said=TOLD)
STRAY = write("stray", 30, said="Another answer that is long enough.")
TWO = retriever("r", "app", at=(5, 8), query=ASKED, found=[PAGE, OTHER])
PAGES = (Passage(text=PAGE, id="1"), Passage(text=OTHER, id="2"))
TWO_BY_ID = replace(TWO, documents=PAGES)
PICK = chain("pick", "app", at=(10, 11))
PICKED = replace(PICK, documents_seen=search().documents or ())
GRADER = llm("grade", "app", at=(10, 20), shown=[f"Does {OTHER} help?"], said="no")
FLAT = Step(id="app", parent=None, kind="other", name="app", start=0, end=100, flat=True)
LONG_PAGE = f"{PAGE} It stands on a hill and looks far over the sea."
SWAP = chain("swap", "app", at=(1, 2), asked="And then?", told=ASKED)
AGAIN = retriever("r2", "app", at=(75, 78), query=f"{TOLD} And who?", found=[PAGE])
BY_FRAMEWORK = replace(write(), source="framework", response_id="x")
BY_CLIENT = replace(write("l2", 51), source="client")

CASES: dict[str, tuple[tuple[Step, ...], list[object]]] = {
    "everything fits together": ((root(), search(), write()), [TOLD]),
    "what held a step within the turn is missing": (
        (root(), search(), write(), LOOSE),
        ["partial"],
    ),
    "what is around the turn is missing": ((TORN, search(), write()), ["partial"]),
    "what is around the turn is in another process": (
        (replace(TORN, is_remote=True), search(), write()),
        [TOLD],
    ),
    "a document that nobody retrieved": ((root(), search(), JOIN, SHOWN_BOTH), ["partial"]),
    "a second answer at length, unused": (
        (root(told=None), search(), STRAY, write()),
        ["ambiguous"],
    ),
    "a second answer, but it is known what came out": ((root(), search(), STRAY, write()), [TOLD]),
    "a page was left out by nobody": ((root(), TWO, write()), ["partial"]),
    "a step left a page out": ((root(), TWO, PICKED, write()), [TOLD]),
    "a call graded a page": ((root(), TWO, GRADER, write()), [TOLD]),
    "a step tells the ids of what it handed on": (
        (root(), TWO_BY_ID, replace(PICK, kept_ids=("1",)), write()),
        [TOLD],
    ),
    "a step tells the ids of something else": (
        (root(), TWO_BY_ID, replace(PICK, kept_ids=("2",)), write()),
        ["partial"],
    ),
    "the pages were rewritten": ((root(), search(), write(page=OTHER)), [TOLD]),
    "under a span that tells nothing the pages may belong to something else": (
        (
            FLAT,
            search(),
            llm("l", "app", at=(50, 70), shown=[OTHER, "How many rooms?"], said=TOLD),
        ),
        ["ambiguous"],
    ),
    "the beginning of a page in the prompt": (
        (root(), search(page=LONG_PAGE), write(page=LONG_PAGE[:60])),
        [TOLD],
    ),
    "another question was searched, and no call reworded it": (
        (root(asked="And then?"), search(), write()),
        ["ambiguous"],
    ),
    "a step that took no time put another question in": (
        (root(asked="And then?"), SWAP, search(), write()),
        [TOLD],
    ),
    "a tool answered an agent that is not there": (
        (
            root(),
            tool("tool", "app", at=(2, 90)),
            search(under="tool"),
            replace(write(), parent="tool"),
        ),
        ["partial"],
    ),
    "an answer used in a query: two turns, or two steps of one": (
        (root(), search(), write(), AGAIN, write("l2", 80)),
        ["ambiguous"],
    ),
    "a grade is no answer, so a call is missing": (
        (root(), search(), llm("grade", "app", at=(50, 60), shown=[PAGE], said="yes")),
        ["partial"],
    ),
    "a call recorded by two, with one id": (
        (root(), search(), BY_FRAMEWORK, replace(BY_CLIENT, response_id="x")),
        [TOLD],
    ),
    "a call recorded by two, with one text at one time": (
        (root(), search(), BY_FRAMEWORK, replace(BY_CLIENT, end=69)),
        [TOLD],
    ),
    "two calls of two instrumentations": (
        (
            root(told=None),
            search(),
            BY_FRAMEWORK,
            replace(BY_CLIENT, output="Others say that it is older.", response_id="y"),
        ),
        ["ambiguous"],
    ),
    "a retrieval that had ended does not hold the call": (
        (root(), search(), replace(write(), parent="r")),
        [TOLD],
    ),
}


@pytest.mark.parametrize(("steps", "expected"), CASES.values(), ids=CASES)
def test_what_fits_together(steps: tuple[Step, ...], expected: list[object]) -> None:
    """A turn is told where everything fits together; else it is refused, with the reason."""
    assert found(*steps) == expected


def contexts(*steps: Step) -> tuple[str, ...]:
    (outcome,) = outcomes_of_steps(steps)
    assert isinstance(outcome.result, Sample)
    return outcome.result.context_texts


def test_reranked_documents() -> None:
    """Where the prompt is not seen, what the last reranker of the query returned counts."""
    blind = replace(write(), prompt=(), input=None)
    ranked = replace(search("rank", start=12, page=OTHER), kind="reranker")
    assert contexts(root(), search(), ranked, blind) == (OTHER,)
    wide = retriever("wide", "app", at=(9, 11), query=ASKED, found=[PAGE, OTHER])
    wide, last = (replace(one, kind="reranker") for one in (wide, search("last", start=12)))
    assert contexts(root(), search(), wide, last, blind) == (PAGE,)
    beside = replace(last, input="And how many rooms has it?")
    assert contexts(root(), search(), wide, beside, blind) == (PAGE, OTHER)


def beside(*numbers: int) -> list[Step]:
    """Build requests below one plain span, all of which search before any answers."""
    plain = Step(id="app", parent=None, kind="other", name="app", start=0, end=500, flat=True)
    found_all = [
        retriever(
            f"r{n}", "app", at=(n, n + 5), query=f"question {n}?", found=[f"page {n} says so"]
        )
        for n in numbers
    ]
    wrote_all = [
        llm(
            f"l{n}",
            "app",
            at=(100 + n, 150 + n),
            shown=[f"page {n} says so", f"question {n}?"],
            said=f"the answer to question number {n}",
        )
        for n in numbers
    ]
    return [plain, *found_all, *wrote_all]


def test_requests_beside_each_other() -> None:
    """Each answer goes with the question and the pages in its own prompt."""
    results = [one.result for one in outcomes_of_steps(beside(1, 2, 3, 4))]
    assert results == [
        Sample(
            question=f"question {n}?",
            contexts=[f"page {n} says so"],
            answer=f"the answer to question number {n}",
        )
        for n in (1, 2, 3, 4)
    ]


def test_requests_that_cannot_be_told_apart() -> None:
    """Without their prompts they can't, and very many are not even compared."""
    blind = [replace(one, prompt=(), input=None) for one in beside(1, 2)]
    assert found(*blind) == ["ambiguous"]
    assert found(*beside(*range(1, 99)), *beside(*range(200, 350))[1:]) == ["ambiguous"]


def test_one_answer_and_a_title() -> None:
    """A call that was shown none of the pages does not answer."""
    title = llm("t", "app", at=(300, 310), shown=["question 1?"], said="A title for this talk")
    assert found(*beside(1), title) == ["the answer to question number 1"]


def test_more_documents_than_are_searched_for() -> None:
    """The time to find documents in prompts is bounded."""
    many = retriever("r", "app", at=(5, 8), query=ASKED, found=[f"page {n}" for n in range(1001)])
    assert found(root(), many, write()) == ["ambiguous"]

"""Spans get lost and requests get mixed up: what does not fit together is refused."""

from __future__ import annotations

from dataclasses import replace

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


def test_a_whole_turn() -> None:
    """Where everything fits together there is a sample."""
    assert found(root(), search(), write()) == [TOLD]


def test_a_missing_parent_within() -> None:
    """What hangs in the air within a turn was held by something that is missing."""
    loose = chain("inner", "nobody", at=(20, 30))
    assert found(root(), search(), write(), loose) == ["partial"]


def test_a_missing_parent_around() -> None:
    """A span around the turn that is missing may have said something else."""
    torn = replace(root(), parent="nobody")
    remote = replace(torn, is_remote=True)
    assert found(torn, search(), write()) == ["partial"]
    assert found(remote, search(), write()) == [TOLD]


def test_documents_nobody_retrieved() -> None:
    """A chain is handed a document that reached the LLM, and no retrieval is seen to find it."""
    other = search(page=OTHER).documents or ()
    join = replace(chain("join", "app", at=(10, 11)), documents_seen=other, documents_given=other)
    generator = llm("l", "app", at=(50, 60), shown=[f"{PAGE} {OTHER}", ASKED], said=TOLD)
    assert found(root(), search(), join, generator) == ["partial"]


def test_documents_of_a_step_of_its_own() -> None:
    """A chain that hands on a document which it was not handed has found it."""
    add = replace(
        chain("add", "app", at=(10, 11)), documents_seen=search(page=OTHER).documents or ()
    )
    generator = llm("l", "app", at=(50, 60), shown=[f"{PAGE} {OTHER}", ASKED], said=TOLD)
    [outcome] = outcomes_of_steps((root(), search(), add, generator))
    assert isinstance(outcome.result, Sample)
    assert [passage.text for passage in outcome.result.contexts or ()] == [PAGE, OTHER]


def test_a_second_answer() -> None:
    """Another call answered at length, unused. Where it is known what came out, no matter."""
    stray = write("stray", 30, said="Another answer that is long enough.")
    assert found(root(told=None), search(), stray, write()) == ["ambiguous"]
    assert found(root(), search(), stray, write()) == [TOLD]


def test_pages_that_were_left_out() -> None:
    """They may have been: some step says so, or a call has graded them. Else a call is missing."""
    two = retriever("r", "app", at=(5, 8), query=ASKED, found=[PAGE, OTHER])
    pick = replace(chain("pick", "app", at=(10, 11)), documents_seen=search().documents or ())
    grader = llm("grade", "app", at=(10, 20), shown=[f"Does {OTHER} help?"], said="no")
    assert found(root(), two, write()) == ["partial"]
    assert found(root(), two, pick, write()) == [TOLD]
    assert found(root(), two, grader, write()) == [TOLD]


def test_pages_that_were_left_out_by_their_ids() -> None:
    """A step that only says which it handed on says so, too, if it was just those."""
    pages = (Passage(text=PAGE, id="1"), Passage(text=OTHER, id="2"))
    two = replace(retriever("r", "app", at=(5, 8), query=ASKED, found=[]), documents=pages)
    pick = chain("pick", "app", at=(10, 11))
    assert found(root(), two, replace(pick, kept_ids=("1",)), write()) == [TOLD]
    assert found(root(), two, replace(pick, kept_ids=("2",)), write()) == ["partial"]


def test_a_prompt_without_the_pages() -> None:
    """They were rewritten; under a span that tells nothing they may belong to something else."""
    flat = Step(id="app", parent=None, kind="other", name="app", start=0, end=100, flat=True)
    other = llm("l", "app", at=(50, 70), shown=[OTHER, "How many rooms?"], said=TOLD)
    assert found(root(), search(), write(page=OTHER)) == [TOLD]
    assert found(flat, search(), other) == ["ambiguous"]


def test_a_page_that_was_cut_for_the_prompt() -> None:
    """Its beginning is enough."""
    page = f"{PAGE} It stands on a hill and looks far over the sea."
    assert found(root(), search(page=page), write(page=page[:60])) == [TOLD]


def test_a_reworded_question() -> None:
    """The application was asked something else than what was searched, and no LLM reworded it."""
    assert found(root(asked="And then?"), search(), write()) == ["ambiguous"]


def test_a_question_put_in_place_of_another() -> None:
    """A step that took no time put another question in: that is the one to be answered."""
    step = chain("swap", "app", at=(1, 2), asked="And then?", told=ASKED)
    assert found(root(asked="And then?"), step, search(), write()) == [TOLD]


def test_an_agents_tool_without_its_agent() -> None:
    """What a tool answered was for somebody who is not there."""
    inner = [
        tool("tool", "app", at=(2, 90)),
        replace(search(under="tool"), parent="tool"),
        replace(write(), parent="tool"),
    ]
    assert found(root(), *inner) == ["partial"]


def test_an_answer_used_in_a_query() -> None:
    """Two turns in a row, or two steps of one: nobody can tell."""
    again = retriever("r2", "app", at=(75, 78), query=f"{TOLD} And who?", found=[PAGE])
    assert found(root(), search(), write(), again, write("l2", 80)) == ["ambiguous"]


def test_grading_is_no_answering() -> None:
    """The answer was said by no call that is there: the one who said it is missing."""
    grader = llm("grade", "app", at=(50, 60), shown=[PAGE], said="yes")
    assert found(root(), search(), grader) == ["partial"]


# --- requests beside each other -------------------------------------------------------------------


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


# --- calls that are recorded twice ----------------------------------------------------------------


def test_a_call_recorded_by_two_instrumentations() -> None:
    """Known by its id, or by its text and time."""
    one = replace(write(), source="framework", response_id="x")
    by_id = replace(write("l2", 51), source="client", response_id="x")
    by_time = replace(write("l2", 51), source="client", end=69)
    another = replace(
        write("l2", 51, said="Others say that it is older."), source="client", response_id="y"
    )
    assert found(root(), search(), one, by_id) == [TOLD]
    assert found(root(), search(), one, by_time) == [TOLD]
    assert found(root(told=None), search(), one, another) == ["ambiguous"]


def test_a_leaked_context() -> None:
    """A retrieval that had ended before the call began does not hold it."""
    leaked = replace(write(), parent="r")
    assert found(root(), search(), leaked) == [TOLD]


def test_reranked_documents() -> None:
    """Where the prompt is not seen, what the reranker returned counts."""
    ranked = replace(search("rank", start=12, page=OTHER), kind="reranker")
    blind = replace(write(), prompt=(), input=None)
    (outcome,) = outcomes_of_steps([root(), search(), ranked, blind])
    assert isinstance(outcome.result, Sample)
    assert outcome.result.context_texts == (OTHER,)


def test_rerankers_one_after_the_other() -> None:
    """What the last of them kept counts; one for another query stands beside it."""
    wide = retriever("wide", "app", at=(9, 11), query=ASKED, found=[PAGE, OTHER])
    wide, last = (replace(one, kind="reranker") for one in (wide, search("last", start=12)))
    blind = replace(write(), prompt=(), input=None)
    (outcome,) = outcomes_of_steps([root(), search(), wide, last, blind])
    assert isinstance(outcome.result, Sample)
    assert outcome.result.context_texts == (PAGE,)
    beside = replace(last, input="And how many rooms has it?")
    (outcome,) = outcomes_of_steps([root(), search(), wide, beside, blind])
    assert isinstance(outcome.result, Sample)
    assert outcome.result.context_texts == (PAGE, OTHER)

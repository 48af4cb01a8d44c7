"""From turns to samples: the weighing of questions, contexts and answers, and the refusals."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties import examples
from rag_eval_otel.capture.documents import paragraphs
from rag_eval_otel.capture.step import Step
from rag_eval_otel.types import Passage, Sample
from steps import chain, forests, llm, outcomes, retriever, sample

ASKED = "When was the company founded?"
ANSWER = "It was founded in the year 1987."
PAGES = ("History: founded in 1987.", "Founder: Ada Lindqvist.", "Returns: within 45 days.")


def root(**options: object) -> Step:
    return chain("app", **{"asked": ASKED, "told": ANSWER, **options})  # type: ignore[arg-type]


def search(*found: str, at: tuple[int, int] = (1, 2), query: str | None = ASKED) -> Step:
    return retriever(f"search{at[0]}", "app", at=at, query=query, found=found)


def write(*shown: str, said: str | None = ANSWER, at: tuple[int, int | None] = (50, 60)) -> Step:
    return llm(f"write{at[0]}", "app", at=at, shown=shown, said=said)


def contexts(*steps: Step) -> tuple[str, ...]:
    return tuple(passage.text for passage in sample(*steps).contexts)


def test_contexts_stand_as_the_prompt_has_them() -> None:
    """What was retrieved and shown, in the order it was shown in, each once."""
    shown = f"{PAGES[2]}\n\n{PAGES[0]}"
    found = (search(*PAGES[:2]), search(*PAGES[::-1], at=(3, 4)))
    assert contexts(root(), *found, write(shown, ASKED)) == (PAGES[2], PAGES[0])


@pytest.mark.parametrize(
    "prompt",
    [(), (f"Gegründet 1987 von einer Ada. Rückgabe in 45 Tagen. {ASKED}",)],
    ids=["not captured", "translated"],
)
def test_all_that_was_retrieved_where_the_prompt_shows_none(prompt: tuple[str, ...]) -> None:
    """Where none can be told from the others, all are contexts."""
    assert contexts(root(), search(*PAGES), write(*prompt)) == PAGES


def test_pages_that_only_a_grader_has_seen() -> None:
    """They were rejected, and something else was shown in their place."""
    grader = write(*PAGES, said="no", at=(10, 11))
    web = "Found on the web: the company is from 1987, or so they say, and makes kites."
    assert outcomes(root(), search(*PAGES), grader, write(web, ASKED)) == ["ambiguous"]


PAGE = 'Opening:\n- "early" & late\n- 7 to 22, it\'s said'


@pytest.mark.parametrize(
    "shown",
    [
        repr(PAGE),
        json.dumps(json.dumps(PAGE)),
        "> " + PAGE.replace("\n", "\n> "),
        PAGE.replace("\n- ", "\n    * "),
        PAGE.replace("\n- ", " "),
        PAGE.upper(),
    ],
)
def test_a_page_is_known_whatever_it_is_wrapped_in(shown: str) -> None:
    """Its letters and digits are left, and it counts as it was retrieved."""
    prompt = f"1. {PAGES[0]}\n2. {shown}\n\n{ASKED}"
    assert contexts(root(), search(PAGE, PAGES[0], PAGES[2]), write(prompt)) == (PAGES[0], PAGE)


@pytest.mark.parametrize(
    "shown",
    [
        'Quote: "kites"\nand\tspars, says Bjørn',
        json.dumps({"page": 'Quote: "kites"\nand\tspars, says Bjørn'}),
        json.dumps({"page": 'Quote: "kites"\nand\tspars, says Bjørn'}, ensure_ascii=False),
        '  Quote:\n"kites" and   spars, says\nBjørn ',
    ],
    ids=["as it is", "escaped", "escaped, not to ASCII", "re-spaced"],
)
def test_a_page_is_known_in_other_spellings(shown: str) -> None:
    """Prompts quote pages in JSON, and templates change their spaces."""
    page = 'Quote: "kites"\nand\tspars, says Bjørn'
    assert contexts(root(), search(PAGES[0], page), write(shown, ASKED)) == (page,)


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_page_is_not_found_everywhere(blank: str) -> None:
    """A page without text does not pass for what the prompt shows."""
    assert contexts(root(), search(blank, PAGES[0]), write(PAGES[0], ASKED)) == (PAGES[0],)
    assert contexts(root(), search(blank, PAGES[0]), write()) == (blank, PAGES[0])


def test_a_retrieval_of_nothing_is_a_retrieval() -> None:
    """There is a sample without contexts where none was found, not where none was captured."""
    search = retriever("r", "app", at=(1, 2), query=ASKED, found=())
    assert contexts(root(), search, write(ASKED)) == ()
    assert outcomes(root(), replace(search, documents=None), write(ASKED)) == ["no_contexts"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [(("a", "b"), ("a", "b")), (("a", None), ()), ((None, None), ())],
    ids=["all", "some", "none"],
)
def test_retrieved_ids_are_of_all_contexts_or_none(
    ids: tuple[str | None, ...], expected: tuple[str, ...]
) -> None:
    """Ranks are only known where every context has an id."""
    found = [Passage(text=text, id=id_) for text, id_ in zip(PAGES, ids, strict=False)]
    search = retriever("r", "app", at=(1, 2), query=ASKED, found=found)
    assert sample(root(), search, write()).retrieved_ids == expected


@pytest.mark.parametrize("length", [2, 4, 7])
def test_contexts_of_a_refine_chain(length: int) -> None:
    """Each call is shown the draft of the one before it and one more page, however many."""
    pages = [f"Page number {n} tells something." for n in range(length)]
    drafts = [f"This is draft number {n} of the answer." for n in range(length)]
    calls = [
        write(*(drafts[n - 1 : n] if n else ()), page, ASKED, said=drafts[n], at=(10 + n, 10 + n))
        for n, page in enumerate(pages)
    ]
    steps = root(told=drafts[-1]), search(*pages, "not shown"), *calls
    assert contexts(*steps) == tuple(pages)


def test_short_outputs_link_nothing() -> None:
    """That a grader's "yes" is in a later prompt is a coincidence."""
    grader = write(PAGES[1], said="yes", at=(10, 11))
    prompt = f"{PAGES[0]} Say yes or no."
    assert contexts(root(), search(*PAGES), grader, write(prompt, ASKED)) == (PAGES[0],)


def test_the_outermost_answer_counts() -> None:
    """What the application gave out is the answer, whatever the model said."""
    inner = chain("inner", "app", told="Inner.")
    steps = chain("app", asked=ASKED, told="Outer."), inner
    below = (
        retriever("search", "inner", at=(1, 2), query=ASKED),
        llm("write", "inner", at=(3, 4), shown=(ASKED,), said="Raw."),
    )
    assert sample(*steps, *below).answer == "Outer."
    assert sample(chain("app", asked=ASKED), inner, *below).answer == "Inner."
    assert sample(chain("app", asked=ASKED), chain("inner", "app"), *below).answer == "Raw."


@pytest.mark.parametrize("blank", [None, "", " \n"])
def test_the_last_call_answers_where_the_chain_does_not(blank: str | None) -> None:
    """The last text counts; a call that says nothing, as before a tool, is passed over."""
    first, second = write(said="First.", at=(10, 11)), write(said="Second.", at=(12, 13))
    last = write(said=blank, at=(14, 15))
    assert sample(root(told=blank), search(), first, second, last).answer == "Second."


@pytest.mark.parametrize("verdict", ["no", "No doubt", "unknown"])
def test_a_later_grader_is_not_taken_for_the_writer(verdict: str) -> None:
    """The contexts are those of the call that wrote the answer, though a later one is in it too."""
    answer = f"It is unknown. {verdict}, no one knows."
    writer = write(PAGES[0], ASKED, said=answer, at=(10, 11))
    grader = write(PAGES[1], said=verdict, at=(20, 21))
    assert contexts(root(told=answer), search(*PAGES), writer, grader) == (PAGES[0],)


def test_the_last_speaker_where_none_wrote_the_answer() -> None:
    """If the answer is rephrased outside of any call, the last that spoke is the generator."""
    early = write(PAGES[0], said="something", at=(10, 11))
    late = write(PAGES[1], said="something else", at=(20, 21))
    assert contexts(root(told="1987"), search(*PAGES), early, late) == (PAGES[1],)


def test_a_silent_call_is_the_generator_of_a_structured_output() -> None:
    """The model filled in a form: it said nothing, and the chain gave the answer."""
    steps = root(), search(*PAGES), write(PAGES[1], ASKED, said="")
    assert sample(*steps).answer == ANSWER
    assert contexts(*steps) == (PAGES[1],)


def test_a_verdict_that_the_prompt_demands_is_no_answer() -> None:
    """What looks like a turn checks what another one said; not where the user wants it so."""
    demand = "Is it supported by the context? Answer with either YES or NO."
    steps = search(*PAGES), write(demand, *PAGES, "1987.", said="YES")
    assert outcomes(root(asked="1987.", told="YES"), *steps) == ["ambiguous"]
    asked = f"Founded in 1987? {demand}"
    call = write(*PAGES, asked, said="YES")
    assert sample(root(asked=asked, told="YES"), search(*PAGES), call).answer == "YES"


def test_an_answer_under_a_name_of_its_own() -> None:
    """It is what a call has said; a verdict on it is no answer, and several are not told apart."""
    returned = replace(root(told=None), output_texts=("History", ANSWER, "fine"))
    judge = write(f"Does this answer? {ANSWER}", said="fine", at=(70, 75))
    steps = search(*PAGES), write(*PAGES, ASKED), judge
    assert sample(returned, *steps).answer == ANSWER
    other = write(*PAGES, ASKED, said="It was in 1987, I would say.", at=(62, 65))
    both = replace(root(told=None), output_texts=(ANSWER, "It was in 1987, I would say."))
    assert outcomes(both, *steps[:2], other) == ["ambiguous"]


def test_a_question_returned_is_no_answer() -> None:
    """A state holds it under a key that elsewhere names an answer."""
    assert sample(root(told=ASKED), search(*PAGES), write(*PAGES, ASKED)).answer == ANSWER


def test_an_answer_that_was_put_in_the_place_of_the_llms() -> None:
    """A guard did; the contexts are those of the call that it judged."""
    guard = write(f"Safe? {ANSWER}", said="UNSAFE", at=(70, 75))
    refused = root(told="I would rather not say.")
    found = sample(refused, search(*PAGES), write(PAGES[0], ASKED), guard)
    assert (found.answer, found.context_texts) == ("I would rather not say.", PAGES[:1])


CONDENSED = "In which year did the kite company begin?"


@pytest.mark.parametrize(
    ("asked", "searched", "message", "expected"),
    [
        ("Who?", "Who?", "Who?", "Who?"),
        ("Who?", "something", " who? ", "Who?"),
        ("Who?", "who?", "Rephrased.", "Who?"),
        ("Who?", "something", "Page one. Question: Who?", "Who?"),
        ("Who  is it", "Who?", f"Question: Who? {PAGES[0]}", "Who  is it"),
        (None, "x", "Clean message", "Clean message"),
        (None, "about", f"{PAGES[0]} about it", "about"),
        (None, None, "Clean message", "Clean message"),
        ("Both", None, None, "Both"),
        (None, "x", None, "x"),
        (" ", "x", "\n", "x"),
    ],
)
def test_which_question_counts(
    asked: str | None, searched: str | None, message: str | None, expected: str
) -> None:
    """The application's, if the search or the model was asked it; else what the model was asked."""
    prompt = (PAGES[0], message) if message is not None else ()
    steps = root(asked=asked), search(PAGES[0], query=searched), write(*prompt)
    assert sample(*steps).question == expected


@pytest.mark.parametrize("asked_first", [True, False], ids=["before", "after a retrieval"])
def test_the_users_question_counts_where_a_call_rewrote_it(asked_first: bool) -> None:  # noqa: FBT001
    """A follow-up stays what the user asked, though search and model were asked another one."""
    at = (1, 2) if asked_first else (5, 6)
    rewrite = llm("condense", "app", at=at, shown=("Rephrase!",), said=CONDENSED)
    first = () if asked_first else (search(PAGES[1], at=(3, 4), query=None),)
    found = search(PAGES[0], at=(7, 8), query=CONDENSED)
    steps = (*first, rewrite, found, write(PAGES[0], CONDENSED))
    assert sample(root(asked="And when?"), *steps).question == "And when?"
    assert outcomes(root(asked=None), *steps) == ["no_question"]


def test_a_rewritten_question_is_not_the_users() -> None:
    """The chain's input is not known: it is what both calls were shown, and not the query."""
    rewrite = llm("condense", "app", at=(1, 2), shown=("Rephrase: And when?",), said=CONDENSED)
    found = search(PAGES[0], at=(7, 8), query=CONDENSED)
    before = root(asked=None), rewrite, found
    assert sample(*before, write(PAGES[0], "And when?")).question == "And when?"
    assert outcomes(*before, write(f"{PAGES[0]} Now answer.")) == ["no_question"]


def test_a_question_under_a_name_of_its_own() -> None:
    """It is the text that the LLM was shown; a single word beside it is something else."""
    given = replace(root(asked=None), input_texts=("de", "Wann war das?"))
    found = search(PAGES[0], query="founded")
    assert sample(given, found, write(PAGES[0], "Wann war das?")).question == "Wann war das?"
    assert sample(given, found, write(f"{PAGES[0]} Wann war das?")).question == "Wann war das?"
    blind = write(f"{PAGES[0]} Now answer.")
    assert outcomes(given, found, blind) == ["no_question"]


def test_a_prompt_is_no_question() -> None:
    """A chain was handed what the model was to be shown, pages and all."""
    inner = chain("inner", "app", at=(40, 90), asked=f"{PAGES[0]} Query: {ASKED}", told=ANSWER)
    found = search(PAGES[0])
    call = llm("l", "inner", at=(50, 60), shown=[f"{PAGES[0]} Query: {ASKED}"], said=ANSWER)
    assert sample(root(asked=None), found, inner, call).question == ASKED


def test_an_error_anywhere_on_the_line_refuses() -> None:
    """If the anchor or what is above it failed, nobody saw the answer."""
    below = retriever("r", "inner", at=(1, 2)), llm("l", "inner", at=(3, 4), said=ANSWER)
    failed = chain("inner", "app", error="ValueError")
    assert outcomes(root(), failed, *below) == ["error"]
    assert outcomes(root(error="ValueError"), chain("inner", "app"), *below) == ["error"]


@pytest.mark.parametrize(
    ("told", "ended", "said", "expected"),
    [
        (ANSWER, (5, 60), ANSWER, "told"),
        (ANSWER, (5, 110), ANSWER, "told"),
        ("Dear user", (5, 110), ANSWER, "told"),
        (ANSWER[:9], (5, 110), ANSWER, "abandoned"),
        (ANSWER[:9], (5, 60), ANSWER, "told"),
        (None, (5, 110), ANSWER, "abandoned"),
        ("", (5, 110), ANSWER, "abandoned"),
        (ANSWER, (5, None), ANSWER, "abandoned"),
        (ANSWER, (5, None), None, "abandoned"),
        (ANSWER, (5, 110), None, "told"),
    ],
)
def test_a_stream_left_early_is_refused(
    told: str | None, ended: tuple[int, int | None], said: str | None, expected: str
) -> None:
    """The chain ended before its model, and what it gave is a mere beginning of what that said."""
    (found,) = outcomes(root(told=told), search(), write(ASKED, said=said, at=ended))
    assert (found if isinstance(found, str) else "told") == expected


def texts(steps: list[Step], *names: str) -> set[str | None]:
    return {getattr(step, name) for step in steps for name in names}


@pytest.mark.slow
@examples(100)
@given(forests())
def test_samples_of_any_trace(steps: list[Step]) -> None:
    """Nothing raises, and nothing is made up: all parts of a sample come from the trace."""
    found = {p for f in steps if f.kind == "retriever" for p in f.documents or ()}
    found |= {p for f in steps if f.kind == "tool" and f.output for p in paragraphs(f.output)}
    for result in outcomes(*steps):
        if isinstance(result, Sample):
            assert set(result.contexts) <= found
            assert result.question in texts(steps, "input")
            assert result.answer in texts(steps, "output")
            assert result.answer.strip()
        else:
            assert result in {
                *("abandoned", "ambiguous", "error", "no_answer", "no_contexts", "no_question"),
                "partial",
            }


@pytest.mark.slow
@examples(100)
@given(st.data())
def test_the_order_of_the_steps_does_not_change_the_samples(data: st.DataObject) -> None:
    """Samples are the same in whichever order the spans of a trace come."""
    steps = data.draw(forests())
    assert outcomes(*data.draw(st.permutations(steps))) == outcomes(*steps)

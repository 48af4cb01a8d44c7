"""From turns to samples: the weighing of questions, contexts and answers, and the refusals."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given

from plain_views import View
from properties import examples
from rag_eval_otel import semconv
from rag_eval_otel.capture.documents import paragraphs
from rag_eval_otel.capture.sample import RecentTurns, steps_in, turns_in, why_none
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.step import Part, Step
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.types import Passage, Sample
from recordings import misread
from steps import chain, forests, llm, outcomes, outcomes_of_steps, retriever, sample, tool

ASKED = "When was the company founded?"
ANSWER = "It was founded in the year 1987."
PAGES = ("History: founded in 1987.", "Founder: Ada Lindqvist.", "Returns: within 45 days.")


def root(**options: Any) -> Step:
    return chain("app", **{"asked": ASKED, "told": ANSWER, **options})


def search(*found: str | Passage, at: tuple[int, int] = (1, 2), query: str | None = ASKED) -> Step:
    return retriever(f"search{at[0]}", "app", at=at, query=query, found=found)


def write(*shown: str, said: str | None = ANSWER, at: tuple[int, int | None] = (50, 60)) -> Step:
    return llm(f"write{at[0]}", "app", at=at, shown=shown, said=said)


def contexts(*steps: Step) -> tuple[str, ...]:
    return tuple(passage.text for passage in sample(*steps).contexts)


def found(*steps: Step) -> list[object]:
    """Return the answers, or the reasons, of a trace that may have lost spans."""
    results = [one.result for one in outcomes_of_steps(steps)]
    return [one.answer if isinstance(one, Sample) else one for one in results]


# --- contexts -------------------------------------------------------------------------------------


QUOTED = 'Quote: "kites"\n- and\tspars, says Bjørn\n- 7 to 22, it\'s said'


@pytest.mark.parametrize(
    "shown",
    [
        QUOTED,
        repr(QUOTED),
        json.dumps(json.dumps(QUOTED)),
        json.dumps({"page": QUOTED}, ensure_ascii=False),
        "> " + QUOTED.replace("\n", "\n> "),
        QUOTED.replace("\n- ", "\n    * "),
        QUOTED.replace("\n- ", " "),
        f"  {QUOTED}  ".replace(" ", "   "),
        QUOTED.upper(),
    ],
)
def test_a_page_is_known_whatever_it_is_wrapped_in(shown: str) -> None:
    """Its letters and digits are left, and it counts as it was retrieved."""
    prompt = f"1. {PAGES[0]}\n2. {shown}\n\n{ASKED}"
    found = search(QUOTED, PAGES[0], PAGES[2])
    assert contexts(root(), found, write(prompt)) == (PAGES[0], QUOTED)


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_page_is_not_found_everywhere(blank: str) -> None:
    """A page without text does not pass for what the prompt shows."""
    assert contexts(root(), search(blank, PAGES[0]), write(PAGES[0], ASKED)) == (PAGES[0],)
    assert contexts(root(), search(blank, PAGES[0]), write()) == (blank, PAGES[0])


def test_a_retrieval_of_nothing_is_a_retrieval() -> None:
    """There is a sample without contexts where none was found, not where none was captured."""
    assert contexts(root(), search(), write(ASKED)) == ()
    blind = replace(search(), documents=None)
    assert outcomes(root(), blind, write(ASKED)) == ["no_contexts"]
    assert outcomes(root(), blind, write("Context:\nFounding\n\nby Ada", ASKED)) == ["ambiguous"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [(("a", "b"), ("a", "b")), (("a", None), ()), ((None, None), ())],
    ids=["all", "some", "none"],
)
def test_ids_of_all_contexts_or_none(
    ids: tuple[str | None, ...], expected: tuple[str, ...]
) -> None:
    """Ranks are only known where every context has an id."""
    found = [Passage(text=text, id=id_) for text, id_ in zip(PAGES, ids, strict=False)]
    assert sample(root(), search(*found), write()).retrieved_ids == expected


def test_contexts_in_a_variable_of_the_prompt() -> None:
    """Where the retrieval has no texts."""
    blind = replace(search(), documents=None)
    call = replace(write(f"Read. {ASKED}"), variables={"context": "A was.\nB is.", "x": "y"})
    assert contexts(root(), blind, call) == ("A was.", "B is.")


BEGUN = f"{PAGES[0]} It stands on a hill and looks far over the sea, the forest and the town."


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (f"{BEGUN[:59]}...", BEGUN[:59]),
        (f"{BEGUN[:59]}\nSo", BEGUN[:59]),
        (f"{BEGUN[:40]}...", BEGUN[:40]),
        (f"{BEGUN[:39]}...", BEGUN),
        (f"{BEGUN[:59]}...".replace(" ", "\n", 1), BEGUN),
        (f"{BEGUN[:59]} and more", BEGUN),
        (f"{PAGES[0]} Nothing else.", BEGUN),
    ],
)
def test_a_page_that_was_cut_for_the_prompt(shown: str, expected: str) -> None:
    """Its beginning is the context, if it is long, and ends where no sentence does."""
    assert contexts(root(), search(BEGUN), write(shown, ASKED)) == (expected,)


def test_longer_texts_around_the_pages() -> None:
    """Of a window in the metadata, or a merged text of a reranker, the one that was shown."""
    wide = f"Before. {PAGES[0]} After."
    windowed = replace(search(PAGES[0]), windows={PAGES[0]: wide})
    merged = replace(search(wide, at=(3, 4)), kind="reranker")
    for retrievals in ((windowed,), (search(PAGES[0]), merged)):
        assert contexts(root(), *retrievals, write(wide, ASKED)) == (wide,)
    assert contexts(root(), windowed, write(PAGES[0], ASKED)) == (PAGES[0],)
    assert outcomes(root(), windowed, write()) == ["ambiguous"]


TITLE = "History"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (f"{PAGES[0]}\nSource 2:\n{TITLE}\n", (PAGES[0], TITLE)),
        (f"# {TITLE}\n\n{PAGES[0]}", (TITLE, PAGES[0])),
        (f"Title: {TITLE}\n{PAGES[0]}", "ambiguous"),
    ],
)
def test_a_passage_that_is_a_part_of_another(shown: str, expected: object) -> None:
    """It stands where it has lines of its own."""
    (result,) = outcomes(root(), search(TITLE, PAGES[0]), write(shown, ASKED))
    assert (result.context_texts if isinstance(result, Sample) else result) == expected


# --- answers --------------------------------------------------------------------------------------


ADVICE = f"It is unknown. {ANSWER}"


@pytest.mark.parametrize(
    ("told", "calls", "expected"),
    [
        ("no", [(PAGES[0], "no, it seems")], PAGES[:1]),
        (f"{ADVICE} No doubt", [(PAGES[0], f"{ADVICE} No doubt"), (PAGES[1], "No")], PAGES[:1]),
        ("1987", [(PAGES[0], "something"), (PAGES[1], "something else")], PAGES[1:2]),
        (f"{ANSWER} {ADVICE}", [(PAGES[0], ANSWER), (PAGES[1], ADVICE)], PAGES[1:2]),
        ("in 1987.", [(PAGES[0], "1987"), (PAGES[1], "something else")], PAGES[:1]),
        ("it was 1987", [(PAGES[0], "1987"), (PAGES[1], "something else")], PAGES[1:2]),
        (f"{ADVICE} And so on", [(PAGES[0], ADVICE[:20]), (PAGES[1], "a title")], PAGES[:1]),
        (ANSWER, [(PAGES[1], "")], PAGES[1:2]),
        ("I would rather not say.", [(PAGES[0], ANSWER), (f"Safe? {ANSWER}", "UNSAFE")], PAGES[:1]),
        (ANSWER, [(PAGES[0], f"<b>{ANSWER}</b>"), (PAGES[1], "A title of it")], PAGES[:1]),
    ],
)
def test_contexts_are_those_of_the_call_that_wrote_the_answer(
    told: str, calls: list[tuple[str, str]], expected: tuple[str, ...]
) -> None:
    """That is the call with the answer's words, or the last one that may have written it."""
    written = [
        write(page, ASKED, said=said, at=(n, n + 1)) for n, (page, said) in enumerate(calls, 10)
    ]
    turn = sample(root(told=told), search(*PAGES), *written)
    assert (turn.answer, turn.context_texts) == (told, expected)


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
    steps = search(*PAGES), write(*PAGES, ASKED)
    assert sample(returned, *steps, judge).answer == ANSWER
    parser = replace(chain("parser", "app", at=(60, 61)), output_texts=(ANSWER, "yes"))
    call = replace(write(*PAGES, ASKED, said=None), calls_tools=True)
    assert sample(returned, search(*PAGES), call, parser).answer == ANSWER
    other = write(*PAGES, ASKED, said="It was in 1987, I would say.", at=(62, 65))
    both = replace(root(told=None), output_texts=(ANSWER, "It was in 1987, I would say."))
    assert outcomes(both, *steps, other) == ["ambiguous"]


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
    (result,) = outcomes(root(told=told), search(), write(ASKED, said=said, at=ended))
    assert (result if isinstance(result, str) else "told") == expected


# --- questions ------------------------------------------------------------------------------------

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
        (None, "about", "about it", "about it"),
        (None, "about", "about it!", "about"),
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


@pytest.mark.parametrize(
    ("asked_first", "said"), [(True, CONDENSED), (True, None), (False, CONDENSED)]
)
def test_the_users_question_counts_if_rewritten(*, asked_first: bool, said: str | None) -> None:
    """A follow-up stays what the user asked, though search and model were asked another one."""
    at = (1, 2) if asked_first else (5, 6)
    rewrite = llm("condense", "app", at=at, shown=("Rephrase!",), said=said)
    first = () if asked_first else (search(PAGES[1], at=(3, 4), query=None),)
    found = search(PAGES[0], at=(7, 8), query=CONDENSED)
    steps = (*first, rewrite, found, write(PAGES[0], CONDENSED))
    assert sample(root(asked="And when?"), *steps).question == "And when?"
    assert outcomes(root(asked=None), *steps) == ["no_question"]


def test_a_prompt_with_the_report_of_an_agent_is_no_question() -> None:
    """The program made it of what another model call has said."""
    report = "The notes say that it was founded by monks, a long time ago."
    agent = llm("agent", "app", at=(6, 7), shown=(PAGES[0],), said=report)
    steps = search(PAGES[0], query=None), agent, write(f"Write a text about this. {report}")
    assert outcomes(root(asked=None), *steps) == ["no_question"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<Follow Up Message>\nAnd when?\n\n<Standalone question>\n", "And when?"),
        ("Follow Up Input: And when?\nStandalone question:", "And when?"),
        ("Rephrase: And when?", "no_question"),
        (f"Rephrase: {CONDENSED}", CONDENSED),
    ],
)
def test_a_question_that_a_model_wrote(prompt: str, expected: str) -> None:
    """What only the inner chain was asked is the user's if the model was shown it."""
    rewrite = llm("condense", "app", at=(1, 2), shown=(prompt,), said=CONDENSED)
    inner = chain("inner", "app", at=(3, 90), asked=CONDENSED, told=ANSWER)
    found = replace(search(PAGES[0], at=(7, 8), query=CONDENSED), parent="inner")
    steps = rewrite, inner, found, replace(write(PAGES[0], CONDENSED), parent="inner")
    (result,) = outcomes(root(asked=None, told=None), *steps)
    assert (result.question if isinstance(result, Sample) else result) == expected


@pytest.mark.parametrize(
    ("asked", "texts", "message", "expected"),
    [
        (None, ("de", "Wann war das?"), "Wann war das?", "Wann war das?"),
        (None, ("de", "Wann war das?"), f"{PAGES[0]} Wann war das?", "Wann war das?"),
        (None, ("de", "Wann war das?"), f"{PAGES[0]} Now answer.", "no_question"),
        (None, ("Wann?  Wo", "Wie war"), f"{PAGES[0]} Wann? Wo, wie war", "no_question"),
        ("You are a guide.", ("You are a guide.", ASKED), ASKED, ASKED),
        ("msg-123", ("msg-123", ASKED), ASKED, ASKED),
    ],
)
def test_a_question_under_a_name_of_its_own(
    asked: str | None, texts: tuple[str, ...], message: str, expected: str
) -> None:
    """It is the text that the LLM was shown; a single word beside it is something else."""
    given = replace(root(asked=asked), input_texts=texts)
    (result,) = outcomes(given, search(PAGES[0], query="kites"), write(PAGES[0], message))
    assert (result.question if isinstance(result, Sample) else result) == expected


def test_an_error_anywhere_on_the_line_refuses() -> None:
    """If the anchor or what is above it failed, nobody saw the answer."""
    below = retriever("r", "inner", at=(1, 2)), llm("l", "inner", at=(3, 4), said=ANSWER)
    failed = chain("inner", "app", error="ValueError")
    assert outcomes(root(), failed, *below) == ["error"]
    assert outcomes(root(error="ValueError"), chain("inner", "app"), *below) == ["error"]


# --- whether all parts fit together ---------------------------------------------------------------

PAGE, OTHER, _ = PAGES
FOUND, WRITTEN = search(PAGE), write(PAGE, ASKED)
BLIND = replace(FOUND, documents=None)
TORN = replace(root(), parent="nobody")
PASSAGES = (Passage(text=PAGE, id="1"), Passage(text=OTHER, id="2"))
JOIN = replace(chain("join", "app", at=(10, 11)), documents_seen=PASSAGES, documents_given=PASSAGES)
STRAY = write(PAGE, ASKED, said="Another answer that is long enough.", at=(30, 40))
TWO, TWO_BY_ID = search(PAGE, OTHER), search(*PASSAGES)
PICK = chain("pick", "app", at=(10, 11))
MORE = f"{PAGE}The shop sells kites in spring, and boats in summer."
LESS = f"The shop sells kites in spring, and boats in summer.{PAGE}"
PICKED = replace(PICK, documents_seen=PASSAGES[:1])
GRADER = write(f"Does {OTHER} help?", said="no", at=(10, 20))
FLAT = Step(id="app", parent=None, kind="other", name="app", start=0, end=100, flat=True)
SWAP = chain("swap", "app", at=(0, 1), asked="And then?", told=ASKED)
AGAIN = search(PAGE, at=(75, 78), query=f"{ANSWER} And who?")

CASES: dict[str, tuple[tuple[Step, ...], object]] = {
    "everything fits together": ((root(), FOUND, WRITTEN), ANSWER),
    "what is around the turn is missing": ((TORN, FOUND, WRITTEN), "partial"),
    "a document that nobody retrieved": (
        (root(), FOUND, JOIN, write(f"{PAGE} {OTHER}", ASKED)),
        "partial",
    ),
    "the prompt goes on after a page with what nobody retrieved": (
        (root(), FOUND, replace(PICK, input_texts=(MORE,)), write(MORE, ASKED)),
        "partial",
    ),
    "the prompt has it before a page": (
        (root(), FOUND, replace(PICK, input_texts=(LESS,)), write(LESS, ASKED)),
        "partial",
    ),
    "a second answer at length, unused": ((root(told=None), FOUND, STRAY, WRITTEN), "ambiguous"),
    "a second answer, but it is known what came out": ((root(), FOUND, STRAY, WRITTEN), ANSWER),
    "a page was left out by nobody": ((root(), TWO, WRITTEN), "partial"),
    "a step left a page out": ((root(), TWO, PICKED, WRITTEN), ANSWER),
    "a call graded a page": ((root(), TWO, GRADER, WRITTEN), ANSWER),
    "each pass of a loop has one page": (
        (
            root(),
            TWO,
            *(
                replace(chain("grade", "app", at=(n, n)), id=n, documents_seen=(page,))
                for n, page in enumerate(PASSAGES, 20)
            ),
            WRITTEN,
        ),
        "partial",
    ),
    "pages that only a grader has seen": (
        (
            root(),
            search(*PAGES),
            write(*PAGES, said="no", at=(10, 11)),
            write("Found on the web: the company is from 1987, or so they say.", ASKED),
        ),
        "ambiguous",
    ),
    "a step tells the ids of what it handed on": (
        (root(), TWO_BY_ID, replace(PICK, kept_ids=("1",)), WRITTEN),
        ANSWER,
    ),
    "a step tells the ids of something else": (
        (root(), TWO_BY_ID, replace(PICK, kept_ids=("2",)), WRITTEN),
        "partial",
    ),
    "a call may have written one of them": (
        (root(), TWO_BY_ID, replace(PICK, kept_ids=("1", "3")), GRADER, WRITTEN),
        ANSWER,
    ),
    "a step tells the ids of documents that nobody found": (
        (root(), TWO_BY_ID, replace(PICK, kept_ids=("1", "3")), WRITTEN),
        "no_contexts",
    ),
    "the pages were rewritten": (
        (root(), FOUND, write("It began in 1987, says the chronicle.", ASKED)),
        ANSWER,
    ),
    "under a span that tells nothing the pages may belong to something else": (
        (FLAT, FOUND, write(OTHER, "How many rooms?")),
        "ambiguous",
    ),
    "another question was searched, and no call reworded it": (
        (root(asked="And then?"), FOUND, WRITTEN),
        "ambiguous",
    ),
    "a step that took no time put another question in": (
        (root(asked="And then?"), SWAP, FOUND, WRITTEN),
        ANSWER,
    ),
    "a step that took its time put another question in": (
        (root(asked="And then?", at=(0, 10**8)), replace(SWAP, end=10**7), FOUND, WRITTEN),
        "ambiguous",
    ),
    "a stream that is read after the span of its chain": (
        (replace(root(told=None), deferred=True), FOUND, write(PAGE, ASKED, at=(50, 110))),
        ANSWER,
    ),
    "the step that put it in may have asked a model": (
        (root(asked="And then?"), replace(SWAP, name="chat"), FOUND, WRITTEN),
        "ambiguous",
    ),
    "a tool answered an agent that is not there": (
        (
            root(),
            tool("tool", "app", at=(0, 90)),
            chain("agent", "tool", at=(0, 80)),
            replace(FOUND, parent="agent"),
            replace(WRITTEN, parent="agent"),
        ),
        "partial",
    ),
    "an answer used in a query: two turns, or two steps of one": (
        (root(), FOUND, WRITTEN, AGAIN, write(PAGE, ASKED, at=(80, 90))),
        "ambiguous",
    ),
    "a grade is no answer, so a call is missing": (
        (root(), FOUND, write(PAGE, said="yes")),
        "partial",
    ),
    "a reranker left a page out": (
        (root(), TWO, replace(search(PAGE, at=(3, 4)), kind="reranker"), WRITTEN),
        ANSWER,
    ),
    **{
        f"{part} {how}": (
            (replace(root(asked=None, told=None), **lost), replace(BLIND, **lost), WRITTEN),
            reason,
        )
        for how, reason in (("hidden", "redacted"), ("cut", "truncated"))
        for part in ("input", "output", "documents")
        for lost in [{how: frozenset({part})}]
    },
    "the application recorded all that counts": (
        (
            replace(TORN, is_cut=True, documents=(), recorded=frozenset(get_args(Part))),
            TWO,
            WRITTEN,
        ),
        ANSWER,
    ),
    "a text of another step was cut": ((root(), FOUND, replace(WRITTEN, is_cut=True)), "truncated"),
}


@pytest.mark.parametrize(("steps", "expected"), CASES.values(), ids=CASES)
def test_what_fits_together(steps: tuple[Step, ...], expected: object) -> None:
    """A turn is told where everything fits together; else it is refused, with the reason."""
    assert found(*steps) == [expected]


@pytest.mark.parametrize(
    ("steps", "doubt"),
    [
        ([replace(root(), end=None), FOUND, WRITTEN], "partial"),
        *(
            ([root(), search(*(f"page {n}" for n in range(documents))), WRITTEN], doubt)
            for documents, doubt in ((1000, None), (1001, "ambiguous"))
        ),
        *(
            ([root(), FOUND, *(write(PAGE, at=(n, n + 1)) for n in range(10, 10 + calls))], doubt)
            for calls, doubt in ((299, None), (300, "ambiguous"))
        ),
    ],
)
def test_turns_in_doubt(steps: list[Step], doubt: str | None) -> None:
    """A step may be missing below an open span, and too many are not compared."""
    (turn,) = turns_in(steps, contexts_from_prompt=False)
    assert turn.doubt == doubt


ERROR = "ConnectionError"


def gives(*texts: str) -> Step:
    return replace(root(told=None), input_texts=(ASKED,), output_texts=texts)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([root()], None),
        ([root(error=ERROR)], None),
        ([root(error=ERROR), FOUND], "error"),
        ([root(), replace(FOUND, error=ERROR), WRITTEN], "error"),
        ([root(), FOUND], "no_answer"),
        ([gives(PAGE, ASKED), FOUND], None),
        ([gives(f"1. {PAGE}"), write(said=f"1. {ASKED}", at=(0, 1)), FOUND], None),
        ([gives(PAGE), WRITTEN, FOUND], "no_answer"),
        ([gives(PAGE, "An answer that is long enough."), FOUND], "no_answer"),
        ([replace(root(), recorded=frozenset({"documents"}))], "no_answer"),
        ([replace(root(), recorded=frozenset({"input"}))], "no_retrieval"),
        ([root(), WRITTEN], "no_retrieval"),
        ([root(), write(at=(0, 1)), FOUND], "no_answer"),
        ([TORN, write(at=(0, 1)), FOUND], "partial"),
    ],
)
def test_why_there_is_no_turn(steps: list[Step], reason: str | None) -> None:
    """What has nothing of a turn has no reason either."""
    assert why_none(steps) == reason


# --- turns that two instrumentations recorded -----------------------------------------------------


def recorded(by: str, at: tuple[int, int | None]) -> Turn:
    """Build a turn around which there is a session of some web server."""
    anchor = replace(root(at=at), source=by)
    return Turn(anchor=anchor, path=(anchor, replace(FLAT, source="web")), retrievers=())


def test_a_turn_that_two_instrumentations_recorded() -> None:
    """Equal texts at overlapping times are one turn, if each has its own record of it."""
    recent, one, other = RecentTurns(2), Sample(question="q", answer="a"), Sample(answer="b")
    told = [
        (one, recorded("x", (0, 10)), False),
        (one, recorded("x", (5, 9)), False),
        (one, recorded("a", (10, 20)), True),
        (one, recorded("y", (8, 20)), True),
        (one, recorded("y", (9, 20)), False),
        (one, recorded("x", (21, 30)), False),
        (one, recorded("z", (30, None)), True),
        (other, recorded("y", (21, 30)), False),
        (replace(other, answer="c"), recorded("y", (21, 30)), False),
        (one, recorded("y", (9, 20)), False),  # too many others came since
    ]
    assert [recent.is_repeated(sample, turn) for sample, turn, _ in told] == [
        is_ for *_, is_ in told
    ]


# --- any trace ------------------------------------------------------------------------------------


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


def test_recordings() -> None:
    """The spans of recorded applications are read as they were."""
    assert misread() == []


def test_spans_of_an_exported_trace() -> None:
    """A copy counts once, our own spans if one stands for a turn; two with one id are refused."""
    theirs, first = View(name="theirs", span_id=1, end=5), View(name="first", span_id=2, end=3)
    first.attributes = {semconv.EVALUATION_STATUS: "scored"}
    for scope in ("a", "z"):
        theirs.scope, ours = scope, View(name="ours", span_id=3, scope=semconv.SCOPE, end=4)

        def names(*spans: Span) -> list[str] | None:
            found = steps_in(spans, most=9)
            return None if found is None else [step.name for step in found]

        assert names(theirs, ours, first, replace(theirs)) == ["first", "theirs"]
        ours.attributes = {semconv.EVALUATION_STATUS: "scored"}
        assert names(theirs, ours, first) == ["first", "ours", "theirs"]
        assert names(theirs, replace(ours, span_id=1)) is None

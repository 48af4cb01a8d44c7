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
from rag_eval_otel.types import Message, Passage, Sample, SkipReason
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


def found(*steps: Step) -> list[object]:
    """Return the answers, or the reasons, of a trace that may have lost spans."""
    results = [one.result for one in outcomes_of_steps(steps)]
    return [one.answer if isinstance(one, Sample) else one for one in results]


# --- contexts -------------------------------------------------------------------------------------


QUOTED = 'Quote: "kites"\n- and\tspars, says Bjørn\n- 7 to 22, it\'s said'


def note(page: str, said: str, at: int) -> Step:
    return write(page, said=said, at=(at, at + 1))


def noted(said: str, shown: str) -> list[Step]:
    return [search(*PAGES), note(PAGES[0], said, 10), write(shown, ASKED)]


def kept(*pages: str, at: int, query: str = ASKED) -> Step:
    return replace(search(*pages, at=(at, at + 1), query=query), kind="reranker")


BLIND, BLANK = replace(search(), documents=None), search(" \n", PAGES[0])
BEGUN = f"{PAGES[0]} It stands on a hill and looks far over the sea, the forest and the town."
CUT, WIDE, TITLE = (BEGUN[:59],), f"Before. {PAGES[0]} After.", "History"
WINDOWED = replace(search(PAGES[0]), windows={PAGES[0]: WIDE})
MADE = ("Begun in 1987, by two.", "Ada Lindqvist was first.", "A month and a half to return.")
NOTES = [search(*PAGES), *(note(page, MADE[n], 10 + n) for n, page in enumerate(PAGES))]
ODD, EVEN = "One stays alone in it.", "Two are merged here."
MERGED = note(MADE[1], ODD, 20), note(MADE[0] + MADE[2], EVEN, 30)
TWICE = f"It is unknown. {ANSWER}"
VARIABLES = {"context": "A was.\nB is.", "x": "y"}
LINES = "\n".join(PAGES[:2])


def wrote(told: str, *calls: tuple[str, str]) -> list[Step]:
    written = (write(page, ASKED, said=text, at=(n, n)) for n, (page, text) in enumerate(calls, 10))
    return [root(told=told), search(*PAGES), *written]


A, B, _ = PAGES
CONTEXTS: dict[str, tuple[Any, ...]] = {
    "of the call with the answer's words": ((A,), *wrote("no", (A, "no, it seems"))),
    "all of them": ((A,), *wrote(f"{TWICE} No doubt", (A, f"{TWICE} No doubt"), (B, "No"))),
    "of the last": ((B,), *wrote("1987", (A, "something"), (B, "something else"))),
    "of the longest part": ((B,), *wrote(f"{ANSWER} {TWICE}", (A, ANSWER), (B, TWICE))),
    "of a part": ((A,), *wrote("in 1987.", (A, "1987"), (B, "something else"))),
    "not of a short part": ((B,), *wrote("it was 1987", (A, "1987"), (B, "something else"))),
    "of 20 characters": ((A,), *wrote(f"{TWICE} And so on", (A, TWICE[:20]), (B, "a title"))),
    "of a call without a text": ((B,), *wrote(ANSWER, (A, "something"), (B, ""))),
    "not of a grader": ((A,), *wrote("Better not.", (A, ANSWER), (f"Safe? {ANSWER}", "UNSAFE"))),
    "of a call with more": ((A,), *wrote(ANSWER, (A, f"<b>{ANSWER}</b>"), (B, "A title of it"))),
    **{
        f"a page is known in {shown}": (
            *((PAGES[0], QUOTED), search(QUOTED, PAGES[0], PAGES[2])),
            write(f"1. {PAGES[0]}\n2. {shown}\n\n{ASKED}"),
        )
        for shown in (
            *(QUOTED, repr(QUOTED), json.dumps(json.dumps(QUOTED)), QUOTED.upper()),
            *(json.dumps({"page": QUOTED}, ensure_ascii=False), QUOTED.replace("\n- ", " ")),
            *("> " + QUOTED.replace("\n", "\n> "), QUOTED.replace("\n- ", "\n    * ")),
            f"  {QUOTED}  ".replace(" ", "   "),
        )
    },
    "a blank page is not found everywhere": (PAGES[:1], BLANK, write(PAGES[0], ASKED)),
    "it may have been shown": ((" \n", PAGES[0]), BLANK, write()),
    "a retrieval of nothing is a retrieval": ((), search(), write(ASKED)),
    "nothing was captured": ("no_contexts", BLIND, write(ASKED)),
    "or no texts": ("ambiguous", BLIND, write("Context:\nFounding\n\nby Ada", ASKED)),
    "in a variable": (
        *(("A was.", "B is."), BLIND, replace(write(f"Read. {ASKED}"), variables=VARIABLES)),
    ),
    "a page that was cut": (CUT, search(BEGUN), write(f"{CUT[0]}...", ASKED)),
    "before a line": (CUT, search(BEGUN), write(f"{CUT[0]}\nSo", ASKED)),
    "40 characters": ((BEGUN[:40],), search(BEGUN), write(f"{BEGUN[:40]}...", ASKED)),
    "39 characters": ((BEGUN,), search(BEGUN), write(f"{BEGUN[:39]}...", ASKED)),
    "in two lines": ((BEGUN,), search(BEGUN), write(f"{CUT[0]}...".replace(" ", "\n", 1), ASKED)),
    "its end, too": ((BEGUN,), search(BEGUN), write(f"{CUT[0]}...\n{BEGUN[-40:]}", ASKED)),
    "at the end": (CUT, search(BEGUN), write(ASKED, CUT[0])),
    "before a word": ((BEGUN,), search(BEGUN), write(f"{CUT[0]} and more", ASKED)),
    "after a sentence": ((BEGUN,), search(BEGUN), write(f"{PAGES[0]} Nothing else.", ASKED)),
    "the window around a page": ((WIDE,), WINDOWED, write(WIDE, ASKED)),
    "not shown": (PAGES[:1], WINDOWED, write(PAGES[0], ASKED)),
    "perhaps shown": ("ambiguous", WINDOWED, write()),
    "merged pages": ((WIDE,), search(PAGES[0]), kept(WIDE, at=3), write(WIDE, ASKED)),
    "without a prompt, the last that a reranker kept of each query": (
        *(PAGES[1:], search(*PAGES), kept(PAGES[0], at=3), kept(PAGES[1], at=4), write()),
        kept(PAGES[2], at=5, query="returns"),
    ),
    "behind notes, in their order": (
        *((*PAGES[2:], *PAGES[:2]), *NOTES, write("\n".join((MADE[2], *MADE[:2])), ASKED)),
    ),
    "a page beside them": (PAGES, *NOTES, write("\n".join((MADE[1], PAGES[2], MADE[0])), ASKED)),
    "behind notes of notes": (
        *((PAGES[0], PAGES[2], PAGES[1]), *NOTES, *MERGED),
        write(EVEN + ODD, ASKED),
    ),
    "a short note in quotes": (PAGES[:1], *noted("so in 87", "Say 'so in 87'")),
    "not in quotes": ("ambiguous", *noted("so in 87", "Say so in 87")),
    "too short a note": ("ambiguous", *noted("so in 7", "so in 7")),
    "one word": ("ambiguous", *noted("1987-01-01", "1987-01-01")),
    "19 characters": ("ambiguous", *noted("1987-01-01 to 02-01", "Say 1987-01-01 to 02-01")),
    "20 characters": (PAGES[:1], *noted("1987-01-01 to 02-011", "Say 1987-01-01 to 02-011")),
    "a passage that is a part of another": (
        *((PAGES[0], TITLE), search(TITLE, PAGES[0])),
        write(f"{PAGES[0]}\nSource 2:\n{TITLE}\n", ASKED),
    ),
    "as a heading": (
        *((TITLE, PAGES[0]), search(TITLE, PAGES[0]), write(f"# {TITLE}\n\n{PAGES[0]}", ASKED)),
    ),
    "on no line of its own": (
        *("ambiguous", search(TITLE, PAGES[0]), write(f"Title: {TITLE}\n{PAGES[0]}", ASKED)),
    ),
    "shown again, the last time after the question": (
        *(PAGES[1::-1], search(*PAGES), write(LINES, f"{PAGES[1]} {LINES}")),
    ),
    "the question is in no message": (
        *(PAGES[:2], search(*PAGES), replace(write(LINES, f"{PAGES[1]} {LINES}"), input=ASKED)),
    ),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts(name: str) -> None:
    """They are what the model was shown, verbatim, cut or wider, itself or in notes for it."""
    expected, *steps = CONTEXTS[name]
    (result,) = outcomes(*steps, root())
    texts = tuple(p.text for p in result.contexts) if isinstance(result, Sample) else result
    assert texts == expected


def test_ids_of_all_contexts_or_none() -> None:
    """Ranks are only known where every context has an id."""
    for ids, expected in (("ab", ("a", "b")), (("a", None), ()), ((None, None), ())):
        found = [Passage(text=text, id=id_) for text, id_ in zip(PAGES, ids, strict=False)]
        assert sample(root(), search(*found), write()).retrieved_ids == expected


# --- answers --------------------------------------------------------------------------------------


REPLY = json.dumps({"answer": ANSWER})
REFUSAL, ELSE = "I would rather not say.", "It was in 1987, I would say."
DEMAND = "Is it supported by the context? Answer with either YES or NO."


def said(told: str | None, output: str | None = ANSWER, **more: Any) -> list[Step]:
    call = write(*PAGES, ASKED, said=output, at=more.pop("at", (50, 60)))
    return [replace(root(told=told), **more), search(*PAGES), call]


def named(*texts: str, told: str | None = None) -> list[Step]:
    return said(told, output_texts=("History", *texts))


def parsed(*texts: str, **changes: Any) -> tuple[Step, Step]:
    parser = replace(chain("parser", "app", at=(60, 61)), output_texts=texts)
    return replace(write(*PAGES, ASKED, said=None), calls_tools=True, **changes), parser


BELOW = [replace(step, parent="inner") for step in said(None)[1:]]
ANSWERS: list[tuple[Any, ...]] = [
    ("error", root(), chain("inner", "app", error="ValueError"), *BELOW),
    ("error", root(error="ValueError"), chain("inner", "app"), *BELOW),
    (
        "ambiguous",
        root(asked="1987.", told="YES"),
        search(*PAGES),
        write(DEMAND, *PAGES, "1987.", said="YES"),
    ),
    ("YES", root(asked=DEMAND, told="YES"), search(*PAGES), write(*PAGES, DEMAND, said="YES")),
    *(
        (ANSWER, *named(ANSWER, grade), write(f"Good? {ANSWER}", said=grade, at=(70, 75)))
        for grade in ("fine", "Adequate")
    ),
    ("ambiguous", *named(ANSWER, ELSE), write(*PAGES, ASKED, said=ELSE, at=(62, 65))),
    (ANSWER, *named(ANSWER)[:2], *parsed(ANSWER, "yes")),
    (ANSWER, *named(ELSE), parsed(ELSE)[1]),
    (ANSWER, *named(ANSWER, told="success")),
    ("1987", *named(ANSWER, told="1987")),
    ("Not now.", *named(ANSWER, told="Not now.")),
    (ANSWER, *said(None, REPLY)),
    (REPLY, *said(REPLY, REPLY)),
    (ANSWER, *said(None, f"```json\n{REPLY}\n```")),
    ("In 1987.", *said(None, '{"Final_Answer_text": "In 1987."}')),
    ("ambiguous", *said(None, '{"note": "In 1987."}')),
    ("ambiguous", *said(None, '{"our_answer": "In 1987.", "note": "Well."}')),
    ("ambiguous", *said(None, '["In 1987."]')),
    ("ambiguous", *said(None, '{"answer": " "}')),
    ("no_answer", *said(None, '{"score": "yes"}')),
    *((ANSWER, *said(ASKED, kind=kind)) for kind in ("chain", "other")),
    (ASKED, *said(None, ASKED)),
    (ANSWER, *said(ANSWER, at=(5, 110))),
    ("Dear user", *said("Dear user", at=(5, 110))),
    ("abandoned", *said(ANSWER[:9], at=(5, 110))),
    (ANSWER[:9], *said(ANSWER[:9], at=(5, 60))),
    ("abandoned", *said(None, at=(5, 110))),
    ("abandoned", *said("", at=(5, 110))),
    ("abandoned", *said(ANSWER, at=(5, None))),
    ("abandoned", *said(ANSWER, None, at=(5, None))),
    (ANSWER, *said(ANSWER, None, at=(5, 110))),
]


@pytest.mark.parametrize("row", ANSWERS)
def test_answers(row: tuple[Any, ...]) -> None:
    """What was returned, or what a call has said, but no verdict on it, and no mere beginning.

    In an output of several texts it is the only one that a call has said; in a model's JSON, the
    one under a usual name.
    """
    expected, *steps = row
    (result,) = outcomes(*steps)
    assert (result.answer if isinstance(result, Sample) else result) == expected


# --- questions ------------------------------------------------------------------------------------

THEN, CONDENSED = "And when?", "In which year did the kite company begin?"
REPORT = "The notes say that it was founded by monks, a long time ago."
REWRITE = llm("condense", "app", at=(1, 2), shown=("Rephrase!",), said=CONDENSED)
BOTH, MIXED = ("de", "Wann war das?"), ("Wann?  Wo", "Wie war")


def asks(
    asked: str | None, searched: str | None, *message: str, texts: tuple[str, ...] = ()
) -> Any:
    given = replace(root(asked=asked), input_texts=texts)
    shown = (PAGES[0], *message) if message else ()
    return given, search(PAGES[0], query=searched), write(*shown)


def condensed(asked: str | None, *first: Step) -> list[Step]:
    found = search(PAGES[0], at=(7, 8), query=CONDENSED)
    return [root(asked=asked), *first, found, write(PAGES[0], CONDENSED)]


def within(prompt: str) -> list[Step]:
    """Build a call that writes the question of an inner chain."""
    inner = chain("inner", "app", at=(3, 90), asked=CONDENSED, told=ANSWER)
    below = [replace(step, parent="inner") for step in condensed(None)[1:]]
    return [root(asked=None, told=None), replace(REWRITE, prompt=(prompt,)), inner, *below]


REWRITES = (
    *([REWRITE], [replace(REWRITE, output=None)]),
    [search(PAGES[1], at=(3, 4), query=None), replace(REWRITE, start=5)],
)
QUESTIONS: list[tuple[Any, ...]] = [
    ("Who?", *asks("Who?", "Who?", "Who?")),
    ("Who?", *asks("Who?", "something", " who? ")),
    ("Who?", *asks("Who?", "who?", "Rephrased.")),
    ("Who?", *asks("Who?", "something", "Page one. Question: Who?")),
    ("Who  is it", *asks("Who  is it", "Who?", f"Question: Who? {PAGES[0]}")),
    ("Clean message", *asks(None, "x", "Clean message")),
    ("about it", *asks(None, "about", "about it")),
    ("about", *asks(None, "about", "about it!")),
    ("about", *asks(None, "about", f"{PAGES[0]} about it")),
    ("Clean message", *asks(None, None, "Clean message")),
    ("Both", *asks("Both", None)),
    ("x", *asks(None, "x")),
    ("x", *asks(" ", "x", "\n")),
    *((THEN, *condensed(THEN, *first)) for first in REWRITES),
    *(("no_question", *condensed(None, *first)) for first in REWRITES),
    ("no_question", *asks(None, None)[:2], note(A, REPORT, 3), write(f"Write. {REPORT}")),
    (THEN, *within(f"<Follow Up Message>\n{THEN}\n\n<Standalone question>\n")),
    (THEN, *within(f"Follow Up Input: {THEN}\nStandalone question:")),
    ("no_question", *within(f"Rephrase: {THEN}")),
    (CONDENSED, *within(f"Rephrase: {CONDENSED}")),
    (BOTH[1], *asks(None, "kites", BOTH[1], texts=BOTH)),
    (BOTH[1], *asks(None, "kites", f"{PAGES[0]} {BOTH[1]}", texts=BOTH)),
    ("no_question", *asks(None, "kites", f"{PAGES[0]} Now answer.", texts=BOTH)),
    ("no_question", *asks(None, "kites", f"{PAGES[0]} Wann? Wo, wie war", texts=MIXED)),
    (ASKED, *asks("You are a guide.", "kites", ASKED, texts=("You are a guide.", ASKED))),
    (ASKED, *asks("msg-123", "kites", ASKED, texts=("msg-123", ASKED))),
]


@pytest.mark.parametrize("row", QUESTIONS)
def test_which_question_counts(row: tuple[Any, ...]) -> None:
    """The application's, if the search or the model was asked it; else what the model was asked.

    A follow-up stays what the user asked, though search and model were asked another one. Under a
    name of its own, it is the text that the model was shown.
    """
    expected, *steps = row
    (result,) = outcomes(*steps)
    assert (result.question if isinstance(result, Sample) else result) == expected


EARLIER = (Message("user", "Who founded it?"), Message("assistant", "Ada Lindqvist."))
ALL = "\n".join([*(one.text for one in EARLIER), ASKED])
QUERY, LAST = "founding year", (*EARLIER, Message("user", ASKED))
ECHO = (EARLIER[0], Message("assistant", ASKED))


@pytest.mark.parametrize(
    ("given", "queries", "shown", "expected"),
    [
        ({}, [ASKED], {"history": EARLIER}, (EARLIER, None)),
        ({}, [ASKED], {"history": LAST}, (EARLIER, None)),
        ({}, [ASKED], {"history": ECHO}, (ECHO, None)),
        ({}, [QUERY], {"history": EARLIER, "input": QUERY}, (EARLIER, QUERY)),
        ({}, [QUERY, "Ada"], {"history": EARLIER, "input": "Go on."}, ((), None)),
        ({}, [ASKED], {"history": (*LAST, Message("assistant", MADE[0]))}, ((), None)),
        ({"input": ALL}, [ASKED], {"history": EARLIER}, (EARLIER, None)),
        ({"history": EARLIER}, [QUERY], {}, (EARLIER, QUERY)),
        ({"keeps_history": True}, [QUERY], {"history": EARLIER}, ((), QUERY)),
        (
            {"history": LAST, "recorded": frozenset({"history"})},
            [ASKED],
            {"history": LAST[:1]},
            (EARLIER, None),
        ),
    ],
)
def test_what_was_said_before(
    given: dict[str, Any], queries: list[str], shown: dict[str, Any], expected: object
) -> None:
    """Of the application, or the model that answered; with the query, if it is another text."""
    draft = write("Go on.", said=MADE[0], at=(20, 30))
    draft = replace(draft, input=ASKED, history=EARLIER[:1])
    searches = [search(*PAGES, at=(n, n + 1), query=text) for n, text in enumerate(queries, 1)]
    call = replace(write(*PAGES, ASKED), **shown)
    told = sample(replace(root(), **given), *searches, draft, call)
    assert told.question == ASKED
    assert (told.history, told.query) == expected


# --- whether all parts fit together ---------------------------------------------------------------

PAGE, OTHER, _ = PAGES
ROOT, OTHERWISE, FOUND, WRITTEN = root(), root(asked=THEN), search(PAGE), write(PAGE, ASKED)
INPUT, OUTPUT, DOCUMENTS = (frozenset({part}) for part in ("input", "output", "documents"))
TORN = replace(ROOT, parent="nobody")
PASSAGES = (Passage(text=PAGE, id="1"), Passage(text=OTHER, id="2"))
JOIN = replace(chain("join", "app", at=(10, 11)), documents_seen=PASSAGES, documents_given=PASSAGES)
STRAY = write(PAGE, ASKED, said="Another answer that is long enough.", at=(30, 40))
TWO, TWO_BY_ID, AGAIN = search(PAGE, OTHER), search(*PASSAGES), search(PAGE, at=(3, 4))
PICK = chain("pick", "app", at=(10, 11))
MORE = f"{PAGE}The shop sells kites in spring, and boats in summer."
LESS = f"The shop sells kites in spring, and boats in summer.{PAGE}"
PICKED = replace(PICK, documents_seen=PASSAGES[:1])
ONE_OF, NONE_OF, OF_MORE = (replace(PICK, kept_ids=(*ids,)) for ids in ("1", "2", "13"))
GRADER = write(f"Does {OTHER} help?", said="no", at=(10, 20))
NOTED, WEB = replace(GRADER, output="a note"), "On the web: the company is from 1987, they say."
FLAT = Step(id="app", parent=None, kind="other", name="app", start=0, end=100, flat=True)
SWAP = chain("swap", "app", at=(0, 1), asked=THEN, told=ASKED)
LATER = search(PAGE, at=(75, 78), query=f"{ANSWER} And who?")
HOSTED = replace(WRITTEN, documents=PASSAGES[:1], recorded=DOCUMENTS, contexts_source="tool")
SAID, ADVISED = replace(WRITTEN, recorded=OUTPUT), root(told=TWICE)
ROUTE = write("Which topic?", said="history", at=(0, 1))
GRADED = write(f"Safe? {ANSWER}", said="It is not safe to tell anybody of it.", at=(70, 80))
RECORDED = replace(TORN, is_cut=True, documents=(), recorded=frozenset(get_args(Part)))
UNASKED, BARE, REFUSED = root(asked=None), write(PAGE), root(told=REFUSAL)

CASES: dict[str, tuple[Any, ...]] = {
    "everything fits together": (ANSWER, ROOT, FOUND, WRITTEN),
    "what is around the turn is missing": ("partial", TORN, FOUND, WRITTEN),
    "an unknown document": ("partial", ROOT, FOUND, JOIN, write(f"{PAGE} {OTHER}", ASKED)),
    **{
        f"what nobody retrieved in one line with a page: {text}": (
            *("partial", ROOT, FOUND, replace(PICK, input_texts=(text,)), write(text, ASKED)),
        )
        for text in (MORE, LESS)
    },
    "a second answer at length, unused": ("ambiguous", root(told=None), FOUND, STRAY, WRITTEN),
    "a second answer, but it is known what came out": (ANSWER, ROOT, FOUND, STRAY, WRITTEN),
    "a page was left out by nobody": ("partial", ROOT, TWO, WRITTEN),
    "a step left a page out": (ANSWER, ROOT, TWO, PICKED, WRITTEN),
    "a reranker left a page out": (ANSWER, ROOT, TWO, replace(AGAIN, kind="reranker"), WRITTEN),
    "a call graded a page": (ANSWER, ROOT, TWO, GRADER, WRITTEN),
    "a call said a word on a page": (ANSWER, ROOT, TWO, NOTED, WRITTEN),
    "it did, but another retrieval had found the others": (
        "partial",
        ROOT,
        TWO,
        AGAIN,
        NOTED,
        WRITTEN,
    ),
    "a call graded a page that this had not found": (ANSWER, ROOT, TWO, AGAIN, GRADER, WRITTEN),
    "each pass of a loop has one page": (
        *("partial", ROOT, TWO, WRITTEN),
        *(replace(PICK, id=n, documents_seen=(page,)) for n, page in enumerate(PASSAGES)),
    ),
    "pages that only a grader has seen": (
        *("ambiguous", ROOT, search(*PAGES)),
        *(write(*PAGES, said="no", at=(10, 11)), write(WEB, ASKED)),
    ),
    "a step tells the ids of what it handed on": (ANSWER, ROOT, TWO_BY_ID, ONE_OF, WRITTEN),
    "a step tells the ids of something else": ("partial", ROOT, TWO_BY_ID, NONE_OF, WRITTEN),
    "a call may have written one of them": (ANSWER, ROOT, TWO_BY_ID, OF_MORE, GRADER, WRITTEN),
    "an id that nobody found": ("no_contexts", ROOT, TWO_BY_ID, OF_MORE, WRITTEN),
    "two ids": ("no_contexts", ROOT, TWO_BY_ID, replace(PICK, kept_ids=(*"134",)), WRITTEN),
    "the pages were rewritten": (ANSWER, ROOT, FOUND, write(f"Or so. {WEB}", ASKED)),
    "a span that tells nothing": ("ambiguous", FLAT, FOUND, write(OTHER, "How many rooms?")),
    "another question was searched, and no call reworded it": (
        "ambiguous",
        OTHERWISE,
        FOUND,
        WRITTEN,
    ),
    "a step that took no time put it in": (ANSWER, OTHERWISE, SWAP, FOUND, WRITTEN),
    "the step may have asked a model": (
        *("ambiguous", OTHERWISE, replace(SWAP, name="chat"), FOUND, WRITTEN),
    ),
    "the step took its time": (
        *("ambiguous", replace(OTHERWISE, end=10**8), replace(SWAP, end=10**7), FOUND, WRITTEN),
    ),
    "a stream that is read after the span of its chain": (
        *(ANSWER, replace(root(told=None), deferred=True), FOUND, replace(WRITTEN, end=110)),
    ),
    "a tool answered an agent that is not there": (
        *("partial", ROOT, tool("tool", "app", at=(0, 90)), chain("agent", "tool", at=(0, 80))),
        *(replace(step, parent="agent") for step in (FOUND, WRITTEN)),
    ),
    "an answer used in a query: two turns, or two steps of one": (
        *("ambiguous", ROOT, FOUND, WRITTEN, LATER, write(PAGE, ASKED, at=(80, 90))),
    ),
    "a grade is no answer, so a call is missing": ("partial", ROOT, FOUND, write(PAGE, said="yes")),
    "a grade at length, and then a refusal": ("partial", REFUSED, FOUND, WRITTEN, GRADED),
    "a call before the search wrote no query": (ANSWER, UNASKED, ROUTE, FOUND, WRITTEN),
    "no query": ("no_question", UNASKED, replace(FOUND, input=None), BARE),
    "a hidden query": ("redacted", UNASKED, replace(FOUND, input=None, hidden=INPUT), BARE),
    **{
        f"{part} {how}": (
            reason,
            *(replace(step, **{how: {part}}) for step in (replace(UNASKED, output=None), BLIND)),
            WRITTEN,
        )
        for how, reason in (("hidden", "redacted"), ("cut", "truncated"))
        for part in ("input", "output", "documents")
    },
    "a model searched": (ANSWER, ROOT, HOSTED),
    "a model searched blindly": ("no_contexts", ROOT, replace(HOSTED, documents=None)),
    "a model searched, and the application": ("ambiguous", ROOT, FOUND, HOSTED),
    "the application recorded what a model said": (ANSWER, ADVISED, FOUND, SAID),
    "it recorded also what came out": (TWICE, replace(ADVISED, recorded=OUTPUT), FOUND, SAID),
    "it recorded all that counts": (ANSWER, RECORDED, TWO, WRITTEN, LATER),
    "a text of another step was cut": ("truncated", ROOT, FOUND, replace(WRITTEN, is_cut=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_fits_together(name: str) -> None:
    """A turn is told where everything fits together; else it is refused, with the reason."""
    expected, *steps = CASES[name]
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
            ([ROOT, FOUND, AGAIN, *(write(PAGE, at=(n, n + 1)) for n in range(10, end))], doubt)
            for end, doubt in ((308, None), (309, "ambiguous"))
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
        ([root(), chain("inner", "app", error=ERROR), WRITTEN], "no_retrieval"),
        ([gives(PAGE, ASKED), FOUND], None),
        ([replace(gives(PAGE, ASKED), input_texts=()), FOUND], None),
        ([root(), *parsed("billing")], None),
        ([root(), *parsed(ANSWER)], "no_retrieval"),
        ([root(), *parsed(ANSWER, end=None)], None),
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
        (one, recorded("w", (25, 30)), False),
        (other, recorded("y", (21, 30)), False),
        (one, recorded("z", (9, 20)), True),
        (replace(other, answer="c"), recorded("y", (21, 30)), False),
        (other, recorded("z", (21, 30)), False),  # too many others came since
        *((one, recorded("v", (n, n)), False) for n in range(40, 105)),
        (one, recorded("x", (40, 40)), False),  # too many equal ones
        (one, recorded("x", (42, 42)), True),
    ]
    assert [recent.is_repeated(sample, turn) for sample, turn, _ in told] == [
        is_ for *_, is_ in told
    ]


# --- any trace ------------------------------------------------------------------------------------


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
            assert result.question in {step.input for step in steps}
            assert result.answer in {step.output for step in steps}
            assert result.answer.strip()
        else:
            assert result in get_args(SkipReason)


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

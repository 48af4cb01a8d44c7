"""Steps in a line each: builders for hand-made traces, and arbitrary ones for Hypothesis.

A step's id is its name; its time is a pair of nanoseconds, of which the second may be None.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from hypothesis import strategies as st

from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.sample import Outcome, extract, why_none
from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.step import Kind, Step
from rag_eval_otel.capture.turns import find_turns
from rag_eval_otel.types import Passage, Sample, SkipReason

Time: TypeAlias = "tuple[int, int | None]"


def chain(
    name: str,
    under: str | None = None,
    *,
    at: Time = (0, 100),
    asked: str | None = None,
    told: str | None = None,
    error: str | None = None,
) -> Step:
    return _step("chain", name, under, at=at, input=asked, output=told, error=error)


def tool(name: str, under: str, *, at: Time, told: str | None = None) -> Step:
    return _step("tool", name, under, at=at, output=told)


def retriever(
    name: str,
    under: str | None,
    *,
    at: Time,
    query: str | None = None,
    found: Sequence[str | Passage] | None = (),
) -> Step:
    documents = None if found is None else tuple(map(_passage, found))
    return _step("retriever", name, under, at=at, input=query, documents=documents)


def llm(
    name: str,
    under: str | None,
    *,
    at: Time,
    shown: Sequence[str] = (),
    said: str | None = None,
    error: str | None = None,
) -> Step:
    asked = shown[-1] if shown else None
    return _step(
        "llm", name, under, at=at, input=asked, prompt=tuple(shown), output=said, error=error
    )


def outcomes(*steps: Step) -> list[Sample | SkipReason]:
    return [extract(turn) for turn in find_turns(steps)]


def sample(*steps: Step) -> Sample:
    (found,) = outcomes(*steps)
    assert isinstance(found, Sample)
    return found


def _step(kind: Kind, name: str, under: str | None, *, at: Time, **texts: object) -> Step:
    about: Any = {"id": name, "name": name, "parent": under, "start": at[0], "end": at[1]}
    return Step(kind=kind, **about, **texts)


def _passage(document: str | Passage) -> Passage:
    return Passage(text=document) if isinstance(document, str) else document


_KINDS: Sequence[Kind] = (
    *(("llm", "retriever", "chain") * 4),
    *("tool", "tool", "agent", "embedding", "other"),
)
_WORDS = (
    *("", " ", "no", "q", "a passage", "q: a passage"),
    *("an answer that is long enough", 'a "b"\n'),
)
_TEXTS = st.sampled_from([*_WORDS, None])
_PROMPTS = st.lists(st.sampled_from(_WORDS), max_size=2).map(tuple)
_PASSAGES = st.builds(Passage, text=st.sampled_from(_WORDS), id=st.sampled_from([None, "d1", "d2"]))
_DOCUMENTS = st.lists(_PASSAGES, max_size=2).map(tuple) | st.none()
_ERRORS = st.sampled_from([*[None] * 15, "ValueError"])
_RARELY = st.integers(0, 9).map(lambda number: number == 0)
_DURATIONS = st.sampled_from([1, 5, 20, 100, 100, 1000, 1000, 1000, None])


@st.composite
def forests(draw: st.DrawFn) -> list[Step]:
    """Draw steps with distinct ids and starts: a likely tree, or parents that make no sense."""
    size = draw(st.sampled_from([6, 9, 12, 3, 2, 1, 0]))
    kinds = [draw(st.sampled_from(_KINDS)) for _ in range(size)]
    if not draw(st.integers(0, 3)):
        starts = draw(st.permutations(range(size)))
        parents = st.none() | st.integers(0, size)  # of which the last is missing
        return [draw(_of_kind(k, n, start=starts[n], parents=parents)) for n, k in enumerate(kinds)]
    kinds[:1] = ["chain"]
    kinds[-1:] = ["llm"]
    holders = [[0]] * size
    for number, kind in enumerate(kinds[:-1]):
        inner = number if kind in {"chain", "tool", "agent"} or draw(_RARELY) else 0
        holders[number + 1] = [*holders[number], inner]
    return [
        draw(_of_kind(kind, n, start=n, parents=st.sampled_from(holders[n])))
        for n, kind in enumerate(kinds[:size])
    ]


def _of_kind(
    kind: Kind, number: int, *, start: int, parents: st.SearchStrategy[int | None]
) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        id=st.just(number),
        parent=parents if start or number else st.none(),
        kind=st.just(kind),
        name=st.just(kind),
        start=st.just(start),
        end=_DURATIONS.map(lambda long: None if long is None else start + long),
        input=_TEXTS,
        output=_TEXTS,
        prompt=_PROMPTS if kind == "llm" else st.just(()),
        documents=_DOCUMENTS if kind == "retriever" else st.none(),
        error=_ERRORS,
    )


def outcomes_of_steps(steps: Sequence[Step]) -> list[Outcome]:
    """Return the outcome of each turn of a trace, or the reason why a trace has none."""
    turns = find_turns(steps, loss="possible")
    if turns:
        return [Outcome(result=extract(turn), turn=turn) for turn in turns]
    reason = why_none(steps)
    return [] if reason is None else [Outcome(result=reason)]


def outcomes_of(spans: Iterable[Span], **limit: int) -> list[Outcome]:
    return outcomes_of_steps([read(span, **limit) for span in spans])

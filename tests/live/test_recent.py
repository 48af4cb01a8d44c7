"""One turn, recorded by two: only the first counts."""

from __future__ import annotations

from dataclasses import replace

from pipeline import QUESTION, turn
from rag_eval_otel.capture.sample import RecentTurns
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.types import Passage, Sample

SAMPLE = Sample(question=QUESTION, contexts=(Passage(text="a page"),), answer="In 1987.")


def recorded(by: str, start: int = 0, end: int | None = 100) -> Turn:
    found = turn()
    root = replace(found.path[-1], source=by, start=start, end=end)
    return replace(found, path=(*found.path[:-1], root))


def test_two_users_may_ask_the_same() -> None:
    """Two requests for the same at once, each recorded by both, are two turns."""
    recent = RecentTurns()
    seen = [
        recent.is_repeated(SAMPLE, recorded(by, start, start + 50))
        for by in ("handler", "openinference")
        for start in (0, 10)
    ]
    assert seen == [False, False, True, True]


def test_the_same_at_another_time_is_another_turn() -> None:
    """A question asked again later is another turn, with any instrumentation."""
    recent = RecentTurns()
    assert not recent.is_repeated(SAMPLE, recorded("handler", 0, 100))
    assert not recent.is_repeated(SAMPLE, recorded("openinference", 101, 200))


def test_only_the_last_turns_are_remembered() -> None:
    """Memory is bounded: the oldest are forgotten."""
    recent = RecentTurns(max_turns=2)
    samples = [replace(SAMPLE, answer=f"In {1980 + n}.") for n in range(3)]
    for sample in samples:
        assert not recent.is_repeated(sample, recorded("handler"))
    assert not recent.is_repeated(samples[0], recorded("openinference"))
    assert recent.is_repeated(samples[2], recorded("openinference"))

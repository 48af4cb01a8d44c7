"""Possible orders of the recorded events of one or several applications."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from corpus.retold import Note, Retold
from replay import Call

Event = TypeVar("Event", Note, Call)


@st.composite
def interleaved(draw: st.DrawFn, several: Sequence[Retold]) -> list[Note]:
    """Draw an interleaving of the notes of ``several`` applications, each in its own order."""
    turns = [number for number, one in enumerate(several) for _ in one.notes]
    left = [iter(one.notes) for one in several]
    return [next(left[number]) for number in draw(st.permutations(turns))]


@st.composite
def shuffled(draw: st.DrawFn, events: Sequence[Event]) -> list[Event]:
    """Draw any order of ``events`` in which each end follows its start."""
    order = list(draw(st.permutations(events)))
    places: dict[int, list[int]] = {}
    for place, event in enumerate(order):
        places.setdefault(event.key, []).append(place)
    for own in places.values():
        both = sorted((order[place] for place in own), key=lambda event: event.operation != "start")
        for place, event in zip(own, both, strict=True):
            order[place] = event
    return order

"""Possible orders of the recorded notes of several applications."""

from collections.abc import Sequence

from hypothesis import strategies as st

from corpus.retold import Note, Retold


@st.composite
def interleaved(draw: st.DrawFn, several: Sequence[Retold]) -> list[Note]:
    """Draw an interleaving of the notes of ``several`` applications, each in its own order."""
    turns = [number for number, one in enumerate(several) for _ in one.notes]
    left = [iter(one.notes) for one in several]
    return [next(left[number]) for number in draw(st.permutations(turns))]


@st.composite
def shuffled(draw: st.DrawFn, several: Sequence[Retold]) -> list[Note]:
    """Draw any order of the notes of ``several`` in which each end follows its start."""
    order = list(draw(st.permutations([note for one in several for note in one.notes])))
    places: dict[int, list[int]] = {}
    for place, note in enumerate(order):
        places.setdefault(note.key, []).append(place)
    for own in places.values():
        both = sorted((order[place] for place in own), key=lambda note: note.operation != "start")
        for place, note in zip(own, both, strict=True):
            order[place] = note
    return order

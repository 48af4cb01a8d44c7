"""Whatever the order in which spans end: each leaves once, and only those of a turn wait."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import Span

from live import App, answered, attached, generated, retrieved
from properties import examples

KINDS = ("CHAIN", "AGENT", "LLM", "RETRIEVER", "TOOL", "plain")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Spans in the order of their starts: what each is, below which it is, and who ends when."""

    kinds: list[str]
    parents: list[int | None]
    ends: list[int]

    def below(self, number: int) -> set[int]:
        own = {n for n, parent in enumerate(self.parents) if parent == number}
        return own.union(*map(self.below, own))

    def has(self, number: int, *kinds: str) -> bool:
        """Tell whether a span of these kinds is below a span."""
        return any(self.kinds[n] in kinds for n in self.below(number))

    def may_wait(self, number: int) -> bool:
        """Tell whether a retrieval, or a tool, which may be one, is below a span.

        A model's call, or a span around one, may also wait for a retrieval beside it.
        """
        calls = self.kinds[number] == "LLM" or self.has(number, "LLM")
        above, root = number, self.parents[number]
        while root is not None and calls:
            above, root = root, self.parents[root]
        return self.has(above, "RETRIEVER", "TOOL")


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    count = draw(st.integers(1, 9))
    return Shape(
        kinds=[draw(st.sampled_from(KINDS)) for _ in range(count)],
        parents=[draw(st.none() | st.integers(0, n - 1)) if n else None for n in range(count)],
        ends=draw(st.permutations(range(count))),
    )


def start(app: App, shape: Shape) -> list[Span]:
    attributes: dict[str, dict[str, Any]] = {
        "CHAIN": answered(1),
        "AGENT": answered(1),
        "RETRIEVER": retrieved(1),
        "LLM": generated(1),
        "TOOL": {},
    }
    spans: list[Span] = []
    for kind, parent in zip(shape.kinds, shape.parents, strict=True):
        above = None if parent is None else spans[parent]
        is_plain = kind == "plain"
        spans.append(
            app.plain("step", above) if is_plain else app.step(kind, above, **attributes[kind])
        )
    return spans


def left(app: App) -> Counter[int]:
    return Counter(span.context.span_id for span in app.exported())


@pytest.mark.slow
@examples(100)
@given(shapes(), st.integers(0, 9))
def test_every_span_leaves_once_and_only_those_of_a_turn_wait(shape: Shape, swept: int) -> None:
    """What has no part in a turn leaves as it ends; nothing is lost, nothing doubled."""
    with attached() as app:
        spans = start(app, shape)
        for count, number in enumerate(shape.ends):
            spans[number].end()
            if not shape.may_wait(number):
                assert left(app)[spans[number].get_span_context().span_id] == 1
            if count == swept:
                app.pipeline.sweep()
        app.handle.flush()
        app.handle.shutdown()
        assert left(app) == {span.get_span_context().span_id: 1 for span in spans}
        assert all(count == 1 for count in app.scored_spans().values())
        assert app.statuses().keys() <= {None, "scored", "skipped"}

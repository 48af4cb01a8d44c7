"""`Explanations`: why the last turns were skipped, and what would help, for `Handle.explain`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from importlib.resources import files
from itertools import islice

from rag_eval_otel.capture.step import RETRIEVALS, Step
from rag_eval_otel.log import log
from rag_eval_otel.types import SkipReason

_MOST_TRACES, _MOST_TURNS, _MOST_STEPS = 1000, 20, 10  # that are kept, and named in a text


class Explanations:
    """Keeps a text for each skipped turn of the last traces. It quotes no text of a user."""

    def __init__(self) -> None:
        self._texts: OrderedDict[Hashable, tuple[str, ...]] = OrderedDict()

    def add(
        self,
        trace: Hashable,
        reason: SkipReason,
        *,
        name: str,
        steps: Iterable[Step] = (),
        rule: str = "",
    ) -> None:
        why, fix = _cause(reason)
        gaps = "; ".join(islice(filter(None, map(_gaps, steps)), _MOST_STEPS))
        parts = [f"{name!r} is skipped, {reason}: {why}"]
        parts += [f"Missing: {gaps}."] if gaps else []
        parts += [f"Do: {fix}", *([f"({rule})"] if rule else [])]
        text = " ".join(parts)
        log.debug("%s", text)
        self._texts[trace] = (*self._texts.get(trace, ()), text)[-_MOST_TURNS:]
        while len(self._texts) > _MOST_TRACES:
            self._texts.popitem(last=False)

    def rename(self, trace: Hashable, trace_id: int) -> None:
        """Give the texts of ``trace`` the id of its spans, which were started after it was read."""
        if trace in self._texts:
            self._texts[trace_id] = self._texts.pop(trace)

    def of(self, trace: Hashable) -> str | None:
        return "\n".join(self._texts.get(trace, ())) or None


@cache
def _cause(reason: SkipReason) -> tuple[str, str]:
    """Return why turns are skipped for ``reason``, and what to do."""
    causes = (files("rag_eval_otel") / "causes.md").read_text(encoding="utf-8")
    entry = causes.partition(f"- `turns-{reason.replace('_', '-')}` (")[2]
    why, _, fix = entry.partition("): ")[2].partition("\n  *Do:* ")
    return why, fix.partition("\n")[0]


def _gaps(step: Step) -> str:
    gaps = ", ".join(_parts(step))
    number = f" ({step.id:016x})" if isinstance(step.id, int) else ""
    return f"{gaps} of the {step.kind} {step.name!r}{number}" if gaps else ""


def _parts(step: Step) -> Iterator[str]:
    yield from (f"{part} (redacted)" for part in sorted(step.hidden))
    yield from (f"{part} (cut)" for part in sorted(step.cut))
    if step.kind in RETRIEVALS and step.lacks_texts:
        yield "texts of documents"
    if step.kind in {"llm", "chain", "agent", *RETRIEVALS} and not step.input:
        yield "input"
    if step.kind in {"llm", "chain", "agent"} and not step.output:
        yield "output"
    if step.error is not None:
        yield "success"

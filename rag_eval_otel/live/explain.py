"""`Explanations`: why the last turns were skipped, and what would help, for `Handle.explain`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from functools import cache
from importlib.resources import files

from rag_eval_otel.capture.step import RETRIEVALS, Step
from rag_eval_otel.log import log
from rag_eval_otel.types import SkipReason

_MOST_TRACES, _MOST_TURNS, _MOST_STEPS = 1000, 20, 10  # that are kept, and named in a text
_LENGTH = 200  # characters of a name
_WITH_INPUT = frozenset({"llm", "chain", "agent", *RETRIEVALS})


class Explanations(OrderedDict[Hashable, tuple[str, ...]]):
    """A text for each skipped turn of the last traces. It quotes no text of a user."""

    def add(
        self, trace: Hashable, reason: SkipReason, name: str, steps: Iterable[Step], rule: str = ""
    ) -> None:
        why, fix = _cause(reason)
        gaps = "; ".join([*filter(None, map(_gaps, steps))][:_MOST_STEPS])
        missing, place = (gaps and f"Missing: {gaps}. "), (rule and f" ({rule})")
        text = f"{name[:_LENGTH]!r} is skipped, {reason}: {why} {missing}Do: {fix}{place}"
        log.debug("%s", text)
        self.keep(trace, (text,))

    def keep(self, trace: Hashable, texts: tuple[str, ...]) -> None:
        """Add ``texts`` to those of ``trace``, and forget the oldest."""
        self[trace] = (*self.get(trace, ()), *texts)[-_MOST_TURNS:]
        while len(self) > _MOST_TRACES:
            self.popitem(last=False)


@cache
def _cause(reason: SkipReason) -> tuple[str, str]:
    """Return why turns are skipped for ``reason``, and what to do."""
    causes = (files("rag_eval_otel") / "causes.md").read_text(encoding="utf-8")
    entry = causes.partition(f"- `turns-{reason.replace('_', '-')}` (")[2]
    why, _, fix = entry.partition("): ")[2].partition("\n  *Do:* ")
    return why, fix.partition("\n")[0]


def _gaps(step: Step) -> str:
    gaps = [*(f"{p} (redacted)" for p in step.hidden), *(f"{p} (cut)" for p in step.cut)]
    absent = {
        "texts of documents": step.kind in RETRIEVALS and step.lacks_texts,
        "input": step.kind in _WITH_INPUT and not (step.input or step.hidden),
        "output": step.kind in _WITH_INPUT - RETRIEVALS and not (step.output or step.hidden),
        "success": step.error is not None,
    }
    gaps += [name for name, is_absent in absent.items() if is_absent]
    number = f" ({step.id:016x})" if isinstance(step.id, int) else ""
    return f"{', '.join(gaps)} of the {step.kind} {step.name[:_LENGTH]!r}{number}" if gaps else ""

"""`Explanations`: why the last turns were skipped, and what would help, for `Handle.explain`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from importlib.resources import files

from rag_eval_otel.capture.step import RETRIEVALS, Step
from rag_eval_otel.log import log
from rag_eval_otel.types import SkipReason

_MOST_TRACES, _MOST_TURNS, _MOST_STEPS = 1000, 20, 10  # that are kept, and named in a text
_LENGTH = 200  # characters of a name


class Explanations(OrderedDict[Hashable, tuple[str, ...]]):
    """Texts on the skipped turns of the last 1,000 traces, by trace id, without texts of users."""

    def add(
        self, trace: Hashable, reason: SkipReason, name: str, steps: Iterable[Step], rule: str = ""
    ) -> None:
        why, fix = _cause(reason)
        gaps = "; ".join([*filter(None, (_gaps(step, reason) for step in steps))][:_MOST_STEPS])
        missing, place = (gaps and f"Missing: {gaps}. "), (rule and f" ({rule})")
        text = f"{name[:_LENGTH]!r} is skipped, {reason}: {why} {missing}Do: {fix}{place}"
        log.debug("%s", text)
        self.keep(trace, (text,))

    def keep(self, trace: Hashable, texts: tuple[str, ...]) -> None:
        """Add ``texts`` to those of ``trace``; drop the oldest texts and traces over the limits."""
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


def _gaps(step: Step, reason: SkipReason) -> str:
    gaps = [*(f"{p} (redacted)" for p in step.hidden), *(f"{p} (cut)" for p in step.cut)]
    is_asked = step.kind in {"llm", "chain", "agent"}
    absent: Mapping[str, tuple[str, bool]] = {
        "error": ("success", step.error is not None),
        "no_answer": ("output", is_asked and not (step.output or step.output_texts)),
        "no_contexts": ("texts of documents", step.kind in RETRIEVALS and step.lacks_texts),
        "no_question": ("input", is_asked and not (step.input or step.input_texts)),
    }
    name, is_absent = absent.get(reason, ("", False))
    gaps += [name] if is_absent and not step.hidden else []
    number = f" ({step.id:016x})" if isinstance(step.id, int) else ""
    return f"{', '.join(gaps)} of the {step.kind} {step.name[:_LENGTH]!r}{number}" if gaps else ""

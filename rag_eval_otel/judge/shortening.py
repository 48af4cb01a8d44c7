"""Shorten texts that are too long: for the budget of one turn, or for the model of a judge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Sample

# --- one turn -------------------------------------------------------------------------------------

_LONG_TURN = 4  # times as long as the longest text
_SEARCHED = 2000  # characters before the limit in which the end of a sentence is searched
_END = re.compile(
    "(?<=[.!?\u2026])[\"'\u201d\u2019\xbb)\\]*]*(?=\\s)"
    "|(?<=[\u0964\u061f\u06d4\u3002\uff01\uff1f])|(?=\n)"
)


class CutText(str):
    """The beginning of a text; a prompt says that the rest, ``lost`` characters, was cut.

    The note is not in the text, because an answer would contain one claim more.
    """

    __slots__ = ("lost",)
    lost: int

    @property
    def note(self) -> str:
        """The note for the reader of a prompt, on a line of its own."""
        return f"\n[... {self.lost:,} characters cut]"


def clipped(sample: Sample, most: int | None) -> tuple[Sample, dict[str, int]]:
    """Return ``sample`` with shorter texts, and the numbers of characters cut, by field.

    A text has at most ``most`` characters, and all texts together four times as many; None means no
    limit. Texts are cut at the end of a sentence if there is one near the limit, and become a
    `CutText`. The contexts are cut last to first.
    """
    if most is None:
        return sample, {}
    cut: dict[str, int] = {}
    left = most * _LONG_TURN

    def shorter(name: str, text: str) -> str:
        nonlocal left
        kept = text[: _end(text, min(most, left))]
        left -= len(kept)
        lost = len(text) - len(kept)
        if not lost:
            return text
        cut[name] = cut.get(name, 0) + lost
        found = CutText(kept)
        found.lost = lost
        return found if kept else ""

    texts = {name: shorter(name, getattr(sample, name)) for name in ("question", "answer")}
    reference = None if sample.reference is None else shorter("reference", sample.reference)
    contexts = [replace(one, text=shorter("contexts", one.text)) for one in sample.contexts]
    if not cut:
        return sample, {}
    return replace(sample, **texts, reference=reference, contexts=tuple(contexts)), cut  # type: ignore[arg-type]


def _end(text: str, most: int) -> int:
    """Return the last end of a sentence, of a line or of a word in ``text``, up to ``most``."""
    if len(text) <= most:
        return len(text)
    start = max(most // 2, most - _SEARCHED)
    ends = [match.end() for match in _END.finditer(text, start, most + 1) if match.end() <= most]
    return max(ends, default=0) or max(0, text.rfind(" ", start, most)) or most


# --- one request ----------------------------------------------------------------------------------

_LEFT_OUT = "(context {} is left out, because the texts are too long for the model)"
_HALF = "{}\n(the rest of context {} is left out, because the texts are too long for the model)"


def with_fewer_contexts(tasks: Sequence[Task[Any]]) -> list[Task[Any]]:
    """Return ``tasks``, which share a request, with less text of their contexts.

    Notes replace the later half of the contexts, which keep their numbers. If a task is about a
    single context, each context keeps its first half instead, so that no task is about a note. Each
    text is shortened in the same way in all tasks, and only if that makes it shorter.
    """
    shown = [dict(task.inputs) for task in tasks]
    single = [str(inputs["context"]) for inputs in shown if "context" in inputs]
    listed = (text for inputs in shown for text in inputs.get("contexts", ()))
    shorter = _shorter(list(dict.fromkeys([*listed, *single])), by_half=single)
    return [_replaced(task, shorter) for task in tasks]


def _shorter(texts: Sequence[str], *, by_half: Iterable[str]) -> Mapping[str, str]:
    """Return a shorter text for those of ``texts``, the contexts in their order, that need one."""
    if any(by_half) or len(texts) == 1:
        found = {
            text: _HALF.format(text[: len(text) // 2], i) for i, text in enumerate(texts, start=1)
        }
    else:
        kept = len(texts) // 2
        found = {text: _LEFT_OUT.format(i) for i, text in enumerate(texts, start=1) if i > kept}
    return {text: short for text, short in found.items() if len(short) < len(text)}


def _replaced(task: Task[Any], shorter: Mapping[str, str]) -> Task[Any]:
    def short(name: str, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if name not in {"context", "contexts"}:
            return value
        if isinstance(value, str):
            return shorter.get(value, value)
        return tuple(shorter.get(text, text) for text in value)

    return replace(task, inputs=tuple((name, short(name, value)) for name, value in task.inputs))

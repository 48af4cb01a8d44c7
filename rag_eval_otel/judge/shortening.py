"""Shorten texts that are too long: for the budget of one turn, or for the model of a judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rag_eval_otel.judge.tasks import Task

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

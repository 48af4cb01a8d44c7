"""Traces of agent frameworks beside their own instrumentation, and what each truly holds.

The traces tell the order in which spans left, and no times: a parent is taken to last from its
first child to its last.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rag_eval_otel.capture.span import Span
from replay import Call, Recording, Truth, as_started

FOLDER = Path(__file__).parents[2] / "shared" / "framework_traces"
PATHS = sorted(FOLDER.glob("*.json"))
_TRUTH = Path(__file__).parent / "capture" / "framework_truth.json"
_STEP = 20_000_000  # ns between the ends of two spans
_DEPTH = 1_000  # ns by which a parent starts before its first child
_BEGIN = 1_700_000_000 * 10**9


@cache
def _table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(_TRUTH.read_text(encoding="utf-8"))
    return found


def is_on_spans(path: Path) -> bool:
    return bool(_table()["traces"][path.name]["on_spans"])


def stated(path: Path) -> tuple[Truth, ...]:
    """Return the two samples that the trace at ``path`` truly holds."""
    own = _table()["traces"][path.name]
    return tuple(
        Truth(
            question=own.get("question_after", "") + turn["question"],
            contexts=tuple(turn["contexts"]),
            answer=turn["answer"] + own.get("answer_before", ""),
        )
        for turn in _table()["turns"]
    )


def load(path: Path) -> Recording:
    """Read the trace at ``path`` as if each span had been recorded as it started and ended."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    times = _times(raw)
    spans = [_span(one, times[one["id"]]) for one in raw]
    calls = [Call(operation="start", span=as_started(one, {}), at=one.start) for one in spans]
    calls += [Call(operation="end", span=one, at=one.end or 0) for one in spans]
    return Recording(
        path=path,
        instrumentation=path.stem,
        app=path.stem,
        calls=tuple(sorted(calls, key=lambda call: (call.at, call.operation == "start"))),
        truths=stated(path),
        spans=tuple(spans),
    )


def _times(raw: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return when each span started and ended, by its id: what is below it is within it."""
    below: dict[str, list[str]] = defaultdict(list)
    for one in raw:
        below[one["parent"]].append(one["id"])
    times: dict[str, tuple[int, int]] = {}

    def within(name: str, at: int) -> tuple[int, int]:
        inner = [times[child] for child in below[name]]
        if not inner:
            return at - _STEP // 2, at
        return min(start for start, _ in inner) - _DEPTH, max(end for _, end in inner) + _DEPTH

    places = {one["id"]: _BEGIN + number * _STEP for number, one in enumerate(raw, 1)}
    left = list(places)
    while left:
        ready = [name for name in left if all(child in times for child in below[name])]
        times |= {name: within(name, places[name]) for name in ready}
        left = [name for name in left if name not in times]
    return times


def _span(raw: Mapping[str, Any], times: tuple[int, int]) -> Span:
    start, end = times
    ours = "rag.evaluation."
    return Span(
        name=raw["name"],
        scope=raw["scope"],
        trace_id=int(raw["trace"], 16),
        span_id=int(raw["id"], 16),
        parent_id=int(raw["parent"], 16) if raw["parent"] else None,
        start=start,
        end=end,
        error="error" if raw["status"] == "ERROR" else None,
        attributes={k: v for k, v in raw["attributes"].items() if not k.startswith(ours)},
        events=[(one["name"], one.get("attributes") or {}) for one in raw["events"]],
    )

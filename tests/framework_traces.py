"""Traces of agent frameworks beside their own instrumentation, and what each truly holds.

``python tests/framework_traces.py`` prints for each trace what is found in it. The traces tell the
order in which spans left, and no times: a parent is taken to last from its first child to its last.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rag_eval_otel.capture.sample import Outcome
from rag_eval_otel.capture.span import Span
from rag_eval_otel.types import Sample
from replay import Call, Recording, Truth, replay
from verdicts import unmatched, verdict

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
    begun = [replace(one, attributes={}, end=None, error=None, events=()) for one in spans]
    calls = [Call(operation="start", span=one, at=one.start) for one in begun]
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
        parent_is_remote=False,
        start=start,
        end=end,
        error="error" if raw["status"] == "ERROR" else None,
        dropped=0,
        value_limit=None,
        attributes={k: v for k, v in raw["attributes"].items() if not k.startswith(ours)},
        events=[(one["name"], one.get("attributes") or {}) for one in raw["events"]],
    )


def _found(outcome: Outcome) -> str:
    result = outcome.result
    if not isinstance(result, Sample):
        return f"    {result}"
    return f"    {result.question!r} {[p.text for p in result.contexts]} {result.answer!r}"


def main(names: Sequence[str]) -> None:
    """Print a verdict for each trace, and the sum of them; what was found where it is not exact."""
    verdicts: Counter[tuple[bool, str]] = Counter()
    for path in PATHS:
        if names and not any(name in path.name for name in names):
            continue
        recording = load(path)
        found = replay(recording.calls)
        says = verdict(recording, found)
        if says == "wrong":
            samples = [one.result for one in found if isinstance(one.result, Sample)]
            says = f"wrong {len(unmatched(recording.truths or (), samples))}"
        on_spans = is_on_spans(path)
        verdicts[on_spans, says.split()[0]] += 1
        sys.stdout.write(f"{says:12} {'' if on_spans else '(not on spans) '}{path.stem}\n")
        if says != "exact" or names:
            sys.stdout.write("".join(f"{_found(one)}\n" for one in found))
    for (on_spans, says), number in sorted(verdicts.items()):
        sys.stdout.write(f"{'on the spans' if on_spans else 'not on them'}: {says} {number}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

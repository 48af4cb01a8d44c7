"""False alarms and delays of our drift detector on seven kinds of score streams.

Each run has a reference of 2,000 scores, followed by 10,000 scores of the same kind (false alarms)
or by 300 scores and a fall of the mean by .10 (delay, in scores; 20,000 if it was not found).

``python benchmarks/drift.py [runs] [kind ...]`` reads the streams from the folder
``../shared/drift`` beside the project. RAGDRIFT_SEED_OFFSET changes their seeds.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from _common import setting

from rag_eval_otel.drift import BettingDetector

SHARED = Path(__file__).resolve().parents[2] / "shared" / "drift"
LEARN, BEFORE, AFTER, CALM = 2000, 300, 20_000, 10_000
EVERY = 100_000
MUST_REACH = {
    "rating3": 312,
    "rating5": 257,
    "relevancy": 74,
    "faith": 148,
    "pass": 352,
    "diurnal": 1162,
    "sticky": 2692,
}
"""The target for the mean delay. At most .05 of the runs may alarm falsely in 10,000 scores."""
UPDATE_US, DETECTOR_KB = 10, 3


def streams() -> Any:
    """Import and return the module that generates the streams."""
    sys.path.insert(0, str(SHARED))
    import streams as module  # noqa: PLC0415

    return module


# --- figures --------------------------------------------------------------------------------------


def first_alarm(scores: Sequence[float]) -> int | None:
    """Return the index of the first alarm after the scores of which the baseline is learned."""
    detector = BettingDetector(learn=LEARN, every=EVERY)
    return next((i - LEARN for i, score in enumerate(scores) if detector.update(score)), None)


def _stream(kind: str, change: str, post: int, seed: int) -> list[float]:
    scores: list[float] = streams().gen(kind, change, LEARN + BEFORE, post, seed).tolist()
    return scores


def measured(kind: str, runs: int) -> tuple[float, list[int]]:
    """Return the share of runs with a false alarm, and the delays of the others after a fall."""
    alarms, delays = 0, []
    for seed in range(runs):
        alarms += first_alarm(_stream(kind, "none", CALM - BEFORE, seed)) is not None
        index = first_alarm(_stream(kind, "drop10", AFTER, 5000 + seed))
        if index is None or index >= BEFORE:
            delays.append(AFTER if index is None else index + 1 - BEFORE)
    return alarms / runs, delays


def of_kind(kind: str, runs: int) -> str:
    """Return the table's line for one kind of stream."""
    alarms, delays = measured(kind, runs)
    mean, error = fmean(delays), stdev(delays) / len(delays) ** 0.5
    missed = sum(delay == AFTER for delay in delays)
    limit = MUST_REACH[kind]
    return (
        f"  {kind:10} {alarms:.2f}  {mean:7.0f} ± {error:<5.0f} missed {missed}"
        f"   must reach {limit}: {'yes' if mean <= limit else 'NO'};"
        f" .05: {'yes' if alarms <= 0.05 else 'NO'}"
    )


def of_intervals(kind: str, runs: int) -> str:
    """Return the coverage of an alarm's interval and the median error of its onset, as text."""
    held, found, off = 0, 0, []
    for change in ("drop05", "drop10", "drop20"):
        for seed in range(runs):
            scores = _stream(kind, change, 4000, 7000 + seed)
            before, after = scores[: LEARN + BEFORE], scores[LEARN + BEFORE :]
            detector = BettingDetector(learn=LEARN, every=EVERY)
            index = next((i for i, score in enumerate(scores) if detector.update(score)), 0)
            if index >= LEARN + BEFORE and detector.alarm is not None:
                low, high = detector.alarm.interval
                held += low <= fmean(after) - fmean(before) <= high
                found += 1
                off.append(abs(detector.alarm.onset - LEARN - BEFORE))
    return (
        f"  {kind:10} interval holds the change in {held / found:.2f} of {found} alarms;"
        f" onset off by {median(off):.0f} (median)"
    )


def cost() -> Iterator[str]:
    """Yield the cost of 1,000 detectors: time per update, updates a second, memory of each."""
    scores = streams().gen("rating3", "none", LEARN + 300, 0, 1).tolist()
    BettingDetector(reference=scores[:LEARN])  # fills the caches that all detectors share
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    few = [BettingDetector(reference=scores[:LEARN]) for _ in range(200)]
    for detector in few:
        for score in scores[LEARN:]:
            detector.update(score)
    size = (tracemalloc.get_traced_memory()[0] - before) / len(few) / 1000
    tracemalloc.stop()
    state = few[0].to_state()
    many = [BettingDetector() for _ in range(1000)]
    for detector in many:
        detector.restore(state)
    rounds = scores[LEARN : LEARN + 100]
    began = time.process_time()
    for score in rounds:
        for detector in many:
            detector.update(score)
    spent = (time.process_time() - began) / len(rounds) / len(many)
    yield f"  an update: {spent * 1e6:.1f} µs CPU (must reach {UPDATE_US}); {1 / spent:,.0f}/s"
    yield f"  a detector: {size:.2f} kB (must reach {DETECTOR_KB})"


def main(arguments: Sequence[str]) -> int:
    """Print all tables."""
    if not (SHARED / "streams.py").exists():
        print(f"skipped: the streams are missing ({SHARED})")
        return 0
    runs = int(arguments[0]) if arguments else 100
    kinds = arguments[1:] or list(MUST_REACH)
    print(setting("numpy"))
    print(f"{runs} runs; share of runs with a false alarm in {CALM}; mean delay of a fall by .10")
    with ProcessPoolExecutor() as pool:
        for line in pool.map(of_kind, kinds, [runs] * len(kinds)):
            print(line, flush=True)
        print("alarms after falls by .05, .10 and .20")
        for line in pool.map(of_intervals, kinds, [max(1, runs // 2)] * len(kinds)):
            print(line, flush=True)
    print("1,000 detectors on one core")
    print("\n".join(cost()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

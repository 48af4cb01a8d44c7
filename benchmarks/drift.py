"""False alarms and delays of our drift detector and river's on seven kinds of score streams.

Each run has a reference of 2,000 scores, followed by 10,000 scores of the same kind (false alarms)
or by 300 scores and a fall of the mean by .10 (delay, in scores; 20,000 if it was not found).

``python benchmarks/drift.py [runs] [kind ...]`` reads the streams from the folder
``../shared/drift`` beside the project. RAGDRIFT_SEED_OFFSET changes their seeds.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

from _common import setting

from rag_eval_otel.drift import BettingDetector, EmbeddingDrift

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
STRATIFIED = 150
SLOW = 3  # runs of a detector that takes 300 microseconds an update
UPDATE_US, DETECTOR_KB = 10, 3

Detect = Callable[[Sequence[float], Sequence[str] | None], "int | None"]
"""Takes a stream that begins with LEARN reference scores; returns the index of the first alarm."""


def streams() -> Any:
    """Import and return the module that generates the streams."""
    sys.path.insert(0, str(SHARED))
    import streams as found  # noqa: PLC0415

    return found


# --- detectors ------------------------------------------------------------------------------------


def ours(scores: Sequence[float], strata: Sequence[str] | None = None) -> int | None:
    """Run our detector with a baseline learned from the first scores."""
    detector = BettingDetector(learn=LEARN, every=EVERY)
    names: Sequence[str | None] = strata or [None] * len(scores)
    for at, (score, name) in enumerate(zip(scores, names, strict=True)):
        if detector.update(score, stratum=name):
            return at - LEARN
    return None


def with_targets(targets: dict[str, float], every: float) -> Detect:
    """Return our detector with a given mean for each stratum."""

    def detect(scores: Sequence[float], strata: Sequence[str] | None = None) -> int | None:
        detector = BettingDetector(target=targets, every=every)
        found = zip(scores[LEARN:], (strata or [])[LEARN:], strict=True)
        return next((i for i, (s, n) in enumerate(found) if detector.update(s, stratum=n)), None)

    return detect


def rivers(name: str) -> Detect:
    """Return a detector of river with its defaults, updated with the reference first."""
    from river import drift  # noqa: PLC0415

    def detect(scores: Sequence[float], strata: Sequence[str] | None = None) -> int | None:  # noqa: ARG001
        detector = getattr(drift, name)(**({"seed": 0} if name == "KSWIN" else {}))
        for at, score in enumerate(scores):
            detector.update(score)
            if detector.drift_detected and at >= LEARN:
                return at - LEARN
        return None

    return detect


# --- strata ---------------------------------------------------------------------------------------


def strata_of(kind: str, change: str, *, post: int, seed: int) -> list[str]:
    """Return the hour or topic of every score that `streams.gen` generates with this seed."""
    import numpy as np  # noqa: PLC0415

    module = streams()
    places = [module.OFF + seed, module.KINDS.index(kind), module.CHANGES.index(change)]
    rng = np.random.default_rng(np.random.SeedSequence(places))
    phase = int(rng.integers(0, 2000))
    if kind == "diurnal":
        return [str((phase + i) % 2000 // 84) for i in range(LEARN + BEFORE + post)]
    return [str(z) for n in (LEARN + BEFORE, post) for z in _topics(rng, n)]


def _topics(rng: Any, count: int) -> list[int]:
    """Draw topics in the stream's order; the scores of each topic are drawn after the topics."""
    import numpy as np  # noqa: PLC0415

    switches, steps = rng.random(count) < 1 / 50, rng.integers(0, 2, count)
    topics = (rng.integers(3) + np.cumsum(np.where(switches, 1 + steps, 0))) % 3
    for topic in range(3):
        rng.random(int((topics == topic).sum()))
    return [int(topic) for topic in topics]


def true_means(kind: str) -> dict[str, float]:
    """Return the true mean of every stratum of ``kind``."""
    import math  # noqa: PLC0415

    if kind == "sticky":
        return {"0": 0.9, "1": 0.8, "2": 0.65}
    hours = [[h for h in range(2000) if h // 84 == k] for k in range(24)]
    waves = [fmean(math.sin(2 * math.pi * h / 2000) for h in hour) for hour in hours]
    return {str(k): 0.8 + 0.06 * wave for k, wave in enumerate(waves)}


# --- figures --------------------------------------------------------------------------------------


def _stream(
    kind: str, change: str, post: int, seed: int, strata: Literal["given", "unknown"]
) -> tuple[list[float], list[str] | None]:
    scores = streams().gen(kind, change, LEARN + BEFORE, post, seed).tolist()
    return scores, strata_of(kind, change, post=post, seed=seed) if strata == "given" else None


def measured(
    kind: str, detect: Detect, runs: int, strata: Literal["given", "unknown"] = "unknown"
) -> tuple[float, list[int]]:
    """Return the share of runs with a false alarm, and the delays of the others after a fall."""
    alarms, delays = 0, []
    for seed in range(runs):
        alarms += detect(*_stream(kind, "none", CALM - BEFORE, seed, strata)) is not None
        found = detect(*_stream(kind, "drop10", AFTER, 5000 + seed, strata))
        if found is None or found >= BEFORE:
            delays.append(AFTER if found is None else found + 1 - BEFORE)
    return alarms / runs, delays


def row(name: str, alarms: float | None, delays: Sequence[int], limit: float | None = None) -> str:
    """Return a line of the table; with ``limit``, the line says if the target is met."""
    mean, error = fmean(delays), stdev(delays) / len(delays) ** 0.5
    missed = sum(delay == AFTER for delay in delays)
    said = "" if limit is None else f"   must reach {limit}: {'yes' if mean <= limit else 'NO'}"
    if limit is not None and alarms is not None:
        said += f"; .05: {'yes' if alarms <= 0.05 else 'NO'}"
    shown = "    " if alarms is None else f"{alarms:.2f}"
    return f"  {name:28} {shown}  {mean:7.0f} ± {error:<5.0f} missed {missed}{said}"


def of_kind(kind: str, runs: int) -> list[str]:
    """Return the table's lines for one kind of stream."""
    lines = [kind, row("ours", *measured(kind, ours, runs), MUST_REACH[kind])]
    if kind in {"diurnal", "sticky"}:
        _, delays = measured(kind, with_targets(true_means(kind), 1e4), runs, "given")
        lines.append(row("ours, strata given, A=1e4", None, delays, STRATIFIED))
        _, delays = measured(kind, with_targets(true_means(kind), EVERY), runs, "given")
        lines.append(row("ours, strata given, A=1e5", None, delays))
        lines.append(row("ours, strata learned, A=1e5", *measured(kind, ours, runs, "given")))
    if find_spec("river"):
        for name in ("ADWIN", "PageHinkley", "KSWIN"):
            fewer = min(runs, SLOW) if name == "KSWIN" else runs
            lines.append(row(f"river {name}", *measured(kind, rivers(name), fewer)))
    return lines


def of_intervals(kind: str, runs: int) -> str:
    """Return the coverage of an alarm's interval and the median error of its onset, as text."""
    held, found, off = 0, 0, []
    for change in ("drop05", "drop10", "drop20"):
        for seed in range(runs):
            scores, _ = _stream(kind, change, 4000, 7000 + seed, "unknown")
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


# --- questions ------------------------------------------------------------------------------------

WINDOW, QUESTIONS = 1000, 4000
MIXES = {
    "the same": (0.5, 0.3, 0.2, 0.0),
    "a new topic of 10 %": (0.45, 0.27, 0.18, 0.1),
    "15 % from one topic to another": (0.35, 0.45, 0.2, 0.0),
}


def embeddings(count: int, mix: Sequence[float], rng: Any) -> Any:
    """Return questions of four topics in 256 dimensions, with cosine .6 within a topic."""
    import numpy as np  # noqa: PLC0415

    topics = np.eye(256)[rng.choice(len(mix), size=count, p=mix)]
    return topics + rng.normal(scale=0.05, size=(count, 256))


def of_questions(mix: str, runs: int) -> str:
    """Return the share of runs with an alarm on changed questions, and the median delay."""
    import numpy as np  # noqa: PLC0415

    found = []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        detector = EmbeddingDrift(window=WINDOW, every=EVERY)
        for row in embeddings(WINDOW, MIXES["the same"], rng):
            detector.update(row)
        rows = embeddings(QUESTIONS, MIXES[mix], rng)
        found.append(next((at + 1 for at, row in enumerate(rows) if detector.update(row)), None))
    delays = [QUESTIONS if delay is None else delay for delay in found]
    share = sum(delay is not None for delay in found) / runs
    return f"  {mix:32} found in {share:.2f} of the runs, median delay {median(delays):.0f}"


def cost_of_questions() -> str:
    """Return what an update takes with embeddings of a usual length."""
    import numpy as np  # noqa: PLC0415

    rows = np.random.default_rng(0).normal(size=(1500, 1536))
    detector = EmbeddingDrift()
    for row in rows[:1000]:
        detector.update(row)
    began = time.process_time()
    for row in rows[1000:]:
        detector.update(row)
    return f"  an update of 1,536 numbers: {(time.process_time() - began) / 500 * 1e6:.0f} µs CPU"


def main(arguments: Sequence[str]) -> int:
    """Print all tables."""
    if not (SHARED / "streams.py").exists():
        print(f"skipped: the streams are missing ({SHARED})")
        return 0
    runs = int(arguments[0]) if arguments else 100
    kinds = arguments[1:] or list(MUST_REACH)
    print(setting("numpy", "river" if find_spec("river") else "numpy"))
    print(f"{runs} runs; share of runs with a false alarm in {CALM}; mean delay of a fall by .10")
    if not find_spec("river"):
        print("river is not installed: only our detector is measured (pip install river)")
    with ProcessPoolExecutor() as pool:
        for lines in pool.map(of_kind, kinds, [runs] * len(kinds)):
            print("\n".join(lines), flush=True)
        print("alarms after falls by .05, .10 and .20")
        for line in pool.map(of_intervals, kinds, [max(1, runs // 2)] * len(kinds)):
            print(line, flush=True)
        print(f"questions, a window of {WINDOW}, {QUESTIONS} more")
        for line in pool.map(of_questions, MIXES, [runs] * len(MIXES)):
            print(line, flush=True)
    print(cost_of_questions())
    print("1,000 detectors on one core")
    print("\n".join(cost()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

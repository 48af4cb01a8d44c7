"""The rows that a gate needs, and how often it fails with a regression and without one.

``python benchmarks/gate.py [SEEDS]``

The first table has the rows with which ``rag-eval-otel evaluate --no-worse`` finds a drop of a
metric in 95 of 100 runs, at a level of 1 % and with one metric, by the t quantiles of the gate. The
drop depends on the standard deviation of the differences between two runs.

Then faithfulness is simulated: 1,000 answers have one to six claims each, of which the contexts
support four of five. For each seed, 200 answers are drawn. A judge counts the supported claims of
both runs and is wrong about one claim in twenty. In the worse version, one supported claim in eight
has lost its support, so the mean falls by 0.1. The answers are the same in both runs otherwise. The
script prints in how many of SEEDS seeds (default 100) the gate fails at a level of 1 %.
"""

from __future__ import annotations

import math
import random
import sys
from bisect import bisect_left
from collections.abc import Sequence

from rag_eval_otel.tools.compare import (
    LEVEL,
    Entry,
    ScoredRun,
    difference_verdict,
    pair_scores,
)
from rag_eval_otel.tools.stats import t_quantile
from rag_eval_otel.types import Score

Claims = list[bool]
"""For each claim of an answer whether the contexts support it: faithfulness is their share."""

DEVIATIONS = (0.1, 0.2, 0.3, 0.4)
DROPS = (0.1, 0.05, 0.02)
MOST_ROWS = 100_000
ROWS = 200
T_TEST = 0.9  # part of the level; the rest is for lost scores
LOSS = 0.125  # of the claims that were supported; as these are four of five, the mean falls by .1
WRONG = 0.05  # of the judge's answers


def least_drop(deviation: float, rows: int, *, level: float) -> float:
    """Return the drop of a mean that the t test of `difference_verdict` finds in 95 of 100 runs."""
    freedom = rows - 1
    quantiles = t_quantile(1 - level * T_TEST, freedom) + t_quantile(0.95, freedom)
    return deviation / math.sqrt(rows) * quantiles


def rows_needed(deviation: float, drop: float) -> int:
    """Return the fewest rows with which the gate finds ``drop`` in 95 of 100 runs."""
    counts = range(2, MOST_ROWS)
    # Negative, as the search needs numbers that rise with the rows.
    found = bisect_left(counts, -drop, key=lambda n: -least_drop(deviation, n, level=LEVEL))
    return counts[found]


def table() -> str:
    """Return the rows that are needed as a table for ``docs/ci.md``."""
    lines = [
        f"| {deviation} | {' | '.join(f'{rows_needed(deviation, drop):,}' for drop in DROPS)} |"
        for deviation in DEVIATIONS
    ]
    head = (
        "| standard deviation of the differences | rows to find a drop of 0.1 | of 0.05 | of 0.02 |"
    )
    return "\n".join([head, "|--:|--:|--:|--:|", *lines])


def answers(dice: random.Random, count: int = 1000) -> list[Claims]:
    """Return the claims of ``count`` answers: one to six each, four of five supported."""
    shares = [dice.betavariate(8, 2) for _ in range(count)]
    return [[dice.random() < share for _ in range(dice.randint(1, 6))] for share in shares]


def with_lost_claims(dice: random.Random, rows: Sequence[Claims]) -> list[Claims]:
    """Return the answers of a version in which a part of the claims has lost its support."""
    return [[claim and dice.random() >= LOSS for claim in row] for row in rows]


def judged(dice: random.Random, rows: Sequence[Claims]) -> ScoredRun:
    """Return the scores by a judge that is wrong about a part of the claims."""
    run = ScoredRun(name="run", rows=len(rows), metrics={"faithfulness": []})
    for i, row in enumerate(rows):
        said = [claim != (dice.random() < WRONG) for claim in row]
        entry = Entry(i, f"question {i}", Score(name="m", value=sum(said) / len(said)))
        run.metrics["faithfulness"].append(entry)
    return run


def failures(before: Sequence[Claims], after: Sequence[Claims], *, seeds: int) -> int:
    """Return in how many seeds the gate fails for ``after``, with ``before`` as the baseline."""
    failed = 0
    for seed in range(seeds):
        dice = random.Random(seed)
        rows = dice.choices(range(len(before)), k=ROWS)
        here, there = (judged(dice, [run[i] for i in rows]) for run in (after, before))
        pairs = pair_scores(here, there, metric="faithfulness")
        failed += not difference_verdict(pairs, drop=0, level=LEVEL).passed
    return failed


def simulated(seeds: int) -> tuple[int, int]:
    """Return in how many of ``seeds`` the gate fails for a worse and for an unchanged version."""
    dice = random.Random(14)
    before = answers(dice)
    worse = with_lost_claims(dice, before)
    return failures(before, worse, seeds=seeds), failures(before, before, seeds=seeds)


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(table())
    worse, unchanged = simulated(seeds)
    print(f"\na version that is worse by 0.1 fails in {worse} of {seeds} seeds")
    print(f"an unchanged version fails in {unchanged} of {seeds} seeds")


if __name__ == "__main__":
    main()

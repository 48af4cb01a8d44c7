"""Coverage and width of the intervals of the mean of all turns, over simulated months.

``python benchmarks/estimate.py [MONTHS] [--turns N] [--rate R]``

A month has 10,000 turns (questions with their answers). 80 % of the answers are good. The judge's
score of an answer is a share of claims: mostly 1 for a good answer, mostly 0 for a bad one. The
offline judge's score has an AUROC of .93 for good answers, the mean of the labelled sets in
``docs/offline-judge.md`` (dev and test, faithfulness and groundedness). Then its bias is added:

- none
- shift: every score is .15 too high, and cut at 1
- compression: all scores are between .6 and .75
- topic: too generous on two fifths of the questions (+.25), too strict on the others (-.2)
- noise: the score is a random number that has nothing to do with the answer
- drift: the score rises by .3 in the course of the month, though the answers stay as they are

In a *uniform* sample, 3 % of the turns are scored by the judge. In a *cascade*, the lowest quarter
of the offline scores is scored four times as often as the rest.

For each bias and design, the table has the correlation of the two judges' scores, the turns that
the judge scored, the share of months in which the 95 % interval has the true mean, for the
classical interval (the weighted mean, without offline scores) and for the one that `estimate`
gives (prediction-powered), and the ratio of their mean widths. The exit status is 1 if a coverage
is not 93 to 97 %, if a ratio is above 1.02, or if that of a bias that leaves the offline judge as
good as on the labelled sets (none, shift, compression) is .8 or more in the uniform sample.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from rag_eval_otel.tools.stats import Sampled, estimate

Numbers: TypeAlias = NDArray[np.float64]
Bias: TypeAlias = Literal["none", "shift", "compression", "topic", "noise", "drift"]
Design: TypeAlias = Literal["uniform", "cascade"]

GOOD = {"topic": 0.725, "other": 0.85}
TOPIC = 0.4
AUROC_93 = 2.087  # the distance of two normal distributions with an AUROC of .93
COVERAGE = (0.93, 0.97)
AS_GOOD_AS_LABELLED = ("none", "shift", "compression")
GOOD_SCORES = np.array([1.0] * 17 + [0.75, 0.75, 0.5])
BAD_SCORES = np.array([0.0] * 15 + [0.25, 0.25, 0.25, 0.5, 0.5])


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table."""

    design: Design
    bias: Bias
    correlation: float
    judged: float
    classical: float
    powered: float
    width: float
    ratio: float

    @property
    def holds(self) -> bool:
        """Whether the line has what is promised."""
        is_narrow = self.ratio <= 1.02
        if self.design == "uniform" and self.bias in AS_GOOD_AS_LABELLED:
            is_narrow = self.ratio < 0.8
        return is_narrow and COVERAGE[0] <= self.powered <= COVERAGE[1]


def true_mean() -> float:
    """Return the mean score of the judge over all turns that there could be."""
    good = TOPIC * GOOD["topic"] + (1 - TOPIC) * GOOD["other"]
    return float(good * GOOD_SCORES.mean() + (1 - good) * BAD_SCORES.mean())


def month(rng: np.random.Generator, turns: int, bias: Bias) -> tuple[Numbers, Numbers]:
    """Return the judge's scores and the offline scores of a month, both of all turns."""
    topic = rng.random(turns) < TOPIC
    good = rng.random(turns) < np.where(topic, GOOD["topic"], GOOD["other"])
    scores = np.where(good, rng.choice(GOOD_SCORES, turns), rng.choice(BAD_SCORES, turns))
    offline = 1 / (1 + np.exp(-(0.3 + rng.standard_normal(turns) + AUROC_93 * (good - 0.5))))
    time = np.arange(turns) / turns
    biased = {
        "none": offline,
        "shift": np.clip(offline + 0.15, 0, 1),
        "compression": 0.6 + 0.15 * offline,
        "topic": np.clip(offline + np.where(topic, 0.25, -0.2), 0, 1),
        "noise": rng.random(turns),
        "drift": np.clip(offline + 0.3 * (time - 0.5), 0, 1),
    }
    return scores, biased[bias]


def sample(
    rng: np.random.Generator, scores: Numbers, offline: Numbers, *, design: Design, rate: float
) -> Sampled:
    """Return the month as `estimate` sees it."""
    probabilities = np.full(len(scores), rate)
    if design == "cascade":
        probabilities[offline < np.quantile(offline, 0.25)] = min(1.0, 4 * rate)
    chosen = rng.random(len(scores)) < probabilities
    return Sampled(
        scores=np.where(chosen, scores, np.nan),
        probabilities=probabilities,
        offline=offline,
        clusters=np.arange(len(scores)),
    )


def measured(design: Design, bias: Bias, *, months: int, turns: int, rate: float) -> Line:
    """Simulate ``months`` months, and return their line of the table."""
    rng = np.random.default_rng([get_args(Bias).index(bias), get_args(Design).index(design)])
    truth = true_mean()
    covered, widths = np.zeros(2), np.zeros(2)
    judged, correlation = 0, 0.0
    for _ in range(months):
        scores, offline = month(rng, turns, bias)
        correlation += float(np.corrcoef(scores, offline)[0, 1])
        sampled = sample(rng, scores, offline, design=design, rate=rate)
        judged += int(np.sum(~np.isnan(sampled.scores)))
        alone = replace(sampled, offline=np.full(turns, np.nan))
        for i, mean in enumerate((estimate(alone), estimate(sampled))):
            low, high = mean.interval or (0.0, 1.0)
            covered[i] += low <= truth <= high
            widths[i] += high - low
    return Line(
        design=design,
        bias=bias,
        correlation=correlation / months,
        judged=judged / months,
        classical=covered[0] / months,
        powered=covered[1] / months,
        width=widths[1] / months,
        ratio=widths[1] / widths[0],
    )


def lines(months: int, turns: int, rate: float) -> Iterator[Line]:
    """Yield the lines of the table."""
    for design in get_args(Design):
        for bias in get_args(Bias):
            yield measured(design, bias, months=months, turns=turns, rate=rate)


def main() -> int:
    """Print the table; return 1 if it does not have what is promised."""
    parser = argparse.ArgumentParser()
    parser.add_argument("months", type=int, nargs="?", default=1000)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=0.03)
    given = parser.parse_args()
    print(
        "| sample | bias of the offline judge | correlation | judged | coverage, classical"
        " | coverage, estimate | mean width | width / classical |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    failed = 0
    for line in lines(given.months, given.turns, given.rate):
        failed += not line.holds
        print(
            f"| {line.design} | {line.bias} | {line.correlation:.2f} | {line.judged:.0f}"
            f" | {line.classical:.3f} | {line.powered:.3f} | {line.width:.4f} | {line.ratio:.3f} |",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The arithmetic of evidence, pinned: alarms and evidence of fixed streams."""

import random
from typing import Any

import pytest

from rag_eval_otel.drift import BettingDetector

GOOD, BAD = (0.08, 0.24, 0.68), (0.24, 0.40, 0.36)


def drawn(count: int, weights: tuple[float, ...], *, seed: int) -> list[float]:
    return random.Random(seed).choices([0.0, 0.5, 1.0], weights, k=count)


def sticky(count: int) -> list[float]:
    dice, scores = random.Random(1), [1.0]
    while len(scores) <= count:
        scores.append(float(dice.random() < 0.8) if dice.random() < 0.3 else scores[-1])
    return scores[1:]


STREAM = [*drawn(400, GOOD, seed=1), *drawn(300, BAD, seed=2), *[0.9, 0.95] * 40]


@pytest.mark.parametrize(
    ("options", "alarms", "evidence"),
    [
        (
            {"reference": drawn(2000, GOOD, seed=0)},
            [(430, 402, "down", "tail", (-0.4835050118, -0.1199665906))],
            [1.5919933149, 1.9045401834, 5.1228335587, 5.1228335587, 5.1228335587],
        ),
        (
            {"target": 0.9, "every": 1000},
            [
                (31, 8, "down", "level", (-0.4611472864, -0.0045389881)),
                (540, 532, "down", "level", (-0.7995018301, -0.111609281)),
            ],
            [3.0209035506, 3.0209035506, 3.0209035506, 3.0122940508, 3.0122940508],
        ),
        (
            {"learn": 300, "direction": "up", "every": 1000},
            [(746, 700, "up", "rise", (0.0870531774, 0.1962592965))],
            [0.0, 0.0, 0.9079793138, 0.6117715395, 3.0176728388],
        ),
        (
            {"reference": drawn(500, BAD, seed=0), "tail": 0.6, "every": 1000},
            [
                (65, 36, "up", "rise", (0.171558909, 0.4417613525)),
                (719, 700, "up", "rise", (0.2985728894, 0.3984075027)),
            ],
            [3.0622904639, 3.0622904639, 3.0622904639, 1.2689993757, 3.0871594824],
        ),
        (
            {"reference": sticky(2000), "every": 1000, "cooldown": 0},
            [
                (454, 257, "down", "tail", (-0.3651350056, 0.1093774299)),
                (564, 457, "down", "tail", (-0.6702847363, 0.0365810326)),
                (676, 567, "down", "tail", (-0.6547914631, 0.0202460086)),
            ],
            [1.8174691784, 2.1865691019, 2.9390473015, 1.5756339709, 1.4461854479],
        ),
    ],
)
def test_alarms_and_evidence_of_a_fixed_stream(
    options: dict[str, Any], alarms: list[tuple[object, ...]], evidence: list[float]
) -> None:
    """Index, onset, view and interval of alarms, and the evidence after each 150 scores."""
    detector = BettingDetector(**options)
    raised: list[tuple[object, ...]] = []
    course: list[float] = []
    for index, score in enumerate(STREAM):
        if detector.update(score):
            alarm = detector.alarm
            assert alarm is not None
            interval = pytest.approx(alarm.interval, abs=1e-9)
            raised.append((index, alarm.onset, alarm.direction, alarm.view, interval))
        if index % 150 == 149:
            course.append(detector.log10_evidence)
    assert raised == alarms
    assert course == pytest.approx(evidence, abs=1e-9)

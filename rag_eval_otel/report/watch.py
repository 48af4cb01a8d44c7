"""Where the scores of a version changed, as the default drift detector finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_eval_otel.drift.betting import BettingDetector
from rag_eval_otel.drift.options import learn_from, usable
from rag_eval_otel.drift.records import Alarm
from rag_eval_otel.report.figures import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An alarm of the drift detector: where it came, and where the change is dated.

    A change that lasts raises it ``again`` and again, each time the cool-down is over, ``until`` it
    is last raised.
    """

    alarm: Alarm
    at: float
    onset: float
    until: float
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the detector made of one version: its alarms, and why there might be none.

    Of its scores ``count`` could be taken, and what is normal was learned from the first ``learn``
    of them; ``outside`` are the scores that are not in [0, 1].
    """

    marks: tuple[Mark, ...]
    count: int
    learn: int
    outside: int

    @property
    def alarms(self) -> int:
        """How many alarms there were in all."""
        return sum(1 + mark.again for mark in self.marks)

    @property
    def learned(self) -> bool:
        """Whether there were enough scores to know what is normal."""
        return self.count > self.learn


def watch(line: Line) -> Watch:
    """Run the default detector over the scores of one version."""
    usual = [i for i, unit in enumerate(line.units) if usable(unit) is not None]
    learn = learn_from(len(usual))
    found = BettingDetector(learn=learn)
    marks: list[Mark] = []
    for i in usual:
        if found.update(line.units[i]) and found.alarm is not None:
            _raise(marks, found.alarm, line, usual)
    return Watch(
        marks=tuple(marks),
        count=len(usual),
        learn=learn,
        outside=len(line.units) - len(usual),
    )


def _raise(marks: list[Mark], alarm: Alarm, line: Line, usual: Sequence[int]) -> None:
    """Add ``alarm`` to the ``marks``, or to the last of them, if that says the same."""
    at, onset = line.at[usual[alarm.index]], line.at[usual[alarm.onset]]
    if marks and marks[-1].alarm.direction == alarm.direction:
        marks[-1] = replace(marks[-1], again=marks[-1].again + 1, until=at)
    else:
        marks.append(Mark(alarm=alarm, at=at, onset=onset, until=at))

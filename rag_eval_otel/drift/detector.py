"""Detect drift in one stream of scores with a bound on the rate of false alarms."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeGuard, get_args

from rag_eval_otel.drift.evidence import VIEWS, Baseline, Directions, Evidence, Level, View
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.guard import LimitedLog

FORMAT = 2  # the version number of the format in which detectors save their state
_ROUNDING = 1e-6
_NORMAL = 2.8  # not 1.96, because the chosen onset makes the change look as large as possible

Direction = Literal["down", "up", "spread"]  # spread: scores lie further from their mean
_DIRECTION_OF_VIEW: Mapping[View, Direction] = {
    "level": "down",
    "tail": "down",
    "spread": "spread",
    "rise": "up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A change of scores that a detector found.

    ``index`` is the index of the score that raised the alarm, and ``onset`` the estimated index of
    the first score after the change, among the valid scores of the stream, from 0. ``view`` is the
    test that raised the alarm. ``before`` is the mean of the baseline, ``after`` the mean of the
    ``n`` scores since the onset. ``interval`` is a 95 % confidence interval for the difference of
    the two, wider than usual, because the onset was estimated from the same scores.
    """

    index: int
    onset: int
    n: int
    direction: Direction
    view: View
    before: float
    after: float
    interval: tuple[float, float]
    log10_evidence: float
    every: float

    @property
    def change(self) -> float:
        """The change of the mean of the scores, ``after - before``."""
        return self.after - self.before


class BettingDetector:
    """Raise an alarm when the scores of a stream differ from their baseline.

    The baseline has the mean that the scores should have: ``target``, or the mean of the scores in
    ``reference``, or else of the first ``learn`` scores. With a target and a reference, all but the
    mean is learned from the reference. The baseline never follows the scores, because it would then
    absorb a slow drift; `relearn` starts a new one.

    **Guarantee with a target.** Assume that the expected value of each score, given all scores
    before it, equals the target. Then the mean number of scores until a false alarm is at least
    ``every``, and the probability of a false alarm within n scores is at most n / every. This holds
    for every distribution of scores in [0, 1], including ties and dependence. The test statistic is
    a weighted sum of e-Shiryaev-Roberts processes, an e-detector (Shin, Ramdas and Rinaldo 2022).

    **Without a target** the learned baseline may be wrong. The probability of a false alarm within
    n scores is then about .05 + n / every. The detector allows for dependence between scores that
    is as strong as in the baseline, which is an approximation. ``docs/drift.md`` has measurements.

    The detector looks for four changes: lower scores, more scores at or below ``tail``, scores
    further from the mean, and higher scores. ``direction`` "down" restricts it to the first two,
    "up" to the last. After an alarm, ``cooldown`` scores are ignored. Then evidence is collected
    from zero, against the same baseline. Time and memory per score are constant. Raises
    `ConfigError` for invalid options.
    """

    def __init__(
        self,
        *,
        target: float | None = None,
        reference: Sequence[object] | None = None,
        every: float = 100_000,
        learn: int = 2000,
        tail: float = 0.5,
        direction: Directions = "both",
        cooldown: int = 500,
    ) -> None:
        check_target(target)
        if not (_is_number(every) and 10 <= every < math.inf):  # noqa: PLR2004
            _refuse("every", every, "a number of scores for each false alarm, 10 or more")
        for name, value, least in (("learn", learn, 2), ("cooldown", cooldown, 0)):
            if not (_is_number(value) and least <= value < math.inf and value == int(value)):
                _refuse(name, value, f"a whole number, {least} or more")
        if direction not in get_args(Directions):
            _refuse("direction", direction, f"one of {', '.join(get_args(Directions))}")
        if valid_score(tail) is None or tail >= 1:
            _refuse("tail", tail, "a score from 0 to below 1, as 0.5 is")
        self.every = float(every)
        self.tail = float(tail)
        self.cooldown = cooldown
        self.count = 0
        """The number of valid scores so far, including the scores used to learn the baseline."""
        self.alarm: Alarm | None = None
        """The last alarm, or None if there was none."""
        self._target = target
        self._learn = learn
        self._direction: Directions = direction
        self._log = LimitedLog()
        self.relearn(reference)

    def relearn(self, reference: Sequence[object] | None = None) -> None:
        """Discard the evidence of a change, and start a new baseline.

        The baseline is learned from ``reference`` (`ConfigError` below two valid scores). Without
        it, the baseline is the ``target`` or, without a target, learned from the next scores.
        """
        scores = [x for x in map(valid_score, reference or ()) if x is not None]
        if reference is not None and len(scores) < 2:  # noqa: PLR2004
            msg = (
                f"a reference needs two scores in [0, 1] or more (better 2,000), not {len(scores)}"
            )
            raise ConfigError(msg)
        self._evidence: Evidence | None = None
        self._learning = array("d", scores)
        self._pause = 0
        if reference is not None:
            self._end_learning()
        elif self._target is not None:
            self._evidence = self._against(Baseline.from_target(self._target))

    def _end_learning(self) -> None:
        scores, self._learning = self._learning, array("d")
        baseline = Baseline.from_scores(scores, tail=self.tail, target=self._target)
        self._evidence = self._against(baseline)

    def _against(self, baseline: Baseline) -> Evidence:
        return Evidence(baseline, every=self.every, tail=self.tail, direction=self._direction)

    @property
    def baseline(self) -> Baseline | None:
        """The baseline with which new scores are compared; None while the detector learns it."""
        return None if self._evidence is None else self._evidence.baseline

    @property
    def log10_evidence(self) -> float:
        """The logarithm to base 10 of the evidence of a change, 0 or more.

        An alarm is raised at log10 of ``every``; the value then stays for ``cooldown`` scores.
        """
        return math.log10(max(self._evidence.value, 1.0)) if self._evidence else 0.0

    def update(self, score: float | None) -> bool:
        """Compare ``score`` with the baseline, or learn from it; return True if it raises an alarm.

        A score that is None, NaN or outside [0, 1] is ignored.
        """
        value = valid_score(score)
        if value is None:
            if score is not None:  # None stands for a failed evaluation
                text = "drift: ignored %.40r, which is not a score in [0, 1]"
                self._log.write("ignored", text, score)
            return False
        self.count += 1
        evidence = self._evidence
        if evidence is None:
            self._learning.append(value)
            if len(self._learning) >= self._learn:
                self._end_learning()
            return False
        if self._pause:
            self._pause -= 1
            if not self._pause:
                evidence.clear()
            return False
        evidence.add(value, index=self.count - 1)
        if evidence.value < self.every:
            return False
        self.alarm = self._make_alarm(evidence)
        self._pause = self.cooldown
        if not self._pause:
            evidence.clear()
        return True

    def _make_alarm(self, evidence: Evidence) -> Alarm:
        view, level = evidence.leading_view(), evidence.baseline.level
        run = evidence.run(view, count=self.count)
        half = _NORMAL * math.sqrt(run.variance * level.effect / max(run.n, 1) + level.error**2)
        low, high = run.mean - level.mean - half, run.mean - level.mean + half
        direction = _DIRECTION_OF_VIEW[VIEWS[view]]  # unless the interval says more
        return Alarm(
            index=self.count - 1,
            onset=run.start,
            n=run.n,
            direction="down" if high < 0 else "up" if low > 0 else direction,
            view=VIEWS[view],
            before=level.mean,
            after=run.mean,
            interval=(low, high),
            log10_evidence=self.log10_evidence,
            every=self.every,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the baseline, the evidence and the counts as JSON values, for `restore`."""
        baseline = self.baseline
        levels = [level and list(level) for level in baseline.levels] if baseline else []
        return {
            "format": FORMAT,
            "every": self.every,
            "tail": self.tail,
            "target": self._target,
            "count": self.count,
            "pause": self._pause,
            "baseline": baseline and {"centre": baseline.centre, "levels": levels},
            "evidence": self._evidence and self._evidence.to_state(),
            "learning": list(self._learning),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the baseline, evidence and counts in ``state``, which `to_state` returned.

        Raises KeyError, TypeError, ValueError or OverflowError, and changes nothing, if ``state``
        is invalid or from a detector with another ``every``, ``tail`` or ``target``.
        """
        expected = (FORMAT, self.every, self.tail, self._target)
        saved = tuple(state[name] for name in ("format", "every", "tail", "target"))
        if saved != expected:
            raise ValueError(f"it belongs to a detector {saved}, not {expected}")
        count, pause = int(state["count"]), int(state["pause"])
        learning = array("d", state["learning"])
        evidence = None
        if state["baseline"] is not None:
            levels = tuple(level and Level(*level) for level in state["baseline"]["levels"])
            evidence = self._against(Baseline(float(state["baseline"]["centre"]), levels))
            evidence.restore(state["evidence"])
        self.count, self._pause, self._learning = count, pause, learning
        self._evidence = evidence


def valid_score(score: object) -> float | None:
    """Return ``score`` as a float in [0, 1], clipped if 1e-6 off; None for any other value."""
    if type(score) is float and 0.0 <= score <= 1.0:  # nearly all are
        return score
    if not _is_number(score) or not -_ROUNDING <= score <= 1 + _ROUNDING:  # false for NaN
        return None
    return min(1.0, max(0.0, float(score)))


def default_learn(count: int) -> int:
    """Return how many of ``count`` scores to learn the baseline from: half, from 50 to 2,000."""
    return min(2000, max(50, count // 2))


def check_target(target: float | None) -> None:
    """Raise `ConfigError` unless ``target`` is None or in (0, 1)."""
    if target is not None and not (valid_score(target) is not None and 0 < target < 1):
        _refuse("target", target, "a mean between 0 and 1, as 0.8 is")


def _refuse(name: str, value: object, allowed: str) -> NoReturn:
    raise ConfigError(f"{name} must be {allowed}, not {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

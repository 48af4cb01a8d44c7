"""Detect drift in one stream of scores with a bound on the rate of false alarms.

`BettingDetector` tests the null hypothesis "the mean of the scores equals the mean of the
baseline". It uses a test by betting. A *bet* is a number, called wealth, that each new score
multiplies by a factor. While the null hypothesis is true, the expected factor is at most 1, so the
number rarely gets large. A large number is evidence of a change.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rag_eval_otel.drift.baseline import (
    Baseline,
    add_offsets,
    learned_baseline,
    target_baseline,
    views_of,
)
from rag_eval_otel.drift.evidence import Evidence
from rag_eval_otel.drift.records import VIEWS, Alarm, Directions, change_interval, direction_of
from rag_eval_otel.drift.validation import (
    check_count,
    check_direction,
    check_every,
    check_tail,
    check_targets,
    count_ignored,
    valid_reference,
    valid_score,
)
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.runtime.limited_log import LimitedLog

FORMAT = 1
"""The version number of the format in which detectors save their state."""


class BettingDetector:
    """Raise an alarm when the scores of a stream differ from their baseline.

    The baseline says which mean the scores should have. ``target`` sets this mean. Without a
    target, the baseline is learned from the scores in ``reference``. Without a reference either, it
    is learned from the first ``learn`` scores. If both are given, ``target`` is the mean, and the
    frequency of low scores, their spread and their dependence are learned from ``reference``. The
    baseline never follows the scores, because it would then absorb a slow drift. The method
    `relearn` starts a new baseline.

    **Guarantee with a target.** Assume that the expected value of each score, given all scores
    before it, equals the target. Then the mean number of scores until a false alarm is at least
    ``every``, and the probability of a false alarm within n scores is at most n / every. This holds
    for every distribution of scores in [0, 1], including ties and dependence. The test statistic is
    a weighted sum of e-Shiryaev-Roberts processes, which is an e-detector (Shin, Ramdas and
    Rinaldo 2022).

    **Without a target** the learned baseline may be wrong. The probability of a false alarm within
    n scores is then about .05 + n / every. The detector allows for dependence between scores that
    is as strong as in the baseline, which is an approximation. ``docs/drift.md`` has measurements.

    The detector looks for four changes: lower scores, more scores at or below ``tail``, scores
    further from the mean, and higher scores. ``direction`` "down" restricts it to the first two,
    "up" to the last. After an alarm the next ``cooldown`` scores are ignored. Then the detector
    collects evidence again from zero, against the same baseline.

    ``target`` may also map strata (kinds of input, such as routes) to means. Time and memory per
    score are constant. Raises `ConfigError` for invalid options.
    """

    __slots__ = (
        "_baseline",
        "_direction",
        "_evidence",
        "_ignored",
        "_learn",
        "_learning",
        "_log",
        "_pause",
        "_strata",
        "_target",
        "alarm",
        "cooldown",
        "count",
        "drift_detected",
        "every",
        "tail",
    )

    kind = "betting"

    def __init__(
        self,
        *,
        target: float | Mapping[str, float] | None = None,
        reference: Sequence[object] | None = None,
        every: float = 100_000,
        learn: int = 2000,
        tail: float = 0.5,
        direction: Directions = "both",
        cooldown: int = 500,
    ) -> None:
        check_targets(target)
        check_every(every)
        check_count("learn", learn, least=2)
        check_count("cooldown", cooldown)
        check_direction(direction)
        check_tail(tail)
        self.every = float(every)
        self.tail = float(tail)
        self.cooldown = cooldown
        self.count = 0
        """The number of valid scores so far, including the scores used to learn the baseline."""
        self.drift_detected = False
        """Whether the last score raised an alarm."""
        self.alarm: Alarm | None = None
        """The last alarm, or None if there was none."""
        self._target = target
        self._learn = learn
        self._direction: Directions = direction
        self._ignored = 0
        self._log = LimitedLog()
        self.relearn(reference)

    # --- learning ---------------------------------------------------------------------------------

    @property
    def baseline(self) -> Baseline | None:
        """The baseline with which new scores are compared, or None while the detector learns it."""
        return self._baseline

    @property
    def ignored(self) -> int:
        """The number of values that were ignored because they are not scores in [0, 1].

        The value None stands for a failed evaluation and is not counted.
        """
        return self._ignored

    def relearn(self, reference: Sequence[object] | None = None) -> None:
        """Discard the baseline and the evidence of a change, and start a new baseline.

        The new baseline is learned from the scores in ``reference``. Without a reference, the
        ``target`` that was given to the detector is the baseline. Without a target either, the
        baseline is learned from the next scores.
        """
        self._baseline: Baseline | None = None
        self._evidence: Evidence | None = None
        self._learning = array("d")
        self._strata: list[str | None] = []
        self._pause = 0
        if reference is not None:
            self._learning.extend(valid_reference(reference))
            self._strata = [None] * len(self._learning)
            self._end_learning()
        elif self._target is not None:
            self._begin(target_baseline(self._target))

    def _end_learning(self) -> None:
        found = learned_baseline(self._learning, self._strata, tail=self.tail)
        target = self._target
        if isinstance(target, Mapping):
            msg = "give a reference, or a target for each stratum, not both"
            raise ConfigError(msg)
        self._begin(found if target is None else found.with_target(target))

    def _begin(self, baseline: Baseline) -> None:
        self._learning, self._strata = array("d"), []
        self._baseline = baseline
        self._evidence = Evidence(baseline, every=self.every, direction=self._direction)

    # --- betting ----------------------------------------------------------------------------------

    @property
    def log10_evidence(self) -> float:
        """The logarithm to base 10 of the evidence of a change, 0 or more.

        The detector raises an alarm when this number reaches log10 of ``every``. After an alarm the
        number keeps its value until ``cooldown`` scores have been ignored.
        """
        return math.log10(max(self._evidence.value, 1.0)) if self._evidence else 0.0

    @property
    def since(self) -> int:
        """The index of the first score on which the present evidence of a change is based.

        Scores are counted from 0. If there is no evidence, this is the index of the next score.
        """
        return self._evidence.since(count=self.count) if self._evidence else self.count

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:
        """Compare ``score`` with the baseline and return True if the score raises an alarm.

        While there is no baseline yet, the score is used to learn the baseline. ``stratum`` names
        the kind of input (a route, a topic, the hour), which must be known before the score. The
        score is compared with scores of the same stratum in the baseline, so that a different mix
        of strata does not raise an alarm. A score that is None, NaN or outside [0, 1] is ignored.
        """
        self.drift_detected = False
        value = valid_score(score)
        if value is None:
            self._ignored = count_ignored(score, self._ignored, log=self._log)
        else:
            self.count += 1
            if self._evidence is None or self._baseline is None:
                self._learn_from(value, stratum)
            elif self._pause:
                self._pause -= 1
                if not self._pause:
                    self._evidence.clear()
            else:
                self._bet(value, stratum, self._baseline, self._evidence)
        return self.drift_detected

    def _learn_from(self, score: float, stratum: str | None) -> None:
        self._learning.append(score)
        self._strata.append(stratum)
        if len(self._learning) >= self._learn:
            self._end_learning()

    def _bet(
        self, score: float, stratum: str | None, baseline: Baseline, evidence: Evidence
    ) -> None:
        views = views_of(score, tail=self.tail, centre=baseline.centre)
        if stratum is not None:
            views = add_offsets(views, baseline.strata.get(stratum))
        evidence.add(views, index=self.count - 1)
        if evidence.value >= self.every:
            self.drift_detected = True
            self.alarm = self._make_alarm(baseline, evidence)
            self.pause()

    def pause(self) -> None:
        """Ignore the next ``cooldown`` scores, and then collect evidence of a change from zero."""
        self._pause = self.cooldown
        if not self._pause and self._evidence:
            self._evidence.clear()

    def _make_alarm(self, baseline: Baseline, evidence: Evidence) -> Alarm:
        view = evidence.leading_view()
        level = baseline.level
        views = partial(views_of, tail=self.tail, centre=baseline.centre)
        run = evidence.run(view, count=self.count, baseline=baseline, views=views)
        interval = change_interval(
            run.mean - level.mean,
            variance=run.variance,
            effect=level.effect,
            n=run.n,
            baseline_error=level.error,
        )
        return Alarm(
            index=self.count - 1,
            onset=run.start,
            n=run.n,
            direction=direction_of(VIEWS[view], interval),
            view=VIEWS[view],
            before=level.mean,
            after=run.mean,
            interval=interval,
            log10_evidence=self.log10_evidence,
            every=self.every,
        )

    # --- state ------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Return the baseline, the evidence and the counts as JSON values, for `restore`.

        Of the options, only ``every``, ``tail`` and ``target`` are included, so that `restore` can
        compare them.
        """
        return {
            "format": FORMAT,
            "kind": self.kind,
            "every": self.every,
            "tail": self.tail,
            "target": _plain(self._target),
            "count": self.count,
            "pause": self._pause,
            "baseline": self._baseline and self._baseline.to_state(),
            "evidence": self._evidence and self._evidence.to_state(),
            "learning": list(self._learning),
            "strata": self._strata if any(self._strata) else [],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the baseline, evidence and counts in ``state``, which `to_state` returned.

        Raises KeyError, TypeError, ValueError or OverflowError if ``state`` is not a valid state,
        or comes from a detector with another ``every``, ``tail`` or ``target``. In this case the
        detector does not change.
        """
        expected = (FORMAT, self.kind, self.every, self.tail, _plain(self._target))
        found = (
            *(state[name] for name in ("format", "kind", "every", "tail")),
            state.get("target"),
        )
        if found != expected:
            msg = f"it belongs to a detector {found}, not {expected}"
            raise ValueError(msg)
        count, pause = int(state["count"]), int(state["pause"])
        learning = array("d", state["learning"])
        strata = list(state["strata"]) or [None] * len(learning)
        if count < 0 or pause < 0 or len(strata) != len(learning):
            msg = "its counts contradict each other"
            raise ValueError(msg)
        if None in map(valid_score, learning) or not all(isinstance(s, str | None) for s in strata):
            msg = "the scores or strata to learn from are invalid"
            raise ValueError(msg)
        baseline, evidence = self._restored(state)
        self.count, self._pause, self._baseline, self._evidence = count, pause, baseline, evidence
        self._learning, self._strata = learning, strata

    def _restored(self, state: Mapping[str, Any]) -> tuple[Baseline, Evidence] | tuple[None, None]:
        if state["baseline"] is None:
            return None, None
        baseline = Baseline.from_state(state["baseline"])
        evidence = Evidence(baseline, every=self.every, direction=self._direction)
        evidence.restore(state["evidence"])
        return baseline, evidence


def _plain(target: float | Mapping[str, float] | None) -> float | dict[str, float] | None:
    return dict(target) if isinstance(target, Mapping) else target

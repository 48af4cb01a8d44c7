"""`BettingDetector`: evidence that a stream of scores has changed, with a bound on false alarms."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rag_eval_otel.drift.baseline import Baseline, given, learned, moved, views_of
from rag_eval_otel.drift.evidence import Directions, Evidence
from rag_eval_otel.drift.options import (
    check_count,
    check_direction,
    check_every,
    check_tail,
    check_targets,
    usable,
    usable_scores,
)
from rag_eval_otel.drift.records import VIEWS, Alarm, change_interval, direction_of
from rag_eval_otel.drift.warn import warn_of_value
from rag_eval_otel.errors import ConfigError

FORMAT = 1


class BettingDetector:
    """Raises an alarm when the scores no longer come from where the baseline came from.

    **Guarantee.** Given the mean that the scores should have (``target``), and as long as each
    score's mean, given all scores before it, is at that target: it takes ``every`` scores or more
    on average until a false alarm, and the chance of one within n scores is at most n / every. It
    holds for every distribution on [0, 1], ties and dependence included. (A weighted sum of
    e-Shiryaev-Roberts processes is an e-detector; Shin, Ramdas and Rinaldo 2022.)

    A *learned* baseline adds the chance that it was off: about .05 + n / every. Its bets allow for
    dependence as strong as there was within the baseline, which is an approximation. Measured
    figures are in ``docs/drift.md``.

    Every score feeds bets on four views of it: a lower level, more scores at or below ``tail``,
    scores further from the centre, a higher level; ``direction`` takes the first two (down) or the
    last (up) alone. An alarm ends the evidence; the next ``cooldown`` scores are passed over, and
    then it is gathered anew against the same baseline. The baseline never follows the stream, which
    would absorb slow drift; `relearn` starts over.

    ``reference`` are scores to learn the baseline from; without it, and without a ``target``, the
    first ``learn`` scores are taken. With both, the target is the mean, and tail, spread and
    dependence come from the reference. A mapping of strata to means is a target for each. Time and
    memory do not grow with the stream.

    Raises `ConfigError` for options that cannot be used.
    """

    __slots__ = (
        "_baseline",
        "_direction",
        "_evidence",
        "_ignored",
        "_learn",
        "_learning",
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
        """Learn from ``reference``, if it is there."""
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
        """Scores taken, those that the baseline was learned from included."""
        self.drift_detected = False
        """Whether the last score raised an alarm."""
        self.alarm: Alarm | None = None
        """The last alarm."""
        self._target = target
        self._learn = learn
        self._direction: Directions = direction
        self._ignored = 0
        self.relearn(reference)

    # --- learning ---------------------------------------------------------------------------------

    @property
    def baseline(self) -> Baseline | None:
        """What it holds to be normal; None while it is learning."""
        return self._baseline

    @property
    def ignored(self) -> int:
        """How many values were no scores; None is not counted."""
        return self._ignored

    def relearn(self, reference: Sequence[object] | None = None) -> None:
        """Forget baseline and evidence, and learn from ``reference``, or from the next scores."""
        self._baseline: Baseline | None = None
        self._evidence: Evidence | None = None
        self._learning = array("d")
        self._strata: list[str | None] = []
        self._pause = 0
        if reference is not None:
            self._learning.extend(usable_scores(reference))
            self._strata = [None] * len(self._learning)
            self._settle()
        elif self._target is not None:
            self._begin(given(self._target))

    def _settle(self) -> None:
        """Turn what was learned into the baseline."""
        found = learned(self._learning, self._strata, tail=self.tail)
        target = self._target
        if isinstance(target, Mapping):
            msg = "give a reference, or a target for each stratum, not both"
            raise ConfigError(msg)
        self._begin(found if target is None else found.aimed(target))

    def _begin(self, baseline: Baseline) -> None:
        self._learning, self._strata = array("d"), []
        self._baseline = baseline
        self._evidence = Evidence(baseline, every=self.every, direction=self._direction)

    # --- betting ----------------------------------------------------------------------------------

    @property
    def log10_evidence(self) -> float:
        """The evidence of a change, 0 or more; an alarm is at log10 of ``every``.

        After an alarm it stays where it was until the cool-down is over.
        """
        return math.log10(max(self._evidence.value, 1.0)) if self._evidence else 0.0

    @property
    def since(self) -> int:
        """The index from which on scores are part of what evidence there is."""
        return self._evidence.since(count=self.count) if self._evidence else self.count

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:
        """Take ``score`` and tell whether it raises an alarm.

        A ``stratum`` (a route, a topic, the hour) must be known before the score. Scores are then
        compared with those of the same stratum in the baseline, and a change of the mix is no
        drift. None, NaN, and what is not in [0, 1] is no score and no evidence.
        """
        self.drift_detected = False
        value = usable(score)
        if value is None:
            self._ignored = warn_of_value(score, self._ignored)
        else:
            self.count += 1
            if self._evidence is None or self._baseline is None:
                self._take(value, stratum)
            elif self._pause:
                self._rest(self._evidence)
            else:
                self._weigh(value, stratum, self._baseline, self._evidence)
        return self.drift_detected

    def _take(self, score: float, stratum: str | None) -> None:
        self._learning.append(score)
        self._strata.append(stratum)
        if len(self._learning) >= self._learn:
            self._settle()

    def _rest(self, evidence: Evidence) -> None:
        self._pause -= 1
        if not self._pause:
            evidence.clear()

    def _weigh(
        self, score: float, stratum: str | None, baseline: Baseline, evidence: Evidence
    ) -> None:
        views = views_of(score, tail=self.tail, centre=baseline.centre)
        if stratum is not None:
            views = moved(views, baseline.strata.get(stratum))
        evidence.add(views, index=self.count - 1)
        if evidence.value >= self.every:
            self.drift_detected = True
            self.alarm = self._describe(baseline, evidence)
            self.rest()

    def rest(self) -> None:
        """Pass over the next ``cooldown`` scores, and gather evidence anew after them."""
        self._pause = self.cooldown
        if not self._pause and self._evidence:
            self._evidence.clear()

    def _describe(self, baseline: Baseline, evidence: Evidence) -> Alarm:
        view = evidence.leading()
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
        """Return what it has learned and gathered, as JSON can hold it; options are not in it."""
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
        """Go on from what `to_state` returned.

        Raises KeyError, TypeError, ValueError or OverflowError, and changes nothing, for anything
        else, and for the state of a detector with another ``every``, ``tail`` or ``target``.
        """
        same = (FORMAT, self.kind, self.every, self.tail, _plain(self._target))
        found = (
            *(state[name] for name in ("format", "kind", "every", "tail")),
            state.get("target"),
        )
        if found != same:
            msg = f"it is of {found}, not of {same}"
            raise ValueError(msg)
        count, pause = int(state["count"]), int(state["pause"])
        learning = array("d", state["learning"])
        strata = list(state["strata"]) or [None] * len(learning)
        if count < 0 or pause < 0 or len(strata) != len(learning):
            msg = "its counts contradict each other"
            raise ValueError(msg)
        if None in map(usable, learning) or not all(isinstance(s, str | None) for s in strata):
            msg = "what it was learning from are no scores, or no strata"
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

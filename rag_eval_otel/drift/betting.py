"""`BettingDetector`, the default detector of drift, which bounds the rate of false alarms."""

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

FORMAT = 1
"""The format of saved states."""


class BettingDetector:
    """Raises an alarm when a stream of scores differs from its baseline.

    **Guarantee.** With a ``target`` for the mean, and as long as the mean of each score, given all
    scores before it, equals the target: the mean number of scores until a false alarm is ``every``
    or more, and the probability of a false alarm within n scores is at most n / every. This holds
    for every distribution on [0, 1], including ties and dependence. (A weighted sum of
    e-Shiryaev-Roberts processes is an e-detector; Shin, Ramdas and Rinaldo 2022.)

    A *learned* baseline may be wrong: the probability is then about .05 + n / every. Its bets allow
    for dependence as strong as within the baseline, which is an approximation. Measured figures are
    in ``docs/drift.md``.

    Each score updates bets on four views: a lower level, more scores at or below ``tail``, scores
    further from the centre, and a higher level. ``direction`` restricts them to the first two
    (down) or to the last (up). After an alarm the next ``cooldown`` scores are ignored, and then
    evidence is collected again from zero, against the same baseline. The baseline never follows the
    stream, because it would absorb slow drift; `relearn` starts a new one.

    The baseline is learned from the scores in ``reference``; without ``reference`` and ``target``,
    from the first ``learn`` scores. With both, the target is the mean, and tail, spread and
    dependence come from the reference. ``target`` may be a mapping of strata to means. Time and
    memory per score are constant.

    Raises `ConfigError` for invalid options.
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
        """The number of valid scores, including those that the baseline was learned from."""
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
        """The baseline; None while it is being learned."""
        return self._baseline

    @property
    def ignored(self) -> int:
        """The number of invalid values; None is not counted."""
        return self._ignored

    def relearn(self, reference: Sequence[object] | None = None) -> None:
        """Discard baseline and evidence, and learn from ``reference`` or from the next scores."""
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
        """The evidence of a change, 0 or more; an alarm is raised at log10 of ``every``.

        After an alarm it keeps its value until the cool-down ends.
        """
        return math.log10(max(self._evidence.value, 1.0)) if self._evidence else 0.0

    @property
    def since(self) -> int:
        """The index of the first score that counts as evidence."""
        return self._evidence.since(count=self.count) if self._evidence else self.count

    def update(self, score: float | None, *, stratum: str | None = None) -> bool:
        """Add ``score`` and return True if it raises an alarm.

        A ``stratum`` (a route, a topic, the hour) must be known before the score. Scores are
        compared with those of the same stratum in the baseline, so that a different mix of strata
        is not a drift. None, NaN and values outside [0, 1] are ignored.
        """
        self.drift_detected = False
        value = valid_score(score)
        if value is None:
            self._ignored = count_ignored(score, self._ignored)
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
        """Ignore the next ``cooldown`` scores, then collect evidence from zero."""
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
        """Return the baseline and the evidence as JSON values, without the options."""
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
        """Restore what `to_state` returned.

        Raises KeyError, TypeError, ValueError or OverflowError, and changes nothing, for anything
        else, and for the state of a detector with another ``every``, ``tail`` or ``target``.
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

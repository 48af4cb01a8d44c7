"""`estimate`: the mean quality of all turns from the scores of a sample of turns.

A *turn* is one question of a user and its answer. A judge has scored a sample of the turns, and
each score has the probability with which its turn was chosen. An offline judge may have scored all
turns. `rag_eval_otel.calibration.means` has the formulas.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from rag_eval_otel.calibration.agreement import Figure, Numbers
from rag_eval_otel.calibration.means import Mean, Sampled, powered_mean, weighted_mean
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results import Row, read_scores
from rag_eval_otel.results.rows import is_offline, measured_version, model_of, unit_value

By: TypeAlias = Literal["service", "hour", "day", "month"]
Files: TypeAlias = "str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"
Method: TypeAlias = Literal["prediction-powered", "weighted"]

_FORMATS: Final[Mapping[str, str]] = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m"}
_COVERED = 0.9  # the least share of a judge's turns that an offline judge has scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimated mean of a metric over all turns of a service in a period.

    - ``mean``: the best estimate and its interval, or the reason why there is none. ``method`` says
      how it was made: ``prediction-powered`` with offline scores, or ``weighted`` without.
    - ``weighted``: the estimate without offline scores, to compare.
    - ``turns``: the turns with a score of either judge. ``judged``: those with one of the judge.
      ``failed``: those that were chosen for the judge and have no score.
    - ``effective``: the number of turns, all chosen alike, that would be as precise as ``judged``.
    - ``slope``: by how much scores rise, on average, if the offline score rises by 1.
    - ``version``: the version of the judge's scores. ``offline``: that of the offline scores.
    - ``repeated``: scores that were left out, because their turn already had another score of the
      same version. Turns that are told apart wrongly are the usual reason.
    - ``note``: why offline scores were not used, or ``""``.
    """

    metric: str
    service: str = ""
    period: str = ""
    mean: Figure
    weighted: Figure
    method: Method = "weighted"
    turns: int = 0
    judged: int = 0
    failed: int = 0
    repeated: int = 0
    effective: float = 0.0
    slope: float = 0.0
    version: str = ""
    offline: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as a dict for JSON."""
        return {
            "metric": self.metric,
            "service": self.service,
            "period": self.period,
            "mean": dict(self.mean.to_dict()),
            "method": self.method,
            "weighted": dict(self.weighted.to_dict()),
            "turns": self.turns,
            "judged": self.judged,
            "failed": self.failed,
            "repeated": self.repeated,
            "effective": round(self.effective, 1),
            "slope": round(self.slope, 4),
            "version": self.version,
            "offline": self.offline or None,
            "note": self.note or None,
        }


@dataclass(frozen=True, slots=True)
class _Scored:
    """One score of a turn: its value if it has one, and the probability if it is known."""

    value: float | None
    probability: float | None


@dataclass(slots=True)
class _Cell:
    """The scores of one metric in one group of turns, by version and then by turn.

    ``repeated`` counts the scores that differ from an earlier one of the same turn and version.
    """

    scores: defaultdict[str, dict[str, _Scored]] = field(default_factory=lambda: defaultdict(dict))
    traces: dict[str, str] = field(default_factory=dict)
    repeated: int = 0

    def add(self, turn: str, score: _Scored, *, version: str) -> None:
        """Keep ``score``; the first one that has a value counts."""
        known = self.scores[version].get(turn)
        if known is None or known.value is None:
            self.scores[version][turn] = score
        elif score.value not in {None, known.value}:
            self.repeated += 1

    def measured(self) -> set[str]:
        """Return the versions of scores with a value."""
        return {
            version
            for version, scores in self.scores.items()
            if any(one.value is not None for one in scores.values())
        }

    def assume(self, probability: float, *, versions: AbstractSet[str]) -> None:
        """Give the scores of ``versions`` this probability where theirs is unknown."""
        for version in versions & self.scores.keys():
            for turn, one in self.scores[version].items():
                if one.probability is None:
                    self.scores[version][turn] = _Scored(one.value, probability)


_Key: TypeAlias = "tuple[str, str, str]"
"""Metric, service and period."""


def estimate(
    files: Files,
    *,
    by: Sequence[By] = ("service",),
    metric: str | None = None,
    judge: str | None = None,
    probability: float | None = None,
    confidence: float = 0.95,
) -> list[Estimate]:
    """Estimate the mean of each metric over all turns, for each service and period.

    ``files`` are score files: .jsonl, .csv, .parquet, or OTLP JSON. Scores of one turn in several
    rows or files belong together if they have the same trace and span id, the same ``turn_id`` or
    ``id`` (and trace id, if there is one), or the same ``row`` and ``sample``. In one file, the
    same ``row`` is enough.

    - ``by``: what gets an estimate of its own: ``service``, ``hour``, ``day``, ``month`` (UTC).
    - ``metric``: only this metric.
    - ``judge``: the judge whose mean is estimated, by a part of the version of its scores. By
      default, it is the judge that scored a sample of the turns that an offline judge scored.
    - ``probability``: the probability of the judge's scores that carry none; 1 if the judge scored
      all turns. It does not apply to offline scores.
    - ``confidence``: the confidence of the intervals, between 0 and 1.

    A group without an estimate has the reason in ``mean``. Raises `ConfigError` for files without
    scores, without probabilities or without times, and for options that cannot be used.
    """
    _check(by, probability=probability, confidence=confidence)
    cells = _cells(_rows(files, metric), by=by, is_known=probability is not None)
    roles = _roles(cells, judge)
    if probability is not None:
        for key, cell in cells.items():
            cell.assume(probability, versions=roles[key[:2]].judge)
    found = [
        _estimate(key, cell, roles=roles[key[:2]], confidence=confidence)
        for key, cell in sorted(cells.items())
    ]
    if not any(one.judged for one in found):
        msg = "no turn has a score of the judge; name another one with --judge"
        raise ConfigError(msg)
    return found


def _check(by: Sequence[str], *, probability: float | None, confidence: float) -> None:
    unknown = [name for name in by if name not in get_args(By)]
    if isinstance(by, str) or unknown:
        msg = f"by (--by) must be names of {', '.join(get_args(By))}, not {by!r}"
        raise ConfigError(msg)
    if probability is not None and not 0 < probability <= 1:
        msg = f"probability must be above 0 and at most 1, not {probability!r}"
        raise ConfigError(msg)
    if not 0 < confidence < 1:
        msg = f"confidence must be between 0 and 1, such as 0.95, not {confidence!r}"
        raise ConfigError(msg)


# --- reading --------------------------------------------------------------------------------------


def _rows(files: Files, metric: str | None) -> Iterator[tuple[str, Row]]:
    """Yield the rows of all files, each with an id of its turn."""
    given = [files] if isinstance(files, str | os.PathLike) else list(files)
    if not given:
        msg = "name at least one score file"
        raise ConfigError(msg)
    for file in map(Path, given):
        for record in read_scores(file, metric=metric):
            if not isinstance(record, Row):
                continue
            sampling = record.evaluation.sampling
            if sampling is None or not sampling.is_by_feedback:
                yield record.turn or f"{file}, {record.place}", record


def _cells(
    rows: Iterable[tuple[str, Row]], *, by: Sequence[str], is_known: bool
) -> dict[_Key, _Cell]:
    """Return the scores by group.

    Raises `ConfigError` if no score has a probability, unless ``is_known`` says that the user has
    named one.
    """
    cells: defaultdict[_Key, _Cell] = defaultdict(_Cell)
    for turn, row in rows:
        service = row.service if "service" in by else ""
        period = _period(row, by)
        sampling = row.evaluation.sampling
        is_known = is_known or sampling is not None
        for score in row.scores:
            cell = cells[score.name, service, period]
            version = score.version or row.evaluation.judge or ""
            chosen = None if sampling is None else sampling.probability
            cell.add(turn, _Scored(unit_value(score), chosen), version=version)
            cell.traces[turn] = row.trace or turn
    if not is_known:
        msg = (
            "no score has a sampling probability (rag.evaluation.sampling.probability, or the"
            " column sampling_probability); if all turns were scored, say so with --probability 1"
        )
        raise ConfigError(msg)
    _join_failed(cells)
    return dict(cells)


def _join_failed(cells: Mapping[_Key, _Cell]) -> None:
    """Join versions without a value with the version of the values (see `measured_version`)."""
    known: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for key, cell in cells.items():
        known[key[:2]] |= cell.measured()
    for key, cell in cells.items():
        for version in sorted(cell.scores.keys() - known[key[:2]]):
            joined = measured_version(version, known[key[:2]])
            for turn, score in cell.scores.pop(version).items():
                cell.add(turn, score, version=joined)


def _period(row: Row, by: Sequence[str]) -> str:
    formats = [form for name, form in _FORMATS.items() if name in by]
    if not formats:
        return ""
    if row.time is None:
        msg = f"{row.place} has no time; add a column time, or leave periods out of --by"
        raise ConfigError(msg)
    return datetime.fromtimestamp(row.time, tz=timezone.utc).strftime(formats[0])


# --- the judge and the offline judge --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Roles:
    """Which versions of a metric's scores are the judge's, and which are the offline judge's."""

    judge: frozenset[str]
    offline: frozenset[str]


def _roles(cells: Mapping[_Key, _Cell], judge: str | None) -> dict[tuple[str, str], _Roles]:
    """Return the roles of versions for each metric and service, over all periods."""
    merged: defaultdict[tuple[str, str], defaultdict[str, dict[str, _Scored]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for key, cell in cells.items():
        for version, scores in cell.scores.items():
            merged[key[:2]][version].update(scores)
    return {key: _roles_of(key[0], scores, judge=judge) for key, scores in merged.items()}


def _roles_of(
    metric: str, scores: Mapping[str, Mapping[str, _Scored]], *, judge: str | None
) -> _Roles:
    versions = frozenset(scores)
    covering = frozenset(
        one
        for one in versions
        if any(_covers(scores[one], scores[other]) for other in versions - {one})
    )
    if judge is not None:
        chosen = frozenset(version for version in versions if judge in version)
        return _Roles(judge=chosen, offline=covering - chosen)
    if covering and covering == versions:  # both judges have scored the same turns
        covering = frozenset(one for one in versions if is_offline(one))
        if not covering or covering == versions:
            msg = (
                f"{metric}: which judge's mean is wanted? Name it with --judge:"
                f" {', '.join(sorted(map(model_of, versions)))}"
            )
            raise ConfigError(msg)
    return _Roles(judge=versions - covering, offline=covering)


def _covers(offline: Mapping[str, _Scored], other: Mapping[str, _Scored]) -> bool:
    """Return True if an offline judge has scored all turns, the other judge's among them."""
    common = sum(turn in offline for turn in other)
    return common >= _COVERED * len(other) and all(
        one.probability in {None, 1.0} for one in offline.values()
    )


# --- one group ------------------------------------------------------------------------------------


def _estimate(key: _Key, cell: _Cell, *, roles: _Roles, confidence: float) -> Estimate:
    metric, service, period = key
    judges = [one for one in cell.scores if one in roles.judge]
    offline = [one for one in cell.scores if one in roles.offline]
    turns = list(dict.fromkeys(t for one in (*judges, *offline) for t in cell.scores[one]))
    chosen = [one for version in judges for one in cell.scores[version].values()]
    judged = sum(one.value is not None for one in chosen)
    common: dict[str, Any] = {
        "metric": metric,
        "service": service,
        "period": period,
        "turns": len(turns),
        "judged": judged,
        "failed": len(chosen) - judged,
        "repeated": cell.repeated,
        "version": ", ".join(sorted(judges)),
        "offline": ", ".join(sorted(offline)),
    }
    reason = _refusal(judges, chosen)
    if reason:
        return Estimate(mean=Figure(reason=reason), weighted=Figure(reason=reason), **common)
    sampled = _sampled(cell, turns, judge=judges[0], offline=offline)
    plain = weighted_mean(sampled, confidence=confidence)
    best, note = _best(plain, sampled, offline=offline, confidence=confidence)
    return Estimate(
        mean=best.figure,
        weighted=plain.figure,
        method="weighted" if best is plain else "prediction-powered",
        effective=plain.effective,
        slope=best.slope,
        note=note,
        **common,
    )


def _best(
    plain: Mean, sampled: Sampled, *, offline: Sequence[str], confidence: float
) -> tuple[Mean, str]:
    """Return the estimate to prefer, and why offline scores were not used."""
    if len(offline) > 1:
        return plain, f"offline scores of {len(offline)} versions were not used"
    powered = powered_mean(sampled, confidence=confidence)
    if powered.figure.value is None:
        return plain, powered.figure.reason if offline else ""
    return powered, ""


def _refusal(judges: Sequence[str], chosen: Sequence[_Scored]) -> str:
    """Return why no mean can be estimated from the ``chosen`` scores, or ``""``."""
    if not judges:
        return "no scored turns"
    if len(judges) > 1:
        names = ", ".join(sorted(judges))
        return f"scores of {len(judges)} versions ({names}): see --judge, or a shorter --by"
    scored = [one for one in chosen if one.value is not None]
    unknown = sum(one.probability is None for one in scored)
    if unknown:
        return f"{unknown} of {len(scored)} scores have no sampling probability: see --probability"
    return ""


def _sampled(cell: _Cell, turns: Sequence[str], *, judge: str, offline: Sequence[str]) -> Sampled:
    none = _Scored(None, None)
    scored = [cell.scores[judge].get(turn, none) for turn in turns]
    first = [cell.scores[offline[0]].get(turn, none) for turn in turns] if offline else None
    numbers: dict[str, int] = {}
    clusters = [numbers.setdefault(cell.traces[turn], len(numbers)) for turn in turns]
    return Sampled(
        scores=_array(scored, lambda one: one.value),
        probabilities=_array(scored, lambda one: one.probability),
        offline=None if first is None else _array(first, lambda one: one.value),
        clusters=np.array(clusters, dtype=np.intp),
    )


def _array(scored: Iterable[_Scored], part: Callable[[_Scored], float | None]) -> Numbers:
    found = [np.nan if (value := part(one)) is None else value for one in scored]
    return np.array(found, dtype=np.float64)


def table(estimates: Sequence[Estimate], *, confidence: float = 0.95) -> str:
    """Return ``estimates`` as a table for the terminal, with notes below."""
    level = f"{100 * confidence:g} %"
    head = ("metric", "service", "period", "turns", "judged", "mean", level, "method")
    rows = [head]
    for one in estimates:
        low, high = one.mean.interval or (None, None)
        interval = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        value = "-" if one.mean.value is None else f"{one.mean.value:.3f}"
        method = one.method if one.mean.value is not None else one.mean.reason
        counts = (str(one.turns), str(one.judged))
        rows.append((one.metric, one.service, one.period, *counts, value, interval, method))
    shown = [column for column in range(len(head)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in shown}
    lines = ["  ".join(row[c].ljust(widths[c]) for c in shown).rstrip() for row in rows]
    notes = Counter(one.note for one in estimates if one.note)
    failed = sum(one.failed for one in estimates)
    if failed:
        notes[
            f"chosen turns without a score of the judge: {failed}; the estimate assumes that they"
            " are like the others"
        ] = 1
    repeated = sum(one.repeated for one in estimates)
    if repeated:
        notes[
            f"{repeated} scores were left out, because their turns have other scores of the same"
            " version; give each turn an id of its own"
        ] = 1
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])

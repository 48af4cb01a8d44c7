"""Read the option ``sample_rate``, and decide with which probability a turn is evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, Literal, TypeAlias

from rag_eval_otel.errors import ConfigError

Facts: TypeAlias = Mapping[str, Sequence[object]]
"""What rules can match: names such as ``route`` or ``http.route``, each with its values."""

Stage: TypeAlias = Literal["judge", "offline"]
"""Which judge made the scores: the judge, or the offline judge of a cascade."""

_ALWAYS: Final = ("error", "feedback")
_EXAMPLE: Final = '{"match": {"route": "/chat*"}, "rate": 0.2}'
_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a turn was chosen for the judge that scored it.

    ``probability`` is the probability, above 0, with which turns like this one were chosen.
    ``is_targeted`` is True if the turn was chosen only because turns like it are chosen more often
    than others. The turns that are not targeted are a uniform sample. ``reason`` says why the turn
    has only offline scores, although it was chosen for the judge.
    """

    probability: float = 1.0
    stage: Stage = "judge"
    is_targeted: bool = False
    reason: Literal["budget"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRule:
    """Evaluate the fraction ``rate`` (0 to 1) of the turns to which all entries of ``match`` apply.

    The keys of ``match`` are ``route``, ``model``, ``error``, ``feedback``, ``metadata.<name>`` or
    the name of a span attribute. A text is a pattern, in which ``*`` stands for any characters; all
    other characters stand for themselves. A list applies if one of its values does.
    """

    match: Mapping[str, Any]
    rate: float

    def applies(self, facts: Facts) -> bool:
        return all(
            any(_is_like(value, one) for value in facts.get(name, ()) for one in _listed(wanted))
            for name, wanted in self.match.items()
        )


def probability_of(facts: Facts, rules: Iterable[SamplingRule], *, otherwise: float) -> float:
    """Return the probability with which a turn with these ``facts`` is evaluated.

    The first rule that applies gives the probability; without one, it is ``otherwise``. A turn with
    a failed step or with bad feedback has the probability 1, unless a rule that names ``error`` or
    ``feedback`` applies.
    """
    special = facts.get("error") == (True,) or facts.get("feedback") == ("bad",)
    for rule in rules:
        if special and not any(name in rule.match for name in _ALWAYS):
            continue
        if rule.applies(facts):
            return rule.rate
    return 1.0 if special else otherwise


def rates_of(given: object, *, where: str) -> float | tuple[SamplingRule, ...]:
    """Return the rate in ``given``, or the sampling rules in it.

    ``given`` is a number from 0 to 1, a sequence of `SamplingRule` and mappings, one of these as
    JSON, or the path of a ``.json`` file. Only the last rule may be without ``match``. Raises
    `ConfigError`, which begins with ``where`` and names the rule, for anything else.
    """
    if isinstance(given, str | PurePath):
        given = _loaded(given, where=where)
    if isinstance(given, int | float):
        return _rate(given, where)
    if not isinstance(given, Sequence) or isinstance(given, str):
        msg = (
            f"{where} must be a number between 0 and 1, or a list of rules such as {_EXAMPLE},"
            f" not {given!r}"
        )
        raise ConfigError(msg)
    rules = tuple(_rule(rule, f"{where}, rule {i}") for i, rule in enumerate(given, start=1))
    if not all(rule.match for rule in rules[:-1]):
        msg = f"{where}: only the last rule may have no match, as in {_EXAMPLE}"
        raise ConfigError(msg)
    return rules


def _loaded(given: str | PurePath, *, where: str) -> object:
    text = str(given)
    try:
        if isinstance(given, PurePath) or text.strip().endswith(_SUFFIX):
            text = Path(text.strip()).read_text(encoding="utf-8")
        return json.loads(text)
    except (OSError, RecursionError, ValueError) as error:
        msg = (
            f"{where} must be a number between 0 and 1, or rules as a {_SUFFIX} file or a JSON list"
            f" such as [{_EXAMPLE}], not {text[:100]!r}: {error}"
        )
        raise ConfigError(msg) from error


def _rate(rate: object, where: str) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        msg = f"{where} must be a number between 0 and 1, not {rate!r}"
        raise ConfigError(msg)
    return float(rate)


def _rule(given: object, where: str) -> SamplingRule:
    if isinstance(given, SamplingRule):
        given = {"match": given.match, "rate": given.rate}
    if not isinstance(given, Mapping) or {*given} - {"match"} != {"rate"}:
        msg = f"{where}: must have the keys match and rate, as in {_EXAMPLE}, not {given!r}"
        raise ConfigError(msg)
    match, rate = given.get("match", {}), _rate(given["rate"], f"{where}: rate")
    if not isinstance(match, Mapping):
        msg = f"{where}: match must map names to values, as in {_EXAMPLE}, not {match!r}"
        raise ConfigError(msg)
    for name, wanted in match.items():
        if not isinstance(name, str) or not name:
            msg = f"{where}: match has {name!r} as a name; use a text such as route"
            raise ConfigError(msg)
        values = _listed(wanted)
        if not values or not all(isinstance(value, str | bool | int | float) for value in values):
            msg = f"{where}: {name} must be a text, a number, true, false or a list, not {wanted!r}"
            raise ConfigError(msg)
    return SamplingRule(match=dict(match), rate=rate)


def _listed(wanted: object) -> Sequence[object]:
    return wanted if isinstance(wanted, list | tuple) else (wanted,)


def _is_like(value: object, wanted: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_like(one, wanted) for one in value)
    if isinstance(wanted, bool) or isinstance(value, bool):
        return isinstance(value, bool) and value is wanted
    if isinstance(wanted, str):
        return _fits(str(value), wanted)
    return value == wanted


def _fits(value: str, pattern: str) -> bool:
    """Return True if ``value`` is ``pattern``, in which ``*`` stands for any characters.

    The time is linear in the length of ``value``, which a request may choose.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return value == pattern
    if not value.startswith(first):
        return False
    place = len(first)
    for part in parts[:-1]:
        place = value.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return len(value) - place >= len(parts[-1]) and value.endswith(parts[-1])

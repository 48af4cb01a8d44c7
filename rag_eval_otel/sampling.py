"""Read the option ``sample_rate``, and decide with which probability a turn is evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias

from rag_eval_otel.errors import ConfigError

Facts: TypeAlias = Mapping[str, Sequence[object]]
"""What rules can match: names such as ``route`` or ``http.route``, each with its values."""

_EXAMPLE: Final = '{"match": {"route": "/chat*"}, "rate": 0.2}'


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRule:
    """Evaluate the fraction ``rate`` (0 to 1) of the turns to which all entries of ``match`` apply.

    The keys are ``route``, ``model``, ``metadata.<name>``, names of span attributes, and
    ``error``: without it, a rule does not apply to failed turns. In a text, ``*`` stands for any
    characters; of a list, one value must match. The first rule that applies counts.
    """

    match: Mapping[str, Any]
    rate: float

    def applies(self, facts: Facts) -> bool:
        return all(
            any(_is_like(value, one) for value in facts.get(name, ()) for one in _listed(wanted))
            for name, wanted in self.match.items()
        )


def probability_of(facts: Facts, rules: Iterable[SamplingRule], *, otherwise: float) -> float:
    """Return the probability of the first rule that applies, or ``otherwise``.

    For a failed turn it is 1, unless a rule with the key ``error`` applies.
    """
    has_failed = facts.get("error") == (True,)
    for rule in rules:
        if rule.applies(facts) and ("error" in rule.match or not has_failed):
            return rule.rate
    return 1.0 if has_failed else otherwise


def rates_of(rates: object, *, where: str) -> float | tuple[SamplingRule, ...]:
    """Return the rate in ``rates``, a number from 0 to 1, or the rules in it.

    Rules are `SamplingRule`s or mappings, also as JSON or in a JSON file; else `ConfigError`.
    """
    if isinstance(rates, str | PurePath):
        text = str(rates).strip()
        try:
            rates = json.loads(Path(text).read_text("utf-8") if text.endswith(".json") else text)
        except (OSError, RecursionError, ValueError) as error:
            raise ConfigError(
                f"{where} must be a number between 0 and 1, or rules as a .json file or a JSON list"
                f" such as [{_EXAMPLE}], not {text[:100]!r}: {error}"
            ) from error
    if isinstance(rates, int | float):
        return _rate(rates, where)
    if not isinstance(rates, Sequence) or isinstance(rates, str):
        form = f"a number between 0 and 1, or a list such as [{_EXAMPLE}]"
        raise ConfigError(f"{where} must be {form}, not {rates!r}")
    rules = tuple(_rule(rule, f"{where}, rule {i}") for i, rule in enumerate(rates, start=1))
    if not all(rule.match for rule in rules[:-1]):
        raise ConfigError(f"{where}: only the last rule may have no match, as in {_EXAMPLE}")
    return rules


def _rate(rate: object, where: str) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ConfigError(f"{where} must be a number between 0 and 1, not {rate!r}")
    return float(rate)


def _rule(rule: object, where: str) -> SamplingRule:
    if isinstance(rule, SamplingRule):
        rule = {"match": rule.match, "rate": rule.rate}
    if not isinstance(rule, Mapping) or {*rule} - {"match"} != {"rate"}:
        form = f"must have the keys match and rate, as in {_EXAMPLE}"
        raise ConfigError(f"{where}: {form}, not {rule!r}")
    match, rate = rule.get("match", {}), _rate(rule["rate"], f"{where}: rate")
    if not isinstance(match, Mapping):
        form = f"match must map names to values, as in {_EXAMPLE}"
        raise ConfigError(f"{where}: {form}, not {match!r}")
    for name, wanted in match.items():
        values = _listed(wanted)
        is_name = isinstance(name, str) and name
        if not (is_name and values and all(isinstance(v, str | int | float) for v in values)):
            raise ConfigError(
                f"{where}: match must map a name such as route to a text, a number, true, false or"
                f" a list, not {name!r} to {wanted!r}"
            )
    return SamplingRule(match=dict(match), rate=rate)


def _listed(wanted: object) -> Sequence[object]:
    return wanted if isinstance(wanted, list | tuple) else (wanted,)


def _is_like(value: object, wanted: object) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_like(each, wanted) for each in value)
    if isinstance(wanted, bool) or isinstance(value, bool):
        return value is wanted
    if not isinstance(wanted, str):
        return value == wanted
    # Only * is special. Its time is linear in the value, which comes from a request of a user.
    return fnmatchcase(str(value), wanted.replace("[", "[[]").replace("?", "[?]"))

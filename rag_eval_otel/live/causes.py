"""The causes of missing scores, with what to do, as ``causes.md`` describes them.

The report at the end of a process (`rag_eval_otel.live.doctor`) and ``rag-eval-otel doctor`` share
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Final, Literal, get_args

Level = Literal["problem", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that keeps turns from being scored, or scores from arriving.

    ``cause`` is its id in ``causes.md``, which says ``why`` it matters and what to do (``fix``).
    ``seen`` is the evidence.
    """

    cause: str
    level: Level
    why: str
    fix: str
    seen: str = ""

    def __str__(self) -> str:
        head = f"{self.level.upper()} {self.cause}: {self.seen}"
        return f"{head}\n  why: {self.why}\n  do:  {self.fix}"


def causes_text() -> str:
    """Return the text of ``causes.md``, which the page on statuses repeats."""
    return (files("rag_eval_otel.live") / "causes.md").read_text(encoding="utf-8")


@cache
def causes() -> Mapping[str, Finding]:
    """Return the causes in ``causes.md`` by their ids."""
    entry = r"^- `([a-z-]+)` \((\w+)\): (.+)\n  \*Do:\* (.+)$"
    entries = re.findall(entry, causes_text(), re.MULTILINE)
    levels: Mapping[str, Level] = {level: level for level in get_args(Level)}
    return {
        cause: Finding(cause=cause, level=levels[level], why=why, fix=fix)
        for cause, level, why, fix in entries
    }


def finding(cause: str, seen: str, *, level: Level | None = None) -> Finding:
    """Return the finding of a known ``cause`` with the evidence ``seen``, or with another level."""
    usual = causes()[cause]
    return replace(usual, level=level or usual.level, seen=seen)


# --- turns without scores -------------------------------------------------------------------------

_OF_SCORES: Final[Mapping[str, str]] = {
    "transport": "server-unreachable",
    "circuit_open": "server-unreachable",
    "timeout": "server-slow",
    "unauthorized": "key-refused",
    "rate_limited": "rate-limited",
    "bad_request": "model-refused",
    "unparsable": "reply-unusable",
    "judge_incomplete": "reply-unusable",
    "too_long": "texts-too-long",
    "redaction_error": "turns-redaction-error",
    "internal": "internal-errors",
    "shutdown": "turns-shutdown",
    "span_missed": "turns-span-missed",
    "budget": "turns-budget",
}


def cause_of(status: str, reason: str) -> str:
    """Return the id of the cause for which turns of a ``status`` and ``reason`` lack scores."""
    if status in {"skipped", "dropped"}:
        return f"turns-{reason.replace('_', '-')}"
    return _OF_SCORES.get(reason, "scores-undefined")


def findings_on_turns(turns: Mapping[str, int]) -> Sequence[Finding]:
    """Return a finding for each status and reason in ``turns`` that lacks scores.

    ``turns`` maps statuses with reasons, such as ``skipped no_answer``, to numbers of turns. If no
    turn was scored, a refusal is a problem.
    """
    is_scored = any(key.partition(" ")[0] == "scored" for key in turns)
    results = []
    for key, number in sorted(turns.items()):
        status, _, reason = key.partition(" ")
        if not reason:
            continue
        is_refused = status in {"skipped", "dropped"} and reason != "duplicate" and not is_scored
        level: Level | None = "problem" if is_refused else None
        seen = f"{number} turns lack a score" if status == "scored" else f"{number} turns {status}"
        results.append(finding(cause_of(status, reason), f"{seen}: {reason}", level=level))
    return results

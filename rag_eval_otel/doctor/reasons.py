"""Which cause is behind each reason for a turn without scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_OF_SCORES: Final[Mapping[str, str]] = {
    "transport": "server-unreachable",
    "circuit_open": "server-unreachable",
    "timeout": "server-slow",
    "unauthorized": "key-refused",
    "rate_limited": "rate-limited",
    "bad_request": "model-refused",
    "unparsable": "reply-unusable",
    "judge_incomplete": "reply-unusable",
    "internal": "internal-errors",
    "shutdown": "turns-shutdown",
    "budget": "turns-budget",
}


def cause_of(outcome: str, reason: str) -> str:
    """Return the cause why a turn had an ``outcome`` other than whole, with this ``reason``."""
    if outcome in {"skipped", "dropped"}:
        return f"turns-{reason.replace('_', '-')}"
    return _OF_SCORES.get(reason, "scores-undefined")

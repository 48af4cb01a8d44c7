"""Warnings about what was given: said, and said once."""

from __future__ import annotations

import logging

_log = logging.getLogger("rag_eval_otel")


def warn_of_value(value: object, ignored: int) -> int:
    """Return ``ignored`` plus one, and warn of the first ``value`` that is no score.

    None is what a failed evaluation gives: nothing to count or to warn of.
    """
    if value is None:
        return ignored
    if not ignored:
        _log.warning("drift: %.40r is no score in [0, 1] and was passed over; said once", value)
    return ignored + 1

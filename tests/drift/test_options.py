"""`DriftOptions`: invalid values."""

from __future__ import annotations

from typing import Any

import pytest

from rag_eval_otel.drift import DriftOptions
from rag_eval_otel.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"direction": "sideways"}, "direction must be one of both, down, up"),
        ({"streams": 0}, "streams must be a whole number, 1 or more"),
        ({"targets": {"faithfulness": {"easy": 0.9, "hard": 0.4}}}, "are for strata: set stratum"),
        ({"targets": 0.9}, "targets must be a mapping"),
        ({"questions": None}, "questions must be a whole number"),
        ({"questions": 5}, "window must be a whole number, 100 to 2000"),
        ({"stratum": "route"}, "stratum must be a function"),
        ({"on_drift": 1}, "on_drift must be a function"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], told: str) -> None:
    """The error names the option and the allowed values."""
    with pytest.raises(ConfigError, match=told):
        DriftOptions(**options)


def test_options_are_hashable() -> None:
    """They are part of the frozen `Config`."""
    assert hash(DriftOptions()) == hash(DriftOptions())

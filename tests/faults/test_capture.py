"""Faults of the application's spans."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from live import Invariants, Measured, attached


@pytest.mark.fault(40, expected="no scores, no error, nothing exported")
def test_fault_40_unsampled_spans_are_neither_scored_nor_exported(
    measured: Measured, check_invariants: Invariants
) -> None:
    """A sampler that drops every trace leaves nothing to score."""
    with attached(provider=TracerProvider(sampler=ALWAYS_OFF)) as app:
        for number in range(10):
            app.turn(number)
        app.handle.flush()
        check_invariants(app, turns=0, spans=0)
        measured("spans exported", len(app.exported()))

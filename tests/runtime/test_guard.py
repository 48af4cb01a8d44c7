"""The edge: our exceptions stay on our side, counted."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rag_eval_otel.runtime.guard import Edge, LimitedLog
from support import ManualClock


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
def test_what_is_no_error_passes(kind: type[BaseException]) -> None:
    """Interrupts and cancellation are the application's, and not counted."""
    places: list[str] = []
    with pytest.raises(kind), Edge("here", on_error=places.append):
        raise kind
    assert not places


def test_errors_are_swallowed_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The first is a warning with its calls; no level shows the message of error or cause."""
    secret, places = "Ada, born 1815", list[str]()
    edge = Edge("some place", on_error=places.append)
    with caplog.at_level(logging.DEBUG, logger="rag_eval_otel"):
        for _ in range(3):
            with edge:
                raise ValueError(secret) from KeyError(secret)
    assert places == ["some place"] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "DEBUG"]
    line = "rag_eval_otel: failed in some place; the application is unaffected: ValueError at "
    assert caplog.messages[0].startswith(f"{line}{__file__}:")
    assert not [one for one in caplog.records if "1815" in logging.Formatter().format(one)]


def test_errors_that_are_raised_are_logged_whole(caplog: pytest.LogCaptureFixture) -> None:
    """With ``raise_errors=True``, the log has the message and the traceback."""
    secret = "Ada, born 1815"
    with (
        pytest.raises(ValueError, match="1815"),
        Edge("x", on_error=lambda _: None, raise_errors=True),
    ):
        raise ValueError(secret)
    (line,) = [logging.Formatter().format(one) for one in caplog.records]
    assert "ValueError: Ada, born 1815" in line


def test_a_second_outage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Within a minute a kind is logged once; a minute later again, with the number left out."""
    clock = ManualClock()
    log = LimitedLog(clock=clock)
    for _ in range(4):
        log.write("down", "the judge is down: %s", "refused")
    log.write("other", "another kind")
    clock.advance(60)
    log.write("down", "the judge is down: %s", "reset")
    clock.advance(60)
    log.write("down", "the judge is down: %s", "again")
    assert [record.getMessage() for record in caplog.records] == [
        "rag_eval_otel: the judge is down: refused",
        "rag_eval_otel: another kind",
        "rag_eval_otel: the judge is down: reset (3 more such messages were left out)",
        "rag_eval_otel: the judge is down: again",
    ]


def test_a_log_remembers_a_bounded_number_of_kinds(caplog: pytest.LogCaptureFixture) -> None:
    """Kinds made of texts of others cannot fill the memory; a kind that was dropped starts anew."""
    log = LimitedLog(clock=ManualClock())
    for kind in [*range(256), 300, 0]:
        log.write(str(kind), "kind")
    assert len(caplog.records) == 258
    assert len(log._kinds) == 2  # noqa: SLF001


def test_what_fails_meanwhile_is_kept_in_too() -> None:
    """The application's meter, and then a filter of its logging, may raise an exception."""
    called: list[object] = []

    def broken(what: object) -> bool:
        called.append(what)
        raise ValueError(what)

    logger = logging.getLogger("rag_eval_otel")
    logger.addFilter(broken)
    try:
        with Edge("here", on_error=broken):
            raise KeyError("ours")  # noqa: EM101
    finally:
        logger.removeFilter(broken)
    assert called[0] == "here"
    assert isinstance(called[1], logging.LogRecord)

"""Settings of the tests of the worker."""

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from conformance import FACTS, of_attribute, of_event, of_objects
from rag_eval_otel.worker import engine


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    asyncio.run(test(**given))
    return True


@pytest.fixture(autouse=True)
def messages_conform(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which the worker writes what the conventions do not allow."""
    write, found = engine.write, list[str]()

    def checked_write(message: Any, attributes: Mapping[str, Any], events: Any) -> None:
        write(message, attributes, events := [*events])
        for name, value in attributes.items():
            found.extend(of_attribute(name, value, {"judged_span"}))
        found.extend(of_objects(attributes))
        found.extend(told for event in events for told in of_event(event.attributes or {}))

    if FACTS:
        monkeypatch.setattr(engine, "write", checked_write)
    yield
    assert not found, found

"""Settings of the end-to-end tests."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

pytest.register_assert_rewrite(
    "e2e.beside", "e2e.agents", "e2e.checks", "e2e.langchain_apps", "e2e.watched"
)


@pytest.fixture(scope="session", autouse=True)
def few_certificates() -> None:
    """Let these tests connect to servers of others."""


@pytest.fixture(autouse=True)
def global_providers_stay() -> None:
    """Let these tests set the global providers, as the applications do that they show."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The base URL of the scripted model of `e2e.agents`."""
    from e2e import agents  # noqa: PLC0415  # once asserts in it are rewritten

    with agents.model() as found:
        yield found


@pytest.fixture(scope="module")
def watch(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A provider with our processor, which `trace` of the module instruments."""
    from e2e.watched import watched  # noqa: PLC0415  # once asserts in it are rewritten

    trace: Callable[..., Any] = getattr(request.module, "trace", lambda *_: nullcontext())
    with watched() as found, trace(found, *([request.param] if hasattr(request, "param") else [])):
        yield found

"""Settings of the end-to-end tests."""

from collections.abc import Iterator

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

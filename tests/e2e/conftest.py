"""Settings of the end-to-end tests."""

import pytest

pytest.register_assert_rewrite("e2e.watched")


@pytest.fixture(scope="session", autouse=True)
def few_certificates() -> None:
    """Let these tests connect to servers of others."""


@pytest.fixture(autouse=True)
def global_providers_stay() -> None:
    """Let these tests set the global providers, as the applications do that they show."""

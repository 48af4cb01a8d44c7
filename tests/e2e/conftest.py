"""Settings of the end-to-end tests."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("e2e.watched")


@pytest.fixture(scope="session", autouse=True)
def few_certificates() -> None:
    """Let these tests connect to servers of others."""


@pytest.fixture(autouse=True)
def leaves_nothing_wrong(violations: list[str]) -> Iterator[None]:
    """Let these tests set the global providers, as the applications do that they show."""
    violations.clear()
    yield
    assert not violations, sorted(set(violations))

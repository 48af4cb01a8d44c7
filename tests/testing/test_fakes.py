"""The public names of `rag_eval_otel.testing`."""

import pytest

import rag_eval_otel.testing


def test_public_names_are_sorted_and_exist() -> None:
    """The public list is sorted and each name in it can be had."""
    names = rag_eval_otel.testing.__all__
    assert names == sorted(names) == dir(rag_eval_otel.testing)
    assert all(getattr(rag_eval_otel.testing, name).__name__ == name for name in names)


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails like that of any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = rag_eval_otel.testing.Nothing  # type: ignore[attr-defined]

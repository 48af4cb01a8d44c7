"""Property tests: how many examples they try, and values that they share."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st


def examples(number: int) -> settings:
    """Return settings for ``number`` examples in `make check`, and as many in proportion elsewhere.

    `make check` takes the profile ``full``, which has 50 examples.
    """
    return settings(max_examples=max(1, number * settings().max_examples // 50))


def json_values(*names: str) -> st.SearchStrategy[Any]:
    """Return a strategy of values of JSON, with NaN and infinities, and members of these names."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    members = st.sampled_from(names)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(members, inner, max_size=3),
    )

"""How many examples the property tests try."""

from hypothesis import settings


def examples(number: int) -> settings:
    """Return settings for ``number`` examples in `make check`, and as many in proportion elsewhere.

    `make check` takes the profile ``full``, which has 50 examples.
    """
    return settings(max_examples=max(1, number * settings().max_examples // 50))

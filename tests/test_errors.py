"""The exceptions: one tree, and for each failure of a judge a reason a score may give."""

import re
from typing import get_args

import pytest

from rag_eval_otel import errors
from rag_eval_otel.types import Reason

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_ours(kind: type[Exception]) -> None:
    """Whatever the library raises on purpose is caught by one name."""
    assert issubclass(kind, errors.RagEvalError)


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_drawn_in_the_tree(kind: type[Exception]) -> None:
    """The module's docstring shows each error under its base."""
    assert re.search(rf"\b{kind.__name__}\b", errors.__doc__ or "")


@pytest.mark.parametrize("kind", [kind for kind in ALL if issubclass(kind, errors.JudgeError)])
def test_a_judge_error_has_a_reason(kind: type[errors.JudgeError]) -> None:
    """What a failed score says is from the closed vocabulary."""
    assert kind.reason in get_args(Reason)


def test_each_failure_has_a_reason_of_its_own() -> None:
    """A dashboard can tell the failures of a judge apart."""
    kinds = [kind for kind in ALL if kind.__base__ is errors.JudgeError]
    assert len({kind.reason for kind in kinds}) == len(kinds)


def test_standard_errors_catch_ours() -> None:
    """Code that knows nothing of this library can catch its errors by the usual kinds."""
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.MissingDependencyError, ImportError)


def test_a_missing_dependency_says_how_to_get_it() -> None:
    """The message can be pasted into a shell."""
    error = errors.MissingDependencyError("aiokafka", "kafka")
    assert str(error) == (
        "aiokafka is not installed. Install it with: pip install 'rag-eval-otel[kafka]'"
    )

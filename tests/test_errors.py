"""The exceptions: one tree, and for each failure of a judge a reason a score may give."""

import re
from pathlib import Path
from typing import get_args

import pytest

from rag_eval_otel import errors
from rag_eval_otel.export.backends.delivery import BACKENDS
from rag_eval_otel.runtime.guard import EXTRA, require
from rag_eval_otel.types import Reason

ROOT = Path(__file__).parent.parent
ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_ours(kind: type[Exception]) -> None:
    """Whatever the library raises on purpose is caught by one name."""
    assert issubclass(kind, errors.RagEvalError)


def test_each_failure_has_a_reason_of_its_own() -> None:
    """A dashboard can tell the failures of a judge apart, in a closed vocabulary."""
    assert {k.reason for k in ALL if issubclass(k, errors.JudgeError)} <= set(get_args(Reason))
    kinds = [kind for kind in ALL if kind.__base__ is errors.JudgeError]
    assert len({kind.reason for kind in kinds}) == len(kinds)


def test_standard_errors_catch_ours() -> None:
    """Code that knows nothing of this library can catch its errors by the usual kinds."""
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.MissingDependencyError, ImportError)


def test_a_missing_dependency_says_how_to_get_it() -> None:
    """The message has two commands that can be pasted into a shell."""
    error = errors.MissingDependencyError("redis", "redis")
    assert str(error) == (
        "redis is not installed. Install the extra 'redis' with: pip install"
        ' "rag-eval-otel[redis] @ git+https://github.com/rag-eval-otel/rag-eval-otel"'
        ' (in a checkout: pip install ".[redis]")'
    )


def test_an_optional_import_names_the_module_that_is_missing() -> None:
    """Also below a package that is installed, as the namespace of OpenTelemetry."""
    for module, missing in (("absent.part", "absent"), ("opentelemetry.absent",) * 2):
        with pytest.raises(errors.MissingDependencyError) as caught:
            require(module, "auto")
        assert str(caught.value).startswith(f"{missing} is not installed. Install the extra 'auto'")


def test_the_extras_that_errors_name_exist() -> None:
    """Each extra of a call of `require` and of a backend is in pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", table, flags=re.MULTILINE))
    code = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("rag_eval_otel/**/*.py"))
    named = set(re.findall(r'require\(\s*"[\w.]+", "(\w+)"\s*\)', code))
    assert {"auto", "bedrock", "langchain", "local", "redis"} <= named
    named |= {EXTRA, *BACKENDS.built_in}
    assert named <= extras

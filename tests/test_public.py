"""The public surface: what it is called, and what importing it costs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

import rag_eval_otel
import rag_eval_otel.testing
from live import attached
from processes import ran

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
HEAVY = {"grpc", "openai", "numpy", "pydantic", "langchain_core", "opentelemetry.sdk"}


@pytest.mark.parametrize("module", [rag_eval_otel, rag_eval_otel.testing])
def test_public_names_are_sorted_few_and_real(module: Any) -> None:
    """Every name in ``__all__`` can be had, they are sorted, and at most 30; no other name can."""
    assert module.__all__ == sorted(module.__all__)
    assert len(module.__all__) <= 30
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name).__name__ == name for name in module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = module.Nothing


def modules_after(code: str) -> set[str]:
    done = ran(f"{code}\nimport sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_is_light() -> None:
    """Importing the package loads none of the heavy libraries."""
    assert not HEAVY & modules_after("import rag_eval_otel")


@pytest.mark.slow
def test_first_handler_needs_neither_openai_nor_grpc() -> None:
    """A handler is built without importing the judge's client or an exporter."""
    code = "import rag_eval_otel; rag_eval_otel.RagEvalCallbackHandler(judge='openai/x')"
    assert not {"openai", "grpc"} & modules_after(code)


def hatch_options() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    options: dict[str, Any] = project["tool"]["hatch"]
    return options


def test_the_build_reads_the_version_of_the_package() -> None:
    """The build finds ``__version__`` in the source, so there is one place to change it."""
    where = hatch_options()["version"]
    found = re.search(where["pattern"], (ROOT / where["path"]).read_text(encoding="utf-8"))
    assert found is not None
    assert found["version"] == rag_eval_otel.__version__


def test_the_readme_of_the_distribution_has_absolute_links() -> None:
    """The substitutions of the build leave no link that is relative to the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in hatch_options()["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert all(link.startswith(("https://", "http://", "#")) for link in links)


def test_scopes_carry_the_version() -> None:
    """The scopes of spans, metrics and events name the library and its version."""
    with attached(spans="all") as app:
        app.turn()
        RunnableLambda(str.upper).invoke("a", config={"callbacks": [app.handle.callback]})
        app.handle.flush()
        metrics = app.reader.get_metrics_data()
        assert metrics is not None
        scopes = [found.scope for one in metrics.resource_metrics for found in one.scope_metrics]
        scopes += [one.instrumentation_scope for one in app.exported()]
        scopes += [event.instrumentation_scope for event in app.events.get_finished_logs()]
    ours = [scope.version for scope in scopes if scope and scope.name == "rag_eval_otel"]
    assert len(ours) > 3
    assert set(ours) == {rag_eval_otel.__version__}


@pytest.mark.slow
def test_python_dash_m_is_the_command() -> None:
    """``python -m rag_eval_otel`` is the command line, also from a source tree."""
    words = [sys.executable, "-m", "rag_eval_otel", "--version"]
    assert subprocess.check_output(words, cwd=ROOT, text=True).strip() == rag_eval_otel.__version__

"""The installed distribution: pytest finds the plugin."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.skipif(
    not entry_points(group="pytest11", name="rag_eval_otel"),
    reason="the distribution is not installed: run nox -s plugin",
)

TESTS = """
import pytest
from rag_eval_otel.tools.demo import TURNS, build_app

@pytest.mark.parametrize("turn", TURNS[:3], ids=lambda turn: turn.question)
def test_handbook(rag_eval, turn):
    rag_eval.assert_scores(build_app(), turn.question, answer_relevancy=0.1)

def test_made_up(rag_eval):
    sample = {"question": "When?", "contexts": ["It opens at 9."], "answer": "In July."}
    rag_eval.assert_scores(sample, faithfulness=0.8)

def test_plain():
    pass
"""


def ran(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    settings = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )


def test_pytest_finds_the_plugin(tmp_path: Path) -> None:
    """Without an option or a conftest: fixture, report and JUnit properties."""
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    done = ran(tmp_path, "pytest", "-p", "no:cacheprovider", "--junitxml", "junit.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert "scores: judge lexical" in done.stdout
    assert "test_it.py::test_made_up: faithfulness 0.000, at least 0.8" in done.stdout
    cases = ET.parse(tmp_path / "junit.xml").iter("testcase")  # noqa: S314  # pytest's own
    assert [len(list(case.iter("property"))) for case in cases] == [4, 4, 4, 4, 0]
    spread = ran(tmp_path, "pytest", "-p", "no:cacheprovider", "-n", "2")
    assert spread.stdout.count("test_made_up: faithfulness 0.000, at least 0.8") == 1
    assert "rag_eval" not in ran(tmp_path, "pytest", "-p", "no:rag_eval_otel", "--fixtures").stdout

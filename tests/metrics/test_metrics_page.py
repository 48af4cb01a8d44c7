"""``docs/metrics.md`` is what its generator gives, and what it counts is what the metrics say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from golden.cases import GOLDEN_EDGE, golden_cases
from metrics_page.counts import Counts, count
from metrics_page.edges import edge_row
from metrics_page.page import PAGE, families
from rag_eval_otel.metrics import METRICS

ABSENT = pytest.mark.skipif(
    not GOLDEN_EDGE.exists(), reason="the golden cases (../shared/golden) are not here"
)
REQUESTS = re.compile(r"(\d+)( a context)?(?: \(fused (\d+)\))?")
AGAIN = "run: PYTHONPATH=tests python -m metrics_page"


def made_anew(part: str) -> str:
    """Return a part of the page as a new process makes it, which no other test has touched."""
    script = f"import sys; from metrics_page.page import {part}; sys.stdout.write({part}())"
    python = [sys.executable, "-X", "utf8", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(python, env=environment, capture_output=True, check=True)
    return run.stdout.decode()


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    """It is what the generator gives; without the golden cases, up to the edge table."""
    made = made_anew("page" if GOLDEN_EDGE.exists() else "body")
    assert PAGE.read_text(encoding="utf-8").startswith(made), AGAIN
    assert PAGE.read_text(encoding="utf-8") == made or not GOLDEN_EDGE.exists(), AGAIN


@pytest.mark.slow
@ABSENT
def test_no_row_of_the_edge_table_is_blank() -> None:
    """Each edge case has a row, and it names the peer, its outcome and ours."""
    rows = [edge_row(case) for case in golden_cases(GOLDEN_EDGE)]
    assert len(rows) == 301
    assert all(cell.strip() for row in rows for cell in row[:-1])
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| {row[0]} |" in text for row in rows)


def test_every_module_of_metrics_has_a_heading() -> None:
    """The docstring of a module of metrics begins with a question or a phrase in one line."""
    for module in families():
        heading = (sys.modules[module].__doc__ or "").splitlines()[0]
        assert 0 < len(heading) < 80


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_requests_are_as_stated(name: str) -> None:
    """A metric takes the judge requests that its class states, unfused and fused."""
    single, fused = count([name], fusion="off"), count([name], fusion="on")
    stated = REQUESTS.fullmatch(METRICS[name]().requests)  # type: ignore[attr-defined]
    assert stated is not None
    alone = int(stated[1]) * (4 if stated[2] else 1)
    assert (single.requests, fused.requests) == (alone, int(stated[3] or alone))
    assert all(score.status == "ok" for score in (*single.scores, *fused.scores))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fused", "single"),
    [
        ("default", 2, 6),
        ("dual", 4, 9),
        ("online", 3, 15),
        ("reference", 4, 21),
        ("retrieval", 0, 0),
    ],
)
def test_requests_of_a_set(name: str, fused: int, single: int) -> None:
    """The sets take the requests that are promised for four contexts and three sub-questions."""
    counted: list[Counts] = [count([name], fusion="on"), count([name], fusion="off")]
    assert [counts.requests for counts in counted] == [fused, single]
    assert all(score.status == "ok" for counts in counted for score in counts.scores)

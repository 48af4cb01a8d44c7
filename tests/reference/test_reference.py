"""The pages in ``docs/reference`` are up to date."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_eval_otel.metrics import METRICS
from reference.metrics import FAMILIES, heading, names_of
from reference.pages import FOLDER, PAGES


def made_anew(name: str) -> str:
    """Return a page as a new process makes it, which no other test has touched."""
    script = f"import sys; from reference.pages import PAGES; sys.stdout.write(PAGES[{name!r}]())"
    python = [sys.executable, "-X", "utf8", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    run = subprocess.run(python, env=environment, capture_output=True, check=True)
    return run.stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    """Each page is what the generator makes of the code."""
    assert (FOLDER / name).read_text(encoding="utf-8") == made_anew(name), "run: make docs"


def test_every_metric_is_on_the_page_once() -> None:
    """Each metric belongs to one module, whose docstring begins with a heading in one line."""
    names = [name for module, rows in FAMILIES for name in names_of(module, rows)]
    assert sorted(names) == list(METRICS)
    assert all(0 < len(heading(module)) < 80 for module, _ in FAMILIES)

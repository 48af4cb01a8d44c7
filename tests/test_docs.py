"""The documents say what is true of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from rag_eval_otel import semconv
from rag_eval_otel.config import Config
from rag_eval_otel.types import HoldStatus

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]


def test_every_option_is_documented() -> None:
    """The table of options names each field of `Config`, and no other."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?`) \|", text, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {field.name for field in fields(Config)}


def test_readme_names_every_status() -> None:
    """The README lists what ``rag.evaluation.status`` may say."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{status}`" in text for status in HoldStatus.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a document leads to a file of the project."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text(encoding="utf-8"))
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing


def test_the_page_on_health_names_existing_instruments() -> None:
    """Each instrument that the page names is in `semconv`, and so are the SDK's."""
    text = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")
    instrument = r"`(rag\.evaluation\.[\w.]+|otel\.sdk\.processor\.span\.queue\.\w+)`"
    named = set(re.findall(instrument, text))
    assert named
    assert named <= {name for name in vars(semconv).values() if isinstance(name, str)}

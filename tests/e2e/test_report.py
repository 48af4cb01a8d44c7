"""The report page in a browser: light, dark and printed; it sorts, filters and asks for nothing."""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from e2e.images import browse, render
from e2e.programs import responding
from score_files import falling, jsonl, page_of, row

ARTEFACTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rag-eval-otel"
LIGHT, DARK = (0xFF, 0xFF, 0xFF), (0x14, 0x18, 0x1D)
"""``--page`` of the style sheet; a page that is left to the browser has another dark."""

HOSTILE = "</title></style><script>document.title='owned'</script><img src=/x onerror=alert(1)>"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """Return a page with a fall, a change of version, two metrics, and markup in every text."""
    leaves = {"version": HOSTILE, "explanation": HOSTILE, "reason": HOSTILE}
    rows = [
        row(
            i,
            faithfulness={"value": value, "version": "one" if i < 900 else "two"},
            correctness={"value": 1 + 4 * round(value, 1), "normalized": round(value, 1)},
            **{HOSTILE: {"value": value, **leaves}},
        )
        for i, value in enumerate(falling(3000, at=2200))
    ]
    page_of(jsonl(tmp_path / "scores.jsonl", rows), "--texts", "on")
    return tmp_path / "page.html"


class Served(SimpleHTTPRequestHandler):
    """A file server that records requested paths instead of logging them."""

    def __init__(self, asked: list[str], *rest: Any, **options: Any) -> None:
        self.asked = asked
        super().__init__(*rest, **options)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        self.asked.append(self.path)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = partial(Served, asked, directory=str(folder))
    with responding(handler) as url:
        yield url, asked


def first_pixel(picture: bytes) -> tuple[int, ...]:
    data = b""
    at = 8
    while at < len(picture):
        size = int.from_bytes(picture[at : at + 4], "big")
        if picture[at + 4 : at + 8] == b"IDAT":
            data += picture[at + 8 : at + 8 + size]
        at += size + 12
    return tuple(zlib.decompress(data)[1:4])


@pytest.mark.parametrize(("scheme", "colour"), [("light", LIGHT), ("dark", DARK)])
def test_style_applies_in_both_colour_schemes(
    scheme: str, colour: tuple[int, ...], page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own style applies in both colour schemes, because its policy allows it."""
    picture = ARTEFACTS / "artefacts" / f"report-{scheme}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.unlink(missing_ok=True)
    preferred = {"dark": 0, "light": 1}[scheme]
    asked = (f"--blink-settings=preferredColorScheme={preferred}", f"--screenshot={picture}")
    _, console = browse(page.as_uri(), page.parent, *asked)
    assert console == []
    assert first_pixel(picture.read_bytes()) == colour
    with capsys.disabled():
        print(f"\n    {picture}")  # noqa: T201  # prints the path of the screenshot


def test_markup_is_text_and_nothing_else_is_requested(page: Path) -> None:
    """Markup of the file is shown as text, and the page is the only request."""
    with serving(page.parent) as (address, asked):
        document, console = browse(f"{address}/{page.name}", page.parent, "--dump-dom")
    assert console == []
    assert set(asked) - {"/favicon.ico"} == {"/page.html"}
    assert "<title>Scores of scores.jsonl</title>" in document
    assert document.count("<script") == 1
    assert "<img" not in document
    assert document.count("&lt;script&gt;document.title='owned'") >= 4
    assert document.count('role="img"') == 2 * 3


CLICKS = """
const [table] = document.querySelectorAll("table.sortable");
const told = () => [...table.tBodies[0].rows].filter((row) => !row.hidden)
  .map((row) => row.cells[0].textContent).join(" ");
const [score] = table.querySelectorAll("thead button");
score.click();
const up = told();
score.click();
const down = told();
const field = document.querySelector(".filter input");
field.value = "ANSWER 3";
field.dispatchEvent(new Event("input"));
document.title = [up, down, told(), document.querySelector(".filter output").value].join(" | ");
"""


def test_tables_are_sorted_and_filtered_without_a_server(tmp_path: Path) -> None:
    """By the page's own script: a click on a head, and words in a field."""
    rows = [
        {"score": value, "question": "why?", "answer": f"the answer {i}", "trace_id": str(i)}
        for i, value in enumerate([0.5, -1.5, 10.0, 9.0])
    ]
    page = page_of(jsonl(tmp_path / "scores.jsonl", rows), "--texts", "on")
    policy = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")
    clicked = policy.sub("", page).replace("</body>", f"<script>{CLICKS}</script></body>")
    (tmp_path / "clicked.html").write_text(clicked, encoding="utf-8")
    document, console = browse((tmp_path / "clicked.html").as_uri(), tmp_path, "--dump-dom")
    assert console == []
    title = re.findall("<title>(.*?)</title>", document)[0]  # drawings have titles, too
    assert title == "-1.500 0.500 9.000 10.000 | 10.000 9.000 0.500 -1.500 | 9.000 | 1 of 4"
    document, console = browse((tmp_path / "page.html").as_uri(), tmp_path, "--dump-dom")
    assert console == []
    assert '<button type="button">answer</button>' in document  # the policy allows the script


def test_the_pictures_of_the_readme_are_rendered(tmp_path: Path) -> None:
    """Each picture of ``docs/images`` is rendered anew, and is of the size of the kept one."""
    kept = Path(__file__).parents[2] / "docs" / "images"
    for picture in render(tmp_path):
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert picture.read_bytes()[16:24] == (kept / picture.name).read_bytes()[16:24]

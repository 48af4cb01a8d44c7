"""The report page in a browser: light, dark and printed; it sorts, filters and asks for nothing."""

import html
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from e2e.images import browse, render
from e2e.programs import CACHE, program, responding
from score_files import falling, jsonl, page_of, row

HOSTILE = "</title></style><script>document.title='owned'</script><img src=/x onerror=alert(1)>"


def hostile(i: int, value: float) -> dict[str, Any]:
    """Return a row of three metrics with markup in every text, a drift, versions and refusals."""
    label = "pass" if value >= 0.5 else "fail"
    leaves = {"version": HOSTILE, "explanation": HOSTILE, "reason": HOSTILE}
    texts = ("question", "answer", "reference", "cause", "trace_id", "service", "judge")
    scores = {
        "faithfulness": {"value": value, "version": "one" if i < 900 else "two", "label": label},
        "correctness": {"value": 1 + 4 * round(value, 1), "normalized": round(value, 1)},
        HOSTILE: {"value": value, "threshold": 0.5, **leaves},
    }
    told = {"label": label, "outcome": "declined" if i % 5 == 0 else "answered"}
    contexts = {"contexts": [HOSTILE, f"context {i}"], "time": 1_793_149_200 + 900 * i}
    return row(i, **scores) | told | dict.fromkeys(texts, HOSTILE) | contexts


@pytest.fixture(params=[6, 5000])
def page(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    rows = [hostile(i, value) for i, value in enumerate(falling(request.param, at=3700))]
    page_of(jsonl(tmp_path / "scores.jsonl", rows), "--texts", "on")
    return tmp_path / "page.html"


def with_script(page: Path, script: str) -> str:
    """Return the address of a copy of ``page`` that runs ``script``."""
    policy = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")
    text = policy.sub("", page.read_text(encoding="utf-8"))
    copy = page.with_name("copy.html")
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    return copy.as_uri()


def opened(page: Path, script: str, *options: str) -> str:
    """Return the title that ``script`` sets in ``page``, whose console must stay empty."""
    asked = ("--dump-dom", "--virtual-time-budget=60000", *options)
    document, console = browse(with_script(page, script), page.parent, *asked)
    assert console == []
    return html.unescape(re.findall("<title>(.*?)</title>", document)[0])


OPEN = "for (const each of document.querySelectorAll('details')) each.open = true;"
AXE = "axe-core@4.14.1"
FAULTS = """;axe.run(document, {resultTypes: ["violations"]}).then((found) => {
  const colour = getComputedStyle(document.body).backgroundColor;
  const faults = found.violations.map((each) => each.id + ": "
    + each.nodes.map((node) => node.html.slice(0, 120)));
  document.title = `${colour} ${found.passes.length > 9} ` + faults.join(" | ");
});"""


@pytest.mark.parametrize(("scheme", "colour"), [(0, "rgb(20, 24, 29)"), (1, "rgb(255, 255, 255)")])
def test_no_fault_of_accessibility(scheme: int, colour: str, page: Path) -> None:
    """By axe-core, on a narrow screen with all details open, in both colour schemes."""
    npm = (program("npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
    script = CACHE / "axe" / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        script.parents[2].mkdir(parents=True, exist_ok=True)
        subprocess.run([*npm, AXE], cwd=script.parents[2], check=True)
    options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=420,2400")
    axe = script.read_text(encoding="utf-8").replace("</script", "<\\/script")
    assert opened(page, OPEN + axe + FAULTS, *options) == f"{colour} true "


PAINT = """new PerformanceObserver((list) => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  console.log(`first ${list.getEntriesByName("first-contentful-paint")[0].startTime} ${wide}.`);
}).observe({type: "paint", buffered: true});"""


def test_first_paint_is_within_two_seconds(page: Path) -> None:
    """On a screen of 420 px, which the page does not exceed."""
    options = ("--window-size=420,2400", "--hide-scrollbars", f"--screenshot={page}.png")
    _, console = browse(with_script(page, PAINT), page.parent, *options)
    ((milliseconds, wide),) = re.findall(r"first ([\d.]+) (-?\d+)\.", " ".join(console))
    assert float(milliseconds) < 2000
    assert int(wide) <= 0


def printed(url: str, page: Path) -> int:
    """Return the number of sheets that the page at ``url`` takes."""
    sheets = page.with_name("page.pdf")
    browse(url, page.parent, f"--print-to-pdf={sheets}")
    return len(re.findall(rb"/Type /Page\b", sheets.read_bytes()))


def test_folded_parts_are_printed(page: Path) -> None:
    """A page takes as many sheets as with all details open."""
    assert printed(page.as_uri(), page) == printed(with_script(page, OPEN), page) > 1


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
    assert "<h1><bdi>" in document


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
    page_of(jsonl(tmp_path / "scores.jsonl", rows), "--texts", "on")
    title = opened(tmp_path / "page.html", CLICKS)
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

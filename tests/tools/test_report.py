"""The page on a score file: its contents, its safety, and files of all kinds."""

import hashlib
import re
import statistics
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties import examples
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.drawing import bin_counts
from rag_eval_otel.tools.report import Line, collect_scores, find_drift, scores_page
from rag_eval_otel.tools.rows import Row
from rag_eval_otel.tools.scores import read_scores
from rag_eval_otel.types import Evaluation, Score
from score_files import falling, jsonl, page_of, row

HOSTILE = "</title></style><script>document.title='owned'</script><img src=x onerror=alert(1)>'\"&"


EVERYTHING = ("--texts", "on", "--trace-url", "http://x/{trace_id}?{span_id}")


class ParsedPage(HTMLParser):
    """Elements, attributes and texts of a page."""

    void = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["script"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def parsed(page: str) -> ParsedPage:
    found = ParsedPage(page)
    assert found.open == []
    return found


def evaluated(path: Path) -> Path:
    rows = []
    absent: dict[int, Any] = {
        7: {"value": None, "status": "undefined", "reason": "no_context"},
        8: {"value": None, "status": "error", "reason": "timeout"},
    }
    for i, value in enumerate(falling(1500, at=1200)):
        graded = round(4 * value)
        scores: dict[str, Any] = {
            "faithfulness": {
                "value": value,
                "status": "ok",
                "label": "pass" if value >= 0.5 else "fail",
                "version": "one" if i < 400 else "two",
                "explanation": f"claim {i} is not in the contexts",
            },
            "correctness": {"value": 1.0 + graded, "normalized": graded / 4, "status": "ok"},
            "context_relevance": absent.get(i, {"value": 1.0, "status": "ok"}),
        }
        rows.append(row(i, **scores))
    return jsonl(path, rows)


@pytest.mark.slow
def test_page_has_a_section_for_each_metric(tmp_path: Path) -> None:
    """With figures, drift, versions, worst turns, coverage and reasons."""
    found = parsed(page_of(evaluated(tmp_path / "scores.jsonl")))
    text = found.text
    assert "1,500 turns; judges: a-judge." in text
    assert found.tags.count("h2") == 3 + 1
    assert re.search(r"The scores fell from about row 1,(19|20)\d on; alarm at row 1,2\d\d\.", text)
    assert "v1one400row 0" in text
    assert "v2two1,100row 400" in text
    assert "Several versions are different measurements" in text
    assert "v1: what is normal was learned from the first 200 scores." in text
    assert "1 undefined: no_context" in text
    assert "1 error: timeout" in text
    assert text.count("The worst scores") == 3


def test_metric_is_drawn_on_its_own_scale(tmp_path: Path) -> None:
    """A metric from 1 to 5 is drawn on 1 to 5; its drift is given on the scale 0 to 1."""
    found = parsed(page_of(evaluated(tmp_path / "scores.jsonl"), "--metric", "correctness"))
    assert re.search(r"Mean [34]\.\d+, 95 % interval \[[34]\.", found.text)
    assert "since on the scale 0 to 1" in found.text
    ticks = [word for word in found.words if re.fullmatch(r"[0-9.]+", word)]
    assert {"1", "2", "3", "4", "5"} <= set(ticks)
    assert "faithfulness" not in found.text


TURN = {
    "question": "quoted?",
    "answer": "quoted answer",
    "contexts": ["quoted first", {"text": "quoted second", "id": "2"}],
    "reference": "quoted reference",
    "trace_id": "0af7651916cd43dd8448eb211c80319c",
    "span_id": "00f067aa0ba902b7",
}


def turns(path: Path) -> Path:
    return jsonl(path, [{**TURN, "score": i / 10, "time": 1.8e9 + i} for i in range(9)])


def test_texts_of_the_worst_turns_are_shown_on_demand(tmp_path: Path) -> None:
    """Question, answer, contexts and reference; the contexts one by one."""
    path = turns(tmp_path / "scores.jsonl")
    assert "quoted" not in page_of(path)
    page = page_of(path, "--texts", "on", "--worst", "2")
    for text in ("quoted?", "quoted answer", "quoted first", "quoted second", "quoted reference"):
        assert page.count(text) == 2
    assert page.count("<summary>2</summary><ol><li>") == 2


def test_texts_follow_content_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where content is captured, the page shows texts, unless an option says no."""
    monkeypatch.setenv("RAG_EVAL_EXPORT_CONTENT", "all")
    path = turns(tmp_path / "scores.jsonl")
    assert "quoted answer" in page_of(path)
    assert "quoted" not in page_of(path, "--texts", "off")


def test_turns_are_links_to_their_traces(tmp_path: Path) -> None:
    """To any backend; ids are quoted, and a turn without a trace has no link."""
    rows: list[dict[str, Any]] = [{**TURN, "score": 0.1}, {"score": 0.2}]
    rows.append({"score": 0.3, "trace_id": "a/b?'\"", "span_id": "{trace_id}"})
    path = jsonl(tmp_path / "scores.jsonl", rows)
    page = page_of(path, "--trace-url", "https://jaeger/trace/{trace_id}?uiFind={span_id}")
    links = [v for name, v in parsed(page).attributes if name == "href" and v[0] != "#"]
    assert links == [
        f"https://jaeger/trace/{TURN['trace_id']}?uiFind={TURN['span_id']}",
        "https://jaeger/trace/a%2Fb%3F%27%22?uiFind=%7Btrace_id%7D",
    ]


@pytest.mark.parametrize(
    "url", ["javascript:alert('{trace_id}')", "http://x/", "http://x/{trace}", "{trace_id}"]
)
def test_an_address_without_an_id(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused, with an example; so is an address that would run a script."""
    path = turns(tmp_path / "scores.jsonl")
    page = str(tmp_path / "page.html")
    assert main(["report", str(path), "-o", page, "--trace-url", url]) == 2
    assert "such as http://localhost:16686/trace/{trace_id}" in capsys.readouterr().err


@pytest.mark.slow
def test_page_is_self_contained(tmp_path: Path) -> None:
    """No links but anchors, and a policy that allows only the page's own style and script."""
    page = page_of(evaluated(tmp_path / "scores.jsonl"), "--texts", "on")
    found = parsed(page)
    assert found.tags.count("script") == 1
    assert not {"link", "img", "iframe", "object", "form"} & set(found.tags)
    names = {name for name, _ in found.attributes}
    assert not {"src", "srcset", "style", "xlink:href", "action"} & names
    assert not [name for name in names if name.startswith("on")]
    assert all(v.startswith("#") for name, v in found.attributes if name == "href")
    (style,) = re.findall("<style>(.*?)</style>", page, flags=re.DOTALL)
    assert not re.search(r"url\(|@import|http", style)
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(v for _, v in found.attributes if v.startswith("default-src 'none'"))
    assert f"style-src 'sha256-{digest}'" in policy
    (script,) = re.findall("<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"fetch|XMLHttp|import|eval|innerHTML|http|document\.write", script)
    anchors = {v for name, v in found.attributes if name == "id"}
    assert {v[1:] for name, v in found.attributes if name == "href"} <= anchors


def hostile(path: Path) -> Path:
    leaves = dict.fromkeys(("reason", "explanation", "version"), HOSTILE)
    scores = {HOSTILE: {"value": 0.5, **leaves}, "b": {"status": "error", **leaves}}
    told = dict.fromkeys(("service", "judge", "question", "answer", "trace_id"), HOSTILE)
    other = {"scores": scores, **told, "service": "other", "time": "2026-01-01"}
    return jsonl(path / "<b>.jsonl", [{"scores": scores, **told}, other])


def test_markup_in_the_file_is_escaped(tmp_path: Path) -> None:
    """In names, reasons, versions, judges, services, explanations and questions."""
    found = parsed(page_of(hostile(tmp_path), *EVERYTHING))
    assert "img" not in found.tags
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.tags.count("script") == found.tags.count("style") == found.tags.count("h1") == 1
    assert found.text.count("document.title='owned'") >= 5


def test_unprintable_characters_are_replaced(tmp_path: Path) -> None:
    """Surrogates, NUL and other controls, in a text that reverses its direction."""
    cells = {"judge": "\ud800\0\x1b\u202e", "metric": "m", "trace_id": "\ud800{span_id}"}
    page = page_of(jsonl(tmp_path / "a.jsonl", [{"score": 1, **cells}]), *EVERYTHING)
    assert 'href="http://x/%3F%7Bspan_id%7D?"' in page
    assert "<bdi>\ufffd\ufffd\ufffd\u202e</bdi>" in page


def test_page_size_is_bounded(tmp_path: Path) -> None:
    """Of names that change with every row the first or most frequent are shown."""
    rows = [
        {"judge": f"j{i}", "scores": {"f": {"value": 0.5, "version": f"v{min(i, 990)}"}}}
        for i in range(1000)
    ]
    rows += [row(i, f={"status": "error", "reason": f"r{i}"}) for i in range(1000)]
    page = page_of(jsonl(tmp_path / "a.jsonl", rows))
    assert len(page) < 60_000
    text = parsed(page).text
    assert "979 versions with fewer scores are in the figures alone." in text
    assert "and 980 more" in text
    assert "v990" in text


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("page.pdf", "must end in .html"),
        ("folder.html", "Is a directory"),
        ("a.html", "is the file that is read"),
        ("nowhere/page.html", "cannot be written"),
    ],
)
def test_unusable_output(
    output: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page never replaces the file that is read."""
    (tmp_path / "folder.html").mkdir()
    path = jsonl(tmp_path / "a.jsonl", [{"score": 1}])
    file = tmp_path / "a.html" if output == "a.html" else path
    assert main(["report", str(file), "-o", str(tmp_path / output)]) == 2
    assert told in capsys.readouterr().err


@examples(60)
@given(
    values=st.lists(st.one_of(st.floats(0, 1), st.floats(-1e300, 1e300)), min_size=1, max_size=60),
    times=st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))),
)
def test_any_numbers_are_drawn(values: list[float], times: list[float | None]) -> None:
    """For any scores and times, every coordinate is a finite number."""
    moments = [*times, *[None] * len(values)]
    page = scores_page(
        collect_scores(
            Row(
                index=i,
                evaluation=Evaluation(scores=(Score(name="f", value=value),)),
                place="row",
                time=moments[i],
            )
            for i, value in enumerate(values)
        ),
        name="a.jsonl",
    )
    found = parsed(page)
    places = [v for name, v in found.attributes if name in {"x", "y", "cx", "cy", "d", "width"}]
    assert places
    assert not [place for place in places if re.search("nan|inf", place)]


def line(values: list[float]) -> Line:
    numbers = np.array(values, np.float64)
    at = np.arange(len(values), dtype=np.float64)
    return Line(version="v", at=at, values=numbers, units=numbers)


@given(st.lists(st.floats(0, 1), min_size=1))
def test_every_score_is_in_a_bin(values: list[float]) -> None:
    """The counts add up, and both ends belong to the outer bins."""
    counts = bin_counts([*values, 0.0, 1.0], (0.0, 1.0))
    assert sum(counts) == len(values) + 2
    assert counts[0] and counts[-1]  # noqa: PT018  # both ends


def test_running_mean_is_over_its_window() -> None:
    """The last mean is that of the last window; there are at most 241."""
    values = falling(10_000, at=6000)
    scores = line(values)
    curve = scores.curve()
    assert len(curve.points) <= 241
    assert scores.window == 250
    assert curve.points[-1] == (9999, pytest.approx(statistics.mean(values[-250:])))
    low, high = curve.band[-1][1]
    assert low < curve.points[-1][1] < high

    assert line([0.5]).curve().points == [(0, 0.5)]


def test_lasting_change_is_one_mark() -> None:
    """Repeated alarms are of the same change."""
    found = find_drift(line(falling(6000, at=3000)))
    (mark,) = found.marks
    assert 2980 <= mark.onset <= 3010
    assert mark.onset <= mark.at <= 3030
    assert found.scores == 6000
    assert found.learn == 2000


def test_scores_outside_0_to_1_are_left_out() -> None:
    """They are counted, and the places of alarms stay right."""
    values = [85.0 if i % 2 else value for i, value in enumerate(falling(3000, at=2000))]
    found = find_drift(line(values))
    assert found.outside == 1500
    assert 1950 <= found.marks[0].onset <= 2050


def judged(turns: int = 600) -> list[dict[str, Any]]:
    """Return scores of a sample in which bad turns are four times as frequent."""
    rng = np.random.default_rng(5)
    cells = {"metric": "faithfulness", "service": "shop", "version": "faithfulness/1/fused/paid"}
    scores = [(score, 0.8 if score < 0.6 else 0.2) for score in rng.beta(4, 1.5, turns).tolist()]
    return [
        {**cells, "score": score, "sampling_probability": probability}
        for score, probability in scores
        if rng.random() < probability
    ]


def test_the_mean_of_all_turns_is_estimated_from_a_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weighted by the probabilities, if these differ and are known, and there is one version."""
    rows = judged()
    page = page_of(jsonl(tmp_path / "sample.jsonl", rows))
    assert "Mean of all turns, estimated from a sample of them: 0.7" in page
    out = capsys.readouterr().out
    ((mean, low, high),) = re.findall(r"mean of all turns ([\d.]+) \[([\d.]+), ([\d.]+)\]", out)
    assert float(low) < 4 / 5.5 < float(high)
    assert float(mean) > 0.05 + statistics.mean(cells["score"] for cells in rows)
    others = ({"sampling_probability": 0.2}, {"sampling_probability": None})
    two = [rows[0] | {"version": "faithfulness/1/fused/other"}, *rows]
    for changed in (two, *([cells | other for cells in rows] for other in others)):
        path = jsonl(tmp_path / "a.jsonl", changed)
        (series,) = collect_scores(read_scores(path)).series.values()
        assert series.estimated() is None


def labelled(value: float, **cells: Any) -> dict[str, Any]:
    label = "pass" if value >= 0.5 else "fail"
    return {"value": value, "status": "ok", "label": label, "threshold": 0.5, **cells}


def test_the_headline_says_what_the_data_show(tmp_path: Path) -> None:
    """A drift alarm with its day, and the share of turns that pass; metrics in trouble first."""
    steady, fall = falling(1500, at=1500, seed=1), falling(1500, at=1100)
    rows = [
        {"time": 1_793_149_200 + 900 * i, "label": labelled(value)["label"]}
        | row(i, steady=labelled(steady[i]), falls=labelled(value))
        for i, value in enumerate(fall)
    ]
    text = parsed(page_of(jsonl(tmp_path / "a.jsonl", rows))).text
    share = round(100 * sum(value >= 0.5 for value in fall) / 1500)
    head = re.search(r"falls fell around (\d+ \w+) 2026; (\d+) % of 1,500 turns pass", text)
    assert head is not None
    assert head[1] == "8 November"
    assert head[2] == str(share)
    assert text.index("falls") < text.index("steady")
    assert text.count("threshold 0.5") == 4


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"score": 1}], "nothing says which of them are good"),
        ([row(0, f=labelled(1.0)) | {"label": "pass"}], "100 % of 1 turns pass"),
        ([{"score": 0.5}] * 400, "no drift was found"),
        (
            [{"score": i < 300, "metric": "f", "service": "a"} for i in range(400)]
            + [{"score": 1, "metric": "f", "service": "b"}] * 400,
            "f of a fell around row 300",
        ),
    ],
)
def test_the_headline_claims_nothing_else(rows: list[Any], told: str, tmp_path: Path) -> None:
    """Without labels there is no share, with few scores nothing about drift; services are named."""
    page = page_of(jsonl(tmp_path / "a.jsonl", rows))
    assert re.findall("<h1>(.*)</h1>", page) == [f"<bdi>{told}</bdi>"]


def test_sections_with_little_to_say_are_folded(tmp_path: Path) -> None:
    """Of six turns: time line, drift and coverage; the worst refusals are apart from answers."""
    rows = [
        row(i, f=labelled(i / 10)) | {"outcome": "declined" if i == 0 else "answered"}
        for i in range(6)
    ]
    page = page_of(jsonl(tmp_path / "a.jsonl", rows))
    assert re.findall("<summary>(.*?)</summary>", page) == [
        "Refusals: the worst scores of answers that decline: 1",
        "Time line: 6 scores",
        "Drift: no alarm",
        "each evaluation gave a score",
    ]
    worst, _, refusals = page.partition("<details>")
    assert "row 0" not in worst.partition("Worst turns")[2]
    assert refusals.partition("</details>")[0].count("row 0") == 1

"""Phoenix as the tracing backend: scores can be read back, filtered and seen."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps import company
from e2e.fickle import BAD, GOOD, fickle
from e2e.phoenix_server import MARKS, PATIENCE, Phoenix, served
from e2e.programs import checked, eventually, program
from e2e.proxy import proxied

SERVICE, WITH_TEXTS, TURNS = "shop", "handbook", 3
METRICS = ("faithfulness", "answer_relevancy", "context_relevance", "response_groundedness")
SPANS = 3 * TURNS  # turn, retrieval and chat
ARTEFACTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rag-eval-otel"
LOW = "attributes['rag']['evaluation']['faithfulness']['score'] <= 0.5"

pytestmark = MARKS


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    """Run Phoenix, and send it two good turns and a bad one."""
    with served(tmp_path_factory.mktemp("phoenix")) as found:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={SERVICE}")
            with fickle(found, SERVICE, signals="traces") as app:
                app.ask(TURNS - 1, GOOD)
                app.ask(1, BAD)
        eventually(lambda: len(found.spans(SERVICE)) >= SPANS, f"{SPANS} spans in Phoenix")
        yield found


def turns_of(phoenix: Phoenix) -> list[dict[str, Any]]:
    """Return the spans that stand for a turn, the bad one first."""
    turns = phoenix.turns(SERVICE).values()
    return sorted(turns, key=lambda turn: turn["attributes"]["rag.evaluation.label"])


def test_scores_are_read_back(phoenix: Phoenix) -> None:
    """Each turn is there once, with numeric scores and its children."""
    assert len(phoenix.spans(SERVICE)) == SPANS
    bad, *good = (turn["attributes"] for turn in turns_of(phoenix))
    assert bad["rag.evaluation.faithfulness.score"] < 0.1
    assert bad["rag.evaluation.label"] == "fail"
    assert [turn["rag.evaluation.faithfulness.score"] for turn in good] == [1.0] * (TURNS - 1)


def test_documented_filter_finds_the_bad_turn(phoenix: Phoenix) -> None:
    """The documented filter finds only the bad turn."""
    spans = f'spans(first: 10, filterCondition: "{LOW}") {{ edges {{ node {{ spanId }} }} }}'
    found = phoenix.query(
        f'{{ node(id: "{phoenix.project_of(SERVICE)}") {{ ... on Project {{ {spans} }} }} }}'
    )
    ids = [edge["node"]["spanId"] for edge in found["node"]["spans"]["edges"]]
    assert ids == [turns_of(phoenix)[0]["context"]["span_id"]]


def test_scores_are_seen(phoenix: Phoenix, tmp_path: Path, capsys: Any) -> None:
    """The page of the bad turn shows the names of its scores and their values."""
    turn = turns_of(phoenix)[0]
    trace = f"projects/{phoenix.project_of(SERVICE)}/traces/{turn['context']['trace_id']}"
    url = f"{phoenix.http}/{trace}?selectedSpanNodeId={turn['id']}"
    text = seen(url, "phoenix.png", profile=tmp_path, capsys=capsys)
    for name in METRICS:
        assert f"rag.evaluation.{name}.score" in text


@pytest.fixture(scope="module")
def content(phoenix: Phoenix) -> list[dict[str, Any]]:
    """Send turns with their texts, and their scores as annotations; return their spans."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={WITH_TEXTS}")
        patch.setenv("PHOENIX_ENDPOINT", phoenix.http)
        options: dict[str, Any] = {"export_content": "all", "backends": ["phoenix"]}
        with fickle(phoenix, WITH_TEXTS, signals="traces", **options) as app:
            for count, answer in ((TURNS - 1, GOOD), (1, BAD)):
                app.run(count, answer)
                assert app.handle.flush(PATIENCE)  # the annotations, too
    eventually(lambda: len(phoenix.spans(WITH_TEXTS)) >= SPANS, f"{SPANS} spans with texts")
    spans = phoenix.spans(WITH_TEXTS)
    ids = [span["context"]["span_id"] for span in spans]
    wanted = TURNS * (len(METRICS) + 1)  # and the overall label
    eventually(lambda: len(phoenix.annotations(WITH_TEXTS, ids)) >= wanted, f"{wanted} annotations")
    return spans


def test_spans_have_a_kind_input_and_output(content: list[dict[str, Any]]) -> None:
    """No span is "unknown", and none shows "--": each has its kind, its input and its output."""
    kinds = Counter(span["span_kind"] for span in content)
    assert kinds == {"CHAIN": TURNS, "RETRIEVER": TURNS, "LLM": TURNS}
    for span in content:
        assert span["attributes"]["input.value"]
        assert span["span_kind"] == "RETRIEVER" or span["attributes"]["output.value"] in {GOOD, BAD}
    searches = [span["attributes"] for span in content if span["span_kind"] == "RETRIEVER"]
    assert all("Borealis" in str(one["retrieval.documents.0.document.content"]) for one in searches)


def test_the_list_of_spans_shows_them(
    phoenix: Phoenix, content: list[dict[str, Any]], tmp_path: Path, capsys: Any
) -> None:
    """The list has columns with kind, input, output and each score of each turn."""
    project = phoenix.project_of(WITH_TEXTS)
    # What a user chooses under "Columns", where Phoenix's page keeps it.
    chosen = {"annotationColumnVisibility": dict.fromkeys(METRICS, True)}
    kept = f"arize-phoenix-tracing-{project}-spans", json.dumps({"state": chosen, "version": 0})
    with proxied(phoenix.http) as proxy:
        proxy.script = f"localStorage.setItem(...{json.dumps(kept)})"
        url = f"{proxy.url}/projects/{project}/spans"
        text = seen(url, "phoenix-spans.png", profile=tmp_path, capsys=capsys, size="3000,800")
    for shown in ("chain", company.FOUNDED, BAD):
        assert shown in text
    assert "unknown" not in text
    heads = text.partition("kindnameinputoutput")[2].partition("start time")[0]
    columns = sorted(METRICS, key=heads.rindex)
    cell = r"μ&nbsp;([\d.]+)View annotation details"
    row = rf"\+{len(METRICS) + 1}" + cell * len(columns)
    scores = [
        [span["attributes"][f"rag.evaluation.{name}.score"] for name in columns]
        for span in content
        if "rag.evaluation.status" in span["attributes"]
    ]
    shown_scores = [list(map(float, found)) for found in re.findall(row, text)]
    assert sorted(shown_scores) == [pytest.approx(turn, abs=0.006) for turn in sorted(scores)]


def seen(url: str, name: str, *, profile: Path, capsys: Any, size: str = "2200,1400") -> str:
    """Open ``url`` in headless Chromium, keep a picture called ``name``, and return the text."""
    picture = ARTEFACTS / "artefacts" / name
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.unlink(missing_ok=True)
    page = checked(
        [
            *(program("chromium"), "--headless", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", f"--user-data-dir={profile}", f"--window-size={size}"),
            "--blink-settings=preferredColorScheme=1",
            *("--virtual-time-budget=30000", "--dump-dom", f"--screenshot={picture}", url),
        ]
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    with capsys.disabled():
        print(f"\n    {picture}")  # noqa: T201  # prints the path of the screenshot
    return re.sub("<[^>]+>", "", page)  # long names may be broken at each dot

"""Phoenix as the tracing backend: scores can be read back, filtered and seen."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from apps import company
from e2e.fickle import BAD, GOOD, fickle
from e2e.programs import checked, eventually, free_ports, get, program, running
from e2e.proxy import proxied

SERVICE, WITH_TEXTS, TURNS = "shop", "handbook", 3
METRICS = ("faithfulness", "answer_relevancy", "context_relevance", "response_groundedness")
SPANS = 3 * TURNS  # turn, retrieval and chat
COMMAND = Path(sys.executable).with_name("phoenix")
ARTEFACTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rag-eval-otel"
LOW = "attributes['rag']['evaluation']['faithfulness']['score'] <= 0.5"
PATIENCE = 240.0  # Phoenix creates its tables first

pytestmark = [
    pytest.mark.skipif(not COMMAND.exists(), reason="arize-phoenix is not installed"),
    pytest.mark.timeout(1200),
    # The package of the server, which the client shares, imports outdated parts of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@dataclass(frozen=True, kw_only=True)
class Phoenix:
    """A running Phoenix, and its data of the service."""

    http: str
    grpc: str

    def read(self, path: str) -> Any:
        """Return the data of its REST API at ``path``; empty if there is none."""
        return json.loads(get(f"{self.http}/v1/{path}") or '{"data": []}')["data"]

    def query(self, text: str) -> Any:
        """Return the response of its GraphQL API."""
        body = json.dumps({"query": text}).encode()
        told = {"Content-Type": "application/json"}
        asked = Request(f"{self.http}/graphql", body, told)  # noqa: S310
        with urlopen(asked, timeout=30) as answer:  # noqa: S310
            return json.load(answer)["data"]

    @property
    def project(self) -> str:
        """The id of the service's project."""
        return self.project_of(SERVICE)

    def project_of(self, name: str) -> str:
        """Return the id of the project ``name``."""
        (found,) = [one["id"] for one in self.read("projects") if one["name"] == name]
        return str(found)

    def spans(self, name: str = SERVICE) -> list[dict[str, Any]]:
        """Return the spans of the service ``name``."""
        found: list[dict[str, Any]] = self.read(f"projects/{name}/spans?limit=100")
        return found

    def turns(self) -> list[dict[str, Any]]:
        """The spans that stand for a turn, the bad one first."""
        turns = [span for span in self.spans() if "rag.evaluation.status" in span["attributes"]]
        return sorted(turns, key=lambda turn: turn["attributes"]["rag.evaluation.label"])


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    """Run Phoenix, and send it two good turns and a bad one."""
    folder = tmp_path_factory.mktemp("phoenix")
    port, grpc = free_ports(2)
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    found = Phoenix(http=f"http://127.0.0.1:{port}", grpc=f"127.0.0.1:{grpc}")
    with running(
        [str(COMMAND), "serve"],
        ready=f"{found.http}/healthz",
        log=folder / "phoenix.log",
        environment=environment,
        patience=PATIENCE,
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={SERVICE}")
            with fickle(found, SERVICE, signals="traces") as app:
                app.ask(TURNS - 1, GOOD)
                app.ask(1, BAD)
        eventually(lambda: len(found.spans()) >= SPANS, f"{SPANS} spans in Phoenix")
        yield found


def test_scores_are_read_back(phoenix: Phoenix) -> None:
    """Each turn is there once, with numeric scores and its children."""
    assert len(phoenix.spans()) == SPANS
    bad, *good = (turn["attributes"] for turn in phoenix.turns())
    assert bad["rag.evaluation.faithfulness.score"] < 0.1
    assert bad["rag.evaluation.label"] == "fail"
    assert [turn["rag.evaluation.faithfulness.score"] for turn in good] == [1.0] * (TURNS - 1)


def test_documented_filter_finds_the_bad_turn(phoenix: Phoenix) -> None:
    """The documented filter finds only the bad turn."""
    spans = f'spans(first: 10, filterCondition: "{LOW}") {{ edges {{ node {{ spanId }} }} }}'
    found = phoenix.query(f'{{ node(id: "{phoenix.project}") {{ ... on Project {{ {spans} }} }} }}')
    ids = [edge["node"]["spanId"] for edge in found["node"]["spans"]["edges"]]
    assert ids == [phoenix.turns()[0]["context"]["span_id"]]


def test_scores_are_seen(phoenix: Phoenix, tmp_path: Path, capsys: Any) -> None:
    """The page of the bad turn shows the names of its scores and their values."""
    turn = phoenix.turns()[0]
    trace = f"projects/{phoenix.project}/traces/{turn['context']['trace_id']}"
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
        options: dict[str, Any] = {"capture_content": "span", "backends": ["phoenix"]}
        with fickle(phoenix, WITH_TEXTS, signals="traces", **options) as app:
            for count, answer in ((TURNS - 1, GOOD), (1, BAD)):
                app.run(count, answer)
                assert app.handle.flush(PATIENCE)  # the annotations, too
    eventually(lambda: len(phoenix.spans(WITH_TEXTS)) >= SPANS, f"{SPANS} spans with texts")
    ids = "&".join(f"span_ids={span['context']['span_id']}" for span in phoenix.spans(WITH_TEXTS))
    path = f"projects/{WITH_TEXTS}/span_annotations?limit=100&{ids}"
    wanted = TURNS * (len(METRICS) + 1)  # and the overall label
    eventually(lambda: len(phoenix.read(path)) >= wanted, f"{wanted} annotations")
    return phoenix.spans(WITH_TEXTS)


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

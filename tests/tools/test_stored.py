"""`rag-eval-otel collect` from backends: the spans that Phoenix, MLflow and Langfuse have stored.

The clients are fakes here. `make e2e` runs the real ones.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
import requests

from e2e.recorded import KEY, Langfuse, Recorded, langfuse_observation
from rag_eval_otel.capture.span import Span
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.collect import Collected, CollectedTurn, Selection, collect
from rag_eval_otel.tools.stored import langfuse_messages, mlflow_messages
from replay import load
from tools.test_collect import RECORDINGS, TOLD, collected, messages, told, turn_spans

THERE = "http://langfuse.example"
Output = Callable[..., list[dict[str, Any]]]


def plain_recordings(*names: str) -> list[Path]:
    """Return the recordings that begin with ``names``, without those of particular settings."""
    return [
        path for path in RECORDINGS if path.stem.startswith(names) and path.stem.count("__") == 1
    ]


@pytest.fixture
def rows(tmp_path: Path) -> Output:
    """Return a function that runs the command, and returns the rows that it writes."""

    def run(*options: str) -> list[dict[str, Any]]:
        output = tmp_path / "samples.jsonl"
        assert main(["collect", "-o", str(output), *options]) == 0
        return [json.loads(line) for line in output.read_text().splitlines()]

    return run


# --- Phoenix --------------------------------------------------------------------------------------


def phoenix_span(span: Span) -> dict[str, Any]:
    """Return a recorded span as the client of Phoenix does: no scope, times as text."""
    assert span.end is not None
    return {
        "id": "U3BhbjoxMTA=",
        "name": span.name,
        "context": {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"},
        "span_kind": span.attributes["openinference.span.kind"],
        "parent_id": None if span.parent_id is None else f"{span.parent_id:016x}",
        "start_time": datetime.fromtimestamp(span.start / 1e9, timezone.utc).isoformat(),
        "end_time": datetime.fromtimestamp(span.end / 1e9, timezone.utc).isoformat(),
        "status_code": "UNSET",
        "status_message": "",
        "attributes": dict(span.attributes),
        "events": [],
    }


@pytest.fixture
def phoenix(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stand in for the client of Phoenix: what is in the list is returned, or raised."""
    answers: list[object] = []

    class Spans:
        def get_spans(self, **asked: object) -> list[object]:
            if isinstance(answers[0], Exception):
                raise answers[0]
            return [one for one in answers if asked["project_identifier"] == "shop"]

    class Client:
        spans = Spans()

    for name in ("phoenix", "phoenix.client"):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        module.Client = Client  # type: ignore[attr-defined]
    return answers


def test_spans_of_phoenix_give_the_turns(rows: Output, phoenix: list[object]) -> None:
    """Phoenix keeps no scope; OpenInference is recognised by its attributes."""
    later = turn_spans(2, label="fail", start=10**18 + 10**9)
    phoenix += map(phoenix_span, [*turn_spans(1), *later])
    found = rows("--phoenix", "shop", "--since", "2001-01-01")
    assert [(row["trace_id"], row["answer"], row["service"]) for row in found] == [
        (f"{1:032x}", TOLD, "shop"),
        (f"{2:032x}", TOLD, "shop"),
    ]
    assert [row.get("live_label") for row in found] == [None, "fail"]


def refused(status: int) -> httpx.HTTPStatusError:
    """Return the error of the client after a response with this status."""
    request = httpx.Request("GET", "http://phoenix.example/v1/projects/shop/spans")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (refused(404), "Phoenix answered 404 for the project 'shop'"),
        (refused(401), "check PHOENIX_ENDPOINT and PHOENIX_API_KEY"),
        (httpx.ConnectError("refused"), "cannot be reached: refused; set PHOENIX_ENDPOINT"),
    ],
)
def test_phoenix_that_does_not_answer(
    tmp_path: Path,
    phoenix: list[object],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    says: str,
) -> None:
    """The message says what to set; nothing is written."""
    phoenix.append(error)
    output = tmp_path / "samples.jsonl"
    assert main(["collect", "--phoenix", "shop", "-o", str(output)]) == 2
    assert says in capsys.readouterr().err
    assert not output.exists()


# --- MLflow ---------------------------------------------------------------------------------------


class MlflowError(Exception):
    """An error of MLflow, with a status."""

    def get_http_status_code(self) -> int:
        return 401


class FakeMLflow:
    """A client of MLflow with the experiment ``shop``, whose id is 7."""

    def __init__(self, *traces: Any) -> None:
        self.traces = traces
        self.asked: list[Any] = []
        self.retries: list[int] = []

    def get_experiment_by_name(self, name: str) -> Any:
        if name == "lost":
            told = "no http://me:secret@there"
            raise requests.ConnectionError(told)
        return SimpleNamespace(experiment_id="7") if name == "shop" else None

    def get_experiment(self, number: str) -> Any:
        if number != "7":
            raise MlflowError
        return SimpleNamespace(experiment_id="7")

    def search_traces(self, **asked: Any) -> Any:
        """Return one trace in a page."""
        self.asked.append(asked)
        start = int(asked["page_token"] or 0)
        page = _Page(self.traces[start : start + 1])
        page.token = str(start + 1) if start + 1 < len(self.traces) else None
        return page


class _Page(list[Any]):
    token: str | None = None


def mlflow_trace(spans: Iterable[Span], *, adding: str = "mlflow.spanType") -> Any:
    """Return a trace as MLflow does: with values of JSON as objects, and attributes of its own."""
    found = []
    for span in spans:
        status = "ERROR" if span.error else "UNSET"
        found.append(
            SimpleNamespace(
                name=span.name,
                span_id=f"{span.span_id:016x}",
                parent_id=None if span.parent_id is None else f"{span.parent_id:016x}",
                start_time_ns=span.start,
                end_time_ns=span.end,
                attributes={**{k: _loaded(v) for k, v in span.attributes.items()}, adding: "TOOL"},
                events=[SimpleNamespace(name=n, attributes=dict(v)) for n, v in span.events],
                status=SimpleNamespace(
                    status_code=SimpleNamespace(value=status), description=span.error
                ),
            )
        )
        trace = f"tr-{span.trace_id:032x}"
    info = SimpleNamespace(trace_id=trace, tags={"service.name": "orders"})
    return SimpleNamespace(info=info, data=SimpleNamespace(spans=found))


def _loaded(value: Any) -> Any:
    try:
        found = json.loads(value)
    except (TypeError, ValueError):
        return value
    return found if isinstance(found, str | dict | list) else value


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMLflow:
    """Stand in for the client of MLflow."""
    client = FakeMLflow()
    retries = SimpleNamespace(is_set=lambda: False, set=client.retries.append)
    modules = {
        "mlflow": SimpleNamespace(MlflowClient=lambda: client),
        "mlflow.environment_variables": SimpleNamespace(MLFLOW_HTTP_REQUEST_MAX_RETRIES=retries),
        "mlflow.exceptions": SimpleNamespace(MlflowException=MlflowError),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return client


@pytest.mark.parametrize("experiment", ["shop", "7"])
def test_traces_of_mlflow_give_the_turns(rows: Output, mlflow: FakeMLflow, experiment: str) -> None:
    """All pages of the period are read; attributes that MLflow added are not."""
    mlflow.traces = (mlflow_trace(turn_spans(1)), mlflow_trace(turn_spans(2, label="fail")))
    found = rows("--mlflow", experiment, "--since", "2001-09-09", "--until", "2030-01-01T00:00Z")
    assert [(row["trace_id"], row["answer"], row["service"]) for row in found] == [
        (f"{1:032x}", TOLD, "orders"),
        (f"{2:032x}", TOLD, "orders"),
    ]
    assert [row.get("live_label") for row in found] == [None, "fail"]
    assert [one["page_token"] for one in mlflow.asked] == [None, "1"]
    limits = "timestamp_ms >= 999993600000 AND timestamp_ms < 1893456000000"
    assert [one["filter_string"] for one in mlflow.asked] == [limits] * 2
    assert mlflow.retries == [2]


@pytest.mark.slow
@pytest.mark.skipif(not RECORDINGS, reason="the shared recordings are not here")
def test_mlflow_gives_back_the_recordings_of_its_own_spans(mlflow: FakeMLflow) -> None:
    """And those of OpenInference, though MLflow keeps no scope."""
    different, samples = set[str](), 0
    for path in plain_recordings("mlflow", "openinference-langchain"):
        spans = [span for span in load(path).spans if span.end]
        if any(span.dropped for span in spans):
            continue  # MLflow does not say so
        by_trace = {one.trace_id: [s for s in spans if s.trace_id == one.trace_id] for one in spans}
        mlflow.traces = tuple(
            mlflow_trace(one, adding="mlflow.traceRequestId") for one in by_trace.values()
        )
        found = list(collect(mlflow_messages("shop"), Selection(), Collected()))
        samples += len(found)
        if told(one.sample for one in found) != told(
            one.sample for one in collected(messages(spans))
        ):
            different.add(path.stem)
    assert different == set()
    assert samples > 20


# --- Langfuse -------------------------------------------------------------------------------------


class ApiError(Exception):
    """An error of the client of Langfuse."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status_code: {status_code}")
        self.status_code = status_code


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One path of the API, with a method of the client of Langfuse."""

    service: Langfuse
    path: str
    headers: dict[str, str]

    def get_many(self, **asked: Any) -> Any:
        """Return the page as an object."""
        names = {re.sub("_(.)", lambda m: m[1].upper(), k): v for k, v in asked.items() if v}
        query = {name: [str(value)] for name, value in names.items()}
        request = Recorded(
            method="GET",
            path=self.path.removeprefix(THERE),
            query=query,
            headers=self.headers,
            body=None,
        )
        self.service.requests.append(request)
        if not self.path.startswith(THERE):
            raise httpx.ConnectError(self.path)
        status, found = self.service.answer(request)
        if status >= HTTPStatus.BAD_REQUEST:
            raise ApiError(status)
        meta = SimpleNamespace(cursor=found["meta"].get("cursor"))
        return SimpleNamespace(data=list(map(as_object, found["data"])), meta=meta)


def as_object(one: dict[str, Any]) -> Any:
    """Return JSON as an object of the client: names in lower case, and times."""
    found = {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", k): v for k, v in one.items()}
    for name in ("start_time", "end_time"):
        if found.get(name):
            found[name] = datetime.fromisoformat(found[name])
    if "subject" in found:
        found["subject"] = as_object(found["subject"])
    return SimpleNamespace(**found)


@pytest.fixture
def langfuse(monkeypatch: pytest.MonkeyPatch) -> Langfuse:
    """Stand in for the client of Langfuse, which asks a service in this process."""
    service = Langfuse()

    def api(*, base_url: str, password: str | None, **_: Any) -> Any:
        key = b64encode(f"public:{password}".encode()).decode()
        headers = {"authorization": f"Basic {key}"}
        observations, scores = (
            Endpoint(service=service, path=f"{base_url}/api/public/{path}", headers=headers)
            for path in ("v2/observations", "v3/scores")
        )
        return SimpleNamespace(observations=observations, scores=scores)

    core = SimpleNamespace(ApiError=ApiError)
    monkeypatch.setitem(sys.modules, "langfuse.api", SimpleNamespace(LangfuseAPI=api))
    monkeypatch.setitem(sys.modules, "langfuse.api.core", core)
    monkeypatch.setenv("LANGFUSE_BASE_URL", THERE)
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "public")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", KEY)
    return service


def from_langfuse(service: Langfuse, spans: Iterable[Span], **how: bool) -> list[CollectedTurn]:
    """Return the turns that are collected after Langfuse has stored ``spans``."""
    service.observations = [langfuse_observation(span, **how) for span in spans]
    counts = Collected()
    return list(collect(langfuse_messages(counts), Selection(), counts))


@pytest.mark.parametrize("flat", [False, True])
def test_observations_of_langfuse_give_the_turns(
    rows: Output, langfuse: Langfuse, *, flat: bool
) -> None:
    """All pages are read, and metadata that Langfuse cuts is asked for by name."""
    page = "The house was founded in 1949. " * 20
    spans = turn_spans(1, page=page)
    langfuse.observations = [langfuse_observation(span, flat=flat) for span in spans]
    langfuse.page = 1
    (row,) = rows("--langfuse", "--since", "2001-01-01")
    assert (row["trace_id"], row["answer"], row["service"]) == (f"{1:032x}", TOLD, "shop")
    assert row["contexts"] == [page]
    asked = langfuse.sent("GET", "/api/public/v2/observations")
    assert {one.query["fromStartTime"][0][:10] for one in asked} == {"2001-01-01"}


def test_the_label_of_langfuse_is_that_of_its_score(rows: Output, langfuse: Langfuse) -> None:
    """Which this library has sent to Langfuse."""
    langfuse.observations = [
        langfuse_observation(span) for trace in (1, 2) for span in turn_spans(trace)
    ]
    score: dict[str, Any] = {"id": "a", "name": "rag.evaluation", "value": "fail"}
    score |= {"traceId": f"{2:032x}", "observationId": f"{1:016x}", "dataType": "CATEGORICAL"}
    score |= {"timestamp": "2026-11-22T09:00:00Z"}
    langfuse.stored = {"a": score}
    assert [row["trace_id"] for row in rows("--langfuse", "--failed")] == [f"{2:032x}"]


@pytest.mark.slow
@pytest.mark.skipif(not RECORDINGS, reason="the shared recordings are not here")
def test_langfuse_gives_back_the_recordings_of_its_own_spans(langfuse: Langfuse) -> None:
    """Of other instrumentations, it gives most samples, and none that is different.

    ``docs/collect.md`` has the numbers. Langfuse says neither whether a parent is in another
    process, nor to which length an application cut texts.
    """
    langfuse.page = 100
    sent, same = Counter[str](), Counter[str]()
    for path in RECORDINGS:
        kind = path.stem.split("__", maxsplit=1)[0]
        if not kind.startswith(("langfuse", "openinference-l")) or "attr_value_len" in path.stem:
            continue
        spans = [span for span in load(path).spans if span.end]
        found = told(turn.sample for turn in from_langfuse(langfuse, spans))
        expected = told(turn.sample for turn in collected(messages(spans)))
        assert not found - expected, path.stem
        assert found == expected or path.stem.endswith("remote_parent") or "llama" in kind
        sent[kind] += expected.total()
        same[kind] += found.total()
    assert (same["langfuse"], sent["langfuse"]) == (16, 16)
    assert (same["openinference-langchain"], sent["openinference-langchain"]) == (64, 72)
    assert same["openinference-llama-index"] == 0  # whose messages Langfuse does not keep


def test_traces_that_cannot_be_read_are_counted(
    langfuse: Langfuse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids of another format, and instrumentations whose messages Langfuse does not keep."""
    langfuse.page = 100
    good, bad, llama, cut = (
        [langfuse_observation(span) for span in turn_spans(n)] for n in (1, 2, 3, 4)
    )
    cut[0]["metadata"]["attributes"] = '{"openinference.span.kind": "RETR'
    bad[0] |= {"id": "0b6a2c5e-0000-4000-8000-000000000001"}
    llama[0]["metadata"]["scope"] = {"name": "openinference.instrumentation.llama_index"}
    langfuse.observations = [*good, *bad, *llama, *cut, {**good[0], "id": "x", "traceId": "mine"}]
    assert main(["collect", "--langfuse", "-o", str(tmp_path / "a.jsonl")]) == 0
    told = capsys.readouterr().err
    assert "1 samples of 5 traces; skipped: 2 invalid_id, 1 not_kept, 1 truncated" in told

"""What is passed to the clients of backends, and what is made of their errors.

The clients are fakes here. `make e2e` runs the real ones.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from langsmith import utils

from acme import http_error
from e2e.recorded import KEY, PROJECT, Answer, Recorded, opik_id, serving
from e2e.recorded import LangSmith as LangSmithService
from rag_eval_otel.export.backends.annotation import Annotation, BackendError
from rag_eval_otel.export.backends.clients import (
    Langfuse,
    LangSmith,
    MLflow,
    Opik,
    Phoenix,
    end_of_opik_id,
)

SCORE = Annotation(
    name="faithfulness",
    trace_id=7,
    span_id=1,
    value=0.75,
    label="pass",
    kind="LLM",
    annotator="gpt",
    explanation="because",
    metadata={"threshold": 0.5},
)
LABEL = Annotation(name="rag.evaluation", trace_id=7, span_id=2, label="fail", kind="CODE")
OF_TRACE = Annotation(name="user", trace_id=7, span_id=None, value=1.0, kind="HUMAN")
SPAN_1, SPAN_2, TRACE_7 = f"{1:016x}", f"{2:016x}", f"{7:032x}"

Fake = Callable[..., None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    def put(**modules: Any) -> None:
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name.replace("__", "."), module)

    return put


class FakePhoenix:
    """A client of Phoenix; the first requests fail with ``errors``."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sent: list[tuple[str, list[Any]]] = []
        self.spans = SimpleNamespace(
            log_span_annotations=lambda *, span_annotations, sync: self.log(
                "span", span_annotations if sync else []
            )
        )
        self.traces = SimpleNamespace(
            log_trace_annotations=lambda *, trace_annotations, sync: self.log(
                "trace", trace_annotations if sync else []
            )
        )

    def log(self, kind: str, annotations: list[Any]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append((kind, annotations))


def phoenix(fake: Fake, *errors: Exception) -> tuple[Phoenix, FakePhoenix]:
    client = FakePhoenix(*errors)
    fake(phoenix__client=SimpleNamespace(Client=lambda: client))
    return Phoenix(), client


def test_phoenix_gets_annotations(fake: Fake) -> None:
    """Of spans, and of traces whose span is not known."""
    backend, client = phoenix(fake)
    assert not backend.send([SCORE, LABEL, OF_TRACE])
    (spans, (one, two)), (traces, (three,)) = client.sent
    assert (spans, traces) == ("span", "trace")
    assert one == {
        "span_id": SPAN_1,
        "name": "faithfulness",
        "annotator_kind": "LLM",
        "result": {"score": 0.75, "label": "pass", "explanation": "because"},
        "metadata": {"threshold": 0.5},
        "identifier": "rag_eval_otel",
    }
    assert two["result"] == {"label": "fail"}
    assert three["trace_id"] == TRACE_7


def test_phoenix_names_the_spans_that_are_missing(fake: Fake) -> None:
    """The other annotations are sent again at once, without them."""
    backend, client = phoenix(fake, http_error(404, f"Spans with IDs {SPAN_2} do not exist."))
    (refusal,) = backend.send([SCORE, LABEL])
    assert (refusal.annotation, refusal.error.status) == (LABEL, 404)
    ((_, sent),) = client.sent
    assert [one["span_id"] for one in sent] == [SPAN_1]


@pytest.mark.parametrize("error", [http_error(404, "no such page"), http_error(500, SPAN_1)])
def test_another_error_of_phoenix_is_of_the_whole_batch(fake: Fake, error: Exception) -> None:
    """For example an address that is not that of Phoenix."""
    backend, _ = phoenix(fake, error)
    with pytest.raises(BackendError):
        backend.send([SCORE, LABEL])


class MlflowError(Exception):
    """An error of MLflow, with a status."""

    def get_http_status_code(self) -> int:
        return 503


class FakeMLflow:
    """A client of MLflow, which stores each feedback under a new id."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.calls = 0
        self.fails: set[int] = set()

    def log_feedback(self, **feedback: Any) -> None:
        self.calls += 1
        number = str(self.calls)
        self.stored.append(SimpleNamespace(assessment_id=number, **feedback))
        if self.calls in self.fails:  # it was stored, but the answer is lost
            raise MlflowError

    def delete_assessment(self, *, trace_id: str, assessment_id: str) -> None:
        self.stored = [one for one in self.stored if one.assessment_id != assessment_id]

    def get_trace_info(self, trace_id: str) -> Any:
        return SimpleNamespace(assessments=[s for s in self.stored if s.trace_id == trace_id])


def mlflow(fake: Fake) -> tuple[MLflow, FakeMLflow]:
    client = FakeMLflow()
    source = SimpleNamespace(AssessmentSource=lambda kind, by: (kind, by))
    fake(
        mlflow=client,
        mlflow__entities=source,
        mlflow__tracing__client=SimpleNamespace(TracingClient=lambda: client),
        mlflow__exceptions=SimpleNamespace(MlflowException=MlflowError),
    )
    return MLflow(), client


def test_mlflow_gets_a_feedback_for_the_score_and_one_for_the_label(fake: Fake) -> None:
    """In the trace that MLflow makes of the OpenTelemetry trace."""
    backend, client = mlflow(fake)
    assert not backend.send([SCORE, LABEL])
    assert [(one.name, one.value) for one in client.stored] == [
        ("faithfulness", 0.75),
        ("faithfulness.label", "pass"),
        ("rag.evaluation", "fail"),
    ]
    score = client.stored[0]
    assert (score.trace_id, score.span_id) == (f"tr-{TRACE_7}", SPAN_1)
    assert (score.source, score.rationale) == (("LLM_JUDGE", "gpt"), "because")
    assert score.metadata["threshold"] == "0.5"


def test_mlflow_stores_no_feedback_twice(fake: Fake) -> None:
    """Though the answers to two requests were lost, and the client repeated one by itself."""
    backend, client = mlflow(fake)
    client.fails = {2, 4}
    (first, second) = backend.send([SCORE, LABEL])
    assert (first.error.status, second.error.status) == (503, 503)
    client.stored.append(SimpleNamespace(**{**vars(client.stored[0]), "assessment_id": "again"}))
    while refusals := backend.send([SCORE, LABEL]):
        assert [one.error.status for one in refusals] == [503, 503]
    assert sorted(one.name for one in client.stored) == [
        "faithfulness",
        "faithfulness.label",
        "rag.evaluation",
    ]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Forget the variables that LangSmith has read, which it does once in a process."""
    yield
    utils.get_env_var.cache_clear()
    utils.get_tracer_project.cache_clear()


def langsmith(monkeypatch: pytest.MonkeyPatch, url: str, **environment: str) -> LangSmith:
    settings = {
        "LANGSMITH_ENDPOINT": url,
        "LANGSMITH_API_KEY": KEY,
        "LANGSMITH_PROJECT": PROJECT,
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in {**settings, **environment}.items():
        monkeypatch.setenv(name, value)
    utils.get_env_var.cache_clear()
    utils.get_tracer_project.cache_clear()
    return LangSmith()


@pytest.mark.slow
def test_langsmith_gets_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the run whose id is that of the span."""
    with serving(LangSmithService(known={1, 2})) as service:
        backend = langsmith(monkeypatch, service.url)
        (refusal,) = backend.send([SCORE, LABEL, OF_TRACE])
    assert (refusal.annotation, refusal.error.status) == (OF_TRACE, 400)
    one = service.stored[str(SCORE.id)]
    assert one["run_id"] == "00000000-0000-0000-0000-000000000001"
    assert (one["score"], one["value"], one["comment"]) == (0.75, "pass", "because")
    assert one["feedback_source"]["metadata"] == {"annotator_kind": "LLM", "threshold": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "status"),
    [({"LANGSMITH_API_KEY": "wrong"}, 401), ({"LANGSMITH_PROJECT": "elsewhere"}, 404)],
)
def test_langsmith_refuses_a_wrong_key_and_a_wrong_project(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], status: int
) -> None:
    """For the whole batch."""
    with serving(LangSmithService()) as service:
        backend = langsmith(monkeypatch, service.url, **environment)
        with pytest.raises(BackendError) as caught:
            backend.send([SCORE])
    assert caught.value.status == status


@dataclass
class Strict(LangSmithService):
    """Refuses the feedback of one name with ``status``, and quotes it."""

    status: int = 422

    def answer(self, request: Recorded) -> Answer:
        if request.path == "/feedback" and request.body["key"] == SCORE.name:
            return self.status, {"detail": request.body["comment"]}
        return super().answer(request)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "is_temporary"), [(403, False), (422, False), (413, False), (503, True)]
)
def test_langsmith_refuses_invalid_feedback(
    monkeypatch: pytest.MonkeyPatch, status: int, *, is_temporary: bool
) -> None:
    """Its client has one error for many statuses. Invalid feedback must not be sent for an hour."""
    with serving(Strict(known={1, 2}, status=status)) as service:
        (refusal,) = langsmith(monkeypatch, service.url).send([SCORE, LABEL])
    assert (refusal.annotation, refusal.error.status) == (SCORE, status)
    assert refusal.error.is_temporary is is_temporary
    assert status == 403 or "because" not in str(refusal.error)


def langfuse(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, answer: Callable[[list[Any]], Any]
) -> Langfuse:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "public")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "secret")
    scores = SimpleNamespace(create=lambda *, request, request_options: answer(request))
    fake(
        langfuse__api=SimpleNamespace(LangfuseAPI=lambda **_: SimpleNamespace(scores=scores)),
        langfuse__api__core=SimpleNamespace(ApiError=requests.RequestException),
    )
    return Langfuse()


def test_langfuse_gets_numbers_and_categories(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one request, with ids that stay the same."""
    sent: list[list[Any]] = []
    backend = langfuse(fake, monkeypatch, sent.append)
    for _ in range(2):
        assert not backend.send([SCORE, LABEL])
    first, second = sent
    assert first == second
    assert [(one["name"], one["value"], one["dataType"]) for one in first] == [
        ("faithfulness", 0.75, "NUMERIC"),
        ("faithfulness.label", "pass", "CATEGORICAL"),
        ("rag.evaluation", "fail", "CATEGORICAL"),
    ]
    assert (first[0]["traceId"], first[0]["observationId"]) == (TRACE_7, SPAN_1)
    assert first[0]["metadata"] == {"annotator_kind": "LLM", "threshold": 0.5}


def test_langfuse_does_not_say_which_score_it_rejected(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the batch is refused, and each annotation is sent alone."""
    backend = langfuse(fake, monkeypatch, lambda _: SimpleNamespace(rejected=1))
    with pytest.raises(BackendError, match="rejected 1 of 2 scores") as caught:
        backend.send([SCORE])
    assert not caught.value.is_temporary


class FakeOpik:
    """A client of Opik that knows the spans ``known``."""

    def __init__(self, known: set[int]) -> None:
        self.known = known
        self.searches: list[str] = []
        self.sent: list[Any] = []
        self.config = SimpleNamespace(project_name=PROJECT)
        spans = SimpleNamespace(score_batch_of_spans=self.score)
        self.rest_client = SimpleNamespace(spans=spans)

    def search_spans(self, *, filter_string: str, max_results: int) -> list[Any]:
        self.searches.append(filter_string)
        end = filter_string.split('"')[1]
        ids = [opik_id(span) for span in self.known]
        return [SimpleNamespace(id=one) for one in ids if one.endswith(end)][:max_results]

    def score(self, *, scores: list[Any], request_options: Any) -> None:
        self.sent.append(scores)


def opik(fake: Fake, *known: int) -> tuple[Opik, FakeOpik]:
    client = FakeOpik(set(known))
    fake(
        opik=SimpleNamespace(Opik=lambda **_: client),
        opik__rest_api__types__feedback_score_batch_item=SimpleNamespace(
            FeedbackScoreBatchItem=SimpleNamespace
        ),
        opik__rest_api__core__api_error=SimpleNamespace(ApiError=requests.RequestException),
    )
    return Opik(), client


def test_opik_gets_feedback_scores(fake: Fake) -> None:
    """Of the span with the right hash in its id."""
    backend, client = opik(fake, 1, 2, 3)
    assert not backend.send([SCORE, LABEL])
    assert not backend.send([SCORE])
    (one, two), _ = client.sent
    assert (one.id, two.id) == (opik_id(1), opik_id(2))
    assert (one.value, one.category_name) == (0.75, "pass")
    assert one.reason == "because\nLLM gpt; threshold: 0.5"
    assert (two.value, two.category_name) == (0.0, "fail")
    assert len(client.searches) == 3
    assert end_of_opik_id(1) in "".join(client.searches)


def test_opik_does_not_know_the_span_yet(fake: Fake) -> None:
    """Only its scores are refused. A score of a trace is never taken."""
    backend, client = opik(fake, 2)
    refusals = backend.send([SCORE, LABEL, OF_TRACE])
    assert {(one.annotation.name, one.error.status) for one in refusals} == {
        ("faithfulness", 404),
        ("user", 400),
    }
    assert [[one.name for one in sent] for sent in client.sent] == [["rag.evaluation"]]

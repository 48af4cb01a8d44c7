"""What is passed to the clients of backends, and what is made of their errors.

The clients are fakes here. `make e2e` runs the real ones.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from acme import http_error
from rag_eval_otel.export.backends.annotation import Annotation, BackendError
from rag_eval_otel.export.backends.clients import Langfuse, MLflow, Phoenix

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

"""Annotations: what backends are told about the scores of a turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from acme import http_error
from rag_eval_otel.export.backends.annotation import (
    Annotation,
    BackendError,
    annotation_of,
    annotations_of,
    backend_error,
)
from rag_eval_otel.types import Evaluation, Feedback, Sampling, Score, SpanRef

SPAN = SpanRef(trace_id=0xABC, span_id=0xDEF)
JUDGED = Score(
    name="faithfulness",
    value=0.75,
    label="pass",
    threshold=0.7,
    version="faithfulness/1/fused/gpt",
    explanation="because",
)
COMPUTED = Score(name="ranking", value=3.0, normalized=0.5)
FAILED = Score(name="answer_relevancy", status="error", reason="timeout")
EVALUATION = Evaluation(scores=(JUDGED, COMPUTED, FAILED), judge="gpt", span=SPAN)


def annotations(evaluation: Evaluation, **options: Any) -> dict[str, Annotation]:
    found = annotations_of(replace(evaluation, computed=frozenset({"ranking"})), **options)
    return {one.name: one for one in found}


def test_each_score_is_an_annotation() -> None:
    """With its value, label, version and threshold; a failed score is none."""
    found = annotations(EVALUATION)
    assert list(found) == ["faithfulness", "ranking", "rag.evaluation"]
    overall = found["rag.evaluation"]
    assert (overall.value, overall.label, overall.kind) == (None, "pass", "CODE")
    explained = annotations(EVALUATION, explanations=True)
    assert explained["faithfulness"].explanation == "because"
    judged = found["faithfulness"]
    assert (judged.value, judged.label, judged.explanation) == (0.75, "pass", None)
    assert judged.metadata == {
        "version": "faithfulness/1/fused/gpt",
        "threshold": 0.7,
        "judge": "gpt",
    }
    assert (judged.trace_hex, judged.span_hex) == ("0" * 29 + "abc", "0" * 13 + "def")
    assert found["ranking"].metadata["normalized_score"] == 0.5


def test_the_kind_of_annotator_is_that_of_the_score() -> None:
    """A model judged, or a program: metrics that ask no judge, and the offline judge."""
    found = annotations(EVALUATION)
    assert [(one.kind, one.annotator) for one in found.values()] == [
        ("LLM", "gpt"),
        ("CODE", "rag_eval_otel"),
        ("CODE", "rag_eval_otel"),
    ]
    for judge in ("lexical", "local/nli", None):
        offline = annotations(replace(EVALUATION, judge=judge))
        assert {one.kind for one in offline.values()} == {"CODE"}


def test_scores_of_an_offline_judge_have_other_names() -> None:
    """As on the span: beside the scores of the judge, or alone."""
    offline = Evaluation(
        scores=(replace(JUDGED, value=0.25),),
        judge="lexical",
        span=SPAN,
        sampling=Sampling(stage="offline"),
    )
    both = annotations(replace(EVALUATION, offline=offline))
    assert (both["offline.faithfulness"].value, both["faithfulness"].value) == (0.25, 0.75)
    assert both["offline.faithfulness"].kind == "CODE"
    assert list(annotations(offline)) == ["offline.faithfulness", "rag.evaluation"]


def test_an_annotation_keeps_its_id() -> None:
    """Another attempt has the same id; another span, name, or a person's feedback has another."""
    first, again = (annotations(EVALUATION)["faithfulness"] for _ in range(2))
    assert first.id == again.id
    others = {
        replace(first, name="b").id,
        replace(first, span_id=1).id,
        replace(first, span_id=None).id,
        replace(first, kind="HUMAN").id,
    }
    assert len(others - {first.id}) == 4


def test_feedback_of_people_is_an_annotation() -> None:
    """Its comment is the explanation."""
    feedback = Feedback(trace_id=1, span_id=2, score=0.0, comment="wrong \ud800")
    found = annotation_of(feedback)
    assert (found.name, found.kind, found.value, found.label) == ("user", "HUMAN", 0.0, "fail")
    assert found.explanation == "wrong ?"


def test_an_error_has_the_status_of_the_response() -> None:
    """And its Retry-After, if that is a number of seconds."""
    error = backend_error(http_error(429, "slow down", **{"retry-after": "7"}))
    assert (error.status, error.retry_after, error.body) == (429, 7.0, "slow down")
    assert backend_error(http_error(503, **{"retry-after": "Sun, 22 Nov"})).retry_after == 0
    assert backend_error(http_error(503, **{"Retry-After": "-1"})).retry_after == 0
    assert backend_error(httpx.ConnectError("")).status is None


class ApiError(Exception):
    """The error of a generated client, as Langfuse has it."""

    def __init__(self, status_code: int, body: object) -> None:
        self.headers, self.status_code, self.body = {"set-cookie": "s=1"}, status_code, body

    def __str__(self) -> str:
        return f"headers: {self.headers}, status_code: {self.status_code}, body: {self.body}"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ApiError(422, {"input": "my illness"}), "HTTP 422 (ApiError)"),
        (ApiError(500, "INSERT ... [parameters: my illness]"), "HTTP 500 (ApiError)"),
        (ApiError(401, {"message": "wrong key"}), "HTTP 401 (ApiError)"),
        (httpx.ConnectError("no route to http://me:pass@there"), "ConnectError"),
    ],
)
def test_the_message_of_an_error_has_no_secrets(error: Exception, expected: str) -> None:
    """It is logged: no texts of users, cookies, passwords or parts of keys are in it."""
    assert str(backend_error(error)) == expected


@pytest.mark.parametrize("status", [None, 400, 401, 404, 408, 409, 413, 425, 429, 499, 500, 503])
def test_what_may_succeed_later_is_temporary(status: int | None) -> None:
    """Errors of the connection, timeouts, limits and errors of the server."""
    temporary = {None, 408, 409, 425, 429, 500, 503}
    assert BackendError("told", status=status).is_temporary is (status in temporary)

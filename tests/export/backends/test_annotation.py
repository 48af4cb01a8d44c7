"""Annotations: what backends are told about the scores of a turn."""

from dataclasses import replace
from typing import Any

from rag_eval_otel.export.backends.annotation import Annotation, annotation_of, annotations_of
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
    """Return the annotations by name; only ``faithfulness`` asks a judge."""
    found = annotations_of(evaluation, asking=frozenset({"faithfulness"}), **options)
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
    offline = annotations(replace(EVALUATION, judge="lexical"))
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

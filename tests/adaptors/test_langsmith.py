"""`langsmith_evaluator` and `RagStringEvaluator`, with the real classes of both libraries."""

import asyncio
import uuid
from datetime import datetime, timezone
from typing import Any

import pytest
from langchain_classic.evaluation import StringEvaluator
from langchain_core.documents import Document
from langchain_core.load import dumpd
from langsmith.evaluation import run_evaluator
from langsmith.schemas import Example, Run

from rag_eval_otel import HashingEmbedder
from rag_eval_otel.adaptors.langsmith import RagStringEvaluator, langsmith_evaluator
from rag_eval_otel.errors import ConfigError, JudgeTransportError
from rag_eval_otel.metrics import Faithfulness, StatementFaithfulness
from rag_eval_otel.runtime.guard import is_silent
from rag_eval_otel.testing import FakeJudge
from support import answers

QUESTION = "When was Einstein born?"
TEXT = "Albert Einstein was born March 14, 1879."
ANSWER = "Einstein was born in 1879."
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
ID = uuid.UUID(int=1)


def run_of(outputs: dict[str, Any] | None, inputs: dict[str, Any] | None = None) -> Run:
    """Return a run of an application."""
    return Run(
        id=ID,
        name="app",
        start_time=NOW,
        run_type="chain",
        trace_id=ID,
        inputs=inputs or {},
        outputs=outputs,
    )


def example_of(inputs: dict[str, Any], outputs: dict[str, Any] | None = None) -> Example:
    """Return an example of a dataset."""
    return Example(id=ID, dataset_id=ID, created_at=NOW, inputs=inputs, outputs=outputs)


def feedback(
    run: Run, example: Example | None, *metrics: str, judge: Any = None, **options: Any
) -> dict[str, dict[str, Any]]:
    """Return the feedback of an evaluator of ``metrics``, by key."""
    judge = judge or FakeJudge(answers())
    one = langsmith_evaluator(metrics, judge=judge, embedder=HashingEmbedder(), **options)
    return {result["key"]: result for result in one(run, example)["results"]}


def test_feedback_is_accepted_by_langsmith() -> None:
    """LangSmith makes a result with key, score, value and comment of each metric."""
    judge = FakeJudge(answers())
    one = langsmith_evaluator(
        [Faithfulness(form="full"), StatementFaithfulness(form="full")],
        judge=judge,
        embedder=HashingEmbedder(),
    )
    run = run_of({"answer": ANSWER, "context": [Document(page_content=TEXT)]})
    found: Any = run_evaluator(one).evaluate_run(run, example_of({"question": QUESTION}))
    two_step, one_step = found["results"]
    assert (two_step.key, two_step.score, two_step.value) == ("faithfulness", 0.5, "pass")
    assert two_step.comment == "Not backed: Einstein was a person."
    assert one_step.score == 1.0
    assert one_step.evaluator_info["version"].startswith("statement_faithfulness/")


@pytest.mark.parametrize(
    "outputs",
    [
        {"answer": ANSWER, "contexts": [TEXT]},
        {"output": ANSWER, "context": TEXT},
        {"result": ANSWER, "source_documents": [Document(page_content=TEXT)]},
        {"response": ANSWER, "documents": [{"page_content": TEXT, "metadata": {}}]},
        {"answer": ANSWER, "retrieved_contexts": [dumpd(Document(page_content=TEXT))]},
    ],
)
def test_answer_and_contexts_are_found_by_name(outputs: dict[str, Any]) -> None:
    """Texts, documents and serialised documents reach the judge as the same contexts."""
    judge = FakeJudge(answers())
    found = feedback(
        run_of(outputs), example_of({"input": QUESTION}), "statement_faithfulness", judge=judge
    )
    assert found["statement_faithfulness"]["score"] == 1.0
    [[task]] = judge.requests
    seen = dict(task.inputs)
    shown = (seen["question"], seen["sentences"], seen["contexts"])
    assert shown == (QUESTION, (ANSWER,), (TEXT,))


def test_reference_is_the_answer_of_the_example() -> None:
    """The same name is the answer in the run and the reference in the example."""
    run = run_of({"answer": "1879"}, {"question": QUESTION})
    for reference, score, label in [("1879", 1.0, "pass"), ("1900", 0.0, "fail")]:
        example = example_of({}, {"answer": reference})
        found = feedback(run, example, "answer_exact_match")["answer_exact_match"]
        assert (found["score"], found["value"]) == (score, label)


def test_keys_map_fields_to_other_names() -> None:
    """A key that is no field is refused."""
    run = run_of({"said": "1879", "answer": "no"})
    example = example_of({}, {"truth": "1879"})
    keys = {"answer": "said", "reference": "truth"}
    found = feedback(run, example, "answer_exact_match", keys=keys)
    assert found["answer_exact_match"]["score"] == 1.0
    with pytest.raises(ConfigError, match="'prediction', which is no field"):
        feedback(run, example, "answer_exact_match", keys={"prediction": "said"})


def test_ids_of_documents_are_compared_with_the_example() -> None:
    """Ranking metrics need documents with ids and the expected ids only."""
    documents = [Document(page_content="a", id="1"), Document(page_content="b", id="2")]
    found = feedback(
        run_of({"documents": documents}), example_of({}, {"relevant_ids": ["2"]}), "mrr"
    )
    assert found["mrr"]["score"] == 0.5


def test_failed_score_is_none_with_a_comment() -> None:
    """A judge that is down, a missing field and a failed run give None and the reason."""
    down = FakeJudge(lambda task: JudgeTransportError("connection refused"))
    example = example_of({"question": QUESTION})
    run = run_of({"answer": ANSWER, "contexts": [TEXT]})
    found = feedback(run, example, "faithfulness", judge=down)["faithfulness"]
    assert found["score"] is None
    assert found["value"] is None
    assert found["comment"] == "error: transport (JudgeTransportError: connection refused)"
    some = feedback(run_of({"answer": ANSWER}), example, "faithfulness", "answer_exact_match")
    assert some["faithfulness"]["score"] is None
    assert some["faithfulness"]["comment"] == (
        "undefined: missing_input (contexts not found; there are answer, question)"
    )
    failed = feedback(run_of(None), None, "faithfulness")["faithfulness"]
    assert failed["score"] is None
    assert "there are none" in failed["comment"]


def test_undefined_score_has_its_reason() -> None:
    """An answer without claims has no faithfulness; the comment is the reason."""
    nothing = [{"index": 1, "verdict": 2}]
    judge = FakeJudge(answers(supported={"verdicts": nothing}))
    run = run_of({"answer": ANSWER, "contexts": [TEXT]})
    found = feedback(run, example_of({"question": QUESTION}), "statement_faithfulness", judge=judge)
    assert found["statement_faithfulness"]["score"] is None
    assert found["statement_faithfulness"]["comment"] == "undefined: no_claims"


def test_unusable_field_is_an_error() -> None:
    """The error for an answer that is no text names the run and the field."""
    with pytest.raises(ConfigError, match=f"run {ID}, column 'answer': must be text, not dict"):
        feedback(run_of({"answer": {"text": ANSWER}}), None, "faithfulness")


# --- string evaluators ----------------------------------------------------------------------------


class LangChainEvaluator(RagStringEvaluator, StringEvaluator):
    """A `RagStringEvaluator` that is an instance of LangChain's class."""


def strings(metric: str = "statement_faithfulness", judge: Any = None) -> LangChainEvaluator:
    """Return a string evaluator."""
    asked = judge or FakeJudge(answers())
    return LangChainEvaluator(metric, judge=asked, embedder=HashingEmbedder())


def test_evaluator_is_a_langchain_string_evaluator() -> None:
    """It is an instance, and has LangChain's properties."""
    one = strings("answer_exact_match")
    assert isinstance(one, StringEvaluator)
    assert one.evaluation_name == "answer_exact_match"
    assert (one.requires_input, one.requires_reference) == (False, True)
    assert strings().requires_input


def test_strings_are_scored() -> None:
    """The result has score, pass or fail, and reasoning; contexts are a keyword."""
    found = strings().evaluate_strings(prediction=ANSWER, input=QUESTION, contexts=[TEXT])
    assert found == {"score": 1.0, "value": "pass", "reasoning": "Every claim is backed."}
    exact = strings("answer_exact_match").evaluate_strings(prediction="a", reference="a")
    assert exact == {"score": 1.0, "value": "pass", "reasoning": None}


def test_strings_are_scored_within_an_event_loop() -> None:
    """Both methods work in a coroutine, and neither suppresses the caller's tracing."""

    async def both() -> list[dict[str, Any]]:
        one = strings()
        given = {"prediction": ANSWER, "input": QUESTION, "contexts": [TEXT]}
        found = [await one.aevaluate_strings(**given), one.evaluate_strings(**given)]
        assert not is_silent()
        return found

    awaited, blocked = asyncio.run(both())
    assert awaited == blocked
    assert awaited["score"] == 1.0


def test_strings_without_contexts_are_not_scored() -> None:
    """Faithfulness without contexts is None, with the reason."""
    found = strings().evaluate_strings(prediction=ANSWER, input=QUESTION)
    assert found["score"] is None
    assert found["reasoning"].startswith("undefined: missing_input (contexts not found")

"""What a judge is asked whose model cannot read so much."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rag_eval_otel import Sample, aevaluate
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import ConfigError, JudgeTooLongError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.ask import with_fewer_contexts
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import GROUNDEDNESS, Task
from rag_eval_otel.judge.wire import clipped, compose
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.tools.dataset import evaluate_dataset
from rag_eval_otel.types import Replies

LONG = [
    f"{'Paris is the capital of France. ' * 300}{number}" for number in range(6)
]  # equal first halves


class ShortSighted:
    """Refuses each request as too long, and notes its size."""

    model = "m"

    def __init__(self) -> None:
        self.asked: list[Sequence[Task[Any]]] = []

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        self.asked.append(tasks)
        msg = "too long"
        raise JudgeTooLongError(msg)


def asked_about(contexts: list[str], metrics: list[str]) -> list[Sequence[Task[Any]]]:
    judge = ShortSighted()
    sample = Sample(question="Q?", contexts=contexts, answer="Paris.", reference="Paris.")
    scores = asyncio.run(aevaluate(sample, metrics, judge=judge)).scores
    assert {score.reason for score in scores} == {"too_long"}
    return judge.asked


@pytest.mark.parametrize(
    "metrics",
    [
        ["faithfulness"],
        ["context_precision"],
        ["faithfulness", "context_precision"],
        ["default", "context_utilization", "context_precision"],
    ],
)
def test_the_second_request_is_shorter(metrics: list[str]) -> None:
    """Lists of contexts and questions about single contexts lose the same texts."""
    requests = asked_about(LONG, metrics)
    whole = [
        tasks for tasks in requests if "is left out" not in str(tasks) and LONG[0] in str(tasks)
    ]
    assert whole
    for tasks in whole:
        fewer = with_fewer_contexts(tasks)
        assert fewer in requests
        assert len(compose(fewer).user) < 0.6 * len(compose(tasks).user)
        assert len(set(fewer)) == len(set(tasks))
        singles = [task.text("context") for task in fewer if "context" in dict(task.inputs)]
        assert not any(text.startswith("(context") for text in singles)


@pytest.mark.parametrize("contexts", [["Paris."], ["Paris."] * 6, [], ["A.", "B.", "C."]])
def test_short_contexts_are_not_replaced_by_longer_notes(contexts: list[str]) -> None:
    """The judge is not asked again if nothing would be shorter."""
    requests = asked_about(contexts, ["faithfulness" if contexts else "answer_correctness"])
    assert all(with_fewer_contexts(tasks) == list(tasks) for tasks in requests)
    assert "is left out" not in str(requests)


FACT = "Paris is the capital of France. "


@pytest.mark.parametrize("most", [100, 101, 128, 150, 333])
@pytest.mark.parametrize(
    "fact", [FACT, "巴黎是法国的首都。", "Is Paris the capital? ", "Paris lies in France\n"]
)
def test_a_text_is_cut_at_the_end_of_a_sentence(fact: str, most: int) -> None:
    """No half of a sentence is left, and nothing that the author has not written."""
    sample, cut = clipped(Sample(answer=fact * 50), most)
    assert fact * 50 == sample.answer + (fact * 50)[-cut["answer"] :]
    assert most // 2 < len(sample.answer) <= most
    assert len(sample.answer.strip()) % len(fact) in {0, len(fact.strip())}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a" * 300, "a" * 100),
        ("word " * 60, ("word " * 20).rstrip()),
        (f"{'a' * 97} 3.14159 is pi", "a" * 97),
        (f"{'a' * 90} b. {'c' * 99}", f"{'a' * 90} b."),
        ("a" * 100, "a" * 100),
    ],
)
def test_a_text_without_sentences_is_cut_between_words(text: str, kept: str) -> None:
    """A text without spaces is cut at the limit."""
    sample, _ = clipped(Sample(answer=text), 100)
    assert sample.answer == kept


@pytest.mark.parametrize("metric", ["faithfulness", "statement_faithfulness"])
def test_the_note_of_a_cut_text_is_no_claim(metric: str) -> None:
    """The score of a cut answer is that of its first sentences, by the offline judge."""
    sample = Sample(question="Which?", contexts=[FACT.strip()], answer=FACT * 10)
    for most in (None, 100):
        measurement = Measurement(
            metrics=resolve_metrics([metric]),
            judge=LexicalJudge(),
            embedder=HashingEmbedder(),
            max_text_chars=most,
        )
        (score,) = asyncio.run(measurement.of(sample)).scores
        assert score.value == 1.0
        assert ("truncated" in score.detail) == (most is not None)


@pytest.mark.parametrize(("given", "variable"), [(100, None), (None, "100"), (100, "5000")])
def test_every_evaluation_has_a_limit(
    given: int | None, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`evaluate` and `evaluate_dataset` cut texts as live scoring does; an argument comes first."""
    if variable is not None:
        monkeypatch.setenv("RAG_EVAL_MAX_TEXT_CHARS", variable)
    sample = Sample(question="Which?", contexts=[FACT.strip()], answer=FACT * 10)
    models: dict[str, Any] = {"judge": "lexical", "embedder": "hashing", "max_text_chars": given}
    evaluation = asyncio.run(aevaluate(sample, ["faithfulness"], **models))
    result = evaluate_dataset([sample], ["faithfulness"], **models)
    for scores in (evaluation.scores, result.rows[0].evaluation.scores):
        assert scores[0].detail["truncated"] == {"answer": 225}
    assert result.rows[0].sample == sample


@pytest.mark.parametrize("given", [0, -1, 1.5, True, float("nan"), "1000"])
def test_a_wrong_limit_is_refused(given: Any) -> None:
    """The error names the option and its range."""
    with pytest.raises(ConfigError, match=r"max_text_chars .*a whole number at least 100"):
        asyncio.run(aevaluate(Sample(answer="A."), max_text_chars=given))
    with pytest.raises(ConfigError, match=r"max_text_chars .*a whole number at least 100"):
        evaluate_dataset([Sample(answer="A.")], max_text_chars=given)


def test_a_judge_is_told_what_was_cut() -> None:
    """The note follows each cut text in the prompt."""
    sample, cut = clipped(Sample(answer=FACT * 10, contexts=[FACT * 10, "Short."]), 100)
    task = GROUNDEDNESS[0].task({"answer": sample.answer, "contexts": sample.context_texts})
    shown = compose([task]).user
    assert cut == {"answer": 225, "contexts": 225}
    assert shown.count("France.\n[... 225 characters cut]\n") == 2
    assert shown.count("characters cut]") == 2

"""What a judge is asked whose model cannot read so much."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel import Config, Sample, aevaluate
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import ConfigError, JudgeTooLongError
from rag_eval_otel.evaluation import Measurement
from rag_eval_otel.judge.ask import with_fewer_contexts
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import GROUNDEDNESS, Task
from rag_eval_otel.judge.wire import clipped, compose
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.dataset import evaluate_dataset
from rag_eval_otel.types import Replies


class CountingJudge(LexicalJudge):
    """The offline judge, which counts its requests."""

    asked = 0

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Count the request."""
        self.asked += 1
        return await super().reply(tasks)


LONG = [
    f"{'Paris is the capital of France. ' * 300}{number}" for number in range(6)
]  # equal first halves


class ShortSighted:
    """Refuses each request as too long, and notes its size."""

    model = "m"

    def __init__(self) -> None:
        """Start with no request."""
        self.asked: list[Sequence[Task[Any]]] = []

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Refuse them."""
        self.asked.append(tasks)
        msg = "too long"
        raise JudgeTooLongError(msg)


def asked_about(contexts: list[str], metrics: list[str]) -> list[Sequence[Task[Any]]]:
    """Return the requests to a judge that refuses each one."""
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


# --- one turn -------------------------------------------------------------------------------------

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


@pytest.mark.slow
def test_the_usual_limit_is_that_of_live_scoring() -> None:
    """100,000 characters of each text are scored, without any option."""
    sample = Sample(question="Which?", contexts=[FACT], answer=FACT * 4000)
    evaluation = asyncio.run(aevaluate(sample, ["faithfulness"], judge=LexicalJudge()))
    (cut,) = evaluation.scores[0].detail["truncated"].values()
    assert 0 < len(sample.answer) - cut <= Config().max_text_chars


@pytest.mark.parametrize("given", [0, -1, 1.5, True, float("nan"), "1000"])
def test_a_wrong_limit_is_refused(given: Any) -> None:
    """The error names the option and its range."""
    with pytest.raises(ConfigError, match=r"max_text_chars .*a whole number at least 100"):
        asyncio.run(aevaluate(Sample(answer="A."), max_text_chars=given))
    with pytest.raises(ConfigError, match=r"max_text_chars .*a whole number at least 100"):
        evaluate_dataset([Sample(answer="A.")], max_text_chars=given)


def test_cached_scores_belong_to_one_limit(tmp_path: Path) -> None:
    """A score of a cut text is not used for another limit, and one of a whole text always is."""
    long = Sample(question="Which?", contexts=[FACT.strip()], answer=FACT * 10)
    samples = [long, Sample(question="Which?", contexts=[FACT.strip()], answer=FACT.strip())]
    judge = CountingJudge()
    for most in (100, 100, 200, None):
        evaluate_dataset(
            samples,
            ["faithfulness"],
            judge=judge,
            embedder="hashing",
            cache=tmp_path / "scores",
            max_text_chars=most,
        )
    assert judge.asked == 4


def test_the_command_cuts_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--max-text-chars`` sets the limit, and a wrong number ends the command with status 2."""
    rows, output = tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    row = {"question": "Which?", "contexts": [FACT.strip()], "answer": FACT * 10}
    rows.write_text(json.dumps(row), encoding="utf-8")
    command = ["evaluate", str(rows), "--judge", "lexical", "--metrics", "faithfulness"]
    command += ["--output", str(output), "--max-text-chars"]
    assert main([*command, "100"]) == 0
    assert "225" in output.read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*command, "50"]) == 2
    assert "max_text_chars" in capsys.readouterr().err


def test_a_judge_is_told_what_was_cut() -> None:
    """The note follows each cut text in the prompt."""
    sample, cut = clipped(Sample(answer=FACT * 10, contexts=[FACT * 10, "Short."]), 100)
    task = GROUNDEDNESS[0].task({"answer": sample.answer, "contexts": sample.context_texts})
    shown = compose([task]).user
    assert cut == {"answer": 225, "contexts": 225}
    assert shown.count("France.\n[... 225 characters cut]\n") == 2
    assert shown.count("characters cut]") == 2

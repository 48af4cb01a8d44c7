"""`evaluate`: every metric gives one score, whatever happens to the others."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.errors import JudgeAuthError
from rag_eval_otel.evaluation import aevaluate, evaluate, measurement_of
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.tasks import AskLike, Judge, Task
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.tools.dataset import evaluate_dataset
from rag_eval_otel.types import EmbedFn, Evaluation, Replies, Sample, Score, Usage
from support import SAMPLE, answers

OFFLINE: dict[str, Any] = {"judge": "lexical", "embedder": "hashing"}


def scored(
    metrics: Sequence[str | Metric] = ("default",), judge: Judge | None = None, **options: Any
) -> Evaluation:
    options = {"embedder": HashingEmbedder(), **options}
    return evaluate(SAMPLE, metrics, judge=judge or FakeJudge(answers()), **options)


class Own:
    """A metric of the user's own: does what it is told."""

    name = "own"
    needs: ClassVar[frozenset[str]] = frozenset()
    asks: ClassVar[tuple[()]] = ()

    def __init__(self, outcome: Any = None) -> None:
        self.outcome = outcome

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("metrics", "share_requests", "requests"),
    [("dual", True, 4), ("dual", False, 9), ("default", True, 2), ("default", False, 6)],
)
def test_what_a_sample_costs(metrics: str, requests: int, *, share_requests: bool) -> None:
    """Usage counts each request to judge and embedder."""
    evaluation = scored([metrics], share_requests=share_requests)
    assert evaluation.usage == Usage(judge_requests=requests, embedding_requests=1)


def test_it_blocks_also_while_a_loop_runs() -> None:
    """In a notebook, `evaluate` works as in a script, and gives what `aevaluate` gives."""

    async def use() -> tuple[Evaluation, Evaluation]:
        return evaluate(SAMPLE, **OFFLINE), await aevaluate(SAMPLE, **OFFLINE)

    blocking, awaited = asyncio.run(use())
    assert blocking.scores == awaited.scores


def test_the_model_that_answered_is_named() -> None:
    """Versions name the model that really answered, not the one asked for."""
    judge = FakeJudge(answers(), model="gpt-x-2026")
    asked: Any = SimpleNamespace(model="gpt-x", reply=judge.reply)
    evaluation = scored(["faithfulness"], asked)
    assert evaluation.judge == "gpt-x-2026"
    assert evaluation.scores[0].version.endswith("/fused-short/gpt-x-2026")


@pytest.mark.parametrize(
    ("outcome", "reason", "told"),
    [
        (JudgeAuthError("HTTP 401"), "unauthorized", "JudgeAuthError: HTTP 401"),
        (RuntimeError("not of us: may quote the user"), "internal", "RuntimeError"),
        (None, "internal", "TypeError"),
        (0.5, "internal", "TypeError"),
    ],
)
def test_a_metric_that_fails_is_one_failed_score(outcome: Any, reason: str, told: str) -> None:
    """The others are measured all the same; the score names the error, quoting only our own."""
    evaluation = scored([Own(outcome=outcome), "faithfulness"])
    own, faithfulness = evaluation.scores
    assert (own.status, own.reason, own.detail["error"]) == ("error", reason, told)
    assert own.version.startswith("own/")
    assert faithfulness.status == "ok"
    assert evaluation.status == "partial"


@dataclass
class Halting:
    """Answers until it is asked for the named prompt, and then never again."""

    prompt: str
    model: str = "halting"
    given_up: list[str] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def reply(self, group: Sequence[Task[Any]]) -> Replies:
        if any(task.prompt == self.prompt for task in group):
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up.append(self.prompt)
        return await FakeJudge(answers(), model=self.model).reply(group)


@pytest.mark.parametrize(
    ("prompt", "late"),
    [
        ("reverse_question", {"answer_relevancy"}),
        ("verdicts", {"faithfulness"}),
        ("context_relevance_2", {"context_relevance", "response_groundedness"}),
    ],
)
def test_only_late_metrics_time_out(prompt: str, late: set[str]) -> None:
    """What was measured in time is kept; requests under way are given up, and counted."""
    judge = Halting(prompt)
    evaluation = scored(["dual"], judge, timeout=0.2)
    reasons: Mapping[str, str | None] = {s.name: s.reason for s in evaluation.scores}
    assert {name for name, reason in reasons.items() if reason == "timeout"} == late
    assert all(evaluation[name].status == "ok" for name in reasons if name not in late)
    assert judge.given_up == [prompt]
    assert evaluation.usage.judge_requests == 4


def test_cancelling_an_evaluation_ends_its_requests() -> None:
    """An application that gives up waiting leaves no request behind."""
    judge = Halting("supported")

    async def use() -> list[str]:
        run = asyncio.ensure_future(
            aevaluate(SAMPLE, ["faithfulness"], judge=judge, embedder=HashingEmbedder())
        )
        await judge.asked.wait()
        run.cancel()
        await asyncio.wait([run])
        await asyncio.sleep(0)
        return list(judge.given_up)

    assert asyncio.run(use()) == ["supported"]


def test_some_metrics_decide_the_label() -> None:
    """Those that are named, or of ours those of the judge, and all that ask no judge."""
    metrics = ["default", "direct_relevancy", "mrr", Own()]
    ways: list[dict[str, Any]] = [{}, {"label_metrics": ()}, {"label_metrics": ["mrr"]}]
    found = [measurement_of(metrics, **OFFLINE, **way).labelling for way in ways]
    usual = LexicalJudge.label_metrics | {"mrr", "own"}
    assert found == [usual, usual, {"mrr"}]
    assert measurement_of(metrics, judge=FakeJudge(answers()), embedder="hashing").labelling is None


def test_an_evaluation_says_what_came_before_the_question() -> None:
    """Versions name the history; a definition has the prompt that rewrites a question."""
    more: list[dict[str, Any]] = [{}, {"history": [("user", "Who?")]}, {"query": "Who is it?"}]
    found = [evaluate(replace(SAMPLE, **each), ["faithfulness"], **OFFLINE) for each in more]
    told = [(one.messages, one.is_rewritten, "-history/" in one.scores[0].version) for one in found]
    assert told == [(0, False, False), (1, False, True), (0, True, False)]
    prompts = {"standalone_question": "Say it."}
    (own,) = measurement_of(["faithfulness"], prompts=prompts, **OFFLINE).definitions().values()
    assert own not in measurement_of(["faithfulness"], **OFFLINE).definitions().values()


def test_an_embedder_is_asked_only_for_metrics_that_need_it() -> None:
    """Without such a metric, none is named in the evaluation."""
    assert scored(["faithfulness"]).embedder is None
    assert scored(["answer_relevancy"]).embedder == "hashing"


FACT = "Paris is the capital of France. "
CAPITAL = Sample(question="Which?", contexts=[FACT.strip()], answer=FACT * 10)


@pytest.mark.parametrize("metric", ["faithfulness", "statement_faithfulness"])
def test_the_note_of_a_cut_text_is_no_claim(metric: str) -> None:
    """The score of a cut answer is that of its first sentences, by the offline judge."""
    for most in (None, 4 * len(FACT)):
        (score,) = evaluate(CAPITAL, [metric], **OFFLINE, max_text_chars=most).scores
        assert score.value == 1.0
        assert ("truncated" in score.detail) == (most is not None)


def test_every_evaluation_has_a_limit() -> None:
    """`evaluate` and `evaluate_dataset` cut texts as live scoring does."""
    evaluation = evaluate(CAPITAL, ["faithfulness"], **OFFLINE, max_text_chars=100)
    result = evaluate_dataset([CAPITAL], ["faithfulness"], **OFFLINE, max_text_chars=100)
    for scores in (evaluation.scores, result.rows[0].evaluation.scores):
        assert scores[0].detail["truncated"] == {"answer": 220}
    assert result.rows[0].sample == CAPITAL

"""What the tests of datasets share: metrics that need no judge, one that does, and its judge."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rag_eval_otel.judge.tasks import AskLike, Task
from rag_eval_otel.metrics import metric
from rag_eval_otel.testing import FakeEmbedder, FakeJudge
from rag_eval_otel.tools.dataset import DatasetResult, evaluate_dataset
from rag_eval_otel.types import EmbedFn, Sample, Score

JUDGED = metric("context_agreement")
"""One yes or no of the judge: one request a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Takes the number that the answer is; ``?`` has none, and any other text is an error."""

    factor: float = 1.0
    name: str = "reads"

    needs: ClassVar[frozenset[str]] = frozenset({"answer"})
    asks: ClassVar[tuple[Any, ...]] = ()
    prompts: ClassVar[tuple[str, ...]] = ()
    requests: ClassVar[str] = "0"
    range: ClassVar[str] = "any"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        if sample.answer == "?":
            return Score(name=self.name, status="undefined", reason="no_claims")
        value = float(sample.answer) * self.factor
        return Score(name=self.name, value=value, label="pass" if value >= 1 else "fail")


def numbers(*answers: object) -> list[dict[str, str]]:
    return [{"question": f"Number {i}?", "answer": str(a)} for i, a in enumerate(answers)]


def asked_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"question": f"What is {i}?", "answer": f"It is {i}.", "contexts": [f"{i} is {i}."]}
        for i in range(count)
    ]


def judge(answer: Callable[[Task[Any]], object] | None = None) -> FakeJudge:
    return FakeJudge(answer or (lambda task: {"passing": True, "reason": "so it is"}))


EMBEDDER = FakeEmbedder({})


def evaluated(samples: object, *metrics: Any, **options: Any) -> DatasetResult:
    given = {"judge": judge(), "embedder": EMBEDDER, **options}
    return evaluate_dataset(samples, metrics or (Reads(),), **given)

"""The metrics reproduce the numbers that their models among the peers were seen to give.

``RAG_EVAL_GOLDEN=FILE_OR_DIRECTORY pytest tests/test_golden.py`` runs other cases of the same form.
"""

import asyncio
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.metrics import (
    AnswerRelevancy,
    ContextRelevance,
    Faithfulness,
    ResponseGroundedness,
)
from rag_eval_otel.protocols import Metric
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Fusion, Score
from support import GOLDEN_CORE, GoldenJudge, golden_cases, golden_sample

METRICS: Mapping[str, Callable[[Mapping[str, Any]], Metric]] = {
    "answer_relevancy": lambda params: AnswerRelevancy(strictness=params.get("n", 3)),
    "context_relevance_dual": lambda _: ContextRelevance(),
    "faithfulness": lambda _: Faithfulness(),
    "response_groundedness": lambda _: ResponseGroundedness(),
}
"""From a metric's name in the golden files and its parameters to our metric."""

TOLERANCE = 1e-9
REPAIRS = 4  # the peers take up to five attempts


def parameters() -> list[Any]:
    """Return each case under its id, or the reason why there are none."""
    path = Path(os.environ.get("RAG_EVAL_GOLDEN") or GOLDEN_CORE)
    if not path.exists() and "RAG_EVAL_GOLDEN" not in os.environ:
        reason = "the golden cases (../shared/golden/core.json) are not here"
        return [pytest.param({}, id="absent", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(case, id=case["id"]) for case in golden_cases(path)]


def score_of(case: Mapping[str, Any], *, fusion: Fusion) -> Score:
    """Return our score of a case."""
    script = GoldenJudge(case["judge"])
    evaluation = asyncio.run(
        evaluate(
            golden_sample(case),
            [METRICS[case["metric"]](case["params"])],
            judge=FakeJudge(lambda task: script(task.prompt)),
            embedder=FakeEmbedder(case["embeddings"]),
            fusion=fusion,
            repairs=REPAIRS,
        )
    )
    return evaluation.scores[0]


@pytest.mark.parametrize("case", parameters())
def test_case(case: Mapping[str, Any]) -> None:
    """A core case gives the peer's number, fused or not; an edge case gives any valid score.

    At the edges (class ``edge`` or ``defect``) the peers differ among themselves, and our answer is
    chosen on purpose: there it need only be a score with a finite number, or with a reason.
    """
    if case["metric"] not in METRICS:
        pytest.skip(f"metric not built yet: {case['metric']}")
    for fusion in ("on", "off"):
        score = score_of(case, fusion=fusion)
        if case.get("class", "core") == "core":
            assert score.value == pytest.approx(case["expected"], rel=0, abs=TOLERANCE), score
        elif score.status == "ok":
            assert score.value is not None
            assert math.isfinite(score.value)
        else:
            assert (score.value, score.reason in {None, "internal"}) == (None, False), score

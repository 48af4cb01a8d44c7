"""What a metric asks for of one sample: counted by a server, over the real client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.protocols import Metric
from rag_eval_otel.testing import ScriptedOpenAI
from rag_eval_otel.types import Fusion, Passage, Sample, Score
from support import names_asked

SAMPLE = Sample(
    question="Who wrote the harbour report, when was it filed, and what does it recommend?",
    contexts=[
        Passage(
            id="report-1",
            text=(
                "The harbour report was written by Maria Lee, an engineer with the port authority,"
                " after the storm of January had damaged the eastern breakwater."
            ),
        ),
        Passage(
            id="report-2",
            text=(
                "The report was filed with the city council on 12 May and made public a week later,"
                " together with the comments of the fishing cooperative."
            ),
        ),
        Passage(
            id="menu-7",
            text=(
                "The canteen of the port authority serves lunch from noon to two, with a choice of"
                " three dishes, one of them without meat or fish."
            ),
        ),
        Passage(
            id="report-3",
            text=(
                "Its main recommendation is to raise the eastern breakwater by two metres before"
                " the next winter, at a cost that is put at nine million."
            ),
        ),
    ],
    answer=(
        "The report was written by Maria Lee. It was filed on 12 May. It recommends raising the"
        " eastern breakwater by two metres."
    ),
    reference=(
        "Maria Lee wrote it, it was filed on 12 May, and it recommends raising the breakwater by"
        " two metres before winter."
    ),
    relevant_ids=("report-1", "report-2", "report-3"),
    rubric={0: "The answer is wrong.", 0.5: "The answer is partly right.", 1: "It is right."},
)
"""What the page counts on: four contexts, and a question of three parts."""

_PARTS = (
    "Who wrote the harbour report?",
    "When was the harbour report filed?",
    "What does the harbour report recommend?",
)
_CLAIMS = (
    "The harbour report was written by Maria Lee.",
    "The harbour report was filed on 12 May.",
    "The harbour report recommends raising the eastern breakwater by two metres.",
)
_WHY = "The material says so in as many words."
_VERDICTS = {"verdicts": [{"index": i, "reason": _WHY, "verdict": 1} for i in (1, 2, 3)]}
_JUDGED = [{"statement": claim, "reason": _WHY, "verdict": 1} for claim in _CLAIMS]
_REPLIES: Mapping[str, object] = {
    "accuracy_1": {"rating": 4, "reason": _WHY},
    "accuracy_2": {"rating": 4, "reason": _WHY},
    "addressed": _VERDICTS,
    "answer_relevancy_rubric": {"subject": 1, "focus": 1, "reason": _WHY},
    "compared_statements": {"answer_statements": _JUDGED, "reference_statements": _JUDGED},
    "context_relevance_1": {"rating": 2, "reason": _WHY},
    "context_relevance_2": {"rating": 2, "reason": _WHY},
    "context_relevancy_rubric": {"subject": 2, "sufficiency": 2, "reason": _WHY},
    "context_statements": {"statements": _JUDGED},
    "correctness": {"rating": 5, "reason": _WHY},
    "direct_relevancy": {"rating": 1, "reason": _WHY},
    "groundedness_1": {"rating": 2, "reason": _WHY},
    "groundedness_2": {"rating": 2, "reason": _WHY},
    "guideline": {"passing": True, "reason": _WHY},
    "intent": {"intent": "To know author, date and upshot of the harbour report."},
    "intent_fulfilment": {"rating": 1, "reason": _WHY},
    "judged_statements": {"statements": _JUDGED},
    "reference_statements": {"statements": _JUDGED},
    "relevant_statements": {"relevant_statements": list(_CLAIMS)},
    "response_relevancy": {"passing": True, "reason": _WHY},
    "response_supported": {"passing": True, "reason": _WHY},
    "reverse_question": {"question": _PARTS[0], "noncommittal": 0},
    "rubric": {"rating": 1, "reason": _WHY},
    "similarities": {"similarities": [{"index": i, "similarity": 0.75} for i in (1, 2, 3)]},
    "statements": {"statements": list(_CLAIMS)},
    "sub_questions": {"sub_questions": list(_PARTS)},
    "useful_for_answer": {"reason": _WHY, "verdict": 1},
    "useful_for_reference": {"reason": _WHY, "verdict": 1},
    "verdicts": _VERDICTS,
}
"""A reply to every prompt, of about the length that judges give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests as the server received them, and tokens as it reported them."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    embedding_requests: int
    scores: tuple[Score, ...]

    @property
    def tokens(self) -> str:
        """Tokens of prompt and completion."""
        if not self.requests:
            return "0"
        return f"{self.prompt_tokens} + {self.completion_tokens}"


def count(metrics: Iterable[str | Metric], *, fusion: Fusion) -> Counts:
    """Score `SAMPLE` with ``metrics`` and return what that took."""
    with ScriptedOpenAI(_reply, lambda text: (1.0, len(text) / 100)) as server:
        options: dict[str, Any] = {"base_url": server.base_url, "api_key": "none"}
        evaluation = asyncio.run(
            evaluate(
                SAMPLE,
                metrics,
                judge=OpenAIJudge("judge", **options),
                embedder=OpenAIEmbedder("embedder", **options),
                fusion=fusion,
            )
        )
        paths = [request.path for request in server.requests]
    return Counts(
        requests=sum(path.endswith("/chat/completions") for path in paths),
        prompt_tokens=evaluation.usage.prompt_tokens,
        completion_tokens=evaluation.usage.completion_tokens,
        embedding_requests=sum(path.endswith("/embeddings") for path in paths),
        scores=evaluation.scores,
    )


def _reply(body: dict[str, Any]) -> object:
    names = names_asked(body)
    return {name: _REPLIES.get(name) or _REPLIES[re.sub(r"_\d+$", "", name)] for name in names}

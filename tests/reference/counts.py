"""What a metric asks for of one sample: counted by a server, over the real client."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from openai_server import ScriptedOpenAI, estimate_tokens
from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.metrics.base import Metric
from rag_eval_otel.types import Passage, Sample, Score
from support import drawings_asked, names_asked, text_asked

_TEXTS = {
    "report-1": "The harbour report was written by Maria Lee, an engineer with the port authority,"
    " after the storm of January had damaged the eastern breakwater.",
    "report-2": "The report was filed with the city council on 12 May and made public a week later,"
    " together with the comments of the fishing cooperative.",
    "menu-7": "The canteen of the port authority serves lunch from noon to two, with a choice of"
    " three dishes, one of them without meat or fish.",
    "report-3": "Its main recommendation is to raise the eastern breakwater by two metres before"
    " the next winter, at a cost that is put at nine million.",
}
SAMPLE = Sample(
    question="Who wrote the harbour report, when was it filed, and what does it recommend?",
    contexts=[Passage(id=name, text=text) for name, text in _TEXTS.items()],
    answer="The report was written by Maria Lee. It was filed on 12 May. It recommends raising the"
    " eastern breakwater by two metres.",
    reference="Maria Lee wrote it, it was filed on 12 May, and it recommends raising the breakwater"
    " by two metres before winter.",
    relevant_ids=("report-1", "report-2", "report-3"),
    rubric={0: "The answer is wrong.", 0.5: "The answer is partly right.", 1: "It is right."},
)
"""What the page counts on: four contexts, and a question of three parts."""

CITED = replace(
    SAMPLE,
    answer="The report was written by Maria Lee [1]. It was filed on 12 May [2]. It recommends"
    " raising the eastern breakwater by two metres [4].",
)
"""The same with citations, for metrics about them."""

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
_JUDGED = [{"statement": claim, "verdict": 1} for claim in _CLAIMS]
_REPLIES: Mapping[str, object] = {
    "accuracy_1": 4,
    "accuracy_2": 4,
    "addressed": [1, 1, 1],
    "answer_relevancy_rubric": {"subject": 1, "focus": 1},
    "citations": [1, 1, 1],
    "compared_statements": {"answer_statements": _JUDGED, "reference_statements": _JUDGED},
    "context_relevance_1": 2,
    "context_relevance_2": 2,
    "context_relevancy_rubric": {"subject": 2, "sufficiency": 2},
    "context_statements": _JUDGED,
    "correctness": 5,
    "direct_relevancy": 1,
    "groundedness_1": 2,
    "groundedness_2": 2,
    "guideline": True,
    "intent": "To know author, date and upshot of the harbour report.",
    "intent_fulfilment": 1,
    "judged_statements": _JUDGED,
    "reference_statements": _JUDGED,
    "relevant_contexts": [1, 2, 4],
    "relevant_statements": list(_CLAIMS),
    "context_agreement": True,
    "response_supported": True,
    "reverse_question": {"question": _PARTS[0], "noncommittal": 0},
    "rubric": 1,
    "similarities": [0.75, 0.75, 0.75],
    "statements": list(_CLAIMS),
    "sub_questions": list(_PARTS),
    "supported": [1, 1, 1],
    "useful_for_answer": 1,
    "useful_for_reference": 1,
    "verdicts": [1, 1, 1],
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
        if not self.requests:
            return "0"
        return f"{self.prompt_tokens} + {self.completion_tokens}"


def _tokens(text: str) -> int:
    """Count as if the code that is drawn for each request were always the same."""
    return estimate_tokens(_CODE.sub("1a23bc", text))


_CODE = re.compile(r"\b[0-9a-f]{6}\b")


_APART = 0.25
"""Seconds between the judge's replies to one sample.

Metrics that wait at once share an embedding request. Whether two replies come at once depends on
the machine, so that each counts by itself here.
"""


def count(
    metrics: Iterable[str | Metric], *, share_requests: bool, sample: Sample = SAMPLE
) -> Counts:
    """Score ``sample`` with ``metrics`` and return what that took, embedding requests at most."""
    latency = _APART if share_requests else 0.0
    with ScriptedOpenAI(_reply, _embed, tokens=_tokens, latency=latency, slots=1) as server:
        options: dict[str, Any] = {"base_url": server.base_url, "api_key": "none"}
        evaluation = asyncio.run(
            aevaluate(
                sample,
                metrics,
                judge=OpenAIJudge("judge", **options),
                embedder=OpenAIEmbedder("embedder", **options),
                share_requests=share_requests,
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


def _embed(text: str) -> tuple[float, float]:
    return 1.0, len(text) / 100


def _reply(body: dict[str, Any]) -> object:
    listed = re.findall(r"^(\w+): an entry each for contexts", text_asked(body), flags=re.MULTILINE)
    several: dict[str, object] = {name: [_REPLIES[name]] * len(SAMPLE.contexts) for name in listed}
    if drawings_asked(body) > 1:
        several["reverse_question"] = {"question": list(_PARTS), "noncommittal": 0}
    return {name: {**_REPLIES, **several}[name] for name in names_asked(body)}

"""Were the right documents retrieved and ranked first, by their ids?

Ranks count from 1. Of a document that was retrieved more than once, the first rank is a hit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import AskLike
from rag_eval_otel.metrics.base import BaseMetric
from rag_eval_otel.types import EmbedFn, Sample, Score


class Ranking(NamedTuple):
    """Grades of the hits by rank, grades of all relevant ids, and the number of retrieved ids."""

    hits: dict[int, float]
    grades: Sequence[float]
    retrieved: int
    k: int | None


Formula: TypeAlias = Callable[[Ranking], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingMetric(BaseMetric):
    """A metric that compares the first ``k`` of ``Sample.ranked_ids`` with ``relevant_ids``.

    ``unretrieved``, ``irrelevant``: the score without retrieved, or relevant, ids; None: undefined.
    """

    k: int | None = None
    about: str = field(compare=False, repr=False)
    formula: Formula = field(compare=False, repr=False)
    unretrieved: float | None = field(default=0.0, compare=False, repr=False)
    irrelevant: float | None = field(default=None, compare=False, repr=False)
    definition: str = ""

    needs = frozenset({"retrieved_ids", "relevant_ids"})

    def __post_init__(self) -> None:
        if self.k is not None and self.k < 1:
            raise ConfigError(f"k must be at least 1, or None for all, not {self.k}")
        BaseMetric.__post_init__(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        gains: dict[str, float] = {}  # of an id that is listed twice, the higher grade counts
        grades = sample.grades or (1.0,) * len(sample.relevant_ids)
        for document, grade in zip(sample.relevant_ids, grades, strict=True):
            if grade:
                gains[document] = max(grade, gains.get(document, 0.0))
        if not gains and self.irrelevant is None:
            return self.undefined("missing_reference")
        if not sample.ranked_ids:
            if self.unretrieved is None:
                return self.undefined("no_context")
            return self.score_of(self.unretrieved, reason="no_context")
        if not gains:
            return self.score_of(self.irrelevant or 0.0)
        first: dict[str, int] = {}
        for rank, document in enumerate(sample.ranked_ids[: self.k], start=1):
            first.setdefault(document, rank)
        hits = {rank: gains[document] for document, rank in first.items() if document in gains}
        return self.score_of(self.formula(Ranking(hits, [*gains.values()], len(first), self.k)))


def _recall(ranking: Ranking) -> float:
    return len(ranking.hits) / len(ranking.grades)


def _precision(ranking: Ranking) -> float:
    return len(ranking.hits) / (ranking.k or ranking.retrieved)


def _average_precision(ranking: Ranking) -> float:
    precisions = (hits / rank for hits, rank in enumerate(ranking.hits, start=1))
    return sum(precisions) / len(ranking.grades)


def _exponential(grade: float, top: float) -> float:
    ln2 = math.log(2)
    return math.exp((grade - top) * ln2) * math.expm1(-grade * ln2) / math.expm1(-top * ln2)


def _ndcg(ranking: Ranking, gain: Callable[[float, float], float]) -> float:
    def discounted(hits: Iterable[tuple[int, float]]) -> float:
        return sum(gain(grade, top) / math.log2(rank + 1) for rank, grade in hits)

    top = max(ranking.grades)
    best = sorted(ranking.grades, reverse=True)[: ranking.k]
    return min(1.0, discounted(ranking.hits.items()) / discounted(enumerate(best, start=1)))


_EDGES = (
    "If there is no relevant id (a grade above 0), the score is undefined (``missing_reference``)."
    "\nIf nothing was retrieved, the score is 0 (``no_context``)."
)


def _row(name: str, formula: Formula, about: str, source: str, **options: Any) -> RankingMetric:
    edges = options.pop("edges", _EDGES)
    about = f"{about}\n\nSpecial cases: {edges}\n\nSource: {source}"
    return RankingMetric(name=name, formula=formula, about=about, **{"threshold": None, **options})


RANKING = (
    _row(
        "hit_rate",
        lambda ranking: float(bool(ranking.hits)),
        "Whether a relevant document was retrieved: 1 or 0.",
        "``HitRate`` of LlamaIndex 0.14, whose granular mode is `retrieval_recall` here, and\n"
        "``DocumentRecallEvaluator`` of haystack-ai 3.4.1 in the mode ``single_hit``.",
        threshold=0.5,
    ),
    _row(
        "mrr",
        lambda ranking: next((1 / rank for rank in ranking.hits), 0.0),
        "The reciprocal rank of the first relevant document; 0 if none was retrieved.\n\n"
        "The mean over samples is the mean reciprocal rank.",
        "``MRR`` of LlamaIndex 0.14, ``DocumentMRREvaluator`` of haystack-ai 3.4.1.",
    ),
    _row(
        "mrr_of_all",
        lambda ranking: sum(1 / rank for rank in ranking.hits) / max(1, len(ranking.hits)),
        "The mean of the reciprocal ranks of all relevant documents that were retrieved.",
        "``MRR`` of LlamaIndex 0.14 in the granular mode.",
    ),
    _row(
        "retrieval_precision",
        _precision,
        "The share of the retrieved documents that are relevant.\n\n"
        "With ``k``, the score is the number of relevant documents among the first ``k``, divided\n"
        "by ``k``.",
        "``Precision`` of LlamaIndex 0.14; precision@k as in TREC evaluation.",
        unretrieved=None,
        edges="If there is no relevant id, the score is undefined (``missing_reference``). If\n"
        "nothing was retrieved, the score is undefined (``no_context``).",
    ),
    _row(
        "retrieval_recall",
        _recall,
        "The share of the relevant documents that were retrieved.",
        "``Recall`` of LlamaIndex 0.14, ``DocumentRecallEvaluator`` of haystack-ai 3.4.1 in the\n"
        "mode ``multi_hit``; its mode ``single_hit`` is `hit_rate` here.",
    ),
    _row(
        "average_precision",
        _average_precision,
        "The mean of the precision at the ranks of the relevant documents.\n\n"
        "``score = sum over hits (hits so far / rank) / relevant documents``. A relevant document\n"
        "that was not retrieved adds 0. The mean over samples is the mean average precision (MAP).",
        "``AveragePrecision`` of LlamaIndex 0.14, ``DocumentMAPEvaluator`` of haystack-ai 3.4.1.\n"
        "Unlike there, a document that was retrieved more than once is counted once.",
    ),
    _row(
        "ndcg",
        lambda ranking: _ndcg(ranking, lambda grade, top: grade / top),
        "Normalized discounted cumulative gain: are relevant documents ranked early?\n\n"
        "The discounted gain is the ``sum over hits gain / log2(rank + 1)``. The score is the\n"
        "discounted gain of the retrieved ids, divided by that of the ideal ranking; both are cut\n"
        "at ``k``. The gain of a document is its grade (``Sample.grades``), or 1 without grades.",
        "``NDCG`` of LlamaIndex 0.14, ``DocumentNDCGEvaluator`` of haystack-ai 3.4.1. Unlike\n"
        "there, a document that was retrieved more than once is counted once in both sums.",
    ),
    _row(
        "ndcg_exponential",
        lambda ranking: _ndcg(ranking, _exponential),
        "`ndcg` with the gain ``2^grade - 1``, which favours the documents of high grades.",
        "``NDCG`` of LlamaIndex 0.14 in the mode ``exponential``.",
    ),
    _row(
        "id_context_precision",
        _precision,
        "The share of the retrieved ids that are relevant: |retrieved & relevant| / |retrieved|.",
        "``IDBasedContextPrecision`` of ragas 0.4.3.",
        threshold=0.5,
        unretrieved=None,
        irrelevant=0.0,
        edges="If nothing was retrieved, the score is undefined (``no_context``). If there is no\n"
        "relevant id, the score is 0; `retrieval_precision` is then undefined.",
    ),
    _row(
        "id_context_recall",
        _recall,
        "The share of the relevant ids that were retrieved: |retrieved & relevant| / |relevant|.",
        "``IDBasedContextRecall`` of ragas 0.4.3.",
        threshold=0.5,
    ),
)

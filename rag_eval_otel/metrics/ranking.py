"""Were the right documents retrieved and ranked first, by their ids?

No judge is asked. Ranks count from 1. If a document was retrieved more than once, only its first
rank counts as a hit, and the repetitions still take up ranks. Every metric needs the retrieved ids
(``retrieved_ids``, or the ids of the contexts) and the relevant ids. Ids with the grade 0 are not
relevant. ``k`` limits a metric to the first ``k`` retrieved ids; a ``k`` below 1 raises
`ConfigError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import AskLike
from rag_eval_otel.metrics.base import BaseMetric
from rag_eval_otel.types import EmbedFn, Sample, Score

_EDGES = (
    "If there is no relevant id, the score is undefined (``missing_reference``). If nothing was"
    " retrieved, the score is 0 (``no_context``)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The ids of a sample: ``retrieved`` up to rank ``k``, and the gain of each relevant id.

    ``hits`` has the ranks, ascending, at which relevant ids first occur in ``retrieved``.
    """

    retrieved: Sequence[str]
    gains: Mapping[str, float]
    k: int | None

    @property
    def hits(self) -> list[int]:
        return hit_ranks(self.retrieved, self.gains)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingMetric(BaseMetric):
    """A metric of the ids in a sample, without a judge: a row of a table of metrics.

    - ``k``: the number of retrieved ids that count, from the first; None means all.
    - ``about``: the description of the metric for users. ``formula``: computes the score.
    - ``unretrieved``: the score if nothing was retrieved, and ``irrelevant``: the score if no id is
      relevant; None if the score is then undefined.
    - ``definition``: the built-in name, which stays if the metric gets another ``name``.
    """

    k: int | None = None
    about: str = field(compare=False, repr=False)
    formula: Callable[[Ranking], float] = field(compare=False, repr=False)
    unretrieved: float | None = field(default=0.0, compare=False, repr=False)
    irrelevant: float | None = field(default=None, compare=False, repr=False)
    definition: str = ""

    needs = frozenset({"retrieved_ids", "relevant_ids"})
    requests = "0"
    scale = (0.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "definition", self.definition or self.name)
        if self.k is not None and self.k < 1:
            msg = f"k must be at least 1, or None for all, not {self.k}"
            raise ConfigError(msg)
        BaseMetric.__post_init__(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        gains, retrieved = gains_of(sample), sample.ranked_ids
        if not gains and self.irrelevant is None:
            return self.undefined("missing_reference")
        if not retrieved:
            if self.unretrieved is None:
                return self.undefined("no_context")
            return self.score_of(self.unretrieved, reason="no_context")
        if not gains:
            return self.score_of(self.irrelevant or 0.0)
        return self.score_of(
            self.formula(Ranking(retrieved=retrieved[: self.k], gains=gains, k=self.k))
        )


def gains_of(sample: Sample) -> dict[str, float]:
    """Return the grade of each relevant id of ``sample``, without ids of the grade 0.

    The grade is 1 if the sample has no grades. If an id is listed twice, its higher grade counts.
    """
    grades = sample.grades or (1.0,) * len(sample.relevant_ids)
    gains: dict[str, float] = {}
    for document, grade in zip(sample.relevant_ids, grades, strict=True):
        if grade:
            gains[document] = max(grade, gains.get(document, 0.0))
    return gains


def hit_ranks(retrieved: Sequence[str], relevant: Collection[str]) -> list[int]:
    """Return the ranks (from 1, ascending) at which ids of ``relevant`` first occur.

    An id that was not retrieved adds no rank to the list.
    """
    first: dict[str, int] = {}
    for rank, document in enumerate(retrieved, start=1):
        if document in relevant:
            first.setdefault(document, rank)
    return list(first.values())


def _recall(ranking: Ranking) -> float:
    return len(ranking.hits) / len(ranking.gains)


def _precision(ranking: Ranking) -> float:
    return len(ranking.hits) / (ranking.k or len(set(ranking.retrieved)))


def _average_precision(ranking: Ranking) -> float:
    precisions = (hits / rank for hits, rank in enumerate(ranking.hits, start=1))
    return sum(precisions) / len(ranking.gains)


def _reciprocal_rank(ranking: Ranking) -> float:
    return 1 / ranking.hits[0] if ranking.hits else 0.0


def _mean_reciprocal_rank(ranking: Ranking) -> float:
    return sum(1 / rank for rank in ranking.hits) / len(ranking.hits) if ranking.hits else 0.0


def _linear(grade: float, top: float) -> float:
    return grade / top


def _exponential(grade: float, top: float) -> float:
    """Return (2^grade - 1) / (2^top - 1), computed without powers that may not fit into a float."""
    ln2 = math.log(2)
    return math.exp((grade - top) * ln2) * math.expm1(-grade * ln2) / math.expm1(-top * ln2)


def _ndcg(gain: Callable[[float, float], float]) -> Callable[[Ranking], float]:
    def formula(ranking: Ranking) -> float:
        top = max(ranking.gains.values())
        gains = {document: gain(grade, top) for document, grade in ranking.gains.items()}
        best = sorted(gains.values(), reverse=True)[: ranking.k]
        hits = ((rank, gains[ranking.retrieved[rank - 1]]) for rank in ranking.hits)
        return min(1.0, _discounted(hits) / _discounted(enumerate(best, start=1)))

    return formula


def _discounted(hits: Iterable[tuple[int, float]]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in hits)


RANKING = (
    RankingMetric(
        name="hit_rate",
        formula=lambda ranking: float(bool(ranking.hits)),
        about=f"""\
Whether a relevant document was retrieved: 1 or 0.

Special cases: {_EDGES}

Source: ``HitRate`` of LlamaIndex 0.14, whose granular mode is `retrieval_recall` here, and
``DocumentRecallEvaluator`` of haystack-ai 3.4.1 in the mode ``single_hit``.""",
    ),
    RankingMetric(
        name="mrr",
        threshold=None,
        formula=_reciprocal_rank,
        about=f"""\
The reciprocal rank of the first relevant document; 0 if none was retrieved.

The mean over samples is the mean reciprocal rank.

Special cases: {_EDGES}

Source: ``MRR`` of LlamaIndex 0.14, ``DocumentMRREvaluator`` of haystack-ai 3.4.1.""",
    ),
    RankingMetric(
        name="mrr_of_all",
        threshold=None,
        formula=_mean_reciprocal_rank,
        about=f"""\
The mean of the reciprocal ranks of all relevant documents that were retrieved.

Special cases: {_EDGES}

Source: ``MRR`` of LlamaIndex 0.14 in the granular mode.""",
    ),
    RankingMetric(
        name="retrieval_precision",
        threshold=None,
        unretrieved=None,
        formula=_precision,
        about="""\
The share of the retrieved documents that are relevant.

With ``k``, the score is the number of relevant documents among the first ``k``, divided by ``k``.

Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
nothing was retrieved, the score is undefined (``no_context``).

Source: ``Precision`` of LlamaIndex 0.14; precision@k as in TREC evaluation.""",
    ),
    RankingMetric(
        name="retrieval_recall",
        threshold=None,
        formula=_recall,
        about=f"""\
The share of the relevant documents that were retrieved.

Special cases: {_EDGES}

Source: ``Recall`` of LlamaIndex 0.14, ``DocumentRecallEvaluator`` of haystack-ai 3.4.1 in the mode
``multi_hit``; its mode ``single_hit`` is `hit_rate` here.""",
    ),
    RankingMetric(
        name="average_precision",
        threshold=None,
        formula=_average_precision,
        about=f"""\
The mean of the precision at the ranks of the relevant documents.

``score = sum over hits (hits so far / rank) / relevant documents``. A relevant document that was
not retrieved adds 0. The mean over samples is the mean average precision (MAP).

Special cases: {_EDGES}

Source: ``AveragePrecision`` of LlamaIndex 0.14, ``DocumentMAPEvaluator`` of haystack-ai 3.4.1.
Unlike in these libraries, a document that was retrieved more than once is counted once, so that
the score is at most 1.""",
    ),
    RankingMetric(
        name="ndcg",
        threshold=None,
        formula=_ndcg(_linear),
        about=f"""\
Normalized discounted cumulative gain: are relevant documents ranked early?

The discounted gain is the ``sum over hits gain / log2(rank + 1)``. The score is the discounted gain
of the retrieved ids, divided by the discounted gain of the ideal ranking; both are cut at ``k``.
The gain of a document is its grade (``Sample.grades``), or 1 if there are no grades.

Special cases: {_EDGES}

Source: ``NDCG`` of LlamaIndex 0.14, ``DocumentNDCGEvaluator`` of haystack-ai 3.4.1. Unlike in these
libraries, a document that was retrieved more than once is counted once in both sums, so that the
score is at most 1.""",
    ),
    RankingMetric(
        name="ndcg_exponential",
        threshold=None,
        formula=_ndcg(_exponential),
        about=f"""\
`ndcg` with the gain ``2^grade - 1``, which favours the documents of high grades.

Special cases: {_EDGES}

Source: ``NDCG`` of LlamaIndex 0.14 in the mode ``exponential``.""",
    ),
    RankingMetric(
        name="id_context_precision",
        unretrieved=None,
        irrelevant=0.0,
        formula=_precision,
        about="""\
The share of the retrieved ids that are relevant: |retrieved & relevant| / |retrieved|.

Special cases: If nothing was retrieved, the score is undefined (``no_context``). If there is no
relevant id, the score is 0; `retrieval_precision` is then undefined.

Source: ``IDBasedContextPrecision`` of ragas 0.4.3.""",
    ),
    RankingMetric(
        name="id_context_recall",
        formula=_recall,
        about=f"""\
The share of the relevant ids that were retrieved: |retrieved & relevant| / |relevant|.

Special cases: {_EDGES}

Source: ``IDBasedContextRecall`` of ragas 0.4.3.""",
    ),
)
"""The metrics of this module."""

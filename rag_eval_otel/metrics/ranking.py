"""Were the right documents retrieved and ranked first, by their ids?

No judge is asked. Ranks count from 1. If a document was retrieved more than once, only its first
rank counts as a hit, and the repetitions still take up ranks. Every metric needs the retrieved ids
(``retrieved_ids``, or the ids of the contexts) and the relevant ids. Ids with the grade 0 are not
relevant. ``k`` limits a metric to the first ``k`` retrieved ids; a ``k`` below 1 raises
`ConfigError`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import AskLike
from rag_eval_otel.metrics.outcome import Labelled, Metric, check_options, measured, undefined
from rag_eval_otel.types import EmbedFn, Sample, Score

_NEEDS = frozenset({"retrieved_ids", "relevant_ids"})


class _Ranked(Metric, Protocol):
    """A metric of ranked ids that may be limited to the first ``k`` retrieved ids."""

    @property
    def k(self) -> int | None: ...


def _check(metric: _Ranked) -> None:
    if metric.k is not None and metric.k < 1:
        msg = f"k must be at least 1, or None for all, not {metric.k}"
        raise ConfigError(msg)
    check_options(metric)


def relevant_of(sample: Sample) -> frozenset[str]:
    """Return the ids in ``sample.relevant_ids``, without the ids that have the grade 0."""
    grades = sample.grades or (1.0,) * len(sample.relevant_ids)
    return frozenset(one for one, grade in zip(sample.relevant_ids, grades, strict=True) if grade)


def hit_ranks(retrieved: Sequence[str], wanted: Collection[str]) -> list[int]:
    """Return the ranks (from 1, ascending) at which ids of ``wanted`` first occur in ``retrieved``.

    An id that was not retrieved adds no rank to the list.
    """
    first: dict[str, int] = {}
    for rank, one in enumerate(retrieved, start=1):
        if one in wanted:
            first.setdefault(one, rank)
    return list(first.values())


def _without_ids(metric: Labelled, sample: Sample) -> Score | None:
    """Return the score if ``sample`` has no relevant ids or no retrieved ids, else None."""
    if not relevant_of(sample):
        return undefined(metric.name, "missing_reference")
    if not sample.ranked_ids:
        return measured(metric, 0.0, reason="no_context")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """Whether a relevant document was retrieved: 1 or 0.

    With ``mode="granular"``, the score is the share of the relevant documents that were retrieved,
    in [0, 1].

    The metric compares the retrieved ids of a sample with its relevant ids. ``k`` limits the metric
    to the first ``k`` retrieved ids; a ``k`` below 1 raises `ConfigError`.

    Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
    nothing was retrieved, the score is 0 (``no_context``).

    Source: ``HitRate`` of LlamaIndex 0.14. Unlike in LlamaIndex, a document that was retrieved more
    than once is counted once.
    """

    k: int | None = None
    mode: Literal["any", "granular"] = "any"
    threshold: float | None = 0.5
    name: str = "hit_rate"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        _check(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if without := _without_ids(self, sample):
            return without
        wanted = relevant_of(sample)
        hits = len(hit_ranks(sample.ranked_ids[: self.k], wanted))
        share = hits / len(wanted)
        value = share if self.mode == "granular" else float(hits > 0)
        return measured(self, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MRR:
    """The reciprocal rank of the first relevant document; 0 if no relevant one was retrieved.

    The mean over samples is the mean reciprocal rank. With ``mode="granular"``, the score is the
    mean of the reciprocal ranks of all relevant documents that were retrieved. The range is [0, 1].

    The metric compares the retrieved ids of a sample with its relevant ids. ``k`` limits the metric
    to the first ``k`` retrieved ids; a ``k`` below 1 raises `ConfigError`.

    Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
    nothing was retrieved, the score is 0 (``no_context``).

    Source: ``MRR`` of LlamaIndex 0.14, ``DocumentMRREvaluator`` of haystack-ai 3.4.1.
    """

    k: int | None = None
    mode: Literal["first", "granular"] = "first"
    threshold: float | None = None
    name: str = "mrr"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        _check(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if without := _without_ids(self, sample):
            return without
        wanted = relevant_of(sample)
        ranks = hit_ranks(sample.ranked_ids[: self.k], wanted)
        counted = ranks if self.mode == "granular" else ranks[:1]
        value = sum(1 / rank for rank in counted) / len(counted) if counted else 0.0
        return measured(self, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalPrecision:
    """The share of the retrieved documents that are relevant.

    With ``k``, the score is the number of relevant documents among the first ``k``, divided by
    ``k``. The range is [0, 1].

    The metric compares the retrieved ids of a sample with its relevant ids. A ``k`` below 1 raises
    `ConfigError`.

    Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
    nothing was retrieved, the score is undefined (``no_context``).

    Source: ``Precision`` of LlamaIndex 0.14; precision@k as in TREC evaluation.
    """

    k: int | None = None
    threshold: float | None = None
    name: str = "retrieval_precision"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        _check(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        wanted = relevant_of(sample)
        if not wanted:
            return undefined(self.name, "missing_reference")
        if not sample.ranked_ids:
            return undefined(self.name, "no_context")
        ranked = sample.ranked_ids[: self.k]
        hits = len(hit_ranks(ranked, wanted))
        return measured(self, hits / (self.k or len(set(ranked))))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalRecall:
    """The share of the relevant documents that were retrieved.

    With ``mode="single_hit"``, the score is 1 if any relevant document was retrieved, else 0. The
    range is [0, 1].

    The metric compares the retrieved ids of a sample with its relevant ids. ``k`` limits the metric
    to the first ``k`` retrieved ids; a ``k`` below 1 raises `ConfigError`.

    Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
    nothing was retrieved, the score is 0 (``no_context``).

    Source: ``DocumentRecallEvaluator`` of haystack-ai 3.4.1, ``Recall`` of LlamaIndex 0.14.
    """

    k: int | None = None
    mode: Literal["multi_hit", "single_hit"] = "multi_hit"
    threshold: float | None = None
    name: str = "retrieval_recall"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        _check(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if without := _without_ids(self, sample):
            return without
        wanted = relevant_of(sample)
        hits = len(hit_ranks(sample.ranked_ids[: self.k], wanted))
        share = hits / len(wanted)
        value = share if self.mode == "multi_hit" else float(hits > 0)
        return measured(self, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragePrecision:
    """The mean of the precision at the ranks of the relevant documents.

    ``score = sum over hits (hits so far / rank) / relevant documents``. A relevant document that
    was not retrieved adds 0. The range is [0, 1]. The mean over samples is the mean average
    precision (MAP).

    The metric compares the retrieved ids of a sample with its relevant ids. ``k`` limits the metric
    to the first ``k`` retrieved ids; a ``k`` below 1 raises `ConfigError`.

    Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
    nothing was retrieved, the score is 0 (``no_context``).

    Source: ``AveragePrecision`` of LlamaIndex 0.14, ``DocumentMAPEvaluator`` of haystack-ai 3.4.1.
    Unlike in these libraries, a document that was retrieved more than once is counted once, so that
    the score is at most 1.
    """

    k: int | None = None
    threshold: float | None = None
    name: str = "average_precision"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        _check(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if without := _without_ids(self, sample):
            return without
        wanted = relevant_of(sample)
        ranks = hit_ranks(sample.ranked_ids[: self.k], wanted)
        precisions = [hits / rank for hits, rank in enumerate(ranks, start=1)]
        value = sum(precisions) / len(wanted)
        return measured(self, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class NDCG:
    """Normalized discounted cumulative gain: are relevant documents ranked early, the best first?

    The discounted gain is the ``sum over hits gain / log2(rank + 1)``. The score is the discounted
    gain of the retrieved ids, divided by the discounted gain of the ideal ranking; both are cut at
    ``k``. The gain of a document is its grade (``Sample.grades``), or 1 if there are no grades.
    With ``gain="exponential"``, the gain is 2^grade - 1. The range is [0, 1].

    The metric compares the retrieved ids of a sample with its relevant ids. ``k`` limits the metric
    to the first ``k`` retrieved ids; a ``k`` below 1 raises `ConfigError`.

    Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
    nothing was retrieved, the score is 0 (``no_context``).

    Source: ``NDCG`` of LlamaIndex 0.14, ``DocumentNDCGEvaluator`` of haystack-ai 3.4.1. Unlike in
    these libraries, a document that was retrieved more than once is counted once in both sums, so
    that the score is at most 1.
    """

    k: int | None = None
    gain: Literal["linear", "exponential"] = "linear"
    threshold: float | None = None
    name: str = "ndcg"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    def __post_init__(self) -> None:
        _check(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if without := _without_ids(self, sample):
            return without
        gains = self._gains(sample)
        ideal = _discounted(enumerate(sorted(gains.values(), reverse=True)[: self.k], start=1))
        ranked = sample.ranked_ids[: self.k]
        hits = ((rank, gains[ranked[rank - 1]]) for rank in hit_ranks(ranked, gains))
        return measured(self, min(1.0, _discounted(hits) / ideal))

    def _gains(self, sample: Sample) -> dict[str, float]:
        """Return the gain of each relevant id, divided by the gain of the highest grade.

        If an id is listed twice, its higher gain counts.
        """
        grades = sample.grades or (1.0,) * len(sample.relevant_ids)
        top = max(grades)
        gains: dict[str, float] = {}
        for one, grade in zip(sample.relevant_ids, grades, strict=True):
            gain = grade / top if self.gain == "linear" else _exponential(grade, top)
            gains[one] = max(gain, gains.get(one, 0.0))
        return gains


def _exponential(grade: float, top: float) -> float:
    """Return (2^grade - 1) / (2^top - 1), computed without powers that may not fit into a float."""
    ln2 = math.log(2)
    return math.exp((grade - top) * ln2) * math.expm1(-grade * ln2) / math.expm1(-top * ln2)


def _discounted(hits: Iterable[tuple[int, float]]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in hits)


@dataclass(frozen=True, slots=True, kw_only=True)
class IDContextPrecision:
    """The share of the retrieved ids that are relevant: |retrieved & relevant| / |retrieved|.

    The range is [0, 1].

    Special cases: If nothing was retrieved, the score is undefined (``no_context``). If there is no
    relevant id, the score is 0; `RetrievalPrecision` is then undefined.

    Source: ``IDBasedContextPrecision`` of ragas 0.4.3.
    """

    threshold: float | None = 0.5
    name: str = "id_context_precision"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        retrieved, relevant = set(sample.ranked_ids), relevant_of(sample)
        if not retrieved:
            return undefined(self.name, "no_context")
        value = len(retrieved & relevant) / len(retrieved)
        return measured(self, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class IDContextRecall:
    """The share of the relevant ids that were retrieved: |retrieved & relevant| / |relevant|.

    The range is [0, 1].

    Special cases: If there is no relevant id, the score is undefined (``missing_reference``). If
    nothing was retrieved, the score is 0 (``no_context``).

    Source: ``IDBasedContextRecall`` of ragas 0.4.3.
    """

    threshold: float | None = 0.5
    name: str = "id_context_recall"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        retrieved, relevant = set(sample.ranked_ids), relevant_of(sample)
        if not relevant:
            return undefined(self.name, "missing_reference")
        value = len(retrieved & relevant) / len(relevant)
        return measured(self, value, reason=None if retrieved else "no_context")

"""Were the right contexts retrieved? By their ids as sets, rank apart, without a judge."""

from __future__ import annotations

from dataclasses import dataclass

from rag_eval_otel.metrics.outcome import measured, undefined
from rag_eval_otel.metrics.ranking import relevant_of
from rag_eval_otel.protocols import AskLike, EmbedFn
from rag_eval_otel.types import Sample, Score

_NEEDS = frozenset({"retrieved_ids", "relevant_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IDContextPrecision:
    """The share of the retrieved ids that are relevant: |retrieved & relevant| / |retrieved|.

    Range [0, 1]. Nothing retrieved: undefined ``no_context``. That no id is relevant is taken at
    its word: 0. (`RetrievalPrecision` takes it for not known.)

    Source: ragas 0.4.3 ``IDBasedContextPrecision``.
    """

    threshold: float | None = 0.5
    name: str = "id_context_precision"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        retrieved, relevant = set(sample.ranked_ids), relevant_of(sample)
        if not retrieved:
            return undefined(self.name, "no_context")
        value = len(retrieved & relevant) / len(retrieved)
        return measured(self.name, value, threshold=self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class IDContextRecall:
    """The share of the relevant ids that were retrieved: |retrieved & relevant| / |relevant|.

    Range [0, 1]. No id is relevant: undefined ``missing_reference``; nothing retrieved: 0.

    Source: ragas 0.4.3 ``IDBasedContextRecall``.
    """

    threshold: float | None = 0.5
    name: str = "id_context_recall"

    needs = _NEEDS
    asks = ()
    requests = "0"
    range = "[0, 1]"

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        retrieved, relevant = set(sample.ranked_ids), relevant_of(sample)
        if not relevant:
            return undefined(self.name, "missing_reference")
        value = len(retrieved & relevant) / len(relevant)
        return measured(
            self.name, value, threshold=self.threshold, reason=None if retrieved else "no_context"
        )

"""`Measurement`: what is measured of live turns, and by whom."""

from __future__ import annotations

from dataclasses import dataclass

from rag_eval_otel.config import Config
from rag_eval_otel.evaluation import evaluate
from rag_eval_otel.judge.ask import ReplyCache
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.models import build_embedder, build_judge
from rag_eval_otel.protocols import Embedder, Judge, Metric
from rag_eval_otel.redaction import Redactor, redactor
from rag_eval_otel.types import Embedding, Evaluation, Fusion, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Metrics, who is asked for them, and how."""

    metrics: tuple[Metric, ...]
    judge: Judge
    embedder: Embedder
    fusion: Fusion = "on"
    timeout: float | None = 60.0
    cache: ReplyCache | None = None
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    embedding: Embedding = "drop"

    async def of(self, sample: Sample) -> Evaluation:
        """Return the scores of ``sample``, of whose texts nobody sees what is to be redacted."""
        return await evaluate(
            self.redactor.sample(sample),
            self.metrics,
            judge=self.judge,
            embedder=self.embedder,
            fusion=self.fusion,
            timeout=self.timeout,
            cache=self.cache,
            embedding=self.embedding,
        )


def build_measurement(config: Config) -> Measurement:
    """Return the metrics, judge and embedder that ``config`` asks for."""
    watched = config.drift == "on" or getattr(config.drift, "questions", 0) > 0
    return Measurement(
        metrics=resolve_metrics(config.metrics),
        judge=build_judge(config),
        embedder=build_embedder(config),
        fusion=config.fusion,
        timeout=config.evaluation_timeout,
        cache=ReplyCache(),
        redactor=redactor(config.redact),
        embedding="keep" if watched else "drop",
    )

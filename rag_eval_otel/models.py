"""The judge and the embedder that a `Config` asks for."""

from __future__ import annotations

from rag_eval_otel.config import Config
from rag_eval_otel.embed import HashingEmbedder, OpenAIEmbedder
from rag_eval_otel.judge.breaker import CircuitBreaker
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.protocols import Embedder, Judge


def build_judge(config: Config) -> Judge:
    """Return the judge of ``config``; one that may be out of reach gets a circuit breaker."""
    judge = build_plain_judge(config)
    return judge if isinstance(judge, LexicalJudge) else CircuitBreaker(judge)


def build_plain_judge(config: Config) -> Judge:
    """Return the judge of ``config`` without a circuit breaker."""
    if not isinstance(config.judge, str):
        judge: Judge = config.judge
        return judge
    if config.judge == "lexical":
        return LexicalJudge()
    return OpenAIJudge(
        config.judge.removeprefix("openai/"),
        base_url=config.judge_base_url,
        api_key=config.judge_api_key,
        timeout=config.judge_timeout,
        max_retries=config.judge_retries,
    )


def build_embedder(config: Config) -> Embedder:
    """Return the embedder of ``config``."""
    if not isinstance(config.embedder, str):
        embedder: Embedder = config.embedder
        return embedder
    if config.embedder == "hashing":
        return HashingEmbedder()
    return OpenAIEmbedder(
        config.embedder.removeprefix("openai/"),
        base_url=config.judge_base_url,
        api_key=config.judge_api_key,
        timeout=config.judge_timeout,
        max_retries=config.judge_retries,
    )

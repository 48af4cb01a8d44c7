"""Make the judge, the embedder and the prompts that a `Config` or a caller names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from rag_eval_otel.config import Config
from rag_eval_otel.embed import HashingEmbedder, LangChainEmbedder, OpenAIEmbedder
from rag_eval_otel.environment import first_set, variable
from rag_eval_otel.judge.langchain import LangChainJudge
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.limits import Endpoint, Limits, is_usable
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.tasks import Judge, Task
from rag_eval_otel.judge.usage import is_offline, name_of, title_of
from rag_eval_otel.judge.wire import load_prompts
from rag_eval_otel.prices import Prices, load_prices
from rag_eval_otel.providers import OFFLINE, PROVIDERS, REGISTRIES, parts_of
from rag_eval_otel.types import Embedder, Replies, Vectors

if TYPE_CHECKING:
    from os import PathLike

    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables import Runnable
    from typing_extensions import TypeIs

AnyJudge: TypeAlias = "Judge | Runnable[Any, Any] | str | None"
"""A judge, a LangChain chat model, or a judge's name; None: ``RAG_EVAL_JUDGE`` or the default."""

AnyEmbedder: TypeAlias = "Embedder | Embeddings | str | None"
"""None: ``RAG_EVAL_EMBEDDER``, or else the default embedder of the judge."""

AnyPrompts: TypeAlias = "Mapping[str, str] | str | PathLike[str] | None"
"""Texts by name, or the path of a folder with prompts; None: ``RAG_EVAL_PROMPTS`` or built in."""


def build_judge(config: Config) -> Judge:
    judge = build_plain_judge(config)
    if is_offline(judge):
        return judge
    if isinstance(judge, OpenAIJudge):
        return judge.with_endpoint(judge.endpoint.with_limits(_live(config)))
    limits = Limits(retries=0, timeout=None, **_live(config))  # retries and timeouts of its own
    title = title_of("judge", judge)
    return ProtectedJudge(judge, Endpoint(f"judge {judge.model}", limits, title=title))


def build_plain_judge(config: Config) -> Judge:
    if not isinstance(config.judge, str):
        judge = config.judge
        return judge if _is_judge(judge) else LangChainJudge(cast("Any", judge))
    if config.judge == OFFLINE["judge"]:
        return LexicalJudge()
    provider, _, model = config.judge.partition("/")
    if provider in PROVIDERS and PROVIDERS[provider].is_compatible:
        return OpenAIJudge(model, provider=provider)
    return cast("Judge", REGISTRIES["judge"].make(provider, model))


def build_live_embedder(config: Config) -> Embedder:
    embedder = build_embedder(config)
    if is_offline(embedder):
        return embedder
    if isinstance(embedder, OpenAIEmbedder):
        return embedder.with_endpoint(embedder.endpoint.with_limits(_live(config)))
    limits = Limits(retries=0, timeout=None, **_live(config))
    return ProtectedEmbedder(embedder, Endpoint(f"embedder {name_of(embedder)}", limits))


def build_embedder(config: Config) -> Embedder:
    if not isinstance(config.embedder, str):
        embedder = config.embedder
        return embedder if _is_embedder(embedder) else LangChainEmbedder(cast("Any", embedder))
    if config.embedder == OFFLINE["embedder"]:
        return HashingEmbedder()
    provider, _, model = config.embedder.partition("/")
    if provider in PROVIDERS:
        return OpenAIEmbedder(model, provider=provider)
    return cast("Embedder", REGISTRIES["embedder"].make(provider, model))


def _live(config: Config) -> dict[str, Any]:
    # Servers often ask for pauses of up to 10 s.
    patience = max(config.hold_seconds, 15.0) if config.hold_seconds else math.inf
    return {
        "failures": 5,
        "patience": min(patience, config.evaluation_timeout),
        "concurrency": 4 * config.concurrency,  # a turn sends about so many requests at a time
    }


def _is_judge(given: object) -> TypeIs[Judge]:
    # A LangChain model may have a field called ``reply``, too.
    return hasattr(given, "reply") and not hasattr(given, "ainvoke")


def _is_embedder(given: object) -> TypeIs[Embedder]:
    return hasattr(given, "embed") and not hasattr(given, "aembed_documents")


def chosen_models(judge: AnyJudge, embedder: AnyEmbedder) -> tuple[Judge, Embedder]:
    """Return a judge and an embedder; a name gives the same object in each call."""
    if _is_judge(judge) and _is_embedder(embedder):
        return judge, embedder
    given: dict[str, Any] = {"judge": judge, "embedder": embedder}
    config = Config.from_env(**{part: model for part, model in given.items() if model is not None})
    if isinstance(config.judge, str) and isinstance(config.embedder, str):
        # Keys and addresses in the environment may change between calls.
        parts = filter(None, map(parts_of, (config.judge, config.embedder)))
        names = [n for one, *_ in parts for n in (*one.keys, *one.addresses, *one.settings)]
        environment = tuple(first_set((name,)) for name in names)
        return _named(config.judge, config.embedder, environment)
    return build_plain_judge(config), build_embedder(config)


def chosen_prompts(prompts: AnyPrompts) -> Mapping[str, str]:
    if isinstance(prompts, Mapping):
        return prompts
    folder = prompts or first_set(("RAG_EVAL_PROMPTS",))
    return load_prompts(folder) if folder else {}


AnyPrices: TypeAlias = "Prices | Mapping[str, Any] | str | PathLike[str] | None"
"""Prices, a table or a file of prices; None: ``RAG_EVAL_PRICES`` or list prices."""


def chosen_prices(prices: AnyPrices) -> Prices:
    if isinstance(prices, Prices):
        return prices
    return _prices_in(first_set(("RAG_EVAL_PRICES",))) if prices is None else load_prices(prices)


_prices_in = lru_cache(maxsize=4)(load_prices)


def chosen_max_text_chars(value: int | None) -> int:
    if value is not None:
        return Config(max_text_chars=value).max_text_chars
    return _max_text_chars(first_set((variable("max_text_chars"),)))


@lru_cache(maxsize=4)
def _max_text_chars(text: str | None) -> int:
    environ = {} if text is None else {variable("max_text_chars"): text}
    return Config.from_env(environ).max_text_chars


@lru_cache(maxsize=16)
def _named(judge: str, embedder: str, _environ: tuple[str | None, ...]) -> tuple[Judge, Embedder]:
    config = Config(judge=judge, embedder=embedder)
    return build_plain_judge(config), build_embedder(config)


class ProtectedJudge:
    """A judge whose requests are limited, delayed after a 429, and stopped in an outage."""

    def __init__(self, judge: Judge, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._judge = judge
        self.revision: int | None = getattr(judge, "revision", None)
        self.label_metrics: frozenset[str] | None = getattr(judge, "label_metrics", None)

    def __repr__(self) -> str:
        return f"ProtectedJudge({self._judge!r})"

    @property
    def model(self) -> str:
        return self._judge.model

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        return await self.endpoint.call(partial(self._judge.reply, tasks), is_usable=is_usable)


class ProtectedEmbedder:
    """Sends the requests to ``embedder`` through ``endpoint``."""

    def __init__(self, embedder: Embedder, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._embedder = embedder
        self.model = name_of(embedder)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await self.endpoint.call(partial(self._embedder.embed, texts))

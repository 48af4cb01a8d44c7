"""Make the judge, the embedder and the prompts that a `Config` or a caller names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from rag_eval_otel.config import Config
from rag_eval_otel.embed import HashingEmbedder, LangChainEmbedder, OpenAIEmbedder
from rag_eval_otel.environment import first_set, variable
from rag_eval_otel.judge.codec import load_prompts
from rag_eval_otel.judge.endpoint import Endpoint, Limits, is_usable
from rag_eval_otel.judge.function import FunctionJudge
from rag_eval_otel.judge.langchain import LangChainJudge
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.tasks import Judge, Task
from rag_eval_otel.judge.usage import is_offline, name_of, title_of
from rag_eval_otel.prices import Prices, load_prices
from rag_eval_otel.providers import OFFLINE, PROVIDERS, REGISTRIES, Part, parts_of
from rag_eval_otel.types import Embedder, JudgeFunction, Replies, Vectors

if TYPE_CHECKING:
    from os import PathLike

    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables import Runnable

AnyJudge: TypeAlias = "Judge | Runnable[Any, Any] | JudgeFunction | str | None"
"""A judge, a LangChain chat model, or a judge's name; None: ``RAG_EVAL_JUDGE`` or the default."""

AnyEmbedder: TypeAlias = "Embedder | Embeddings | str | None"
"""None: ``RAG_EVAL_EMBEDDER``, or else the default embedder of the judge."""

AnyPrompts: TypeAlias = "Mapping[str, str] | str | PathLike[str] | None"
"""Texts by name, or the path of a folder with prompts; None: ``RAG_EVAL_PROMPTS`` or built in."""


_MODELS: Mapping[Part, tuple[str, str, Any, Any, Any]] = {
    "judge": ("reply", "ainvoke", LexicalJudge, OpenAIJudge, LangChainJudge),
    "embedder": ("embed", "aembed_documents", HashingEmbedder, OpenAIEmbedder, LangChainEmbedder),
}
"""A method of our models and one of LangChain's; the offline, HTTP and LangChain classes."""


def build_plain_judge(config: Config) -> Judge:
    return cast("Judge", _plain("judge", config.judge))


def build_embedder(config: Config) -> Embedder:
    return cast("Embedder", _plain("embedder", config.embedder))


def build_live_models(config: Config) -> tuple[Judge, Embedder]:
    return _live("judge", config.judge, config), _live("embedder", config.embedder, config)


def _plain(part: Part, given: object) -> Any:
    own, langchain, offline, client, adapter = _MODELS[part]
    if part == "judge" and callable(given) and not any(hasattr(given, n) for n in (own, langchain)):
        return FunctionJudge(given)
    if not isinstance(given, str):
        return given if _is_ours(part, given) else adapter(given)
    if given == OFFLINE[part]:
        return offline()
    provider, _, model = given.partition("/")
    if provider in PROVIDERS and PROVIDERS[provider].is_compatible:
        return client(model, provider=provider)
    return REGISTRIES[part].make(provider, model)


def _is_ours(part: Part, given: object) -> bool:
    own, langchain, *_ = _MODELS[part]
    return hasattr(given, own) and not hasattr(given, langchain)  # whose models may have a `reply`


def _live(part: Part, given: object, config: Config) -> Any:
    model = _plain(part, given)
    if is_offline(model):
        return model
    # Servers often ask for pauses of up to 10 s.
    patience = max(config.hold_seconds, 15.0) if config.hold_seconds else math.inf
    limits: dict[str, Any] = {
        "failures": 5,
        "patience": min(patience, config.evaluation_timeout),
        "concurrency": 4 * config.concurrency,  # a turn sends about so many requests at a time
    }
    if isinstance(model, OpenAIJudge | OpenAIEmbedder):
        return model.with_endpoint(model.endpoint.with_limits(limits))
    own = Limits(retries=0, timeout=None, **limits)  # it has retries and timeouts of its own
    endpoint = Endpoint(f"{part} {name_of(model)}", own, title=title_of(part, model))
    return ProtectedModel(model, endpoint)


def chosen_models(judge: AnyJudge, embedder: AnyEmbedder) -> tuple[Judge, Embedder]:
    """Return judge and embedder; two names give the same objects in each call."""
    if _is_ours("judge", judge) and _is_ours("embedder", embedder):
        return cast("Judge", judge), cast("Embedder", embedder)
    given: dict[str, Any] = {"judge": judge, "embedder": embedder}
    config = Config.from_env(**{part: model for part, model in given.items() if model is not None})
    if isinstance(config.judge, str) and isinstance(config.embedder, str):
        # Keys and addresses in the environment may change between calls.
        parts = filter(None, map(parts_of, (config.judge, config.embedder)))
        names = [n for one, *_ in parts for n in (*one.keys, *one.addresses, *one.settings)]
        return _named(config.judge, config.embedder, tuple(first_set((name,)) for name in names))
    return build_plain_judge(config), build_embedder(config)


@lru_cache(maxsize=16)
def _named(judge: str, embedder: str, _environ: tuple[str | None, ...]) -> tuple[Judge, Embedder]:
    config = Config(judge=judge, embedder=embedder)
    return build_plain_judge(config), build_embedder(config)


def chosen_prompts(prompts: AnyPrompts) -> Mapping[str, str]:
    if isinstance(prompts, Mapping):
        return prompts
    folder = prompts or first_set(("RAG_EVAL_PROMPTS",))
    return load_prompts(folder) if folder else {}


AnyPrices: TypeAlias = "Prices | Mapping[str, Any] | str | PathLike[str] | None"
"""Prices, a table or a file of prices; None: ``RAG_EVAL_PRICES`` or list prices."""


_prices_in = lru_cache(maxsize=4)(load_prices)


def chosen_prices(prices: AnyPrices) -> Prices:
    if isinstance(prices, Prices):
        return prices
    return _prices_in(first_set(("RAG_EVAL_PRICES",))) if prices is None else load_prices(prices)


def chosen_max_text_chars(value: int | None) -> int:
    if value is not None:
        return Config(max_text_chars=value).max_text_chars
    name = variable("max_text_chars")
    return Config.from_env({name: first_set((name,)) or ""}).max_text_chars


class ProtectedModel:
    """A judge or embedder with an `Endpoint`, which limits requests and pauses after failures."""

    def __init__(self, model: Any, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._model = model

    def __repr__(self) -> str:
        return f"ProtectedModel({self._model!r})"

    @property
    def model(self) -> str:
        return name_of(self._model)

    def __getattr__(self, name: str) -> Any:
        if name not in {"revision", "label_metrics"}:
            raise AttributeError(name)
        return getattr(self._model, name, None)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        return await self.endpoint.call(partial(self._model.reply, tasks), is_usable=is_usable)

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await self.endpoint.call(partial(self._model.embed, texts))

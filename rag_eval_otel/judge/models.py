"""The judge and the embedder that a `Config` asks for, or that a caller names."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict
from urllib.parse import urlsplit

from rag_eval_otel.config import Config, first_set
from rag_eval_otel.embed import HashingEmbedder, LangChainEmbedder, OpenAIEmbedder
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.breaker import CircuitBreaker
from rag_eval_otel.judge.langchain import LangChainJudge, named_model
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.local import LocalJudge
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts, load_prompts
from rag_eval_otel.judge.tasks import Judge
from rag_eval_otel.providers import Provider, parts_of
from rag_eval_otel.types import Embedder

if TYPE_CHECKING:
    from os import PathLike

    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables import Runnable
    from typing_extensions import TypeIs


AnyJudge: TypeAlias = "Judge | Runnable[Any, Any] | str | None"
"""A judge, a LangChain chat model, a judge's name, or None for the one of the environment."""

AnyEmbedder: TypeAlias = "Embedder | Embeddings | str | None"
"""The same for embedders; None where none is set in the environment is the one for the judge."""

AnyPrompts: TypeAlias = "Prompts | str | PathLike[str] | None"
"""Prompts, the folder they are in, or None for the one of the environment."""

_AZURE_VERSION = "2024-10-21"
_VERSION = "OPENAI_API_VERSION"


def build_judge(config: Config) -> Judge:
    """Return the judge of ``config``; one that may be out of reach gets a circuit breaker."""
    judge = build_plain_judge(config)
    is_here = isinstance(judge, LexicalJudge | LocalJudge)
    return judge if is_here else CircuitBreaker(judge)


def build_plain_judge(config: Config) -> Judge:
    """Return the judge of ``config`` without a circuit breaker."""
    if not isinstance(config.judge, str):
        return config.judge if _is_judge(config.judge) else LangChainJudge(config.judge)
    found = parts_of(config.judge)
    if found is None:
        return LexicalJudge()
    provider, model = found
    if provider.name == "local":
        return LocalJudge(model, device=config.device, batch_size=config.batch_size)
    if provider.langchain:
        return _langchain_judge(provider, model, config)
    return OpenAIJudge(
        model,
        **_connection(provider, config, base_url=config.judge_base_url, key=config.judge_api_key),
        temperature=config.temperature,
        seed=config.seed,
        max_tokens=config.max_tokens,
        extra_body=config.extra_body,
        schema_mode=provider.schema_mode,
        seed_field=provider.seed,
        limit_field=provider.limit,
    )


def build_embedder(config: Config) -> Embedder:
    """Return the embedder of ``config``."""
    if not isinstance(config.embedder, str):
        given = config.embedder
        return given if _is_embedder(given) else LangChainEmbedder(given)
    found = parts_of(config.embedder)
    if found is None:
        return HashingEmbedder()
    provider, model = found
    base_url, key = config.embedder_base_url, config.embedder_api_key
    if _shares_address(provider, config) and base_url is None:
        base_url, key = config.judge_base_url, key or config.judge_api_key
    return OpenAIEmbedder(model, **_connection(provider, config, base_url=base_url, key=key))


def _shares_address(provider: Provider, config: Config) -> bool:
    """Tell whether address and key of the judge are those of an embedder of ``provider``."""
    judge = parts_of(config.judge) if isinstance(config.judge, str) else None
    return judge is None or judge[0] is provider


class _Connection(TypedDict):
    base_url: str | None
    api_key: str | None
    timeout: float
    max_retries: int
    key_variable: str
    api_version: str | None


def _connection(
    provider: Provider, config: Config, *, base_url: str | None, key: str | None
) -> _Connection:
    is_plain = provider.name == "openai"  # whose variables the client reads itself
    given = base_url if is_plain else base_url or first_set(provider.addresses)
    address = provider.address(given)
    return {
        "base_url": address,
        "api_key": key or (None if is_plain else first_set(provider.keys) or provider.key),
        "timeout": config.judge_timeout,
        "max_retries": config.judge_retries,
        "key_variable": provider.keys[0],
        "api_version": _azure_version(address) if provider.name == "azure" else None,
    }


def _azure_version(address: str | None) -> str | None:
    """Return the version of the API to ask at; None for the API without versions."""
    if address is None:
        msg = "azure/... needs an endpoint: set judge_base_url or AZURE_OPENAI_ENDPOINT"
        raise ConfigError(msg)
    if urlsplit(address).path.rstrip("/").endswith("/openai/v1"):
        return None
    return first_set((_VERSION,)) or _AZURE_VERSION


def _langchain_judge(provider: Provider, model: str, config: Config) -> Judge:
    """Return a judge on a model of a provider without an OpenAI-compatible endpoint."""
    if config.seed is not None:
        msg = f"{provider.name}/... takes no seed"
        raise ConfigError(msg)
    options = {
        "base_url": config.judge_base_url,
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
        "bedrock_api_key": config.judge_api_key,
        "additional_model_request_fields": config.extra_body,
    }
    given = {name: value for name, value in options.items() if value is not None}
    llm = named_model(provider, model, timeout=config.judge_timeout, **given)
    return LangChainJudge(llm, model=model, max_threads=config.concurrency)


def _is_judge(given: object) -> TypeIs[Judge]:
    is_langchains = hasattr(given, "ainvoke")  # whose models may have a field of any name
    return hasattr(given, "reply") and not is_langchains


def _is_embedder(given: object) -> TypeIs[Embedder]:
    return hasattr(given, "embed") and not hasattr(given, "aembed_documents")


def chosen_models(judge: AnyJudge, embedder: AnyEmbedder) -> tuple[Judge, Embedder]:
    """Return judge and embedder as callers give them; a named one is made once.

    Raises `ConfigError` for what is neither, and `MissingDependencyError` for a judge whose package
    is not installed.
    """
    if _is_judge(judge) and _is_embedder(embedder):
        return judge, embedder
    given: dict[str, Any] = {"judge": judge, "embedder": embedder}
    config = Config.from_env(**{part: one for part, one in given.items() if one is not None})
    key = _key(config)
    return _made(key) if key else (build_plain_judge(config), build_embedder(config))


def chosen_prompts(prompts: AnyPrompts) -> Prompts:
    """Return the prompts as callers give them; raise `ConfigError` for a folder without all."""
    if isinstance(prompts, Prompts):
        return prompts
    folder = prompts or first_set(("RAG_EVAL_PROMPTS",))
    return load_prompts(folder) if folder else BUILT_IN


_OF_MODELS = (
    "judge",
    "embedder",
    "judge_base_url",
    "judge_api_key",
    "embedder_base_url",
    "embedder_api_key",
    "judge_timeout",
    "judge_retries",
    "temperature",
    "seed",
    "max_tokens",
    "device",
    "batch_size",
    "concurrency",
)


def _key(config: Config) -> tuple[tuple[str, Any], ...]:
    """Return the options of models that are named; nothing where one is an object."""
    if not (isinstance(config.judge, str) and isinstance(config.embedder, str)):
        return ()
    extra = json.dumps(config.extra_body, sort_keys=True) if config.extra_body else None
    options = tuple((name, getattr(config, name)) for name in _OF_MODELS)
    return (*options, ("extra_body", extra), ("environment", _environment(config)))


def _environment(config: Config) -> tuple[str | None, ...]:
    """Return what the environment says of keys and addresses now: it may be set later."""
    found = [parts_of(name) for name in (config.judge, config.embedder)]
    names = [name for part in found if part for name in (*part[0].keys, *part[0].addresses)]
    return tuple(first_set((name,)) for name in (*names, _VERSION))


@lru_cache(maxsize=16)
def _made(key: tuple[tuple[str, Any], ...]) -> tuple[Judge, Embedder]:
    options = dict(key)
    options.pop("environment")
    options["extra_body"] = options["extra_body"] and json.loads(options["extra_body"])
    config = Config(**options)
    return build_plain_judge(config), build_embedder(config)

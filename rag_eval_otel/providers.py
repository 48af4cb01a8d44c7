"""Providers of judges and embedders, which are named ``<provider>/<model>``.

A provider with an OpenAI-compatible endpoint is a row of the table below; other packages add
providers by entry points in the groups ``rag_eval_otel.judges`` and ``rag_eval_otel.embedders``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal
from urllib.parse import urlsplit

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.registry import Registry

Part = Literal["judge", "embedder"]
SchemaMode = Literal["json_schema", "json_object", "text"]
"""How a request asks for JSON: by a strict schema, as a JSON object, or in the prompt only."""
TokenLimit = Literal["max_tokens", "max_completion_tokens"]

_OPENAI_JUDGE = "rag_eval_otel.judge.openai:OpenAIJudge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider of models: its endpoint, its environment variables, and its classes."""

    name: str
    judge: str = _OPENAI_JUDGE  # module:attribute, called with the name of a model
    embedder: str = "rag_eval_otel.embed:OpenAIEmbedder"  # or "": it has no embedders
    base_url: str | None = None  # None: the default of the client library
    keys: tuple[str, ...] = ()  # variables with the key; the first that is set counts
    addresses: tuple[str, ...] = ()  # variables with the address
    settings: tuple[str, ...] = ()  # further variables that the client library reads
    key: str | None = None  # what is sent to a server that needs no key
    schema_mode: SchemaMode = "json_schema"
    seed: str = "seed"  # what a request calls the seed
    limit: TokenLimit = "max_tokens"  # what it calls the most tokens of a reply
    families: tuple[str, ...] = ()  # beginnings of model names, and of wrong names of the provider
    model: str = "model"  # what error messages call a model's name

    @property
    def is_compatible(self) -> bool:
        """Whether the provider has an OpenAI-compatible endpoint."""
        return self.judge == _OPENAI_JUDGE

    def address(self, base_url: str | None) -> str | None:
        """Return ``base_url`` with scheme and path, or the default; None: the client's default."""
        if not base_url or self.base_url is None:
            return base_url or self.base_url
        url = base_url if "://" in base_url else f"http://{base_url}"
        url = url.replace("://0.0.0.0", "://127.0.0.1")
        has_path = urlsplit(url).path.strip("/")
        return url if has_path else url.rstrip("/") + urlsplit(self.base_url).path


_ALL = (
    Provider(
        name="openai",
        keys=("OPENAI_API_KEY",),
        addresses=("OPENAI_BASE_URL",),
        families=("gpt-", "o1", "o3", "o4", "chatgpt", "text-embedding"),
    ),
    Provider(
        name="azure",
        keys=("AZURE_OPENAI_API_KEY",),
        addresses=("AZURE_OPENAI_ENDPOINT",),
        settings=("OPENAI_API_VERSION",),
        model="deployment",
        limit="max_completion_tokens",
        families=("azure",),
    ),
    Provider(
        name="ollama",
        base_url="http://127.0.0.1:11434/v1",
        keys=("OLLAMA_API_KEY",),
        addresses=("OLLAMA_HOST",),
        key="ollama",
        families=("llama", "qwen", "gemma", "phi", "deepseek"),
    ),
    Provider(
        name="vllm",
        base_url="http://127.0.0.1:8000/v1",
        keys=("VLLM_API_KEY",),
        addresses=("VLLM_BASE_URL",),
        key="EMPTY",
    ),
    Provider(
        name="anthropic",
        base_url="https://api.anthropic.com/v1",
        keys=("ANTHROPIC_API_KEY",),
        addresses=("ANTHROPIC_BASE_URL",),
        schema_mode="text",  # the endpoint ignores response_format
        embedder="",
        families=("claude",),
    ),
    Provider(
        name="google",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        families=("gemini",),
    ),
    Provider(
        name="bedrock",
        keys=("AWS_BEARER_TOKEN_BEDROCK",),
        judge="rag_eval_otel.judge.langchain:bedrock_judge",
        embedder="",
        families=("anthropic.", "amazon.", "meta.", "aws"),
    ),
    Provider(
        name="langchain",
        judge="rag_eval_otel.judge.langchain:named_judge",
        embedder="",
        model="provider>:<model",
    ),
    Provider(
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        keys=("MISTRAL_API_KEY",),
        seed="random_seed",
        families=("mistral", "ministral", "magistral"),
    ),
    Provider(
        name="local",
        judge="rag_eval_otel.judge.local:LocalJudge",
        embedder="",
        model="name or path",
        families=("hf", "huggingface"),
    ),
)
PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}

OFFLINE: Mapping[Part, str] = {"judge": "lexical", "embedder": "hashing"}
_JUDGES = {"lexical": "rag_eval_otel.judge.lexical:LexicalJudge"}
_EMBEDDERS = {"hashing": "rag_eval_otel.embed:HashingEmbedder"}
_JUDGES |= {each.name: each.judge for each in _ALL}
_EMBEDDERS |= {each.name: each.embedder for each in _ALL if each.embedder}
REGISTRIES: Mapping[Part, Registry] = {
    "judge": Registry(kind="judge", built_in=_JUDGES),
    "embedder": Registry(kind="embedder", built_in=_EMBEDDERS),
}
"""What makes judges and embedders, by name of the provider."""

_FORMS: Mapping[Part, tuple[str, str, str]] = {
    "judge": ("reply", "invoke", "LangChain chat model or a function of a prompt"),
    "embedder": ("embed", "embed_documents", "LangChain Embeddings"),
}
"""The method of ours and the method of LangChain that an object may have, and what it is then."""


def provider_of(name: str) -> Provider:
    """Return the OpenAI-compatible provider called ``name``, or raise `ConfigError`."""
    provider = PROVIDERS.get(name)
    if provider is None or not provider.is_compatible:
        names = ", ".join(each.name for each in _ALL if each.is_compatible)
        raise ConfigError(f"provider must be one of {names}, not {name!r}")
    return provider


def parts_of(name: str) -> tuple[Provider, str] | None:
    """Return provider and model of a name such as ``openai/gpt-4o``, or None for other names."""
    provider, _, model = name.partition("/")
    if model and provider in PROVIDERS:
        return PROVIDERS[provider], model
    if model and any(provider in registry for registry in REGISTRIES.values()):
        return Provider(name=provider, judge="", embedder=""), model
    return None


def check_model(part: Part, value: object, *, shown: str) -> None:
    """Raise `ConfigError` about the option ``shown`` unless ``value`` is, or names, a ``part``."""
    own, langchain, kind = _FORMS[part]
    if isinstance(value, str):
        provider, _, model = value.partition("/")
        if value == OFFLINE[part] or (model and provider in REGISTRIES[part]):
            return
    elif not isinstance(value, type):
        methods = (own, langchain, *(["__call__"] if part == "judge" else []))
        if any(callable(getattr(value, method, None)) for method in methods):
            return
    names, models = REGISTRIES[part].names(), {each.name: each.model for each in _ALL}
    forms = [OFFLINE[part], *(f"{name}/<{models.get(name, 'model')}>" for name in names[1:])]
    close = _nearest(part, value) if isinstance(value, str) else None
    raise ConfigError(
        f"{shown} must be {', '.join(map(repr, forms))}, an object with an async {own}() method"
        f" or a {kind}, not {value!r}" + (f"; did you mean {close!r}?" if close else "")
    )


def _nearest(part: Part, name: str) -> str | None:
    head, _, model = name.partition("/" if "/" in name else ":")
    names, lowered = REGISTRIES[part].names(), head.lower()
    for provider in _ALL:
        if lowered.startswith(provider.families) and provider.name in names:
            return f"{provider.name}/{model or head}"
    close = next(iter(get_close_matches(lowered, names, n=1)), None)
    return close if close in {None, OFFLINE[part]} else f"{close}/{model or '<model>'}"

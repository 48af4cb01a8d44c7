"""Providers of judges and embedders, which are named ``<provider>/<model>``.

To add a provider with an OpenAI-compatible endpoint, add its `Provider` to the table below. Another
package adds a provider by an entry point in the group ``rag_eval_otel.judges`` or
``rag_eval_otel.embedders``, which names a function of the model's name that makes the judge or the
embedder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal
from urllib.parse import urlsplit

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.registry import Registry

SchemaMode = Literal["json_schema", "json_object", "text"]
"""How a request asks for JSON: by a strict schema, as a JSON object, or in the prompt only."""

TokenLimit = Literal["max_tokens", "max_completion_tokens"]
"""The name of the field in a request that limits the tokens of the reply."""


_OPENAI_JUDGE = "rag_eval_otel.judge.openai:OpenAIJudge"
_OPENAI_EMBEDDER = "rag_eval_otel.embed:OpenAIEmbedder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider of models: its endpoint, its environment variables, and its classes.

    - ``judge``, ``embedder``: what makes a judge of a model's name, and what makes an embedder, as
      ``module:attribute``; empty if the provider has no judges or no embedders.
    - ``base_url``: the OpenAI-compatible endpoint; None means the default of the client library.
    - ``keys``, ``addresses``: environment variables with the key, and with the address. The first
      variable that is set counts.
    - ``settings``: further environment variables that the client library reads.
    - ``key``: the key that is sent if no variable is set, for servers that need no key.
    - ``schema_mode``: how a request asks for JSON. ``seed``, ``limit``: what a request calls the
      seed and the most tokens of a reply.
    - ``families``: prefixes of the provider's model names. If a user writes such a model name
      without the provider, the error message proposes the provider.
    - ``model``: what error messages call a model's name, such as "deployment".
    """

    name: str
    judge: str = _OPENAI_JUDGE
    embedder: str = _OPENAI_EMBEDDER
    base_url: str | None = None
    keys: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    key: str | None = None
    schema_mode: SchemaMode = "json_schema"
    seed: str = "seed"
    limit: TokenLimit = "max_tokens"
    families: tuple[str, ...] = ()
    model: str = "model"

    @property
    def is_compatible(self) -> bool:
        """Whether the provider has an OpenAI-compatible endpoint."""
        return self.judge == _OPENAI_JUDGE

    def address(self, base_url: str | None) -> str | None:
        """Return the URL of the endpoint; add scheme and path if ``base_url`` lacks them.

        If ``base_url`` is None, return the default endpoint of the provider.
        """
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
        families=("anthropic.", "amazon.", "meta."),
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
    ),
)
PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}

_SYNONYMS = {
    "aws": "bedrock",
    "azure_openai": "azure",
    "bedrock_converse": "bedrock",
    "claude": "anthropic",
    "gemini": "google",
    "google_genai": "google",
    "huggingface": "local",
    "hf": "local",
    "mistralai": "mistral",
}
"""Wrong names of built-in providers, with the right names, which error messages propose."""

Part = Literal["judge", "embedder"]
OFFLINE: Mapping[Part, str] = {"judge": "lexical", "embedder": "hashing"}
REGISTRIES: Mapping[Part, Registry] = {
    "judge": Registry(
        kind="judge",
        built_in={
            "lexical": "rag_eval_otel.judge.lexical:LexicalJudge",
            **{each.name: each.judge for each in _ALL},
        },
    ),
    "embedder": Registry(
        kind="embedder",
        built_in={
            "hashing": "rag_eval_otel.embed:HashingEmbedder",
            **{each.name: each.embedder for each in _ALL if each.embedder},
        },
    ),
}
"""What makes judges and embedders, by name of the provider."""


def provider_of(name: str) -> Provider:
    """Return the OpenAI-compatible provider called ``name``, or raise `ConfigError`."""
    provider = PROVIDERS.get(name)
    if provider is None or not provider.is_compatible:
        names = ", ".join(each.name for each in _ALL if each.is_compatible)
        msg = f"provider must be one of {names}, not {name!r}"
        raise ConfigError(msg)
    return provider


def parts_of(name: str) -> tuple[Provider, str] | None:
    """Split ``name``, as in ``openai/gpt-4o``, into provider and model; None if it has no model.

    The result is also None if the provider is not known.
    """
    provider, _, model = name.partition("/")
    if not model:
        return None
    if provider in PROVIDERS:
        return PROVIDERS[provider], model
    is_known = any(provider in registry for registry in REGISTRIES.values())
    return (Provider(name=provider, judge="", embedder=""), model) if is_known else None


def is_known(part: Part, name: str) -> bool:
    """Return True if ``name`` is a valid name of a judge or an embedder, as ``part`` says."""
    provider, _, model = name.partition("/")
    return name == OFFLINE[part] or (bool(model) and provider in REGISTRIES[part])


def forms(part: Part) -> list[str]:
    """Return the forms of names of judges (or embedders), such as ``openai/<model>``."""
    offline, *providers = REGISTRIES[part].names()
    models = {name: PROVIDERS[name].model for name in providers if name in PROVIDERS}
    return [offline, *(f"{name}/<{models.get(name, 'model')}>" for name in providers)]


def nearest(part: Part, name: str) -> str | None:
    """Return the valid name that is most like the wrong ``name``, or None if none is similar."""
    head, _, model = name.partition("/" if "/" in name else ":")
    if not model:
        family = _family(part, head)
        if family is not None:
            return f"{family}/{head}"
    names = REGISTRIES[part].names()
    lowered = head.lower()
    close = get_close_matches(lowered, names, n=1)
    if _SYNONYMS.get(lowered) in names:
        close = [_SYNONYMS[lowered]]
    if not close:
        return None
    return close[0] if close[0] == OFFLINE[part] else f"{close[0]}/{model or '<model>'}"


def _family(part: Part, model: str) -> str | None:
    """Return the name of the provider that has models with the prefix of ``model``, or None."""
    for provider in _ALL:
        if model.startswith(provider.families) and provider.name in REGISTRIES[part].built_in:
            return provider.name
    return None


_METHODS: Mapping[Part, tuple[str, str]] = {
    "judge": ("reply", "invoke"),
    "embedder": ("embed", "embed_documents"),
}
_LANGCHAIN: Mapping[Part, str] = {
    "judge": "LangChain chat model",
    "embedder": "LangChain Embeddings",
}


def check_model(part: Part, value: object, *, shown: str) -> None:
    """Raise `ConfigError` unless ``value`` can be a judge or an embedder, as ``part`` says.

    ``shown`` names the option in the message.
    """
    if isinstance(value, str):
        if is_known(part, value):
            return
    elif not isinstance(value, type) and any(
        callable(getattr(value, method, None)) for method in _METHODS[part]
    ):
        return
    close = nearest(part, value) if isinstance(value, str) else None
    msg = (
        f"{shown} must be {', '.join(map(repr, forms(part)))}, an object with"
        f" an async {_METHODS[part][0]}() method or a {_LANGCHAIN[part]}, not {value!r}"
    )
    raise ConfigError(f"{msg}; did you mean {close!r}?" if close else msg)

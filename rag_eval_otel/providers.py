"""Judges and embedders by name: ``<provider>/<model>``, what each provider's server needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal
from urllib.parse import urlsplit

SchemaMode = Literal["json_schema", "json_object", "text"]
"""How a server is held to JSON: by a strict schema, as a JSON object, or by the prompt alone."""

TokenLimit = Literal["max_tokens", "max_completion_tokens"]
"""The field that limits the length of a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Where a provider's models are asked, and with which key.

    - ``base_url``: its OpenAI-compatible endpoint; None leaves it to the client library.
    - ``keys``, ``addresses``: environment variables of key and address; the first one set counts.
    - ``key``: sent where none is set, by servers that need none.
    - ``seed``, ``limit``: its names of these fields.
    - ``langchain``: the name for LangChain's ``init_chat_model``, where it has no such endpoint;
      ``package`` and ``extra`` bring it.
    - ``families``: how names of its models begin.
    """

    name: str
    base_url: str | None = None
    keys: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    key: str | None = None
    schema_mode: SchemaMode = "json_schema"
    seed: str = "seed"
    limit: TokenLimit = "max_tokens"
    embeds: bool = True
    langchain: str = ""
    package: str = ""
    extra: str = ""
    families: tuple[str, ...] = ()

    def address(self, given: str | None) -> str | None:
        """Return the endpoint for an address as people write it: without a scheme, or a path."""
        if not given or self.base_url is None:
            return given or self.base_url
        url = given if "://" in given else f"http://{given}"
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
        key="EMPTY",
    ),
    Provider(
        name="anthropic",
        base_url="https://api.anthropic.com/v1",
        keys=("ANTHROPIC_API_KEY",),
        schema_mode="text",  # the endpoint ignores response_format
        embeds=False,
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
        embeds=False,
        langchain="bedrock_converse",
        package="langchain-aws",
        extra="bedrock",
        families=("anthropic.", "amazon.", "meta."),
    ),
    Provider(
        name="mistral",
        base_url="https://api.mistral.ai/v1",
        keys=("MISTRAL_API_KEY",),
        seed="random_seed",
        families=("mistral", "ministral", "magistral"),
    ),
    Provider(name="local", embeds=False, package="sentence-transformers", extra="local"),
)
PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}

_OTHERWISE = {
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
"""Other names that people know our providers by."""

Part = Literal["judge", "embedder"]
_OFFLINE: Mapping[Part, str] = {"judge": "lexical", "embedder": "hashing"}


def parts_of(name: str) -> tuple[Provider, str] | None:
    """Return the provider and the model that ``name`` stands for; None where it is offline."""
    provider, _, model = name.partition("/")
    return (PROVIDERS[provider], model) if provider in PROVIDERS and model else None


def is_known(part: Part, name: str) -> bool:
    """Tell whether ``name`` is that of a judge or embedder."""
    found = parts_of(name)
    if found is not None:
        return part == "judge" or found[0].embeds
    return name == _OFFLINE[part]


_CALLED = {"azure": "deployment", "local": "name or path"}


def forms(part: Part) -> Sequence[str]:
    """Return the forms that a name may have."""
    providers = [one.name for one in _ALL if part == "judge" or one.embeds]
    return [_OFFLINE[part], *(f"{name}/<{_CALLED.get(name, 'model')}>" for name in providers)]


def nearest(part: Part, name: str) -> str | None:
    """Return the right name that is most like the wrong ``name``, if one is."""
    head, _, model = name.replace(":", "/", 1).partition("/")
    if not model:
        family = _family(part, head)
        if family is not None:
            return f"{family}/{head}"
    heads = [form.partition("/")[0] for form in forms(part)]
    lowered = head.lower()
    close = get_close_matches(lowered, heads, n=1, cutoff=0.6)
    if lowered in _OTHERWISE and _OTHERWISE[lowered] in heads:
        close = [_OTHERWISE[lowered]]
    if not close:
        return None
    return close[0] if close[0] == _OFFLINE[part] else f"{close[0]}/{model or '<model>'}"


def _family(part: Part, model: str) -> str | None:
    """Return the provider whose models have names like ``model``."""
    for provider in _ALL:
        if model.startswith(provider.families) and (part == "judge" or provider.embeds):
            return provider.name
    return None

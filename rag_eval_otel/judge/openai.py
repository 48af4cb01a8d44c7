"""`OpenAIJudge` and `OpenAIClient`, which sends the requests of judge and embedder."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import platform
import re
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import ValidationError

from rag_eval_otel import errors
from rag_eval_otel.environment import first_set
from rag_eval_otel.judge.codec import Request, compose, read_parts
from rag_eval_otel.judge.endpoint import Endpoint, Limits, is_usable, retry_after, status_of
from rag_eval_otel.judge.tasks import Graded, Task, most_tokens
from rag_eval_otel.judge.usage import attempt, note, will_attempt
from rag_eval_otel.log import address_of, log
from rag_eval_otel.providers import Provider, SchemaMode, TokenLimit, provider_of
from rag_eval_otel.runtime.fork import call_in_child, leave_to_parent
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.types import Replies, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI
    from typing_extensions import Self

_TOP_LOGPROBS = 20  # the most alternatives to a token that OpenAI returns
_FEWER = {20: 5, 5: 0}  # the number to ask for after a refusal

_WEAKER: dict[SchemaMode, SchemaMode] = {"json_schema": "json_object", "json_object": "text"}
_OTHER: dict[TokenLimit, TokenLimit] = {"max_tokens": "max_completion_tokens"}
_OTHER |= {other: one for one, other in _OTHER.items()}
_OF_FORMAT = frozenset({"response_format", "schema", "json", "grammar", "guided", "structured"})
_OF_REPLY = frozenset({"max_tokens", "max_completion_tokens", "completion"})
_THINKING = re.compile(
    r"(^|[^a-z0-9])(o\d|r1|gpt-5|gpt-oss|qwq|qwen3|magistral|gemini|grok|glm|kimi|nemotron)"
    r"|think|reason",
    re.IGNORECASE,
)
"""Names of models that write hidden thoughts, which count as tokens of the reply."""
_HOTTEST = 2  # the highest temperature

_Clients: TypeAlias = (
    "dict[asyncio.AbstractEventLoop, tuple[AsyncOpenAI, AsyncGenerator[None, None]]]"
)
Tasks: TypeAlias = Sequence[Task[Any]]


class CutOffError(errors.UnparsableReplyError):
    """A part of a reply does not parse, because the reply ended at the limit of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:  # the options of a request that a server may refuse
    mode: SchemaMode
    temperature: float | None
    top_logprobs: int
    limit: TokenLimit
    is_bounded: bool  # whether the tokens of the reply have a limit that depends on the tasks


class OpenAIModel:
    """A model whose requests go through ``endpoint``; `with_endpoint` copies it with another."""

    model: str
    endpoint: Endpoint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def with_endpoint(self, endpoint: Endpoint) -> Self:
        found = copy.copy(self)
        found.endpoint = endpoint
        return found


class OpenAIJudge(OpenAIModel):
    """A judge that is a model behind an OpenAI-compatible server.

    A request asks for a reply that matches a strict JSON Schema. Later requests leave out what the
    server has refused by name: a JSON object and then plain text, with the schema in the prompt,
    replace the schema; the temperature is left out; probabilities of tokens, for metrics with
    ``rating="logprobs"``, become fewer; ``max_completion_tokens`` replaces ``max_tokens``. Server
    errors, 429 (as Retry-After says), timeouts and connection errors are retried.

    - ``provider``: decides the names of fields and the environment variables with address and key
      (for ``openai``: ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``).
    - ``temperature``: 0 to 2, or None for the model's own.
    - ``max_tokens``: the maximum tokens of a reply, including hidden reasoning. None: a limit that
      suits the tasks; no limit for models that are known to reason, and none after a reply was cut
      off or the server has refused the limit.
    - ``extra_body``: further fields of the request; they replace fields of the same name.
    - ``timeout``: the maximum seconds of each attempt. ``retries``: the maximum number of retries.
    - ``schema_mode``: the first way to ask for JSON.
    - ``client``: a client (for instance an ``AsyncAzureOpenAI``) that replaces ``base_url``,
      ``api_key``, ``timeout`` and ``retries``. It must be used in one event loop only.
    """

    def __init__(
        self,
        model: str,
        *,
        provider: str = "openai",
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = 0.0,
        seed: int | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        schema_mode: SchemaMode | None = None,
        client: AsyncOpenAI | None = None,
    ) -> None:
        """Judge with ``model``; `ConfigError` for a bad option. The first request connects."""
        self.model = model
        kind, extra = provider_of(provider), dict(extra_body or {})
        if temperature is not None and not 0 <= temperature <= _HOTTEST:
            raise errors.ConfigError(f"temperature must be None or 0 to 2, not {temperature!r}")
        self._form = _Form(
            mode=schema_mode or kind.schema_mode,
            temperature=temperature,
            top_logprobs=_TOP_LOGPROBS,
            limit=kind.limit,
            is_bounded=max_tokens is None
            and not any(name in _OTHER or _THINKING.search(name) for name in (model, *extra)),
        )
        self._limit = kind.limit
        self._max_tokens = max_tokens
        self._seed = {} if seed is None else {kind.seed: seed}
        self._extra = extra
        self._client = OpenAIClient(
            kind, base_url, api_key=api_key, timeout=timeout, retries=retries, client=client
        )
        title = f"judge {provider}/{model} at {self._client.address}"
        self.endpoint = Endpoint(f"judge {model}", self._client.limits, title=title)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Send ``tasks`` in one request, and again without an option that the server has refused.

        Raises `JudgeError` if the server refuses the request or cannot be reached.
        """
        request = compose(tasks)
        form, refusals, sent = self._form, list[str](), count(1)

        async def send() -> Replies:
            requests = next(sent)
            payload = await self._client.post("/chat/completions", self._body(request, tasks, form))
            return _replies(payload, tasks, model=self.model, requests=requests)

        await self._client.open()  # now, because the time of an attempt is limited
        while True:
            try:
                replies = await self.endpoint.call(send, is_usable=is_usable)
            except errors.JudgeError as error:
                weaker = self._weaker(form, error)
                if weaker is None:
                    raise
                form = weaker
                refusals.append(f"HTTP {status_of(error)}")
                continue
            if form != self._form and refusals:
                self._form = form
                line = "the %s refused a form of requests (%s); from now on: %s, temperature %s"
                values = self.endpoint.title, ", ".join(refusals), form.mode, form.temperature
                log.warning(line, *values)
            if form.is_bounded and any(isinstance(part, CutOffError) for part in replies.parts):
                self._form = replace(self._form, is_bounded=False)
                line = "a reply of the %s was cut off; its replies are no longer limited"
                log.warning(line, self.endpoint.title)
            return replies

    def _body(self, request: Request, tasks: Sequence[Task[Any]], form: _Form) -> dict[str, Any]:
        user = request.user if form.mode == "json_schema" else request.user_with_schema
        roles = (("system", request.system), ("user", user))
        messages = [{"role": role, "content": text} for role, text in roles]
        body: dict[str, Any] = {"model": self.model, "messages": messages, **self._seed}
        if form.temperature is not None:
            body["temperature"] = form.temperature
        most = most_tokens(tasks) if form.is_bounded else self._max_tokens
        if most is not None:
            body[form.limit] = most
        if form.mode == "json_schema":
            schema = {"name": "replies", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif form.mode == "json_object":
            body["response_format"] = {"type": "json_object"}
        if form.top_logprobs and any(task.rated == "logprobs" for task in tasks):
            body |= {"logprobs": True, "top_logprobs": form.top_logprobs}
        return {**body, **self._extra}

    def _weaker(self, form: _Form, error: errors.JudgeError) -> _Form | None:
        """Return ``form`` without the option that ``error`` says is refused; None if unknown."""
        if not isinstance(error, errors.JudgeRequestError):
            return None
        named, changes = error.named, dict[str, Any]()
        if "temperature" in named and form.temperature is not None:
            changes = {"temperature": None}
        elif "logprobs" in named and form.top_logprobs in _FEWER:
            changes = {"top_logprobs": _FEWER[form.top_logprobs]}
        elif form.is_bounded and named & _OF_REPLY:  # perhaps as a part of the model's context
            changes = {"is_bounded": False}
        elif not named.isdisjoint(_LONG):
            return None
        elif self._max_tokens and named & _OTHER.keys() and form.limit == self._limit:
            changes = {"limit": _OTHER[form.limit]}
        elif form.mode in _WEAKER and named & _OF_FORMAT:
            changes = {"mode": _WEAKER[form.mode]}
        return replace(form, **changes) if changes else None


def _replies(payload: Mapping[str, Any], tasks: Tasks, *, model: str, requests: int) -> Replies:
    text = _content(payload)
    parts = read_parts(text, tasks)
    choice = payload["choices"][0]
    note(text=text, finish=choice.get("finish_reason"))
    if choice.get("finish_reason") == "length":
        cut = "the reply was cut off at its longest (finish_reason 'length'): raise max_tokens"
        kind = errors.UnparsableReplyError
        parts = tuple(CutOffError(f"{cut}; {p}") if isinstance(p, kind) else p for p in parts)
    tokens: list[Mapping[str, Any]] = []
    with suppress(KeyError, TypeError):
        found = choice["logprobs"]["content"] or []
        tokens = [token for token in found if isinstance(token["token"], str)]
    parts = tuple(_weighed(part, task, tokens) for part, task in zip(parts, tasks, strict=True))
    usage = replace(usage_of(payload) or Usage(), judge_requests=requests)
    return Replies(parts=parts, model=str(payload.get("model") or model), usage=usage)


def _content(payload: Mapping[str, Any]) -> str:
    try:
        message = payload["choices"][0]["message"]
        text = message.get("content") or message.get("refusal") or ""
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise errors.UnparsableReplyError("the server's reply has no message") from error
    if isinstance(text, list):  # a list of blocks; blocks of thought have no "text"
        text = "".join(str(block.get("text") or "") for block in text if isinstance(block, dict))
    return text.rpartition("</think>")[2] if isinstance(text, str) else str(text)


_NUMBER = re.compile(r"[\s:]*(\d+(?:\.\d+)?)[\s,}]*")


def _weighed(part: object, task: Task[Any], tokens: Sequence[Mapping[str, Any]]) -> object:
    """Add to a rating its mean, weighted by the probabilities (logprobs) in ``tokens``."""
    if task.rated != "logprobs" or not isinstance(part, Graded):
        return part
    text = "".join(token["token"] for token in tokens)
    name = re.escape(f'"{task.prompt}"')
    rating = r'"rating"\s*:\s*'
    start = rf"{name}\s*:\s*(?:{{\s*{rating})?" if re.search(name, text) else rating
    place = re.search(rf"{start}(?=\d)", text)
    ends = zip(tokens, accumulate(len(token["token"]) for token in tokens), strict=True)
    token = next((token for token, end in ends if place and place.end() < end), {})
    if _value(token.get("token"), task) != part.rating:
        return part
    total = mean = 0.0
    alternatives = token.get("top_logprobs")
    for one in alternatives if isinstance(alternatives, list) else ():
        value, logprob = _value(one.get("token"), task), one.get("logprob")
        if value is not None and isinstance(logprob, int | float) and logprob <= 0:
            total += math.exp(logprob)
            mean += value * math.exp(logprob)
    return part.expecting(mean / total) if total > 0 else part


def _value(token: object, task: Task[Any]) -> float | None:
    match = _NUMBER.fullmatch(token) if isinstance(token, str) else None
    with suppress(ValidationError):
        if match and task.reply.model_validate({"rating": float(match[1])}):
            return float(match[1])
    return None


_AZURE_VERSION = "2024-10-21"  # the default of OPENAI_API_VERSION
_KEY = "OPENAI_API_KEY"
_OPENAI = "https://api.openai.com/v1"  # the default address of the openai library
_LARGEST = 1_000_000  # bytes of a reply to the judge
_LARGEST_ROW = 256_000  # bytes that each text may add to a reply with embeddings
_SERVER = 500
_largest: ContextVar[int] = ContextVar("rag_eval_otel_largest_reply", default=_LARGEST)


class OpenAIClient:
    """Sends requests with an ``AsyncOpenAI`` for each event loop, or with the user's ``client``."""

    def __init__(
        self,
        provider: Provider,
        base_url: str | None,
        *,
        api_key: str | None,
        timeout: float,
        retries: int,
        client: AsyncOpenAI | None,
    ) -> None:
        if not (timeout > 0 and retries >= 0):
            given = f"{timeout!r}, {retries!r}"
            raise errors.ConfigError(f"timeout must be above 0, retries at least 0, not {given}")
        is_plain = provider.name == "openai"  # the client reads its variables itself
        place = base_url or (None if is_plain else first_set(provider.addresses))
        address = provider.address(place)
        version = None
        if provider.name == "azure" and client is None:
            if address is None:
                raise errors.ConfigError("azure/... needs base_url or AZURE_OPENAI_ENDPOINT")
            if not urlsplit(address).path.rstrip("/").endswith("/openai/v1"):
                version = first_set(provider.settings) or _AZURE_VERSION
        self._options: dict[str, Any] = {
            "azure_endpoint" if version else "base_url": address,
            "api_key": api_key or (None if is_plain else first_set(provider.keys) or provider.key),
            "timeout": timeout,
            "max_retries": 0,
        }
        self.limits = Limits(retries=retries, timeout=timeout)
        if client is not None:
            self.limits = Limits(retries=client.max_retries, timeout=None)
        if version:
            self._options["api_version"] = version
        self._key_variable, self._provider = provider.keys[0], provider.name
        self._given = client
        self._clients: _Clients = {}
        call_in_child(self._leave_clients)
        _import_all()
        self._spare = None  # a client over HTTP for the first event loop
        if client is None:
            with Edge("the HTTP client", on_error=lambda _: None):  # the request raises it again
                self._spare = _new_http_client(timeout)

    def _leave_clients(self) -> None:
        leave_to_parent(self._clients)
        self._clients = {}

    @property
    def address(self) -> str:
        named = [getattr(self._given, "base_url", None)]
        if self._given is None:
            named = [self._options.get("base_url"), self._options.get("azure_endpoint")]
            named += [first_set(("OPENAI_BASE_URL",)), _OPENAI]
        return address_of(str(next(filter(None, named), "")))

    async def open(self) -> None:
        will_attempt()
        with judge_errors(self._key_variable):
            await self._client()

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send ``body`` once, and return the JSON object, or raise `JudgeError`.

        Typed methods of the client are slow, and traced.
        """
        _largest.set(_LARGEST + _LARGEST_ROW * len(body.get("input", ())))
        note(provider=self._provider, messages=body.get("messages", ()), text="", finish="")
        async with attempt() as result:
            with judge_errors(self._key_variable):
                client = await self._client()
                once: Any = {"max_retries": 0}
                reply = await client.post(path, body=dict(body), cast_to=object, options=once)
            result.usage = usage_of(reply)
        if not isinstance(reply, dict):
            raise errors.UnparsableReplyError("the server's reply is not a JSON object")
        return reply

    async def _client(self) -> AsyncOpenAI:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            client = self._new_client()
            closing = _closing(client)
            await anext(closing)
            for closed in [other for other in self._clients if other.is_closed()]:
                self._clients.pop(closed, None)
            self._clients[loop] = client, closing
        return self._clients[loop][0]

    def _new_client(self) -> AsyncOpenAI:
        platform.platform()  # with gevent, this thread is none of its greenlets
        import openai  # noqa: PLC0415

        options = {**self._options, "default_headers": {"Accept-Encoding": "identity"}}
        spare, self._spare = self._spare, None
        options["http_client"] = spare or _new_http_client(self._options["timeout"])
        if "api_version" in self._options:
            return openai.AsyncAzureOpenAI(**options)
        if self._options["api_key"] is None and self._key_variable != _KEY:
            # Without this check, the client would send the key for OpenAI to this server.
            raise errors.JudgeAuthError(f"no key: set {self._key_variable}, or pass api_key")
        return openai.AsyncOpenAI(**options)


def _import_all() -> None:
    """Import now, on the thread of the application, all that a request needs.

    A child that is forked while another thread imports or reads TLS certificates can do neither.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("subprocess"):  # whose child runs greenlets
        platform.platform()
    import_module("openai")
    with suppress(ImportError):  # of the first connection
        import_module("anyio.streams.tls")
        import_module("anyio._backends._asyncio")


def _new_http_client(timeout: float) -> Any:
    import openai  # noqa: PLC0415

    options: dict[str, Any] = {
        "event_hooks": {"response": [_limit_size]},
        "timeout": timeout,
        "follow_redirects": False,  # texts go to no other address
    }
    try:  # with aiohttp, which takes a third of the CPU time
        return openai.DefaultAioHttpClient(**options)
    except (AttributeError, RuntimeError):  # an older version, or aiohttp is not installed
        return openai.DefaultAsyncHttpxClient(**options)


def usage_of(reply: object) -> Usage | None:
    """Return the tokens in the JSON of a response; None if the server does not count them."""
    if not isinstance(reply, dict) or not isinstance(usage := reply.get("usage"), dict):
        return None
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    asked, said, total = (_count(usage, name) for name in names)
    if not max(asked, said, total):
        return None
    if "data" in reply:  # embeddings
        return Usage(embedding_tokens=asked or total)
    return Usage(
        prompt_tokens=asked,
        cached_tokens=min(_count(usage.get("prompt_tokens_details"), "cached_tokens"), asked),
        # Some servers leave thoughts out of completion_tokens, none out of total_tokens.
        completion_tokens=max(said, total - asked),
    )


def _count(found: object, name: str) -> int:
    value = found.get(name) if isinstance(found, dict) else None
    return max(0, int(value)) if isinstance(value, int | float) and math.isfinite(value) else 0


async def _closing(client: AsyncOpenAI) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.close()


async def _limit_size(response: Any) -> None:
    largest, content = _largest.get(), bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > largest:
            raise errors.UnparsableReplyError(f"the reply is larger than {largest:,} bytes")
    response._content = bytes(content)  # noqa: SLF001  # httpx has no other way to give it back


@contextmanager
def judge_errors(key_variable: str = _KEY) -> Iterator[None]:
    """Turn errors of ``openai`` into `JudgeError`s, whose messages quote no words of the server."""
    import openai  # noqa: PLC0415

    try:
        yield
    except UnicodeEncodeError:  # the cause is not named: it holds the header's text
        raise errors.JudgeRequestError(
            "the request cannot be encoded: is there a stray character in the key or the address?"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise errors.UnparsableReplyError("the server's reply is not JSON") from None
    except ValueError:  # of the HTTP library, for an address with user and password
        raise errors.JudgeTransportError("the address of the server cannot be used") from None
    except openai.APIStatusError as error:
        raise _status_error(error, key_variable) from None  # the cause quotes all of it
    except openai.APIError as error:
        cause = error.__cause__
        if isinstance(cause, errors.JudgeError):  # raised while the reply was read
            raise cause from None
        # The client for aiohttp calls a broken connection a timeout.
        root = cause.__cause__ if cause is not None else None
        names = {kind.__name__ for kind in type(root).__mro__}
        is_broken = "ClientConnectionError" in names and not isinstance(root, asyncio.TimeoutError)
        if isinstance(error, openai.APITimeoutError) and not is_broken:
            raise errors.JudgeTimeoutError("no reply in time") from None
        place = error.request.url.netloc.decode().rpartition("@")[2]
        raise errors.JudgeTransportError(f"{place}: Connection error.") from None
    except openai.OpenAIError:  # no client could be made: there is no key
        raise errors.JudgeAuthError(f"no key: set {key_variable}, or pass api_key") from None
    except OSError as error:
        raise errors.JudgeTransportError(
            f"the TLS certificates cannot be read: check SSL_CERT_FILE and SSL_CERT_DIR: {error}"
        ) from error


_LONG = ("context length", "context_length", "context window", "too long", "too many tokens")
_NAMED = {"temperature", "logprobs", *_OF_FORMAT, *_OF_REPLY, *_LONG}
"""Words that say which option of a request a server has refused."""

_REFUSALS: Mapping[int, tuple[type[errors.JudgeError], str]] = {
    401: (errors.JudgeAuthError, "the server refused the key; check {}"),
    403: (errors.JudgeAuthError, "the server refused the key; check {}"),
    404: (errors.JudgeRequestError, "check the name of the model and the address"),
    408: (errors.JudgeTimeoutError, "no reply in time"),
    429: (errors.JudgeRateLimitError, "too many requests"),
}


def _status_error(error: APIStatusError, key_variable: str) -> errors.JudgeError:
    status = error.status_code
    message = f"{error} {error.body}".lower()
    named = frozenset(word for word in _NAMED if word in message)
    kind, told = _REFUSALS.get(status, (errors.JudgeRequestError, "the server refused the request"))
    if status >= _SERVER:
        kind, told = errors.JudgeTransportError, "the server has failed"
    elif kind is errors.JudgeRequestError and not named.isdisjoint(_LONG):
        kind, told = errors.JudgeTooLongError, "the texts are too long for the model"
    refusal = kind(f"HTTP {status}: {told.format(key_variable)}")
    if isinstance(refusal, errors.JudgeRequestError):
        refusal.named = named
    refusal.status = status
    refusal.retry_after = retry_after(error.response.headers)
    return refusal

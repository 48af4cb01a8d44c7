"""`OpenAIClient`: send requests of the judge and the embedder with the ``openai`` library.

Each event loop gets a client of its own. Errors of the ``openai`` library are raised as
`JudgeError`s.
"""

from __future__ import annotations

import asyncio
import math
import platform
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict
from urllib.parse import urlsplit

from rag_eval_otel.config import Config
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import (
    ConfigError,
    JudgeAuthError,
    JudgeError,
    JudgeRateLimitError,
    JudgeRequestError,
    JudgeTimeoutError,
    JudgeTooLongError,
    JudgeTransportError,
    UnparsableReplyError,
)
from rag_eval_otel.judge.outcomes import retry_after
from rag_eval_otel.judge.throttling import Limits
from rag_eval_otel.judge.usage import attempt, will_attempt
from rag_eval_otel.providers import Provider
from rag_eval_otel.redaction import scrubbed
from rag_eval_otel.runtime.fork import call_in_child, finish_before_fork, leave_to_parent
from rag_eval_otel.types import Usage

if TYPE_CHECKING:
    from ssl import SSLContext

    from openai import APIError, APIStatusError, APITimeoutError, AsyncOpenAI


_AZURE_VERSION = "2024-10-21"
_KEY = "OPENAI_API_KEY"
_BUNDLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_PARTS = ("prompt", "completion", "total")
_QUOTED = 200  # characters of a server's message that go into an error
_LARGEST = 1_000_000  # bytes of a reply to the judge
_LARGEST_ROW = 256_000  # bytes that each text may add to a reply with embeddings
_PACKED = 16  # a compressed reply, which is not asked for, may be so many times smaller
OF_LENGTH = ("context length", "context_length", "context window", "too long", "too many tokens")
"""Words in the message of a server that refuses a request for its length."""
_AUTH, _RATE_LIMIT, _TIMEOUT, _SERVER = (401, 403), 429, 408, 500


class Connection(TypedDict):
    """Arguments of `OpenAIJudge` and `OpenAIEmbedder`: address, key, timeout, retries, version."""

    base_url: str | None
    api_key: str | None
    timeout: float
    max_retries: int
    key_variable: str
    api_version: str | None


def connection(
    provider: Provider, config: Config, *, base_url: str | None, key: str | None
) -> Connection:
    """Return the arguments of `OpenAIJudge` and `OpenAIEmbedder` for the server of ``provider``.

    ``base_url`` and ``key``, if set, take precedence over the environment variables of
    ``provider``. Timeout and retries are those of ``config``.
    """
    is_plain = provider.name == "openai"  # the client reads its variables itself
    given = base_url if is_plain else base_url or first_set(provider.addresses)
    address = provider.address(given)
    return {
        "base_url": address,
        "api_key": key or (None if is_plain else first_set(provider.keys) or provider.key),
        "timeout": config.judge_timeout,
        "max_retries": config.judge_retries,
        "key_variable": provider.keys[0],
        "api_version": _azure_version(provider, address) if provider.name == "azure" else None,
    }


def _azure_version(provider: Provider, address: str | None) -> str | None:
    """Return the API version to send to the Azure endpoint at ``address``.

    Return None if the address ends in ``/openai/v1``, because this endpoint has no versions. Raises
    `ConfigError` if ``address`` is None.
    """
    if address is None:
        msg = "azure/... needs an endpoint: set judge_base_url or AZURE_OPENAI_ENDPOINT"
        raise ConfigError(msg)
    if urlsplit(address).path.rstrip("/").endswith("/openai/v1"):
        return None
    return first_set(provider.settings) or _AZURE_VERSION


class OpenAIClient:
    """Creates one ``AsyncOpenAI`` for each event loop, on first use.

    The client sends each request once: an `Endpoint` retries it. A reply is refused while it comes
    when it becomes larger than 1 MB, or larger than 256 kB for each text to embed.

    The connections of an ``AsyncOpenAI`` belong to the event loop in which it was first used. They
    are closed when this event loop shuts down, as at the end of `asyncio.run`. If the user passes a
    ``client``, it is used in all event loops, is not closed, and its replies may have any size.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float,
        max_retries: int,
        client: AsyncOpenAI | None = None,
        key_variable: str = _KEY,
        api_version: str | None = None,
    ) -> None:
        """Keep the options for clients that are made later; if ``client`` is set, use it instead.

        Then ``client`` also says the timeout of an attempt and the number of retries in `limits`.
        If ``api_version`` is set, ``base_url`` is an endpoint of Azure that serves deployments.
        """
        self._options: dict[str, Any] = {
            "azure_endpoint" if api_version else "base_url": base_url,
            "api_key": api_key,
            "timeout": timeout,
            "max_retries": 0,
        }
        self.limits = (
            Limits(retries=max_retries, timeout=timeout)
            if client is None
            else Limits(retries=client.max_retries, timeout=None)
        )
        if api_version:
            self._options["api_version"] = api_version
        self._key_variable = key_variable
        self._given = client
        self._know_no_clients()
        call_in_child(self._leave_clients)

    def _know_no_clients(self) -> None:
        self._clients: _Clients = {}
        weakref.finalize(self, _forget_closed_loops, self._clients)  # at the exit of Python, too

    def _leave_clients(self) -> None:
        leave_to_parent(self._clients)
        self._know_no_clients()

    async def open(self) -> None:
        """Make the client for the current event loop if there is none, which may take a second."""
        will_attempt()
        with judge_errors(self._options["api_key"], self._key_variable):
            await self._client()

    async def chat(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Post ``body`` as a chat completion request, and return the decoded reply."""
        return await self._post("/chat/completions", body, largest=_LARGEST)

    async def embeddings(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Post ``body`` as an embeddings request, and return the decoded reply."""
        largest = _LARGEST + _LARGEST_ROW * len(body["input"])
        return await self._post("/embeddings", body, largest=largest)

    async def _post(self, path: str, body: Mapping[str, Any], *, largest: int) -> Mapping[str, Any]:
        """Post ``body`` to ``path`` of the server and return the decoded reply.

        Raises `UnparsableReplyError` for a reply of more than ``largest`` bytes.

        The typed methods of the ``openai`` client are not used, because they are slow, and because
        OpenTelemetry instrumentations patch them.
        """
        _largest.set(largest)
        key = self._options["api_key"]
        async with attempt() as one:
            with judge_errors(key, self._key_variable, texts=_texts_in(body)):
                client = await self._client()
                reply = await client.post(
                    path, body=dict(body), cast_to=object, options={"max_retries": 0}
                )
            one.usage = usage_of(reply)
        if not isinstance(reply, dict):
            told = scrubbed(str(reply), texts=_texts_in(body), key=key)[:_QUOTED]
            msg = f"the server's reply is not a JSON object: {told!r}"
            raise UnparsableReplyError(msg)
        return reply

    async def _client(self) -> AsyncOpenAI:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            opened = _OpenClient(self._new_client())
            await opened.until_shutdown()
            _forget_closed_loops(self._clients)
            self._clients[loop] = opened
        return self._clients[loop].client

    @finish_before_fork  # it makes a TLS context, and may run a program
    def _new_client(self) -> AsyncOpenAI:
        # The client asks for this before its first request, on another thread. Python may run
        # `uname` for it, and a child that is forked then would keep the pipe to `uname` open.
        platform.platform()
        # Imported here, because it takes half a second and only judges need it.
        from openai import AsyncAzureOpenAI, AsyncOpenAI  # noqa: PLC0415

        options = {
            **self._options,
            "http_client": _http_client(self._options["timeout"]),
            "default_headers": {"Accept-Encoding": "identity"},
        }
        if "api_version" in self._options:
            return AsyncAzureOpenAI(**options)
        if self._options["api_key"] is None and self._key_variable != _KEY:
            # Without this check, the client would send the key for OpenAI to this server.
            msg = f"no key: set {self._key_variable}, or judge_api_key or embedder_api_key"
            raise JudgeAuthError(msg)
        return AsyncOpenAI(**options)


def _http_client(timeout: float) -> Any:
    """Return the HTTP client to use with the ``openai`` library.

    It sends requests with aiohttp if the extra ``aiohttp`` is installed, which takes a third of the
    CPU time. Otherwise it is the default client of the library.
    """
    import openai  # noqa: PLC0415

    options: dict[str, Any] = {"event_hooks": {"response": [_limit_size]}, "timeout": timeout}
    kinds = openai.DefaultAsyncHttpxClient.__mro__
    base = next(kind for kind in kinds if kind.__name__ == "AsyncClient")
    bundles = [first_set((name,)) for name in _BUNDLES]
    options["verify"] = _certificates(base.__module__.partition(".")[0], *bundles)
    fast = getattr(openai, "DefaultAioHttpClient", None)  # not in older versions
    if fast is not None:
        with suppress(RuntimeError):  # aiohttp is not installed
            return fast(**options)
    return openai.DefaultAsyncHttpxClient(**options)


@lru_cache(maxsize=4)
def _certificates(library: str, *_bundles: str | None) -> SSLContext:
    """Return the default TLS context of the HTTP library of this ``openai``, httpx or httpx2.

    It takes 25 ms to make, and is kept for all judges, embedders and event loops. ``_bundles`` are
    the values of the environment variables that name other certificates.
    """
    try:
        context: SSLContext = sys.modules[library].create_ssl_context()
    except OSError as error:
        msg = f"the TLS certificates cannot be read: check {' and '.join(_BUNDLES)}: {error}"
        raise JudgeTransportError(msg) from error
    return context


def usage_of(reply: object) -> Usage | None:
    """Return the tokens that ``reply``, the decoded JSON of a server, names for its request.

    None means that it names none: no request takes 0 tokens.
    """
    if not isinstance(reply, dict) or not isinstance(usage := reply.get("usage"), dict):
        return None
    asked, said, total = (_count(usage, f"{part}_tokens") for part in _PARTS)
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


class _OpenClient:
    """Closes an ``AsyncOpenAI`` when the current event loop shuts down.

    At its shutdown, an event loop finishes all asynchronous generators. The generator in this class
    then closes the client. A loop that is closed without `shutdown_asyncgens` does not.
    """

    def __init__(self, client: AsyncOpenAI) -> None:
        self.client = client
        self._closing = self._close_at_end()

    async def until_shutdown(self) -> None:
        await anext(self._closing)

    async def _close_at_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.client.close()

    def close_late(self) -> None:
        """Close the client after its event loop; without this, aiohttp logs an error later."""
        closing = self.client.close()
        with suppress(StopIteration, RuntimeError):  # clients other than aiohttp's need the loop
            closing.send(None)
        closing.close()


_Clients: TypeAlias = "dict[asyncio.AbstractEventLoop, _OpenClient]"


def _forget_closed_loops(clients: _Clients) -> None:
    for loop in list(clients):
        if loop.is_closed() and (opened := clients.pop(loop, None)) is not None:
            opened.close_late()


# --- the size of replies --------------------------------------------------------------------------

_largest: ContextVar[int] = ContextVar("rag_eval_otel_largest_reply", default=_LARGEST)


async def _limit_size(response: Any) -> None:
    """Refuse ``response`` of the HTTP client now or while it is read, if it is too large."""
    largest = _largest.get()
    if response.headers.get("content-encoding", "identity") != "identity":
        largest //= _PACKED
    promised = response.headers.get("content-length", "")
    if promised.isdecimal() and int(promised) > largest:
        raise _too_large(largest)
    # The base class is that of the HTTP library of this ``openai``, httpx or httpx2.
    kinds = type(response.stream).__mro__
    base = next(kind for kind in kinds if kind.__name__ == "AsyncByteStream")
    response.stream = _limited_stream(base)(response.stream, largest)


@lru_cache(maxsize=2)
def _limited_stream(base: type) -> type:
    class _Limited(base):  # type: ignore[misc]  # its type is not known before the first request
        """The bytes of a reply, up to a number of bytes."""

        def __init__(self, stream: Any, largest: int) -> None:
            self._stream, self._largest = stream, largest

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > self._largest:
                    raise _too_large(self._largest)
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    return _Limited


def _too_large(largest: int) -> UnparsableReplyError:
    return UnparsableReplyError(f"the server's reply is larger than {largest:,} bytes")


# --- errors ---------------------------------------------------------------------------------------


@contextmanager
def judge_errors(
    key: str | None = None, key_variable: str = _KEY, *, texts: Iterable[str] = ()
) -> Iterator[None]:
    """Raise errors of the ``openai`` library as `JudgeError`s.

    The messages contain neither keys nor words of ``texts``, the texts of the request.
    """
    import openai  # noqa: PLC0415

    clean = partial(scrubbed, texts=texts, key=key)

    try:
        yield
    except UnicodeEncodeError:  # the cause is not named: it holds the header's text
        msg = "the request cannot be encoded: is there a stray character in the key or the address?"
        raise JudgeRequestError(msg) from None
    except ValueError as error:
        msg = "the server's reply is not JSON"
        raise UnparsableReplyError(msg) from error
    except openai.APITimeoutError as error:
        if _is_broken(error):
            msg = f"{_place_of(error)}: Connection error."
            raise JudgeTransportError(msg) from error
        msg = "no reply in time"
        raise JudgeTimeoutError(msg) from error
    except openai.APIStatusError as error:
        raise _status_error(
            error, clean, key_variable=key_variable
        ) from None  # the cause quotes all of it
    except openai.APIError as error:
        if isinstance(error.__cause__, JudgeError):  # raised while the reply was read
            raise error.__cause__ from None
        msg = f"{_place_of(error)}: {_short(clean(str(error)))}"
        raise JudgeTransportError(msg) from error
    except openai.OpenAIError as error:  # no client could be made: there is no key
        raise JudgeAuthError(_short(clean(str(error)))) from error


def _is_broken(error: APITimeoutError) -> bool:
    """Return True if ``error`` is a broken connection, which aiohttp's client calls a timeout."""
    cause = error.__cause__ and error.__cause__.__cause__
    names = {kind.__name__ for kind in type(cause).__mro__}
    return "ClientConnectionError" in names and not isinstance(cause, asyncio.TimeoutError)


def _place_of(error: APIError) -> str:
    """Return the host and the port of the server."""
    return error.request.url.netloc.decode()


def _texts_in(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of the sample in the request ``body``, without the instructions."""
    for message in body.get("messages", ()):
        if message["role"] == "user":
            yield str(message["content"]).partition("CODE is")[2]
    yield from body.get("input", ())


def _status_error(
    error: APIStatusError, clean: Callable[[str], str], *, key_variable: str
) -> JudgeError:
    status = error.status_code
    kind: type[JudgeError] = JudgeRequestError
    if status in _AUTH:  # the message of the server is left out: it may quote the key
        return JudgeAuthError(f"HTTP {status}: the server refused the key; check {key_variable}")
    if status == _RATE_LIMIT:
        kind = JudgeRateLimitError
    elif status == _TIMEOUT:
        kind = JudgeTimeoutError
    elif status >= _SERVER:
        kind = JudgeTransportError
    told = _problems(error.body) or str(error)
    if kind is JudgeRequestError and any(words in told.lower() for words in OF_LENGTH):
        kind = JudgeTooLongError
    refused = kind(f"HTTP {status}: {_short(clean(told))}")
    if isinstance(refused, JudgeRequestError | JudgeTransportError):
        refused.status = status
    refused.retry_after = retry_after(error.response.headers)
    return refused


def _problems(body: object) -> str:
    """Return the messages in ``body``, the error of a FastAPI server, without quoted input."""
    listed = body.get("detail") if isinstance(body, dict) else None
    if isinstance(listed, str):
        return listed
    problems = (one for one in listed or () if isinstance(one, dict))
    return "; ".join(
        f"{'.'.join(map(str, one.get('loc') or ()))}: {one.get('msg', '')}" for one in problems
    )


def _short(told: str) -> str:
    return told.replace("\n", " ")[:_QUOTED]

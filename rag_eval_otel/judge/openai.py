"""`OpenAIJudge`: use a model behind an OpenAI-compatible server as the judge."""

from __future__ import annotations

import copy
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rag_eval_otel.config import Config
from rag_eval_otel.errors import JudgeError, JudgeRequestError, UnparsableReplyError
from rag_eval_otel.judge.openai_client import OF_LENGTH, OpenAIClient, connection, usage_of
from rag_eval_otel.judge.protection import CHARACTERS, Endpoint, is_usable, total_tokens
from rag_eval_otel.judge.replies import Graded
from rag_eval_otel.judge.tasks import Task, most_tokens
from rag_eval_otel.judge.wire import Request, compose, part_names, read_parts
from rag_eval_otel.providers import PROVIDERS, SchemaMode, TokenLimit
from rag_eval_otel.types import Replies, Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from typing_extensions import Self


_NUMBER = re.compile(r"[\s:]*(\d+(?:\.\d+)?)[\s,}]*")
_RATING = re.compile(r'"rating"\s*:\s*')
_log = logging.getLogger("rag_eval_otel")

_TOP_LOGPROBS = 20  # the most alternatives to a token that OpenAI returns
_FEWER = {20: 5, 5: 0}  # the number to ask for after a refusal

_WEAKER: dict[SchemaMode, SchemaMode] = {"json_schema": "json_object", "json_object": "text"}
_OTHER: dict[TokenLimit, TokenLimit] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
_OF_FORMAT = ("response_format", "schema", "json", "grammar", "guided", "structured")
_OF_REPLY = ("max_tokens", "max_completion_tokens", "completion")
_INVALID = (400, 422)
_THINKING = re.compile(
    r"(^|[^a-z0-9])(o\d|r1|gpt-5|gpt-oss|qwq|qwen3|magistral|gemini|grok|glm|kimi|nemotron)"
    r"|think|reason",
    re.IGNORECASE,
)
"""Names of models that write hidden thoughts, which count as tokens of the reply."""
_VAIN = 3  # after so many requests refused in all forms, a refusal must name the form


class CutOffError(UnparsableReplyError):
    """A part of a reply is missing, because the reply was cut off at its most tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The options of a request that a server may refuse: JSON Schema, temperature and others."""

    mode: SchemaMode
    temperature: float | None
    top_logprobs: int
    limit: TokenLimit
    is_bounded: bool
    """Whether the request limits the tokens of the reply to a number that depends on the tasks."""


def named_judge(model: str, config: Config) -> OpenAIJudge:
    """Return a judge that asks ``model`` of the provider that ``config.judge`` names."""
    provider = PROVIDERS[str(config.judge).partition("/")[0]]
    return OpenAIJudge(
        model,
        **connection(provider, config, base_url=config.judge_base_url, key=config.judge_api_key),
        temperature=config.temperature,
        seed=config.seed,
        max_tokens=config.max_tokens,
        extra_body=config.extra_body,
        schema_mode=provider.schema_mode,
        seed_field=provider.seed,
        limit_field=provider.limit,
    )


class OpenAIJudge:
    """A judge that is a model behind an OpenAI-compatible server.

    A request asks for a reply that matches a strict JSON Schema. If the server refuses the schema
    (400 or 422), the judge asks for a JSON object, and then for plain text, with the schema in the
    prompt. If the server refuses ``temperature``, the judge leaves it out. If the server refuses
    the probabilities of tokens, which metrics with ``rating="logprobs"`` need, the judge asks for
    fewer, and then for none. If the server refuses the name ``max_tokens``, the judge sends
    ``max_completion_tokens``. Later requests leave out what was refused, so that reasoning models
    need no option. ``endpoint`` sends the requests: it retries server errors, 429 (as Retry-After
    says), timeouts and connection errors up to ``max_retries`` times, but retries are at most a
    tenth of the requests.

    If there is no ``max_tokens``, the tasks tell the most tokens that a reply may need, and the
    request has this limit, except for models that are known to write hidden thoughts. If a reply is
    cut off at this limit, or if the server refuses it, later requests have no limit.

    - ``timeout``: the most seconds of each attempt.
    - ``api_key``: by default, the value of ``OPENAI_API_KEY``.
    - ``max_tokens``: the most tokens of a reply, including the reasoning of the model.
    - ``extra_body``: further fields of the request; they replace fields of the same name.
    - ``api_version``: if set, ``base_url`` is an endpoint of Azure and ``model`` a deployment.
    - ``client``: a client (for instance an ``AsyncAzureOpenAI``) that replaces ``base_url``,
      ``api_key``, ``timeout`` and ``max_retries``. It must be used in one event loop only.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 30.0,
        max_retries: int = 3,
        temperature: float | None = 0.0,
        seed: int | None = None,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "json_schema",
        client: AsyncOpenAI | None = None,
        api_version: str | None = None,
        key_variable: str = "OPENAI_API_KEY",
        seed_field: str = "seed",
        limit_field: TokenLimit = "max_tokens",
    ) -> None:
        """Judge with ``model``; connect to the server with the first request only.

        ``schema_mode`` is the first way to ask for JSON: by a JSON Schema, as a JSON object, or in
        the prompt. ``seed_field`` and ``limit_field`` are the server's names of the fields ``seed``
        and ``max_tokens``. If the key is wrong, the error names the variable ``key_variable``.
        """
        self.model = model
        self._form = _Form(
            mode=schema_mode,
            temperature=temperature,
            top_logprobs=_TOP_LOGPROBS,
            limit=limit_field,
            is_bounded=max_tokens is None and _may_be_bounded(model, extra_body or {}),
        )
        self._limit = limit_field
        self._max_tokens = max_tokens
        self._seed = {} if seed is None else {seed_field: seed}
        self._extra = dict(extra_body or {})
        self._is_taken = False  # whether a request in this form was ever answered
        self._in_vain = 0
        self._client = OpenAIClient(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            max_retries=max_retries,
            client=client,
            key_variable=key_variable,
            api_version=api_version,
        )
        self.endpoint = Endpoint(f"judge {model}", self._client.limits)

    def __repr__(self) -> str:
        return f"OpenAIJudge({self.model!r})"

    def with_endpoint(self, endpoint: Endpoint) -> Self:
        """Return a copy of this judge that sends its requests by way of ``endpoint``."""
        found = copy.copy(self)
        found.endpoint = endpoint
        return found

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Send ``tasks`` in one request and return the replies; raise `JudgeError` if it fails.

        If the server refuses an option of the request, the request is sent again without it.
        """
        request = compose(tasks)
        form, refusals = self._form, list[str]()
        sent = 0

        async def send() -> Replies:
            nonlocal sent
            sent += 1
            payload = await self._client.chat(self._body(request, tasks, form))
            return _replies(payload, tasks, model=self.model, requests=sent)

        await self._client.open()  # now, because the time of an attempt is limited
        tokens = len(request.system + request.user_with_schema) // CHARACTERS
        while True:
            try:
                replies = await self.endpoint.call(
                    send, tokens=tokens, is_usable=is_usable, tokens_of=total_tokens
                )
            except JudgeError as error:
                weaker = self._weaker(form, error)
                if weaker is None:
                    self._in_vain += bool(refusals)
                    raise
                form = weaker
                refusals.append(str(error))
                continue
            self._keep(form, refusals)
            if form.is_bounded and any(isinstance(part, CutOffError) for part in replies.parts):
                self._form = replace(self._form, is_bounded=False)
                _log.warning(
                    "a reply of the judge %s was cut off; its replies are no longer limited",
                    self.model,
                )
            return replies

    def _keep(self, form: _Form, refusals: Sequence[str]) -> None:
        """Use ``form``, which the server accepted, for later requests; log earlier ``refusals``."""
        self._is_taken = True
        if form != self._form and refusals:
            self._form = form
            _log.warning(
                "the server of the judge %s refused %s; from now on: %s, temperature %s",
                self.model,
                "; then ".join(refusals),
                form.mode,
                form.temperature,
            )

    def _body(self, request: Request, tasks: Sequence[Task[Any]], form: _Form) -> dict[str, Any]:
        user = request.user if form.mode == "json_schema" else request.user_with_schema
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": request.system},
                {"role": "user", "content": user},
            ],
            **self._seed,
        }
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

    def _weaker(self, form: _Form, error: JudgeError) -> _Form | None:
        """Return ``form`` without the option that the server refused in ``error``.

        Return None if the error has another cause. Normally, any error 400 or 422 counts as a
        refusal of the JSON Schema. If the server has accepted a request before, or refused several
        requests in all forms, only an error that names the schema counts.
        """
        if not isinstance(error, JudgeRequestError):
            return None
        refused = str(error).lower()
        if "temperature" in refused and form.temperature is not None:
            return replace(form, temperature=None)
        if "logprobs" in refused and form.top_logprobs in _FEWER:
            return replace(form, top_logprobs=_FEWER[form.top_logprobs])
        unlimited = self._unlimited(form, refused)
        if unlimited is not None:
            return unlimited
        names_it = any(word in refused for word in _OF_FORMAT)
        anything = not self._is_taken and self._in_vain < _VAIN and error.status in _INVALID
        if any(word in refused for word in OF_LENGTH) or not (names_it or anything):
            return None
        return replace(form, mode=_WEAKER[form.mode]) if form.mode in _WEAKER else None

    def _unlimited(self, form: _Form, refused: str) -> _Form | None:
        """Return ``form`` with another name for the limit of tokens, or without the limit.

        Return None if the message ``refused`` of the server has another cause. A server may count
        the limit as a part of the model's context, and refuse a prompt that would fit without it.
        """
        if form.is_bounded and any(word in refused for word in OF_LENGTH):
            names_reply = any(word in refused for word in _OF_REPLY)
            return replace(form, is_bounded=False) if names_reply else None
        has_limit = self._max_tokens is not None or form.is_bounded
        if not has_limit or not any(name in refused for name in _OTHER):
            return None
        if form.limit == self._limit:
            return replace(form, limit=_OTHER[form.limit])
        unbound = replace(form, limit=self._limit, is_bounded=False)
        return unbound if form.is_bounded else None


def _may_be_bounded(model: str, extra: Mapping[str, Any]) -> bool:
    """Return True unless ``model``, with the fields ``extra``, is known to write hidden thoughts.

    Return False, too, if ``extra`` has a limit of its own.
    """
    return not any(name in _OTHER or _THINKING.search(name) for name in (model, *extra))


def _replies(
    payload: Mapping[str, Any], tasks: Sequence[Task[Any]], *, model: str, requests: int
) -> Replies:
    parts = read_parts(_content(payload), tasks)
    choice = payload["choices"][0]
    if choice.get("finish_reason") == "length":
        parts = tuple(map(_said_cut_off, parts))
    return Replies(
        parts=with_expectations(parts, tasks, names=part_names(tasks), choice=choice),
        model=str(payload.get("model") or model),
        usage=replace(usage_of(payload) or Usage(), judge_requests=requests),
    )


def _said_cut_off(part: object) -> object:
    if not isinstance(part, UnparsableReplyError):
        return part
    told = "the reply was cut off at its longest (finish_reason 'length'): raise max_tokens"
    return CutOffError(f"{told}; {part}")


def _content(payload: Mapping[str, Any]) -> str:
    """Return the text of the assistant's message in ``payload``, without the model's reasoning.

    If the model refused to answer, return the text of the refusal.
    """
    try:
        message = payload["choices"][0]["message"]
        text = message.get("content") or message.get("refusal") or ""
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        msg = f"the server's reply has no message: {sorted(payload)}"
        raise UnparsableReplyError(msg) from error
    if isinstance(text, list):  # a list of blocks; blocks of thought have no "text"
        text = "".join(str(block.get("text") or "") for block in text if isinstance(block, dict))
    return text.rpartition("</think>")[2] if isinstance(text, str) else str(text)


# --- ratings by probabilities ---------------------------------------------------------------------
#
# A judge that returns the token of its rating can also return the probabilities of other tokens.
# The mean of the scale under these probabilities agrees better with people than the chosen token.


def with_expectations(
    parts: Sequence[object], tasks: Sequence[Task[Any]], *, names: Sequence[str], choice: Any
) -> tuple[object, ...]:
    """Return ``parts``; ratings get the mean rating under the probabilities of tokens.

    ``parts`` are the judge's replies to ``tasks``, and ``names`` are their member names in the JSON
    object of the reply. ``choice`` is the entry of ``choices`` in the server's response; its
    ``logprobs.content`` has the probabilities. A reply is returned unchanged if its task does not
    ask for probabilities, if the server gave none, or if the rating has several tokens.
    """
    tokens = _tokens(choice)
    return tuple(
        _weighed(part, task, name=name, tokens=tokens) if task.rated == "logprobs" else part
        for part, task, name in zip(parts, tasks, names, strict=True)
    )


def _tokens(choice: Any) -> list[Mapping[str, Any]]:
    try:
        tokens = choice["logprobs"]["content"] or []
        return [token for token in tokens if isinstance(token["token"], str)]
    except (KeyError, TypeError):
        return []


def _weighed(
    part: object, task: Task[Any], *, name: str, tokens: Sequence[Mapping[str, Any]]
) -> object:
    if not isinstance(part, Graded) or not tokens:
        return part
    token = _token_at(_rating_at("".join(token["token"] for token in tokens), name), tokens)
    if token is None or _value(token["token"], task) != part.rating:
        return part
    expected = _expectation(token.get("top_logprobs"), task)
    return part if expected is None else part.expecting(expected)


def _rating_at(text: str, name: str) -> int:
    """Return where in the JSON ``text`` the rating of the member ``name`` begins; -1 if nowhere.

    The member is either the rating itself, or an object with a member ``rating``.
    """
    member = re.search(rf'"{re.escape(name)}"\s*:\s*(?=[{{\d])', text)
    start = member.end() if member else text.find("{")
    if member and text[start] != "{":
        return start
    try:
        _, end = json.JSONDecoder().raw_decode(text, max(start, 0))
    except ValueError:
        return -1
    rating = _RATING.search(text, start, end)
    return rating.end() if rating else -1


def _token_at(position: int, tokens: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    end = 0
    for token in tokens:
        end += len(token["token"])
        if 0 <= position < end:
            return token
    return None


def _value(token: str, task: Task[Any]) -> float | None:
    """Return the number in ``token``, or None if ``task`` does not allow it as a rating."""
    match = _NUMBER.fullmatch(token)
    if match is None:
        return None
    value = float(match[1])
    try:
        task.reply.model_validate({"rating": value})
    except ValidationError:
        return None
    return value


def _expectation(alternatives: object, task: Task[Any]) -> float | None:
    """Return the mean of the ratings in ``alternatives``, weighted by their probabilities.

    ``alternatives`` is the server's list of the likeliest tokens in the place of the rating. Tokens
    that ``task`` does not allow as ratings are ignored. Return None if no token is left.
    """
    weighted = list(_weights(alternatives, task))
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total > 0 else None


def _weights(alternatives: object, task: Task[Any]) -> Iterator[tuple[float, float]]:
    for one in alternatives if isinstance(alternatives, list) else ():
        token, logprob = one.get("token"), one.get("logprob")
        value = _value(token, task) if isinstance(token, str) else None
        if value is not None and isinstance(logprob, int | float) and logprob <= 0:
            yield value, math.exp(logprob)

"""`OpenAIJudge`: any server that speaks OpenAI's chat completions (OpenAI, Azure, vLLM, Ollama)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rag_eval_otel.errors import JudgeRequestError, UnparsableReplyError
from rag_eval_otel.judge.logprobs import with_expectations
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.wire import Request, compose, part_names, read_parts
from rag_eval_otel.openai_client import OpenAIClient
from rag_eval_otel.types import Replies, Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI


SchemaMode = Literal["json_schema", "json_object", "text"]
"""How a server is held to JSON: by a strict schema, as a JSON object, or by the prompt alone."""

_TOP_LOGPROBS = 20  # the most that OpenAI gives
_FEWER = {20: 5, 5: 0}  # what to ask of a server that refuses so many

_WEAKER: dict[SchemaMode, SchemaMode] = {"json_schema": "json_object", "json_object": "text"}


class OpenAIJudge:
    """A judge behind an OpenAI-compatible server.

    Replies are held to a strict JSON Schema. A server that refuses it is asked for a JSON object,
    then for plain text, with the schema in the prompt; what it refused once is not tried again. A
    ``temperature`` that the model refuses is left out likewise, as are the probabilities of tokens
    that ``rating="logprobs"`` asks for. Server errors, 429 (honouring
    Retry-After) and timeouts are retried by the ``openai`` client, ``max_retries`` times.

    ``timeout`` is in seconds for each attempt. ``api_key`` defaults to ``OPENAI_API_KEY``.
    ``client`` (for instance an ``AsyncAzureOpenAI``) takes the place of ``base_url``, ``api_key``,
    ``timeout`` and ``max_retries``, and must be used in one event loop only.
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
        schema_mode: SchemaMode = "json_schema",
        client: AsyncOpenAI | None = None,
    ) -> None:
        """Judge with ``model``; nothing is imported or connected before the first request."""
        self.model = model
        self._temperature = temperature
        self._mode: SchemaMode = schema_mode
        self._top_logprobs = _TOP_LOGPROBS
        self._client = OpenAIClient(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            max_retries=max_retries,
            client=client,
        )

    def __repr__(self) -> str:
        """Name the model, never the key."""
        return f"OpenAIJudge({self.model!r})"

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` in one request; raise a `JudgeError` when there is no answer at all."""
        request = compose(tasks)
        requests = 0
        while True:
            mode, temperature, top = self._mode, self._temperature, self._top_logprobs
            requests += 1
            try:
                payload = await self._client.chat({**self._body(request), **self._weighed(tasks)})
            except JudgeRequestError as error:
                if not self._gave_way(str(error), mode=mode, temperature=temperature, top=top):
                    raise
                continue
            return _replies(payload, tasks, model=self.model, requests=requests)

    def _weighed(self, tasks: Sequence[Task[Any]]) -> dict[str, Any]:
        """Ask for the probabilities of tokens, where a task wants its rating weighed by them."""
        if not (self._top_logprobs and any(task.rated == "logprobs" for task in tasks)):
            return {}
        return {"logprobs": True, "top_logprobs": self._top_logprobs}

    def _body(self, request: Request) -> dict[str, Any]:
        user = request.user if self._mode == "json_schema" else request.user_with_schema
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": request.system},
                {"role": "user", "content": user},
            ],
        }
        if self._temperature is not None:
            body["temperature"] = self._temperature
        if self._mode == "json_schema":
            schema = {"name": "replies", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self._mode == "json_object":
            body["response_format"] = {"type": "json_object"}
        return body

    def _gave_way(
        self, refusal: str, *, mode: SchemaMode, temperature: float | None, top: int
    ) -> bool:
        """Drop what the server refused; True when a request may now go through.

        Another request may have dropped it in the meantime: then this one is simply sent again.
        """
        refused = refusal.lower()
        if "temperature" in refused and temperature is not None:
            self._temperature = None
            return True
        if "logprobs" in refused and top in _FEWER:
            self._top_logprobs = min(self._top_logprobs, _FEWER[top])
            return True
        if ("response_format" in refused or "schema" in refused) and mode in _WEAKER:
            if self._mode == mode:
                self._mode = _WEAKER[mode]
            return True
        return False


def _replies(
    payload: Mapping[str, Any], tasks: Sequence[Task[Any]], *, model: str, requests: int
) -> Replies:
    usage = payload.get("usage") or {}
    parts = read_parts(_content(payload), tasks)
    choice = payload["choices"][0]
    return Replies(
        parts=with_expectations(parts, tasks, names=part_names(tasks), choice=choice),
        model=str(payload.get("model") or model),
        usage=Usage(
            judge_requests=requests,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            cached_tokens=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        ),
    )


def _content(payload: Mapping[str, Any]) -> str:
    """Return the assistant's text; a refusal is its text, which then does not parse."""
    try:
        message = payload["choices"][0]["message"]
        text = message.get("content") or message.get("refusal") or ""
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        msg = f"the server's reply has no message: {sorted(payload)}"
        raise UnparsableReplyError(msg) from error
    return text if isinstance(text, str) else str(text)

"""`LangChainJudge`: use a chat model of LangChain as the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.codec import compose, read_parts
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.usage import note
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import Replies, Usage

if TYPE_CHECKING:
    from langchain_core.runnables import Runnable

_WAIT = 30.0  # seconds of an attempt at a call of Bedrock
_NAMES = ("model_name", "model", "model_id", "deployment_name")


class LangChainJudge:
    """A judge that is a LangChain chat model, or a runnable that ends in a chat model.

    The JSON Schema of the reply is in the prompt, because not every chat model accepts a schema.
    The retries and timeouts of the chat model apply. Its calls are traced neither by this library
    nor by LangSmith.

    The chat model is called with ``invoke`` on at most 16 worker threads, because an asynchronous
    HTTP client that LangChain shares in a process fails in two event loops.
    """

    def __init__(self, llm: Runnable[Any, Any], *, model: str | None = None) -> None:
        """Judge with ``llm``; ``model`` replaces the name of ``llm`` in `Score.version`."""
        self._llm, self._workers = llm, Workers()
        inner = getattr(llm, "bound", None) or getattr(llm, "first", None) or llm
        names = [name for name in (getattr(inner, each, None) for each in _NAMES) if name]
        self.model = model or next((n for n in names if isinstance(n, str)), type(inner).__name__)
        self.title = f"{type(inner).__name__}/{self.model}"  # in log lines

    def __repr__(self) -> str:
        return f"LangChainJudge({self.model!r})"

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the replies to ``tasks`` from one call; exceptions of LangChain are raised."""
        from langsmith import tracing_context  # noqa: PLC0415  # comes with langchain-core

        request = compose(tasks)
        messages = [("system", request.system), ("human", request.user_with_schema)]
        note(messages=[{"role": role, "content": text} for role, text in messages], text="")
        with tracing_context(enabled=False):
            call = partial(self._llm.invoke, messages, config={"callbacks": []})
            message = await self._workers.run(call)
        name = getattr(message, "response_metadata", {}).get("model_name")
        model = name if name and isinstance(name, str) else self.model
        text = message if isinstance(message, str) else message.content
        if not isinstance(text, str):  # it has blocks
            text = "".join(b if isinstance(b, str) else b.get("text") or "" for b in text)
        text = text.rpartition("</think>")[2]  # without the thoughts of the model
        note(text=text)
        counted = getattr(message, "usage_metadata", None) or {}
        usage = Usage(
            judge_requests=1,
            prompt_tokens=counted.get("input_tokens", 0),
            cached_tokens=(counted.get("input_token_details") or {}).get("cache_read") or 0,
            completion_tokens=counted.get("output_tokens", 0),
        )
        return Replies(parts=read_parts(text, tasks), model=model, usage=usage)


def named_judge(name: str) -> LangChainJudge:
    """Return a judge of ``<provider>:<model>``, as for LangChain's `init_chat_model`."""
    make = require("langchain.chat_models", "langchain").init_chat_model
    return LangChainJudge(_made(f"langchain/{name}", partial(make, name)))


def bedrock_judge(model: str) -> LangChainJudge:
    make = require("langchain_aws", "bedrock").ChatBedrockConverse
    times = require("botocore.config", "bedrock").Config(read_timeout=_WAIT, connect_timeout=_WAIT)
    made = _made(f"bedrock/{model}", partial(make, model=model, config=times))
    return LangChainJudge(made, model=model)


def _made(name: str, make: Callable[..., Any]) -> Any:
    try:
        return make(temperature=0.0)
    except (ImportError, ValueError) as error:
        told = " ".join(str(error).partition("[type=")[0].split())  # options may have a key
        raise ConfigError(f"{name} could not be made: {told}") from None

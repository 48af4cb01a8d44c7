"""`LangChainJudge`: any LangChain chat model as a judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.judge.wire import compose, read_parts
from rag_eval_otel.types import Replies, Usage

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage


class LangChainJudge:
    """A judge on a LangChain ``BaseChatModel``.

    The JSON Schema of the reply goes into the prompt, since not every chat model can be held to
    one. The model's own retries and timeouts apply. Its calls are traced nowhere: not by this
    library, and not by LangSmith.
    """

    def __init__(self, llm: BaseChatModel, *, model: str | None = None) -> None:
        """Judge with ``llm``; ``model`` names it in versions where it does not name itself."""
        self._llm = llm
        self.model = model or _name_of(llm)

    def __repr__(self) -> str:
        """Name the model."""
        return f"LangChainJudge({self.model!r})"

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Answer ``tasks`` in one call; what the chat model raises is passed on."""
        from langsmith import tracing_context  # noqa: PLC0415  # comes with langchain-core

        request = compose(tasks)
        messages = [("system", request.system), ("human", request.user_with_schema)]
        with tracing_context(enabled=False):
            message = await self._llm.ainvoke(messages, config={"callbacks": []})
        return Replies(
            parts=read_parts(_text(message), tasks),
            model=_answered(message) or self.model,
            usage=_usage(message),
        )


def _name_of(llm: BaseChatModel) -> str:
    for attribute in ("model_name", "model", "model_id", "deployment_name"):
        name = getattr(llm, attribute, None)
        if isinstance(name, str) and name:
            return name
    return type(llm).__name__


def _answered(message: BaseMessage) -> str | None:
    name = message.response_metadata.get("model_name")
    return name if isinstance(name, str) else None


def _text(message: BaseMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    blocks = (b if isinstance(b, str) else b.get("text") or "" for b in message.content)
    return "".join(blocks)


def _usage(message: BaseMessage) -> Usage:
    counted = getattr(message, "usage_metadata", None) or {}
    return Usage(
        judge_requests=1,
        prompt_tokens=counted.get("input_tokens", 0),
        cached_tokens=(counted.get("input_token_details") or {}).get("cache_read") or 0,
        completion_tokens=counted.get("output_tokens", 0),
    )

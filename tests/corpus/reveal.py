"""Run LangChain applications without capture, and print the prompts and replies.

PYTHONPATH=.:tests python -m corpus.reveal self_rag
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from corpus.kit import all_apps
from corpus.langchain_kit import text_of


class Printer(BaseCallbackHandler):
    """Prints every prompt and every reply."""

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        """Print the messages."""
        for message in messages[0]:
            self._print(message.type, text_of(message))

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        """Print the prompts."""
        for prompt in prompts:
            self._print("prompt", prompt)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        """Print the reply, and its tool calls."""
        generation = response.generations[0][0]
        calls = getattr(getattr(generation, "message", None), "tool_calls", [])
        self._print("reply", f"{generation.text} {calls or ''}\n")

    def _print(self, who: str, text: str) -> None:
        print(f"{who:>8} | " + text.replace("\n", "\n         | "))  # noqa: T201


def main(names: list[str]) -> None:
    """Run the applications called ``names``."""
    for app in all_apps("langchain", "langgraph"):
        if app.name in names:
            ran = app.run({"callbacks": [Printer()]})
            if inspect.iscoroutine(ran):
                asyncio.run(ran)


if __name__ == "__main__":
    main(sys.argv[1:])

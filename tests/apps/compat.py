"""The same names from LangChain 0.3 and 1.x, and their known warnings kept quiet."""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core._api.beta_decorator import LangChainBetaWarning
from langchain_core._api.deprecation import (
    LangChainDeprecationWarning,
    LangChainPendingDeprecationWarning,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Ignore what LangChain says of its old and its new, where an app uses it on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainDeprecationWarning)
        warnings.simplefilter("ignore", LangChainPendingDeprecationWarning)
        warnings.simplefilter("ignore", LangChainBetaWarning)
        yield


def classic(name: str) -> Any:
    """Import ``langchain_classic.<name>``, or ``langchain.<name>`` where LangChain is 0.3."""
    try:
        return importlib.import_module(f"langchain_classic.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"langchain.{name}")


with quietly():
    from langgraph.graph import END, START, StateGraph
    from langgraph.pregel import Pregel

    _agents: Any = importlib.import_module("langchain.agents")
    _prebuilt: Any = importlib.import_module("langgraph.prebuilt")

NO_V3_EVENTS = "" if hasattr(Pregel, "stream_events") else "LangGraph has no version 3 events"
if sys.version_info < (3, 11):
    NO_V3_EVENTS = "before Python 3.11 LangGraph loses the callbacks of version 3 events"


def make_agent(llm: BaseChatModel, tools: Sequence[BaseTool]) -> Runnable[Any, Any]:
    """Make a tool-calling agent: `create_agent`, or its predecessor in LangGraph."""
    create = getattr(_agents, "create_agent", None) or _prebuilt.create_react_agent
    agent: Runnable[Any, Any] = create(llm, tools)
    return agent


__all__ = ["END", "NO_V3_EVENTS", "START", "StateGraph", "classic", "make_agent", "quietly"]

"""Real LangChain and LangGraph apps, offline and deterministic, each with its truth beside it."""

from . import agents, chains, composed, failures, graphs, lcel, retrievers, streaming
from .app import App, Handlers, Truth

_MODULES = (lcel, composed, chains, retrievers, graphs, agents, streaming, failures)

APPS: tuple[App, ...] = tuple(
    value for module in _MODULES for value in vars(module).values() if isinstance(value, App)
)

__all__ = ["APPS", "App", "Handlers", "Truth"]

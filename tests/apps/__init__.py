"""Real LangChain and LangGraph apps, offline and deterministic, each with its truth beside it."""

from . import programs
from .app import App, Handlers, Truth

APPS: tuple[App, ...] = tuple(one for one in vars(programs).values() if isinstance(one, App))

__all__ = ["APPS", "App", "Handlers", "Truth"]

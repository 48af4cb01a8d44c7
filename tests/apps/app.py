"""What an app is: a function that runs it, and the samples it must give."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig

Handlers: TypeAlias = list[BaseCallbackHandler]
Run: TypeAlias = Callable[[Handlers], object]


@dataclass(frozen=True, kw_only=True)
class Truth:
    """One question-answering turn, as a careful reader of the app would state it."""

    question: str
    contexts: tuple[str, ...]
    answer: str


@dataclass(frozen=True, kw_only=True)
class App:
    """A runnable app with its truths; no truths means that it must give no sample."""

    name: str
    run: Run
    truths: tuple[Truth, ...]
    skip: str = ""


def app(*truths: Truth, skip: str = "") -> Callable[[Run], App]:
    """Make an `App`, named after the function, of the function below and the truths above it."""

    def build(run: Run) -> App:
        return App(name=run.__name__, run=run, truths=truths, skip=skip)

    return build


def config(callbacks: Handlers) -> RunnableConfig:
    """Give the config by which every app passes its callbacks."""
    return {"callbacks": list(callbacks)}

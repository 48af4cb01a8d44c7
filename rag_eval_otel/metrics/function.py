"""A plain function as a metric."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.metrics.outcome import measured
from rag_eval_otel.protocols import AskLike, EmbedFn
from rag_eval_otel.runtime.background import Workers
from rag_eval_otel.types import Reason, Sample, Score

Measured: TypeAlias = "float | bool | Score"
MetricFunction: TypeAlias = "Callable[[Sample], Measured | Awaitable[Measured]]"

_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMetric:
    """What a function of the sample returns: a number, a bool (1 or 0), or a `Score`.

    A function among ``metrics`` becomes one, under its own name; with `FunctionMetric` it gets
    another ``name``, ``threshold`` or ``timeout``. ``async def`` functions run on the evaluator's
    event loop, others on at most four worker threads for each metric. No judge request.

    What the function returns is the score, labelled by ``threshold`` (None: no label). For a scale
    other than [0, 1], or an explanation, return a `Score`; its name is set. A function that
    raises, returns anything else (NaN, a string, None), or takes more than ``timeout`` seconds
    gives a score that is an error, reason ``internal`` or ``timeout``; ``detail["error"]`` says
    more. A function that never returns keeps its thread.

    The version of the score has a digest of the function's source.
    """

    function: MetricFunction = field(compare=False)
    name: str = ""
    threshold: float | None = 0.5
    timeout: float = field(default=30.0, compare=False)
    source: str = field(init=False, default="", repr=False)
    _workers: Workers = field(
        init=False, default_factory=partial(Workers, _THREADS), compare=False, repr=False
    )

    requests = "0"
    range = "its own"

    def __post_init__(self) -> None:
        """Check the function, and name the metric."""
        function = _plain(self.function)
        name = self.name or getattr(function, "__name__", "")
        if not name.isidentifier():
            msg = (
                f"{self.function!r} has no name that a metric can have; use def, or"
                " FunctionMetric(function=..., name='my_metric')"
            )
            raise ConfigError(msg)
        _check_signature(self.function, name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "source", _digest(function))

    @property
    def needs(self) -> frozenset[str]:
        """Nothing that could be told beforehand."""
        return frozenset()

    @property
    def asks(self) -> tuple[()]:
        """Nothing."""
        return ()

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Return the score of ``sample``."""
        call = asyncio.ensure_future(self._called(sample))
        try:
            done, _ = await asyncio.wait([call], timeout=self.timeout)
        finally:
            call.cancel()  # no effect where it is done
        if not done:
            return self._failed("timeout", f"no result within {self.timeout:g} s")
        return self._score(call.result())

    async def _called(self, sample: Sample) -> object:
        given: object
        if inspect.iscoroutinefunction(_plain(self.function)):
            given = self.function(sample)
        else:
            given = await self._workers.run(lambda: self.function(sample))
        return await given if inspect.isawaitable(given) else given

    def _score(self, given: object) -> Score:
        if isinstance(given, Score):
            return replace(given, name=self.name)
        number = _number(given)
        if number is None:
            return self._failed("internal", f"it returned {_told(given)}, which is no number")
        return measured(self.name, number, threshold=self.threshold)

    def _failed(self, reason: Reason, told: str) -> Score:
        detail = {"error": f"the function of {self.name}: {told}"}
        return Score(name=self.name, status="error", reason=reason, detail=detail)


def _plain(function: Any) -> Any:
    """Return the function within partials."""
    while isinstance(function, partial):
        function = function.func
    return function


def _check_signature(function: Callable[..., object], name: str) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        msg = f"the function {name} must take one argument, the sample: {error}"
        raise ConfigError(msg) from error
    except ValueError:  # written in C: there is nothing to look at
        return


def _digest(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # made by exec, or in C
        code = getattr(function, "__code__", None)
        source = repr((code.co_code, code.co_names)) if code else repr(type(function))
    return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:8]


def _number(given: object) -> float | None:
    """Return ``given`` as a finite float; numbers of NumPy are numbers."""
    if isinstance(given, str | bytes) or not hasattr(given, "__float__"):
        return None
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _told(given: object) -> str:
    """Say what was returned without quoting texts, which may be the user's."""
    return repr(given) if isinstance(given, float) else f"a {type(given).__name__}"

"""A plain function as a metric."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import AskLike
from rag_eval_otel.metrics.outcome import label_of, measured
from rag_eval_otel.runtime.background import Workers
from rag_eval_otel.types import EmbedFn, Reason, Sample, Score

Measured: TypeAlias = "float | bool | Score"
MetricFunction: TypeAlias = "Callable[[Sample], Measured | Awaitable[Measured]]"

_THREADS = 4


class _DefaultThreshold(float):
    """A threshold that was not set: it does not label a `Score` that the function returns."""

    def __repr__(self) -> str:
        return f"usually {float(self):g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMetric:
    """The result of a function of the sample: a number, a bool (1 or 0), or a `Score`.

    A function among ``metrics`` becomes one, under its own name; `FunctionMetric` gives it another
    ``name``, ``threshold`` or ``timeout`` (in seconds). ``async def`` functions run on the
    evaluator's event loop, others on at most four worker threads for each metric. No judge request.

    The result is the score, labelled by ``threshold`` (None: no label). For a scale other than
    [0, 1], or an explanation, return a `Score`; its name is set. A `Score` keeps its label and its
    threshold. One without both is labelled by ``threshold`` if you set it, here or in the
    ``thresholds`` of a configuration; the default of 0.5 does not label it.

    A function that raises, returns anything else (NaN, a string, None), or takes more than
    ``timeout`` seconds gives a score with the status ``error``, for the reason ``internal`` or
    ``timeout``; ``detail["error"]`` says more. A function that never returns keeps its thread.
    Raises `ConfigError` for a function without a name, or that does not take one argument.

    The version of the score, and with it the key in a cache, has a digest of the function's source
    (of its compiled code without a source), its defaults, the arguments bound by a ``partial`` and
    the variables of outer functions that it uses: numbers, texts, lists, sets and dicts of these,
    functions, and the fields of dataclasses, as they are when the metric is made. An object that is
    called, or whose method is, counts by the source of that method and its attribute ``revision``.
    Not in the digest: other attributes of objects, arrays, models, module-level variables, and
    functions that the function calls. Change the ``revision`` or the name if these change.
    """

    function: MetricFunction = field(compare=False)
    name: str = ""
    threshold: float | None = _DefaultThreshold(0.5)
    timeout: float = field(default=30.0, compare=False)
    source: str = field(init=False, default="", repr=False)
    _workers: Workers = field(
        init=False, default_factory=partial(Workers, _THREADS), compare=False, repr=False
    )

    needs = frozenset[str]()
    asks = ()
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
        object.__setattr__(self, "source", _digest(self.function))

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
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
            return self._labelled(replace(given, name=self.name))
        number = _number(given)
        if number is None:
            return self._failed("internal", f"it returned {_shown(given)}, which is no number")
        return measured(self, number)

    def _labelled(self, given: Score) -> Score:
        """Label a score that the function returned, if it has no label and a threshold was set."""
        own = given.label is not None or given.threshold is not None
        if own or given.value is None or isinstance(self.threshold, _DefaultThreshold | None):
            return given
        label = label_of(given.value, self.threshold)
        return replace(given, label=label, threshold=self.threshold)

    def _failed(self, reason: Reason, told: str) -> Score:
        detail = {"error": f"the function of {self.name}: {told}"}
        return Score(name=self.name, status="error", reason=reason, detail=detail)


def _plain(function: Any) -> Any:
    """Return the function that a ``partial`` binds arguments of."""
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
    """Return eight digits that change with the source of ``function`` and the values it binds."""
    call = type(function).__call__
    if isinstance(function, partial) or inspect.isroutine(function):
        definition = _described(function)
    elif inspect.isfunction(call):  # an object with a method ``__call__``
        definition = _described(call), _described(function)
    else:
        definition = _compiled(function)
    return hashlib.sha256(repr(definition).encode("utf-8", "replace")).hexdigest()[:8]


def _described(value: Any, within: tuple[int, ...] = ()) -> object:
    """Return a description of ``value`` that is the same in every process.

    ``within``: the ids of the objects that hold ``value``, which may refer back to them.
    """
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return repr(value)
    if id(value) in within:
        return "itself"
    inner = partial(_described, within=(*within, id(value)))
    if isinstance(value, tuple | list | set | frozenset | dict):
        return _contents(value, inner)
    if isinstance(value, CodeType):
        return _code(value, inner)
    if isinstance(value, partial) or inspect.isroutine(value):
        return _function(value, inner)
    return value.__qualname__ if isinstance(value, type) else _state(value, inner)


def _contents(values: Any, inner: Callable[[object], object]) -> object:
    """Return the type and the members of a collection; those of a set or mapping are sorted."""
    if isinstance(values, dict):
        return "dict", sorted(((inner(k), inner(held)) for k, held in values.items()), key=repr)
    held = [inner(one) for one in values]
    is_ordered = isinstance(values, tuple | list)
    return type(values).__name__, held if is_ordered else sorted(held, key=repr)


def _function(function: Any, inner: Callable[[object], object]) -> object:
    """Return the code of ``function`` and the values that it binds."""
    if isinstance(function, partial):
        return inner(function.func), inner(function.args), inner(function.keywords)
    if inspect.ismethod(function):
        return inner(function.__func__), inner(function.__self__)
    if inspect.isfunction(function):
        bound = (function.__defaults__, function.__kwdefaults__, _closure(function))
        return inner(function.__code__), inner(bound)
    return _compiled(function)


def _compiled(function: object) -> tuple[str, str]:
    """Return the names of a function that is written in C."""
    return type(function).__qualname__, getattr(function, "__qualname__", "")


def _closure(function: FunctionType) -> list[object]:
    """Return the values of the variables of outer functions, apart from those not set yet."""
    found: list[object] = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def _code(code: CodeType, inner: Callable[[object], object]) -> object:
    """Return the source; the compiled code if there is none, and both of a lambda.

    One line of source may hold several lambdas.
    """
    compiled = (code.co_code, code.co_names, inner(code.co_consts))
    try:
        source = inspect.getsource(code)
    except OSError:  # made by exec
        return compiled
    return (source, compiled) if code.co_name == "<lambda>" else source


def _state(value: object, inner: Callable[[object], object]) -> object:
    """Return the type of an object, its ``revision``, and the fields of a dataclass."""
    names = [one.name for one in fields(value) if one.compare] if is_dataclass(value) else []
    held = [(name, inner(getattr(value, name, None))) for name in ("revision", *names)]
    return type(value).__qualname__, held


def _number(given: object) -> float | None:
    """Return ``given`` as a finite float; numbers of NumPy are numbers."""
    if isinstance(given, str | bytes) or not hasattr(given, "__float__"):
        return None
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _shown(given: object) -> str:
    """Describe what the function returned without quoting texts, which may be the user's."""
    return repr(given) if isinstance(given, float) else f"a {type(given).__name__}"

"""`FunctionMetric`: a metric that calls a function of the user with the sample."""

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
from rag_eval_otel.runtime.watchdog import within
from rag_eval_otel.runtime.workers import Workers
from rag_eval_otel.types import EmbedFn, Reason, Sample, Score

Measured: TypeAlias = "float | bool | Score"
MetricFunction: TypeAlias = "Callable[[Sample], Measured | Awaitable[Measured]]"

_THREADS = 4


class _DefaultThreshold(float):
    """The default threshold, 0.5. It does not label a `Score` that the user's function returns."""

    def __repr__(self) -> str:
        return f"usually {float(self):g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMetric:
    """The result of your function of the sample: a number, a bool (1 or 0), or a `Score`.

    If ``metrics`` contains a function, a `FunctionMetric` with the name of the function is made
    from it. Make one yourself to set another ``name``, ``threshold`` or ``timeout`` (in seconds).
    ``async def`` functions run on the evaluator's event loop; other functions run on at most four
    worker threads for each metric. The metric takes no judge request.

    A number or bool becomes a score with a pass or fail label by ``threshold``, or without a label
    if ``threshold`` is None. To use another scale than [0, 1] or to add an explanation, return a
    `Score`; its name is replaced by the name of the metric. A returned `Score` keeps its own label
    and threshold. If it has neither, it is labelled by the ``threshold`` that you set, here or in
    the ``thresholds`` of a configuration; the default of 0.5 does not label it.

    Special cases: If the function raises an exception or returns anything else (NaN, a string,
    None), the score has the status ``error`` (``internal``). If it takes more than ``timeout``
    seconds, the score has the status ``error`` (``timeout``). ``detail["error"]`` has the message.
    A function that never returns keeps its worker thread. A function without a name, or one that
    does not take exactly one argument, raises `ConfigError`.

    The version of the score, and with it the key in a cache, contains a digest of the function. The
    digest covers the source of the function (or its compiled code if there is no source), its
    defaults, the arguments bound by a ``partial``, and the variables of outer functions that it
    uses, as they are when the metric is made. Of these values, it covers numbers, texts, lists,
    sets and dicts of these, functions, and the fields of dataclasses. For an object with
    ``__call__``, or a bound method, the digest covers the source of the method and the attribute
    ``revision`` of the object. The digest does not cover other attributes of objects, arrays,
    models, module-level variables, and functions that the function calls. If these change, change
    the ``revision`` or the name.
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
        """Check the function, and set the name and the digest; raise `ConfigError` if unusable."""
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
        # A task of its own, in which the watchdog must find the name of the metric, too.
        called = within(f"metric {self.name}", partial(self._called, sample))
        call = asyncio.ensure_future(called)
        try:
            done, _ = await asyncio.wait([call], timeout=self.timeout)
        finally:
            call.cancel()  # no effect on a call that is done
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
        """Label ``given``, a score that the function returned, by a threshold that the user set.

        A score that has a label or a threshold of its own is not changed.
        """
        own = given.label is not None or given.threshold is not None
        if own or given.value is None or isinstance(self.threshold, _DefaultThreshold | None):
            return given
        label = label_of(given.value, self.threshold)
        return replace(given, label=label, threshold=self.threshold)

    def _failed(self, reason: Reason, told: str) -> Score:
        detail = {"error": f"the function of {self.name}: {told}"}
        return Score(name=self.name, status="error", reason=reason, detail=detail)


def _plain(function: Any) -> Any:
    """Return the function that a ``partial`` wraps, or ``function`` if it is not a ``partial``."""
    while isinstance(function, partial):
        function = function.func
    return function


def _check_signature(function: Callable[..., object], name: str) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        msg = f"the function {name} must take one argument, the sample: {error}"
        raise ConfigError(msg) from error
    except ValueError:  # a function in C has no signature
        return


def _digest(function: Any) -> str:
    """Return a hash (8 hex digits) of the source of ``function`` and of the values it binds."""
    call = type(function).__call__
    if isinstance(function, partial) or inspect.isroutine(function):
        definition = _described(function)
    elif inspect.isfunction(call):  # an object with a method ``__call__``
        definition = _described(call), _described(function)
    else:
        definition = _compiled(function)
    return hashlib.sha256(repr(definition).encode("utf-8", "replace")).hexdigest()[:8]


def _described(value: Any, around: tuple[int, ...] = ()) -> object:
    """Return a description of ``value`` for a hash, which is the same in every process.

    ``around`` has the ids of the objects that contain ``value``. They are not described again, so
    that an object that contains itself is described in finite time.
    """
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return repr(value)
    if id(value) in around:
        return "itself"
    inner = partial(_described, around=(*around, id(value)))
    if isinstance(value, tuple | list | set | frozenset | dict):
        return _contents(value, inner)
    if isinstance(value, CodeType):
        return _code(value, inner)
    if isinstance(value, partial) or inspect.isroutine(value):
        return _function(value, inner)
    return value.__qualname__ if isinstance(value, type) else _state(value, inner)


def _contents(values: Any, inner: Callable[[object], object]) -> object:
    if isinstance(values, dict):
        return "dict", sorted(((inner(k), inner(held)) for k, held in values.items()), key=repr)
    held = [inner(one) for one in values]
    is_ordered = isinstance(values, tuple | list)
    return type(values).__name__, held if is_ordered else sorted(held, key=repr)


def _function(function: Any, inner: Callable[[object], object]) -> object:
    if isinstance(function, partial):
        return inner(function.func), inner(function.args), inner(function.keywords)
    if inspect.ismethod(function):
        return inner(function.__func__), inner(function.__self__)
    if inspect.isfunction(function):
        bound = (function.__defaults__, function.__kwdefaults__, _closure(function))
        return inner(function.__code__), inner(bound)
    return _compiled(function)


def _compiled(function: object) -> tuple[str, str]:
    return type(function).__qualname__, getattr(function, "__qualname__", "")


def _closure(function: FunctionType) -> list[object]:
    """Return the values of the outer functions' variables that ``function`` uses.

    Variables without a value yet are left out.
    """
    found: list[object] = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def _code(code: CodeType, inner: Callable[[object], object]) -> object:
    """Return the source of ``code``, or its compiled form if there is no source.

    For a lambda, both are returned, because one line of source may hold several lambdas.
    """
    compiled = (code.co_code, code.co_names, inner(code.co_consts))
    if code.co_filename == "<string>":  # made by exec; Python 3.13 finds the text of `python -c`
        return compiled
    try:
        source = inspect.getsource(code)
    except OSError:
        return compiled
    return (source, compiled) if code.co_name == "<lambda>" else source


def _state(value: object, inner: Callable[[object], object]) -> object:
    names = [one.name for one in fields(value) if one.compare] if is_dataclass(value) else []
    held = [(name, inner(getattr(value, name, None))) for name in ("revision", *names)]
    return type(value).__qualname__, held


def _number(given: object) -> float | None:
    """Return ``given``, which may be a NumPy number, as a float; None if it is not finite."""
    if isinstance(given, str | bytes) or not hasattr(given, "__float__"):
        return None
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _shown(given: object) -> str:
    """Return a float as text; for other values only the type, because texts may be private."""
    return repr(given) if isinstance(given, float) else f"a {type(given).__name__}"

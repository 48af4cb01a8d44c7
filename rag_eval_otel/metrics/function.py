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


class _Usual(float):
    """A threshold that nobody has set."""

    def __repr__(self) -> str:
        """Tell it from one that was set."""
        return f"usually {float(self):g}"


_USUAL = _Usual(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMetric:
    """What a function of the sample returns: a number, a bool (1 or 0), or a `Score`.

    A function among ``metrics`` becomes one, under its own name; with `FunctionMetric` it gets
    another ``name``, ``threshold`` or ``timeout``. ``async def`` functions run on the evaluator's
    event loop, others on at most four worker threads for each metric. No judge request.

    What the function returns is the score, labelled by ``threshold`` (None: no label). For a scale
    other than [0, 1], or an explanation, return a `Score`; its name is set. A `Score` keeps its own
    label and threshold; one that has neither is labelled by ``threshold`` where that was set (here,
    or as ``thresholds`` of a configuration), and not by the usual 0.5. A function that raises,
    returns anything else (NaN, a string, None), or takes more than ``timeout`` seconds gives a
    score that is an error, reason ``internal`` or ``timeout``; ``detail["error"]`` says more. A
    function that never returns keeps its thread.

    The version of the score, and with it the key of a cache, has a digest of the function's source
    (of its compiled code where there is none), its defaults, what a ``partial`` binds and the
    variables of outer functions it uses: numbers, texts, lists, sets and dicts of these, functions,
    and the fields of dataclasses, as they are when the metric is made. An object that is called, or
    whose method is, counts by the source of that method and its attribute ``revision``. Not in the
    digest: other attributes of objects, arrays, models, module-level variables, and what the
    function calls. Change the ``revision`` or the name where these change.
    """

    function: MetricFunction = field(compare=False)
    name: str = ""
    threshold: float | None = _USUAL
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
        object.__setattr__(self, "source", _digest(self.function))

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
            return self._labelled(replace(given, name=self.name))
        number = _number(given)
        if number is None:
            return self._failed("internal", f"it returned {_told(given)}, which is no number")
        return measured(self.name, number, threshold=self.threshold)

    def _labelled(self, given: Score) -> Score:
        """Return a score of the function's own, by a threshold that was set for it."""
        own = given.label is not None or given.threshold is not None
        if own or given.value is None or isinstance(self.threshold, _Usual | None):
            return given
        label = label_of(given.value, self.threshold)
        return replace(given, label=label, threshold=self.threshold)

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


def _digest(function: object) -> str:
    text = repr(_definition(function, within=()))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _definition(function: Any, *, within: tuple[int, ...]) -> object:
    """Return what tells ``function`` from others: its code, and what it is bound to."""
    told = partial(_told_of, within=(*within, id(function)))
    if isinstance(function, partial):
        return told(function.func), told(function.args), told(function.keywords)
    if inspect.ismethod(function):
        return told(function.__func__), told(function.__self__)
    if inspect.isfunction(function):
        bound = (function.__defaults__, function.__kwdefaults__, _closure(function))
        return _code(function.__code__, within=within), told(bound)
    call = type(function).__call__
    if inspect.isfunction(call):
        return told(call), _state(function, within=within)
    return type(function).__qualname__, getattr(function, "__qualname__", "")  # written in C


def _closure(function: FunctionType) -> list[object]:
    """Return what the variables of outer functions hold; one that is not set yet has nothing."""
    found: list[object] = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def _code(code: CodeType, *, within: tuple[int, ...]) -> object:
    """Return the source; the compiled code where there is none, or a line may have several."""
    told = partial(_told_of, within=within)
    compiled = (code.co_code, code.co_names, told(code.co_consts))
    try:
        source = inspect.getsource(code)
    except OSError:  # made by exec
        return compiled
    return (source, compiled) if code.co_name == "<lambda>" else source


def _told_of(value: Any, *, within: tuple[int, ...]) -> object:
    """Return what says the same of ``value`` in every process."""
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return repr(value)
    if id(value) in within:
        return "itself"
    if isinstance(value, CodeType):
        return _code(value, within=within)
    if isinstance(value, tuple | list | set | frozenset | dict):
        return _told_of_all(value, within=(*within, id(value)))
    if isinstance(value, partial) or inspect.isroutine(value):
        return _definition(value, within=within)
    return value.__qualname__ if isinstance(value, type) else _state(value, within=within)


def _told_of_all(values: Any, *, within: tuple[int, ...]) -> object:
    told = [_told_of(one, within=within) for one in values]
    if isinstance(values, dict):
        held = (_told_of(one, within=within) for one in values.values())
        return "dict", sorted(zip(told, held, strict=True), key=repr)
    ordered = isinstance(values, tuple | list)
    return type(values).__name__, told if ordered else sorted(told, key=repr)


def _state(value: object, *, within: tuple[int, ...]) -> object:
    """Return the type of an object, its ``revision``, and the fields of a dataclass."""
    names = [one.name for one in fields(value) if one.compare] if is_dataclass(value) else []
    within = (*within, id(value))
    held = [(n, _told_of(getattr(value, n, None), within=within)) for n in ("revision", *names)]
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


def _told(given: object) -> str:
    """Say what was returned without quoting texts, which may be the user's."""
    return repr(given) if isinstance(given, float) else f"a {type(given).__name__}"

"""Does the answer follow rules of your own?"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, StrictBool, StrictStr, create_model

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge import tasks as kinds
from rag_eval_otel.judge.tasks import AskLike, Graded, Kind, Rated, Reply
from rag_eval_otel.metrics.base import MISSING, BaseMetric, label_of, shown_texts, task_about
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import EmbedFn, Reason, Sample, Score

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PAIR = 2
_PLAIN: Mapping[Any, Any] = {
    bool: StrictBool,
    int: Annotated[int, BeforeValidator(kinds.integer)],
    float: Annotated[float, BeforeValidator(kinds.number)],
    str: StrictStr,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMMetric(BaseMetric):
    """A metric that asks the judge in your own words (Haystack's ``LLMEvaluator``).

    - ``instructions``: the question to the judge, who sees each input under its name.
    - ``inputs``: fields of the sample (``question``, ``contexts``, ``answer``, ``reference``) or
      keys of ``Sample.extra``.
    - ``outputs``: what the judge replies, for the ``detail`` of the score: names, each with a type
      (``bool``, ``int``, ``float``, ``str``) or a list of the allowed values.
    - ``value``: the name of the output that is the score, a number or a bool (1 or 0).
    - ``bounds``: the lowest and the highest score, if any number is allowed. ``normalized`` is the
      score brought to [0, 1], unless the bounds are 0 and 1.
    - ``examples``: for the judge, each as ``{"inputs": {...}, "outputs": {...}}``.

    An argument that cannot be used raises `ConfigError`. If the sample lacks an input, the score is
    undefined, for a reason such as ``empty_answer`` or ``missing_input``.
    """

    name: str
    instructions: str
    inputs: Sequence[str] = ("question", "answer")
    outputs: Mapping[str, Any] = field(default_factory=lambda: {"score": float})
    value: str = "score"
    bounds: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if not self.instructions.strip() or not self.inputs or isinstance(self.inputs, str):
            raise ConfigError(f"{self.name} needs instructions and inputs, as in ('answer',)")
        outputs: object = self.outputs
        if not isinstance(outputs, Mapping):
            raise ConfigError(f"outputs must map names to types, as {{'score': float}}: {outputs}")
        names = (self.name, *self.inputs, *self.outputs)
        refused = [name for name in names if not _NAME.fullmatch(str(name))]
        # "context" and "example" have another meaning in a request.
        refused += [name for name in self.inputs if name in {"context", "example"}]
        refused += [name for name in self.outputs if hasattr(Reply, str(name))]
        if refused:
            rule = "use a-z, 0-9 and _, and no name of ours"
            raise ConfigError(f"{refused[0]!r} can't be a name here; {rule}")
        for name, kind in self.outputs.items():
            _member(name, kind, bounds=(0, 1) if name == self.value else None)
        if self.value not in self.outputs:
            raise ConfigError(f"value={self.value!r} must be an output: {', '.join(self.outputs)}")
        if len(self.bounds) != _PAIR or not -math.inf < self.scale[0] < self.scale[1] < math.inf:
            raise ConfigError(f"bounds must be two numbers, low < high, not {self.bounds!r}")
        BaseMetric.__post_init__(self)

    @property
    def scale(self) -> tuple[float, float]:
        kind = self.outputs[self.value]
        if isinstance(kind, list | tuple):
            return float(min(kind)), float(max(kind))
        return (0.0, 1.0) if kind is bool else self.bounds

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.inputs)

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        types = [(n, tuple(k) if isinstance(k, list) else k) for n, k in self.outputs.items()]
        instructions = self.instructions
        if self.outputs[self.value] in (int, float):  # the schema of the reply has no bounds
            low, high = self.scale
            instructions += f"\n`{self.value}` is a number from {low:g} to {high:g}."
        reply = _reply(tuple(types), self.value, bounds=tuple(self.bounds))
        prompt, inputs = f"custom_{self.name}", tuple(self.inputs)
        return (Kind(prompt=prompt, reply=reply, inputs=inputs, instructions=instructions),)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        shown = shown_texts(sample, self.inputs)
        if missing := [name for name in self.inputs if name not in shown]:
            reason = MISSING.get(missing[0], "missing_input")
            return self.undefined(reason, detail={"missing": missing})
        outputs = (await ask(self.asks[0].task(shown, examples=self.examples))).model_dump()
        (low, high), value = self.scale, float(outputs[self.value])
        normalized = None if (low, high) == (0, 1) else (value - low) / (high - low)
        text = " / ".join(text for text in outputs.values() if isinstance(text, str))
        return self.score_of(value, normalized=normalized, explanation=text, detail=outputs)


def _member(name: str, kind: Any, *, bounds: Sequence[float] | None) -> Any:
    """Return the pydantic type of an output; with ``bounds``, that of the score, a number."""
    plain = (bool, int, float, str) if bounds is None else (bool, int, float)
    if isinstance(kind, list | tuple):
        usable = [v for v in kind if isinstance(v, plain) and not isinstance(v, bool)]
        if len(usable) == len(kind) and len(set(kind)) > 1:
            are_numbers = all(isinstance(v, int | float) for v in kind)
            return kinds.one_of(kind) if are_numbers else Literal[tuple(kind)]
    elif any(kind is one for one in plain):
        if bounds is None or kind is bool:
            return _PLAIN[kind]
        return Annotated[_PLAIN[kind], BeforeValidator(kinds.within(*bounds))]
    allowed = ", ".join(one.__name__ for one in plain)
    raise ConfigError(f"output {name!r} must be {allowed} or a list of values, not {kind!r}")


@lru_cache(maxsize=256)
def _reply(types: tuple[Any, ...], value: str, *, bounds: tuple[float, ...]) -> type[Reply]:
    members: dict[str, Any] = {
        name: (_member(name, kind, bounds=bounds if name == value else None), ...)
        for name, kind in types
    }
    digest = hashlib.sha256(repr((types, value, bounds)).encode()).hexdigest()[:8]
    return create_model(f"Outputs_{digest}", __base__=Reply, **members)


_FIELDS = ("question", "contexts", "answer", "reference")
_FIVE: Mapping[float, str] = {
    1: "Wrong throughout, or about something else.",
    2: "Mostly wrong; little of it is of use.",
    3: "Partly right, with gaps or mistakes that matter.",
    4: "Right, with small gaps or a lack of clarity.",
    5: "Right, complete and clear.",
}


def parse_levels(rubric: Mapping[Any, Any]) -> dict[float, str]:
    levels: dict[float, str] = {}
    for key, meaning in rubric.items():
        numbers = re.findall(r"-?(?:\d*\.)?\d+", str(key))
        is_number = isinstance(key, int | float) and not isinstance(key, bool)
        level = float(key) if is_number else float(numbers[0]) if len(numbers) == 1 else math.nan
        if not math.isfinite(level) or level in levels:
            raise ConfigError(f"each key of a rubric must name a number of its own; see {key!r}")
        if not isinstance(meaning, str) or not meaning.strip():
            raise ConfigError(f"level {key!r} of a rubric must say what it means, not {meaning!r}")
        levels[level] = meaning
    if not levels:
        raise ConfigError("a rubric needs at least one level")
    return dict(sorted(levels.items()))


def _check_inputs(inputs: Sequence[str]) -> None:
    if set(inputs) - set(_FIELDS) or not inputs:
        raise ConfigError(f"inputs must be some of {', '.join(_FIELDS)}, not {inputs!r}")


def _rubric_kind(levels: Sequence[float]) -> Kind[Graded]:
    reply = kinds.grade_on(*levels) if levels else Graded
    return Kind(prompt="rubric", reply=reply, inputs=(*_FIELDS, "rubric"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric(BaseMetric):
    """The level of a rubric that fits the sample best, as the judge chooses it.

    - ``levels``: any numbers with their meanings; by default five, from 1 (wrong) to 5 (right).
      ``normalized`` is ``(score - lowest) / (highest - lowest)``, or None for a single level.
    - ``inputs``: the fields of the sample that the judge sees.
    - ``rating="logprobs"``: the score is the mean of the levels, weighted by the judge's
      probabilities; if there are none, the plain level counts (``no_logprobs``).

    An argument that cannot be used raises `ConfigError`. The score is undefined if the sample has
    none of the ``inputs`` (``missing_input``).

    Source: ``RubricsScore`` and ``DomainSpecificRubrics`` of ragas 0.4.3. Unlike in ragas, levels
    may be any numbers, and the judge is asked again for a number that is not a level.
    """

    levels: Mapping[float, str] = field(default_factory=lambda: dict(_FIVE))
    inputs: tuple[str, ...] = _FIELDS
    rating: Rated = "integer"
    threshold: float | None = None
    name: str = "rubric"

    @property
    def scale(self) -> tuple[float, float]:
        levels = parse_levels(self.levels)
        return min(levels), max(levels)

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        BaseMetric.__post_init__(self)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"answer"} if "answer" in self.inputs else self.inputs)

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (_rubric_kind(list(parse_levels(self.levels))),)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        return await _grade(self, sample, ask, levels=parse_levels(self.levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRubric(BaseMetric):
    """The level of the sample's own rubric (``Sample.rubric``) that fits the sample best.

    All is as for `Rubric`; ``normalized`` makes samples with different levels comparable. The score
    is undefined if the sample has no rubric that can be used (``missing_rubric``).

    Source: ``InstanceSpecificRubrics`` of ragas 0.4.3, with the same differences as for `Rubric`.
    """

    inputs: tuple[str, ...] = _FIELDS
    rating: Rated = "integer"
    threshold: float | None = None
    name: str = "instance_rubric"

    needs = frozenset({"rubric"})
    asks = (_rubric_kind(()),)
    scale = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        BaseMetric.__post_init__(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        try:
            levels = parse_levels(sample.rubric)
        except ConfigError as error:
            return self.undefined("missing_rubric", detail={"error": str(error)})
        return await _grade(self, sample, ask, levels=levels)


async def _grade(
    metric: Rubric | InstanceRubric, sample: Sample, ask: AskLike, *, levels: Mapping[float, str]
) -> Score:
    shown = shown_texts(sample, metric.inputs)
    if not shown:
        return metric.undefined("missing_input")
    rubric = "\n".join(f"{level:.15g}: {meaning}" for level, meaning in levels.items())
    shown["rubric"] = rubric
    kind = _rubric_kind(list(levels))
    task = kind.task(shown, rated=metric.rating, examples=metric.examples)
    return await metric.graded(task, ask, low=min(levels), high=max(levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guideline(BaseMetric):
    """Whether the answer follows ``guidelines``, in your own words: 1 or 0 (LlamaIndex).

    Blank guidelines raise `ConfigError`.

    Source: ``GuidelineEvaluator`` of LlamaIndex 0.14.
    """

    guidelines: str = (
        "The answer replies to all of the question. It is not vague. Where figures or names"
        " matter, it gives them."
    )
    name: str = "guideline"

    blank = {"question": None, "answer": None}  # noqa: RUF012  # never changed
    asks = (kinds.GUIDELINE,)

    def __post_init__(self) -> None:
        if not self.guidelines.strip():
            raise ConfigError("guidelines must say what is asked of the answer")
        BaseMetric.__post_init__(self)

    async def compute(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        task = task_about(sample, kinds.GUIDELINE, self.examples, guidelines=self.guidelines)
        decision = await ask(task)
        return self.score_of(float(decision.passing), explanation=decision.reason)


Measured: TypeAlias = "float | bool | Score"
MetricFunction: TypeAlias = "Callable[[Sample], Measured | Awaitable[Measured]]"
_WORKERS = partial(Workers, 4)
_DEFAULT = 0.5  # a threshold that does not label a `Score` of the user's function


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMetric(BaseMetric):
    """The result of your function of the sample: a number, a bool (1 or 0), or a `Score`.

    A function in ``metrics`` becomes a `FunctionMetric` with the name of the function. Make one
    yourself to set another ``name``, ``threshold`` or ``timeout`` (in seconds). ``async def``
    functions run on the evaluator's event loop; others on at most four worker threads.

    ``threshold`` labels a number or bool, unless it is None. To use another scale than [0, 1] or to
    add an explanation, return a `Score`: it gets the name of the metric, and keeps its label and
    threshold. If it has neither, a ``threshold`` other than 0.5 labels it.

    Special cases: If the function raises an exception or returns anything else (NaN, a string,
    None), the score has the status ``error`` (``internal``); after ``timeout`` seconds, it has the
    reason ``timeout``. A function that has no name, or that does not take exactly one argument,
    raises `ConfigError`.

    The version of the score contains a digest of the function's source. If the result depends on
    anything else that changes, change the name, or the attribute ``revision`` of the function.
    """

    function: MetricFunction = field(compare=False)
    name: str = ""
    threshold: float | None = _DEFAULT
    timeout: float = field(default=30.0, compare=False)
    source: str = field(init=False, default="", repr=False)
    _workers: Workers = field(init=False, default_factory=_WORKERS, compare=False, repr=False)

    needs = frozenset[str]()
    scale = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        name = self.name or getattr(_plain(self.function), "__name__", "")
        if not name.isidentifier():
            way = "use def, or FunctionMetric(function=..., name='my_metric')"
            raise ConfigError(f"{self.function!r} has no name that a metric can have; {way}")
        try:
            inspect.signature(self.function).bind(None)
        except TypeError as error:
            raise ConfigError(f"the function {name} must take one argument: {error}") from error
        except ValueError:
            pass  # a function in C has no signature
        object.__setattr__(self, "name", name)
        revision = getattr(_plain(self.function), "revision", "")
        described = f"{revision}{_source_of(self.function)}".encode("utf-8", "replace")
        object.__setattr__(self, "source", hashlib.sha256(described).hexdigest()[:8])

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        async def called() -> object:
            is_async = inspect.iscoroutinefunction(_plain(self.function))
            function = partial(self.function, sample)
            found: object = function() if is_async else await self._workers.run(function)
            return await found if inspect.isawaitable(found) else found

        call = asyncio.ensure_future(called())
        try:
            await asyncio.wait([call], timeout=self.timeout)
        finally:
            is_late = call.cancel()  # False, without effect, if the call is done
        if is_late:
            call.add_done_callback(lambda it: it.cancelled() or it.exception())  # else it is logged
            return self._failed("timeout", f"no result within {self.timeout:g} s")
        result = call.result()
        if isinstance(result, Score):
            score = replace(result, name=self.name)
            own = score.label is not None or score.threshold is not None
            if own or score.value is None or self.threshold in {None, _DEFAULT}:
                return score
            label = label_of(score.value, self.threshold)
            return replace(score, label=label, threshold=self.threshold)
        with suppress(OverflowError, TypeError, ValueError):
            value = float(result) if hasattr(result, "__float__") else math.nan
            if math.isfinite(value):
                return self.score_of(value)
        # Other values are not shown, because texts may be private.
        shown = repr(result) if isinstance(result, float) else f"a {type(result).__name__}"
        return self._failed("internal", f"it returned {shown}, which is no number")

    def _failed(self, reason: Reason, cause: str) -> Score:
        detail = {"error": f"the function of {self.name}: {cause}"}
        return Score(name=self.name, status="error", reason=reason, detail=detail)


def _plain(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _source_of(function: Any) -> str:
    call: Any = inspect.getattr_static(type(function), "__call__", None)
    for part in (_plain(function), call):
        with suppress(OSError, TypeError):  # a function in C, or of an interactive session
            return inspect.getsource(part)
    return ""

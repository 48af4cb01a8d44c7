"""`LLMMetric`: a metric with the user's own instructions to the judge, and typed outputs."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, StrictBool, StrictStr, create_model

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.replies import Reply, integer, number, one_of, within
from rag_eval_otel.judge.tasks import AskLike, Kind
from rag_eval_otel.metrics.outcome import (
    MISSING,
    Examples,
    check_options,
    measured,
    shown_text,
    undefined,
)
from rag_eval_otel.types import EmbedFn, Sample, Score

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = frozenset({"context", "example"})  # names with another meaning in a request
_PAIR = 2
_PLAIN: Mapping[Any, Any] = {
    bool: StrictBool,
    int: Annotated[int, BeforeValidator(integer)],
    float: Annotated[float, BeforeValidator(number)],
    str: StrictStr,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMMetric:
    """A metric that asks the judge in your own words (Haystack's ``LLMEvaluator``).

    - ``instructions``: the question to the judge. The judge sees the text of each input under the
      name of the input.
    - ``inputs``: fields of the sample (``question``, ``contexts``, ``answer``, ``reference``) or
      keys of ``Sample.extra``.
    - ``outputs``: the names of the judge's results, each with its type: ``bool``, ``int``,
      ``float``, ``str``, or a list of the allowed values.
    - ``value``: the name of the output that is the score: a number within ``bounds``, or a bool (1
      or 0).
    - ``bounds``: the lowest and the highest score. They are ignored for a bool, and for a list of
      allowed values.
    - ``examples``: worked examples that the judge sees, each as ``{"inputs": {...}, "outputs":
      {...}}``.

    If the bounds are not 0 and 1, ``normalized`` is the score brought to [0, 1]. All outputs are in
    the ``detail`` of the score. The metric takes 1 judge request, which may also carry questions of
    other metrics.

    Special cases: If the sample lacks an input, the score is undefined, for the reason that belongs
    to the field (such as ``empty_answer``) or for ``missing_input``. Names, types, bounds or
    examples that cannot be used raise `ConfigError`.
    """

    name: str
    instructions: str
    inputs: Sequence[str] = ("question", "answer")
    outputs: Mapping[str, Any] = field(default_factory=lambda: {"score": float})
    value: str = "score"
    bounds: tuple[float, float] = (0.0, 1.0)
    threshold: float | None = 0.5
    examples: Examples = ()

    requests = "1"
    range = "its bounds"

    def __post_init__(self) -> None:
        """Raise `ConfigError` for names, types, bounds or examples that cannot be used."""
        if not self.instructions.strip() or not self.inputs or isinstance(self.inputs, str):
            msg = f"{self.name} needs instructions to the judge and inputs, as in ('answer',)"
            raise ConfigError(msg)
        outputs: object = self.outputs
        if not isinstance(outputs, Mapping):
            msg = f"outputs must map names to types, as in {{'score': float}}, not {outputs!r}"
            raise ConfigError(msg)
        names = (self.name, *self.inputs, *self.outputs)
        odd = [name for name in names if not _NAME.fullmatch(str(name))]
        odd += [name for name in self.inputs if name in _TAKEN]
        odd += [name for name in self.outputs if hasattr(Reply, str(name))]
        if odd:
            msg = f"{odd[0]!r} can't be a name here; use a-z, 0-9 and _, and no name of ours"
            raise ConfigError(msg)
        for name, given in self.outputs.items():
            _check_type(name, given, is_value=name == self.value)
        if self.value not in self.outputs:
            msg = f"value={self.value!r} must be one of the outputs: {', '.join(self.outputs)}"
            raise ConfigError(msg)
        if len(self.bounds) != _PAIR or not -math.inf < self.scale[0] < self.scale[1] < math.inf:
            msg = f"bounds must be two numbers (low, high) with low < high, not {self.bounds!r}"
            raise ConfigError(msg)
        check_options(self)

    @property
    def scale(self) -> tuple[float, float]:
        """The lowest and the highest score that the metric can give."""
        given = _frozen(self.outputs[self.value])
        if isinstance(given, tuple):
            return float(min(given)), float(max(given))
        return (0.0, 1.0) if given is bool else self.bounds

    @property
    def needs(self) -> frozenset[str]:
        """The fields of the sample, or keys of ``Sample.extra``, that the metric reads."""
        return frozenset(self.inputs)

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        types = tuple((name, _frozen(given)) for name, given in self.outputs.items())
        return (
            Kind(
                prompt=f"custom_{self.name}",
                reply=_reply(types, self.value, bounds=tuple(self.bounds)),
                inputs=tuple(self.inputs),
                instructions=self._told(),
            ),
        )

    def _told(self) -> str:
        """Return the instructions, followed by the bounds of a score that is a free number.

        The schema of the reply does not limit the number, so the prompt must state the bounds.
        """
        if self.outputs[self.value] not in (int, float):
            return self.instructions
        low, high = self.scale
        return f"{self.instructions}\n`{self.value}` is a number from {low:g} to {high:g}."

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        shown = {name: shown_text(sample, name) for name in self.inputs}
        missing = [name for name, text in shown.items() if not text]
        if missing:
            reason = MISSING.get(missing[0], "missing_input")
            return undefined(self.name, reason, detail={"missing": missing})
        reply = await ask(self.asks[0].task(shown, examples=self.examples))
        outputs = reply.model_dump()
        low, high = self.scale
        value = float(outputs[self.value])
        return measured(
            self,
            value,
            normalized=None if (low, high) == (0, 1) else (value - low) / (high - low),
            explanation=" / ".join(text for text in outputs.values() if isinstance(text, str)),
            detail=outputs,
        )


def _frozen(given: Any) -> Any:
    return tuple(given) if isinstance(given, list | tuple) else given


def _check_type(name: str, given: Any, *, is_value: bool) -> None:
    """Raise `ConfigError` unless ``given``, the type of the output ``name``, is allowed.

    The type must be ``bool``, ``int``, ``float``, ``str``, or a list of the allowed values. If
    ``is_value`` is True, the output is the score, and its type must not be a text.
    """
    allowed = (int, float) if is_value else (int, float, str)
    listed = isinstance(given, list | tuple) and all(
        isinstance(v, allowed) and not isinstance(v, bool) for v in given
    )
    if listed and len(set(given)) > 1:
        return
    if any(given is plain for plain in _PLAIN if plain is not str or not is_value):
        return
    kinds = "bool, int, float" if is_value else "bool, int, float, str"
    msg = f"the type of output {name!r} must be {kinds} or a list of values, not {given!r}"
    raise ConfigError(msg)


@lru_cache(maxsize=256)
def _reply(
    types: tuple[tuple[str, Any], ...], value: str, *, bounds: tuple[float, ...]
) -> type[Reply]:
    """Return a pydantic model of the judge's reply, with a member for each output in ``types``.

    ``value`` is the name of the output that is the score. If it is a free number, the model refuses
    numbers outside ``bounds``. Equal arguments give the same class.
    """
    digest = hashlib.sha256(repr((types, value, bounds)).encode()).hexdigest()[:8]
    members: dict[str, Any] = {name: (_annotation(given), ...) for name, given in types}
    if dict(types)[value] in (int, float):
        low, high = bounds
        members[value] = (Annotated[members[value][0], BeforeValidator(within(low, high))], ...)
    return create_model(f"Outputs_{digest}", __base__=Reply, **members)


def _annotation(given: Any) -> Any:
    if not isinstance(given, tuple):
        return _PLAIN[given]
    numbers = all(isinstance(v, int | float) for v in given)
    return one_of(given) if numbers else Literal[given]

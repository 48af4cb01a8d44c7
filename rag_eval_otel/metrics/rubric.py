"""Does the answer follow rules of your own?

The metrics of this module let a judge choose a level of a rubric, or decide on guidelines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.replies import Graded, grade_on
from rag_eval_otel.judge.tasks import GUIDELINE, AskLike, Kind, Rated
from rag_eval_otel.metrics.outcome import (
    Examples,
    check_options,
    decided,
    edge_score,
    grade_score,
    shown_text,
    task_about,
    undefined,
)
from rag_eval_otel.types import EmbedFn, Sample, Score

_FIELDS = ("question", "contexts", "answer", "reference")
_FIVE: Mapping[float, str] = {
    1: "Wrong throughout, or about something else.",
    2: "Mostly wrong; little of it is of use.",
    3: "Partly right, with gaps or mistakes that matter.",
    4: "Right, with small gaps or a lack of clarity.",
    5: "Right, complete and clear.",
}


def parse_levels(rubric: Mapping[Any, Any]) -> dict[float, str]:
    """Return a dict from the levels of ``rubric``, as ascending numbers, to their meanings.

    A key of ``rubric`` is a number, or a text that contains one number (``"0.5"``,
    ``"score1_description"``). Raises `ConfigError` for any other key, for a level that is given
    twice, for a level without a meaning, and for a rubric without levels.
    """
    levels: dict[float, str] = {}
    for key, meaning in rubric.items():
        level = _level(key)
        if level is None or level in levels:
            msg = f"each key of a rubric must name one number, and each its own; see {key!r}"
            raise ConfigError(msg)
        if not isinstance(meaning, str) or not meaning.strip():
            msg = f"level {key!r} of the rubric must say what it means, not {meaning!r}"
            raise ConfigError(msg)
        levels[level] = meaning
    if not levels:
        msg = "a rubric needs at least one level"
        raise ConfigError(msg)
    return dict(sorted(levels.items()))


def _level(key: object) -> float | None:
    """Return ``key`` as a number, or the only number in its text; None if there is not one."""
    if isinstance(key, int | float):
        return None if isinstance(key, bool) or not math.isfinite(key) else float(key)
    numbers = re.findall(r"-?(?:\d*\.)?\d+", str(key))
    return float(numbers[0]) if len(numbers) == 1 else None


def _check_inputs(inputs: Sequence[str]) -> None:
    if set(inputs) - set(_FIELDS) or not inputs:
        msg = f"inputs must be some of {', '.join(_FIELDS)}, not {inputs!r}"
        raise ConfigError(msg)


def _kind(levels: Sequence[float]) -> Kind[Graded]:
    reply = grade_on(*levels) if levels else Graded
    return Kind(prompt="rubric", reply=reply, inputs=(*_FIELDS, "rubric"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """The level of a rubric that fits the sample best, as the judge chooses it.

    ``levels`` maps numbers to their meanings; the default has five levels, from 1 (wrong) to 5
    (right). The levels may be any numbers, and the range is from the lowest to the highest level.
    ``normalized`` is ``(score - lowest) / (highest - lowest)``, or None if there is only one level.
    ``explanation`` is the judge's feedback. ``inputs`` are the fields of the sample that the judge
    sees, if the sample has them. With ``rating="logprobs"``, the score is the mean of the levels,
    weighted by the probabilities that the judge gives the levels. The metric takes 1 judge request.

    Special cases: If the sample has none of the ``inputs``, the score is undefined
    (``missing_input``). If the server returns no probabilities, the plain level counts
    (``no_logprobs``). Levels or inputs that cannot be used raise `ConfigError`.

    Source: ``RubricsScore`` and ``DomainSpecificRubrics`` of ragas 0.4.3. Unlike in ragas, levels
    may be any numbers, such as 0, 0.5 and 1, and the judge is asked again for a number that is not
    a level.
    """

    levels: Mapping[float, str] = field(default_factory=lambda: dict(_FIVE))
    inputs: tuple[str, ...] = _FIELDS
    rating: Rated = "integer"
    threshold: float | None = None
    examples: Examples = ()
    name: str = "rubric"

    requests = "1"
    range = "its levels"

    def __post_init__(self) -> None:
        """Raise `ConfigError` for levels, inputs or examples that cannot be used."""
        _check_inputs(self.inputs)
        check_options(self)

    @property
    def needs(self) -> frozenset[str]:
        """The fields that a sample must have: the answer if it is an input, else all inputs."""
        return frozenset({"answer"} if "answer" in self.inputs else self.inputs)

    @property
    def asks(self) -> tuple[Kind[Any], ...]:
        return (_kind(list(parse_levels(self.levels))),)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        return await _grade(self, sample, ask, levels=parse_levels(self.levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRubric:
    """The level of the sample's own rubric that fits the sample best (``Sample.rubric``).

    The judge chooses the level, as for `Rubric`. The range is from the lowest to the highest level
    of the sample's rubric; ``normalized`` makes samples with different levels comparable. The
    metric needs the rubric. It takes 1 judge request.

    Special cases: If the sample has no rubric, or a rubric that cannot be used, the score is
    undefined (``missing_rubric``). If the sample has none of the ``inputs``, the score is undefined
    (``missing_input``).

    Source: ``InstanceSpecificRubrics`` of ragas 0.4.3. Unlike in ragas, levels may be any numbers,
    such as 0, 0.5 and 1, and the judge is asked again for a number that is not a level.
    """

    inputs: tuple[str, ...] = _FIELDS
    rating: Rated = "integer"
    threshold: float | None = None
    examples: Examples = ()
    name: str = "instance_rubric"

    needs = frozenset({"rubric"})
    asks = (_kind(()),)
    requests = "1"
    range = "the sample's levels"

    def __post_init__(self) -> None:
        """Raise `ConfigError` for inputs that cannot be used, and for examples that do not fit."""
        _check_inputs(self.inputs)
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if not sample.rubric:
            return undefined(self.name, "missing_rubric")
        try:
            levels = parse_levels(sample.rubric)
        except ConfigError as error:
            return undefined(self.name, "missing_rubric", detail={"error": str(error)})
        return await _grade(self, sample, ask, levels=levels)


async def _grade(
    metric: Rubric | InstanceRubric, sample: Sample, ask: AskLike, *, levels: Mapping[float, str]
) -> Score:
    """Ask the judge which of ``levels`` fits ``sample``, and return this level as the score.

    ``levels`` maps numbers to meanings. The judge sees each field in ``metric.inputs`` that
    ``sample`` has.
    """
    texts = {name: shown_text(sample, name) for name in metric.inputs}
    shown = {name: text for name, text in texts.items() if text}
    if not shown:
        return undefined(metric.name, "missing_input")
    rubric = "\n".join(f"{level:.15g}: {meaning}" for level, meaning in levels.items())
    task = _kind(list(levels)).task(
        {**shown, "rubric": rubric}, rated=metric.rating, examples=metric.examples
    )
    scale = (min(levels), max(levels))
    return grade_score(metric, await ask(task), scale=scale, rated=metric.rating)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guideline:
    """Whether the answer follows ``guidelines``, in your own words: 1 or 0 (LlamaIndex).

    The metric needs question and answer. It takes 1 judge request. ``explanation`` is the judge's
    feedback.

    Special cases: If there is no question, the score is undefined (``missing_question``). If there
    is no answer, the score is undefined (``empty_answer``). Blank guidelines raise `ConfigError`.

    Source: ``GuidelineEvaluator`` of LlamaIndex 0.14. Unlike in LlamaIndex, a reply that does not
    parse makes the score undefined (there: an exception).
    """

    guidelines: str = (
        "The answer replies to all of the question. It is not vague. Where figures or names"
        " matter, it gives them."
    )
    threshold: float | None = 0.5
    examples: Examples = ()
    name: str = "guideline"

    needs = frozenset({"question", "answer"})
    asks = (GUIDELINE,)
    requests = "1"
    range = "{0, 1}"

    def __post_init__(self) -> None:
        """Raise `ConfigError` for blank guidelines, and for examples that do not fit."""
        if not self.guidelines.strip():
            msg = "guidelines must say what is asked of the answer"
            raise ConfigError(msg)
        check_options(self)

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:  # noqa: ARG002
        if edge := edge_score(self, sample, question=None, answer=None):
            return edge
        task = task_about(sample, GUIDELINE, guidelines=self.guidelines, examples=self.examples)
        return decided(self, await ask(task))

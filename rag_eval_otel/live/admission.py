"""`Admission`: decide for each RAG turn whether the turn is evaluated, and with which probability.

A *turn* is one question of a user and its answer. In a *cascade*, the offline judge evaluates all
turns, and the judge evaluates a sample, with more of the turns whose offline scores are bad.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rag_eval_otel import semconv
from rag_eval_otel.capture.span import ROUTES, Bystander, SpanView
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.config import Config
from rag_eval_otel.judge.budget import SlidingWindow
from rag_eval_otel.limits import TURNS, Limit
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.sampling import Facts, Sampling, SamplingRule, probability_of
from rag_eval_otel.types import Evaluation, SkipReason

_CELLS = 60_000  # of a window: in a minute, a turn counts for one millisecond too long at most
_SUSPICIOUS = 4.0  # how much more often a turn is chosen whose offline scores are bad

_MODELS: Final = (
    *("gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
    *("ls_model_name", "model"),
)
_FEEDBACK: Final = ("feedback", "user_feedback", "feedback.score", "user.feedback")
_BAD_WORDS: Final = frozenset(
    {
        *("bad", "negative", "down", "thumbs_down", "thumbsdown", "dislike", "no", "false"),
        *("wrong", "incorrect", "poor", "unhelpful", "not_helpful"),
    }
)
_THUMBS_DOWN: Final = "\N{THUMBS DOWN SIGN}"  # a tone of skin may follow
_BAD_NUMBER = 0.5  # below it, a number is bad feedback: 0 or 1, -1 or 1


class Admission:
    """Decide for each RAG turn (a question and its answer) whether the turn is evaluated.

    - ``sample_rate``: the fraction of traces whose turns are evaluated.
    - ``rules``: the rates of turns with certain attributes, in place of ``sample_rate``.
    - ``limits``: the limits of turns in windows of time. Each process counts its own turns.
    - ``has_cascade``: whether the offline judge evaluates all turns first.
    """

    def __init__(
        self,
        *,
        sample_rate: float = 1.0,
        rules: Sequence[SamplingRule] = (),
        limits: Iterable[Limit] = (),
        has_cascade: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.has_cascade = has_cascade
        self._rate = sample_rate
        self._rules = rules
        self._clock = clock
        self._windows = [
            (limit.amount, SlidingWindow(limit.seconds, cells=_CELLS)) for limit in limits
        ]
        self._reset_lock()
        call_in_child(self._reset_lock)

    @classmethod
    def of(cls, config: Config) -> Admission:
        return cls(
            sample_rate=config.base_rate,
            rules=config.sampling_rules,
            limits=[limit for limit in config.limits if limit.unit == TURNS],
            has_cascade=config.cascade is not None,
        )

    def _reset_lock(self) -> None:
        """Create the lock of this object.

        A forked child creates a new lock, because no thread of the child could unlock a lock that
        was locked during the fork.
        """
        self._lock = threading.RLock()

    def draw(self, trace_id: int, facts: Callable[[], Facts] = dict) -> Sampling | SkipReason:
        """Return how a RAG turn in this trace was chosen, or the reason why it is not evaluated.

        The reason is ``sample_rate`` if the turn is not in the sample, and ``budget`` if a limit of
        turns is reached. In a cascade, each turn is evaluated by the offline judge, and the result
        has the probability for the judge. `judged` then decides.
        """
        if self._rate >= 1 and not self._rules:
            sampling = Sampling()
        else:
            # With the rate 0 and no rules, scoring is off, also for turns with errors.
            is_off = self._rate <= 0 and not self._rules
            probability = (
                0.0 if is_off else probability_of(facts(), self._rules, otherwise=self._rate)
            )
            sampling = self._sampling(trace_id, probability)
            if not self.has_cascade and sampling_point(trace_id) >= probability:
                return "sample_rate"
        return "budget" if not self.has_cascade and self.is_over_budget() else sampling

    def judged(self, trace_id: int, sampling: Sampling, *, offline: Evaluation) -> Sampling | None:
        """Return how a turn of a cascade was chosen for the judge; None if it was not chosen.

        ``sampling`` is the result of `draw`. If the label of the ``offline`` scores is not
        ``pass``, the probability is four times as high.
        """
        probability = sampling.probability
        if offline.label != "pass":
            probability = min(1.0, probability * _SUSPICIOUS)
        if sampling_point(trace_id) >= probability:
            return None
        return self._sampling(trace_id, probability)

    def _sampling(self, trace_id: int, probability: float) -> Sampling:
        """Return how a turn was chosen with ``probability``.

        The uniform part has the turns that ``sample_rate`` alone would have chosen. It is empty if
        ``sample_rate`` is 0.
        """
        is_targeted = sampling_point(trace_id) >= self._rate
        return Sampling(probability=probability, is_targeted=is_targeted)

    def is_over_budget(self) -> bool:
        """Count one turn, and return True if a limit of turns is reached."""
        if not self._windows:
            return False
        with self._lock:
            now = self._clock()
            if any(window.sum(now) >= amount for amount, window in self._windows):
                return True
            for _, window in self._windows:
                window.add(now, 1)
            return False


def sampling_point(trace_id: int) -> float:
    """Return a number in [0, 1) for ``trace_id``, the same number at each call.

    The number does not depend on the bits of the trace id that trace samplers use. A turn is chosen
    if the number is below the probability of the turn.
    """
    return zlib.crc32(trace_id.to_bytes(16, "big")) / 2**32


# --- what the rules match -------------------------------------------------------------------------


def facts_of(turn: Turn, attributes: Iterable[Mapping[str, Any]]) -> Facts:
    """Return what sampling rules can match: attributes of spans, metadata, route, model, errors.

    ``attributes`` are those of the spans of ``turn`` and of the spans around them, nearest first.
    """
    found: defaultdict[str, list[object]] = defaultdict(list)
    for one in attributes:
        for name, value in one.items():
            found[name].append(value)
    steps = tuple(_steps(turn))
    for step in steps:
        for name, value in step.metadata.items():
            found[f"metadata.{name}"].append(value)
    bare = {name.removeprefix("metadata."): values for name, values in found.items()}
    facts: dict[str, Sequence[object]] = dict(found)
    for name, names in (("route", (*ROUTES, "route")), ("model", _MODELS)):
        values = [value for one in names for value in bare.get(one, ())]
        facts[name] = tuple(value for value in values if value is not None)
    facts["error"] = (any(step.error is not None for step in steps),)
    given = [value for one in _FEEDBACK for value in bare.get(one, ())]
    recorded = (name for name in found if name.startswith(semconv.FEEDBACK_PREFIX))
    given += [v for name in recorded if name.endswith(semconv.LEAF_SCORE) for v in found[name]]
    facts["feedback"] = _verdict(given)
    return facts


def attributes_around(turn: Turn, spans: Mapping[Any, SpanView]) -> Iterator[Mapping[str, Any]]:
    """Yield the attributes of the spans of ``turn``, then those of spans that are no part of RAG.

    ``spans`` are the spans of the trace by id.
    """
    own = {step.id: spans[step.id] for step in _steps(turn) if step.id in spans}
    yield from (view.attributes for view in own.values())
    yield from (view.attributes for view in spans.values() if isinstance(view, Bystander))


def _steps(turn: Turn) -> Iterator[Step]:
    for steps in (turn.path, turn.calls, turn.other_calls, turn.retrievers, turn.steps, turn.tools):
        yield from steps


def _verdict(feedback: Iterable[object]) -> Sequence[str]:
    """Return ``("bad",)`` if one of ``feedback`` is bad, else ``("good",)``; empty if none says."""
    found = {_is_bad(value) for value in feedback if value is not None and value != ""}
    return ("bad" if True in found else "good",) if found else ()


def _is_bad(feedback: object) -> bool:
    """Return True for a number below one half, also as a text, and for words such as "bad".

    Of a list or a mapping, one bad value is enough.
    """
    if isinstance(feedback, Mapping):
        return any(map(_is_bad, feedback.values()))
    if isinstance(feedback, list | tuple):
        return any(map(_is_bad, feedback))
    try:
        return float(feedback) < _BAD_NUMBER  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        pass
    text = str(feedback).strip().lower()
    words = text.replace("-", "_").replace(" ", "_").strip(":")
    return words in _BAD_WORDS or text.startswith(_THUMBS_DOWN)

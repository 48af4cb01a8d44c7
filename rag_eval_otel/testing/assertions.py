"""Assert the scores of answers in tests: what the pytest fixture ``rag_eval`` gives.

A test passes a sample, a dataset, or the application itself. Of an application, one call is
recorded, as live scoring records it, and the turn in it (the question and its answer) is scored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_tracer_provider

from rag_eval_otel.config import Config
from rag_eval_otel.dataset.read import COLUMNS
from rag_eval_otel.dataset.result import DatasetResult
from rag_eval_otel.dataset.run import evaluate_dataset, run_now
from rag_eval_otel.dataset.summary import MetricSummary, number
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.judge.models import AnyEmbedder, AnyJudge
from rag_eval_otel.live.instrument import Handle, RagEvalSpanProcessor, instrument
from rag_eval_otel.live.recorded import passages_of
from rag_eval_otel.metrics import MetricFunction
from rag_eval_otel.metrics.outcome import Metric
from rag_eval_otel.runtime.providers import attachment_of
from rag_eval_otel.thresholds import thresholds_of
from rag_eval_otel.types import EmbedFn, Sample, Score

_PAIR = 2  # an answer and its contexts
_ROUNDING = 1e-9
_LONG = 300  # characters of a text in a message
_SCOPE = "rag_eval_otel.testing"  # a span of the scope of this library would not be read
_INPUTS = (*COLUMNS["question"], "input")
_WAYS = (
    "Return a Sample, a mapping with answer and contexts, or (answer, contexts), or trace the"
    " application: LangChain, an OpenTelemetry instrumentation, or record_question(),"
    " record_retrieval() and record_answer()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RagEval:
    """Scores answers with one judge and asserts the scores.

    ``judge`` and ``embedder`` are what `evaluate_dataset` takes. ``record`` is called with the name
    and the value of each score and bound, for the report of the test.
    """

    judge: AnyJudge = None
    embedder: AnyEmbedder = None
    record: Callable[[str, object], object] = field(default=lambda _name, _value: None)

    def assert_scores(
        self,
        sample_or_app: object,
        question: object = None,
        /,
        *,
        metrics: Sequence[str | Metric | MetricFunction] = (),
        **least: float,
    ) -> DatasetResult:
        """Score a sample, a dataset or one call of an application; assert the lowest scores.

        ``rag_eval.assert_scores(sample, faithfulness=0.8)`` fails if the faithfulness of ``sample``
        is below 0.8. ``sample_or_app`` is one of these:

        - a `Sample`, or a mapping with the columns of a dataset (question, contexts, answer);
        - a dataset: a list of these, a data frame, or the path of a file. The mean is asserted;
        - an application: a function, a coroutine function, or an object with ``invoke``. It is
          called with ``question``, or without an argument if there is no question. Its turn is what
          it returns (a `Sample`, a mapping with answer and contexts, or the pair of answer and
          contexts) or else what was traced.

        ``least`` are lowest scores by the name of the metric. ``metrics`` has metrics of your own,
        which ``least`` then names. Returns the result, with the summary of each metric.

        Raises `AssertionError` if a score is lower or undefined, `FailedRowError` if a score could
        not be computed because the judge failed, and `ConfigError` for unknown metrics, samples
        without the texts that a metric needs, and an application without exactly one turn.
        """
        __tracebackhide__ = True
        bounds = thresholds_of(least, where="assert_scores()")
        if not bounds:
            msg = "assert_scores() needs a lowest score, as in assert_scores(s, faithfulness=0.8)"
            raise ConfigError(msg)
        own = {metric if isinstance(metric, str) else _name_of(metric) for metric in metrics}
        result = evaluate_dataset(
            _data(sample_or_app, question),
            [*metrics, *(name for name in bounds if name not in own)],
            judge=self.judge,
            embedder=self.embedder,
            explanations="on",
            progress="off",
        )
        self._report(result, bounds)
        if failed := [row.failed[0] for row in result.rows if row.failed]:
            first = failed[0]
            why = first.detail.get("error", first.reason)
            msg = (
                f"{first.name} could not be measured in {len(failed)} rows ({first.reason}): {why}"
            )
            raise FailedRowError(msg)
        low = [text for name, bound in bounds.items() for text in _too_low(result, name, bound)]
        if low:
            raise AssertionError("\n".join(low))
        return result

    def _report(self, result: DatasetResult, bounds: Mapping[str, float]) -> None:
        """Record each score and its bound, the judge, and the tokens."""
        for name, bound in bounds.items():
            mean = result[name].mean
            self.record(name, "no score" if mean is None else mean)
            self.record(f"{name}.at_least", bound)
        self.record("judge", result.judge or "-")
        self.record("tokens", result.usage.tokens)


def _name_of(metric: object) -> str:
    return str(getattr(metric, "name", None) or getattr(metric, "__name__", ""))


def _too_low(result: DatasetResult, name: str, bound: float) -> Iterator[str]:
    """Yield a message if the mean score of the metric ``name`` is below ``bound`` or undefined."""
    found: MetricSummary = result[name]
    if found.mean is not None and found.mean >= bound - _ROUNDING:
        return
    what = "mean of " if len(result.rows) > 1 else ""
    reasons = ", ".join(found.reasons)
    if found.mean is None:
        yield f"{what}{name} has no score ({reasons or 'no rows'}), at least {bound:g} is needed"
    else:
        yield f"{what}{name} is {number(found.mean)}, below {bound:g}"
    worst = min(result.rows, key=lambda row: _value(row[name]), default=None)
    if worst is not None:
        where = f"row {worst.index}: " if len(result.rows) > 1 else ""
        yield f"  {where}question: {_short(worst.sample.question)}"
        yield f"  answer: {_short(worst.sample.answer)}"
        if worst[name].explanation:
            yield f"  why: {_short(str(worst[name].explanation))}"


def _value(score: Score) -> float:
    return float("-inf") if score.value is None else score.value


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


# --- samples --------------------------------------------------------------------------------------


def _data(given: object, question: object) -> object:
    """Return the dataset of ``given``, which is a sample, a dataset or an application."""
    if isinstance(given, Sample):
        return [given]
    if isinstance(given, Mapping):
        is_row = not all(isinstance(cell, list | tuple) for cell in given.values())
        return [given] if is_row else given
    if callable(given) or hasattr(given, "invoke"):
        return [_sample_of_call(given, question)]
    return given


def _sample_of_call(app: Any, question: object) -> Sample:
    """Call ``app`` and return its turn: the sample that it returns, or that was traced."""
    seen: list[Sample] = []
    with _tracing(seen):
        call = app.invoke if hasattr(app, "invoke") else app
        returned = call() if question is None else call(question)
        if inspect.iscoroutine(returned):
            coroutine = returned
            returned = run_now(lambda: coroutine)
    sample = _returned_sample(returned, _text_of(question))
    if sample is not None:
        return sample
    if len(seen) != 1:
        msg = (
            f"the call of {_name_of(app) or type(app).__name__} has {len(seen)} turns with a"
            f" question, a retrieval and an answer; one is needed. {_WAYS}"
        )
        raise ConfigError(msg)
    return seen[0]


def _text_of(question: object) -> str:
    """Return the question in the argument of an application: a text, or a mapping with one."""
    if isinstance(question, Mapping):
        question = next((question[name] for name in _INPUTS if name in question), None)
    return question if isinstance(question, str) else ""


def _returned_sample(returned: object, question: str) -> Sample | None:
    """Return the sample that an application has returned; None if it returned something else."""
    if isinstance(returned, Sample):
        return returned if returned.question else replace(returned, question=question)
    if isinstance(returned, tuple) and len(returned) == _PAIR and isinstance(returned[0], str):
        answer, contexts = returned
    elif isinstance(returned, Mapping):
        answer, contexts = (
            next((returned[name] for name in COLUMNS[part] if name in returned), None)
            for part in ("answer", "contexts")
        )
        question = question or _text_of(returned)
    else:
        return None
    if not isinstance(answer, str) or contexts is None:
        return None
    passages = passages_of(contexts, caller="assert_scores()")
    return Sample(question=question, contexts=tuple(passages), answer=answer)


# --- tracing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A metric that keeps the samples of the pipeline and asks no judge."""

    samples: list[Sample]
    name: str = "seen"

    needs: ClassVar[frozenset[str]] = frozenset()
    asks: ClassVar[tuple[Any, ...]] = ()
    prompts: ClassVar[tuple[str, ...]] = ()
    requests: ClassVar[str] = "0"
    range: ClassVar[str] = "{1}"

    async def measure(self, sample: Sample, ask: object, embed: EmbedFn) -> Score:  # noqa: ARG002
        """Keep ``sample``."""
        self.samples.append(sample)
        return Score(name=self.name, value=1.0)


@contextmanager
def _tracing(seen: list[Sample]) -> Iterator[None]:
    """Record the turns of the application in the context, and add their samples to ``seen``.

    LangChain runs, spans of the global tracer provider and calls of ``record_question`` and its
    relatives are read. No scores are computed. If the global provider has exporters, they get the
    spans, and the span of the turn has the mark of `_Seen`. If the global provider is instrumented
    already, its spans are not read.
    """
    provider = _provider()
    handle = _attached(provider, seen)
    try:
        with provider.get_tracer(_SCOPE).start_as_current_span("call"):
            handle.install_langchain_hook()
            try:
                yield
            finally:
                handle.remove_langchain_hook()
        handle.flush()
    finally:
        handle.shutdown()


def _provider() -> TracerProvider:
    """Return the global tracer provider if its spans can be read, else a provider of its own."""
    found = get_tracer_provider()
    if isinstance(found, TracerProvider):
        attachment = attachment_of(found)
        ours = [one for one in attachment.others or () if isinstance(one, RagEvalSpanProcessor)]
        if attachment.owner is None and not ours:
            return found
    return TracerProvider(shutdown_on_exit=False)


def _attached(provider: TracerProvider, seen: list[Sample]) -> Handle:
    return instrument(
        Config(metrics=(_Seen(samples=seen),), drift="off", on_sigterm="off", score_events="span"),
        tracer_provider=provider,
        meter_provider=NoOpMeterProvider(),
    )

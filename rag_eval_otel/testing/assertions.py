"""`RagEval`: assert the scores of answers in tests, as the pytest fixture ``rag_eval``."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_tracer_provider

from rag_eval_otel.config import Config, thresholds_of
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.evaluation import aevaluate, run_now
from rag_eval_otel.live.instrument import RagEvalSpanProcessor, instrument
from rag_eval_otel.live.recorded import passages_of
from rag_eval_otel.metrics import MetricFunction, resolve_metrics
from rag_eval_otel.metrics.base import Metric, direction_of
from rag_eval_otel.models import AnyEmbedder, AnyJudge
from rag_eval_otel.runtime.sdk import attachment_of
from rag_eval_otel.types import Evaluation, Sample, Score

_ROUNDING = 1e-9
_PAIR = 2  # an answer and its contexts
_LONG = 300  # characters of a text in a message
_SCOPE = "rag_eval_otel.testing"  # a span of the scope of this library would not be read
_KEYS = {
    "question": ("question", "query", "user_input", "input"),
    "contexts": ("contexts", "context", "retrieved_contexts"),
    "answer": ("answer", "response"),
}
"""The names under which a mapping may have the texts of a turn."""
_WAYS = (
    "Return a Sample, a mapping with answer and contexts, or (answer, contexts), or trace the"
    " application: LangChain, an OpenTelemetry instrumentation, or record_question(),"
    " record_retrieval() and record_answer()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RagEval:
    """Scores answers with one judge and asserts the scores.

    ``judge`` and ``embedder`` are those of `evaluate`. ``record`` is called with the name and the
    value of each score and bound, for the report of the test.
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
    ) -> tuple[Evaluation, ...]:
        """Score a sample, several samples or one call of an application; assert the lowest scores.

        ``rag_eval.assert_scores(sample, faithfulness=0.8)`` fails if the faithfulness of ``sample``
        is below 0.8; for a metric whose low scores are good, as ``needless_refusal``, if the score
        is above the bound. ``sample_or_app`` is one of these:

        - a `Sample`, or a mapping with ``question``, ``contexts`` and ``answer``;
        - a list of these. The mean of each metric is asserted;
        - an application: a function, a coroutine function, or an object with ``invoke``. It is
          called with ``question``, or without an argument if there is none. Its sample is what it
          returns (a `Sample`, a mapping with answer and contexts, or the pair of answer and
          contexts) or else the turn that was traced.

        ``least`` are lowest scores by the name of the metric. ``metrics`` has metrics of your own
        that ``least`` names. Returns the evaluation of each sample.

        Raises `AssertionError` if a score is worse or undefined, `FailedRowError` if the judge
        failed, and `ConfigError` for an unknown metric, an object that is not a sample, and an
        application without exactly one turn.
        """
        __tracebackhide__ = True
        bounds = thresholds_of(least, where="assert_scores()")
        if not bounds:
            msg = "assert_scores() needs a lowest score, as in assert_scores(s, faithfulness=0.8)"
            raise ConfigError(msg)
        samples = _samples(sample_or_app, question)
        own = {metric if isinstance(metric, str) else _name_of(metric) for metric in metrics}
        wanted = resolve_metrics([*metrics, *(name for name in bounds if name not in own)])
        low = {metric.name for metric in wanted if direction_of(metric) == "low"}
        evaluations = run_now(lambda: self._evaluate(samples, wanted))
        judges = sorted({evaluation.judge or "-" for evaluation in evaluations})
        for name, bound in bounds.items():
            mean = _mean([evaluation[name] for evaluation in evaluations])
            self.record(name, "no score" if mean is None else mean)
            self.record(f"{name}.{'at_most' if name in low else 'at_least'}", bound)
        self.record("judge", ", ".join(judges))
        self.record("tokens", sum(evaluation.usage.tokens for evaluation in evaluations))
        failed = [s for evaluation in evaluations for s in evaluation.scores if s.status == "error"]
        if failed:
            first = failed[0]
            cause = first.detail.get("error", first.reason)
            what = f"{first.name} could not be measured ({first.reason}): {cause}"
            raise FailedRowError(f"{what}; {len(failed)} such scores")
        lines: list[str] = []
        for name, bound in bounds.items():
            scores = [evaluation[name] for evaluation in evaluations]
            lines += _missed(samples, scores, bound, sign=-1 if name in low else 1)
        if lines:
            raise AssertionError("\n".join(lines))
        return evaluations

    async def _evaluate(
        self, samples: Sequence[Sample], metrics: Sequence[str | Metric | MetricFunction]
    ) -> tuple[Evaluation, ...]:
        runs = [
            aevaluate(s, metrics, judge=self.judge, embedder=self.embedder, explanations=True)
            for s in samples
        ]
        return tuple(await asyncio.gather(*runs))


def _name_of(metric: object) -> str:
    return str(getattr(metric, "name", None) or getattr(metric, "__name__", ""))


def _mean(scores: Sequence[Score]) -> float | None:
    values = [score.value for score in scores if score.value is not None]
    return sum(values) / len(values) if values else None


def _missed(
    samples: Sequence[Sample], scores: Sequence[Score], bound: float, *, sign: int
) -> Iterator[str]:
    """Yield lines of an error message, unless the mean of ``scores`` is as good as ``bound``."""
    mean = _mean(scores)
    if mean is not None and sign * mean >= sign * bound - _ROUNDING:
        return
    name = f"mean of {scores[0].name}" if len(samples) > 1 else scores[0].name
    if mean is None:
        reasons = ", ".join(sorted({str(score.reason) for score in scores}))
        yield f"{name} has no score ({reasons}); the bound is {bound:g}"
    else:
        yield f"{name} is {mean:.3f}, {'below' if sign > 0 else 'above'} {bound:g}"
    values = [float("-inf") if score.value is None else sign * score.value for score in scores]
    worst = values.index(min(values))
    sample, why = samples[worst], scores[worst].explanation or ""
    places = scores[worst].unsupported or ()
    sentences = [sample.answer[start:end] for start, end in places]
    yield f"  {f'sample {worst}: ' if len(samples) > 1 else ''}question: {_short(sample.question)}"
    yield f"  answer: {_short(sample.answer)}"
    yield from [f"  why: {_short(why)}"] if why else []
    for sentence in sentences:
        if sentence not in why:
            yield f"  not backed by the contexts: {_short(sentence)}"


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _samples(source: object, question: object) -> list[Sample]:
    """Return the samples of ``source``: one, a list, or that of an application, once called."""
    if callable(source) or hasattr(source, "invoke"):
        return [_sample_of_call(source, question)]
    items = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    samples = [sample for item in items if (sample := _as_sample(item)) is not None]
    if not samples or len(samples) < len(items):
        msg = f"assert_scores() takes samples, mappings or an application, not {type(source)}"
        raise ConfigError(msg)
    return samples


def _as_sample(value: object, question: str = "") -> Sample | None:
    """Return ``value`` (`Sample`, mapping or pair) as a sample; None if it is another object."""
    if isinstance(value, Sample):
        return value if value.question else replace(value, question=question)
    if isinstance(value, tuple) and len(value) == _PAIR:
        value = {"answer": value[0], "contexts": value[1]}
    if not isinstance(value, Mapping):
        return None
    answer, contexts = (_text(value, part) for part in ("answer", "contexts"))
    if not isinstance(answer, str) or contexts is None:
        return None
    return Sample(
        question=question or _text_of(value),
        contexts=passages_of(contexts, caller="assert_scores()"),
        answer=answer,
        **{
            each.name: value[each.name]
            for each in fields(Sample)[3:]
            if each.name in value and (each.name != "query" or "question" in value)
        },
    )


def _text(value: Mapping[Any, Any], part: str) -> Any:
    return next((value[key] for key in _KEYS[part] if key in value), None)


def _text_of(question: object) -> str:
    """Return the question in ``question``, a text or a mapping; ``""`` if there is none."""
    if isinstance(question, Mapping):
        question = _text(question, "question")
    return question if isinstance(question, str) else ""


def _sample_of_call(app: Any, question: object) -> Sample:
    """Call ``app``, and return the sample that it returns or, if it returns none, has traced."""
    traced: list[Sample] = []
    with _tracing(traced):
        call = app.invoke if hasattr(app, "invoke") else app
        result = call() if question is None else call(question)
        if inspect.iscoroutine(result):
            coroutine = result
            result = run_now(lambda: coroutine)
    sample = _as_sample(result, _text_of(question))
    if sample is not None:
        return sample
    if len(traced) != 1:
        raise ConfigError(
            f"the call of {_name_of(app) or type(app).__name__} has {len(traced)} turns with a"
            f" question, a retrieval and an answer; one is needed. {_WAYS}"
        )
    return traced[0]


@contextmanager
def _tracing(samples: list[Sample]) -> Iterator[None]:
    """Add the samples of the turns that are traced in the ``with`` block to ``samples``.

    No judge is asked. Exporters of the global provider get the spans.
    """
    provider = _provider()
    config = Config(
        metrics=("answer_exact_match",),
        on_sample=samples.append,
        drift=False,
        host_hooks=False,
        score_events="span",
    )
    handle = instrument(config, tracer_provider=provider, meter_provider=NoOpMeterProvider())
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
    """Return the global tracer provider, or a new one if the global one cannot be instrumented."""
    provider = get_tracer_provider()
    if isinstance(provider, TracerProvider):
        attachment = attachment_of(provider)
        ours = [each for each in attachment.others or () if isinstance(each, RagEvalSpanProcessor)]
        if attachment.owner is None and not ours:
            return provider
    return TracerProvider(shutdown_on_exit=False)

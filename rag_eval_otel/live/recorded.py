"""The ``record_...()`` functions, and `FeedbackIntake`, which finds the turns of feedback."""

from __future__ import annotations

import json
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import UUID
from weakref import ReferenceType, ref

from opentelemetry.trace import Span, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.documents import passage_of
from rag_eval_otel.capture.runs import Run
from rag_eval_otel.capture.step import Part
from rag_eval_otel.capture.values import exportable
from rag_eval_otel.config import raises_errors
from rag_eval_otel.errors import RedactionError
from rag_eval_otel.export.attributes import EventSink, feedback_attributes
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.guard import Edge, LimitedLog
from rag_eval_otel.runtime.threads import BackgroundEvaluator, Call
from rag_eval_otel.types import Evaluation, Feedback, Messages, Passage, Sample, SpanRef
from rag_eval_otel.untrusted import Redactor

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext
    from opentelemetry.util.types import AttributeValue

_warnings: Final = LimitedLog()
_ACCEPTED: Final = (
    "a str, a Passage, a dict with 'text', 'content' or 'page_content', an object with such a text"
    " (LangChain, Haystack) or with get_content() (LlamaIndex), or a pair of one of these and its"
    " score"
)

Origin: TypeAlias = Literal["ids", "current", "run"]  # what identifies the turn of feedback


def record_question(text: str, *, history: Messages = ()) -> None:
    """Record the question of the user on the active LangChain run, or else on the current span.

    ``history``: the messages before it, oldest first, as in `Sample`. A span is one turn (one
    question and its answer), so start a span for each question. Of several calls, the last counts.
    Without a run and a span, a warning is logged. A span that is not sampled records nothing. If
    ``text`` is not a str, or ``history`` not of messages, a `TypeError` is raised under pytest and
    with ``RAG_EVAL_RAISE_ERRORS=on``; otherwise the error is only logged and counted.
    """
    _record_text("record_question", text, part="input", attribute=semconv.QUESTION)
    with _edge("record", raise_errors=raises_errors()):
        messages, run = Sample(history=history).history, _active_run()
        if run is not None:
            if messages or "history" in (run.said or {}):
                run.said = {**(run.said or {}), "history": messages}
        elif messages or semconv.HISTORY in (getattr(get_current_span(), "attributes", None) or {}):
            entries = [{"role": role, "content": said} for role, said in messages]
            written = exportable(json.dumps(entries, ensure_ascii=False))
            _current_span("record_question").set_attribute(semconv.HISTORY, written)


def record_answer(text: str) -> None:
    """Record the answer to the user on the active LangChain run, or else on the current span.

    Of several calls, the last counts. For a streamed answer, record the whole text before the run
    or span ends. Errors are handled as in `record_question`.
    """
    _record_text("record_answer", text, part="output", attribute=semconv.ANSWER)


def record_retrieval(query: str, documents: Collection[object]) -> None:
    """Record a query and its documents, best first, on the active LangChain run or current span.

    ``documents`` are the contexts of the turn (one question and its answer), as the model gets
    them. Pass ``[]`` if there are none. Each document is one of these:

    - a text or a `Passage`;
    - a dict with ``text``, ``content`` or ``page_content``, and perhaps ``id`` and ``score``;
    - a document of LangChain or Haystack, or a node of LlamaIndex;
    - a pair of one of the above and its score.

    Of several calls on the span of a turn, or on spans below it, all documents count, in the order
    of the calls, each text once. The first query of a span or run counts. Errors are handled as in
    `record_question`.
    """
    with _edge("record", raise_errors=raises_errors()):
        asked = _text("record_retrieval", query)
        passages = passages_of(documents)
        if (run := _active_run()) is not None:
            known = (run.said or {}).get("documents", ())
            run.said = {**(run.said or {}), "documents": (*known, *passages)}
            run.query = run.query or asked
            return
        span = _current_span("record_retrieval")
        attributes: dict[str, AttributeValue] = {
            semconv.RETRIEVAL_QUERY: asked,
            semconv.RETRIEVAL_DOCUMENTS: json.dumps([*map(_entry, passages)], ensure_ascii=False),
            semconv.DOCUMENT_COUNT: len(passages),
        }
        span.add_event(semconv.RETRIEVAL_EVENT, attributes)
        span.set_attribute(semconv.RETRIEVAL_RECORDED, value=True)


def record_feedback(
    score: float,
    *,
    trace_id: str | int | UUID | None = None,
    span_id: str | int | None = None,
    name: str = "user",
    comment: str | None = None,
) -> None:
    """Record what a person, or a check of the application, says about an answer.

    ``score`` is from 0 (bad) to 1 (good), or a bool. Without ids, the feedback is about the turn
    (question and answer) of the current span. ``trace_id`` has 32 hexadecimal digits, as in
    ``format_trace_id(span.get_span_context().trace_id)``, or is the ``run_id`` of LangChain's root
    run. ``span_id`` has 16 hexadecimal digits; it is needed only if a trace has several turns.
    ``name`` says who gave the feedback, in at most 64 ASCII letters, digits, ``_`` and ``-``.
    ``comment`` is redacted by the function of the option ``redact``, and exported.

    The feedback becomes an event ``gen_ai.evaluation.result``, and goes to metrics and backends.
    The call does no I/O. A wrong argument raises `TypeError` or `ValueError` under pytest and with
    ``RAG_EVAL_RAISE_ERRORS=on``; otherwise the error is only logged and counted.
    """
    with _edge("feedback", raise_errors=raises_errors()):
        number = _checked(score, name, comment=comment)
        trace, span, origin = _ids(trace_id, span_id)
        if trace == 0:
            _current_span("record_feedback")  # logs that there is none
            return
        feedback = Feedback(trace_id=trace, span_id=span, score=number, name=name, comment=comment)
        if origin == "current" and get_current_span().is_recording():
            get_current_span().set_attributes(feedback_attributes(feedback))
        if (intake := intake_for(trace)) is not None:
            intake.submit(feedback, origin)
            return
        InstrumentSink().feedback(feedback, "unmatched")
        EventSink().emit_feedback(feedback)


def _record_text(caller: str, text: str, *, part: Part, attribute: str) -> None:
    with _edge("record", raise_errors=raises_errors()):
        checked = _text(caller, text)
        if (run := _active_run()) is not None:
            run.said = {**(run.said or {}), part: checked}
        else:
            _current_span(caller).set_attribute(attribute, checked)


def _active_run() -> Run | None:
    """Return the LangChain run in which the caller runs, if a callback handler records it."""
    langchain = sys.modules.get("rag_eval_otel.capture.langchain")  # else there is no handler
    active = None if langchain is None else langchain.active_run()
    return None if active is None else active[1]


def _current_span(caller: str) -> Span:
    span = get_current_span()
    if not span.get_span_context().is_valid:
        _warnings.write(
            caller,
            "%s() has no effect: no span is current, and no LangChain run that reports to"
            " RagEvalCallbackHandler is active; start a span around the turn",
            caller,
        )
    return span


def _text(caller: str, text: object) -> str:
    if isinstance(text, str):
        return exportable(text)
    raise TypeError(f"{caller}() takes the text as a str, not {type(text).__name__}")


def passages_of(documents: object, *, caller: str = "record_retrieval()") -> list[Passage]:
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Collection):
        raise TypeError(
            f"{caller} takes a list of documents, not {type(documents).__name__};"
            " pass [document] for one and [] for none"
        )
    return [_passage(document) for document in documents]


def _entry(passage: Passage) -> dict[str, object]:
    score = None if passage.score is None else float(passage.score)  # JSON cannot encode numpy's
    entry = {
        "content": exportable(passage.text),
        "id": None if passage.id is None else exportable(passage.id),
        "score": score if score is not None and isfinite(score) else None,
    }
    return {key: value for key, value in entry.items() if value is not None}


def _passage(document: Any) -> Passage:
    match document:
        case (inner, score) if isinstance(document, tuple) and _is_number(score):
            return replace(_passage(inner), score=float(score))
        case Passage():
            return document
        case str():
            return Passage(text=document)
        case Mapping():
            passage = passage_of(document)
        case _:
            passage = _passage_of_object(document)
    if passage is None:
        raise TypeError(f"a document is {_ACCEPTED}, not {type(document).__name__}")
    return passage


def _passage_of_object(document: Any) -> Passage | None:
    names = ("page_content", "content", "text")
    has_method = callable(getattr(document, "get_content", None))
    texts = [document.get_content()] if has_method else [getattr(document, n, None) for n in names]
    text = next((text for text in texts if isinstance(text, str)), None)
    ids = (getattr(document, name, None) for name in ("id", "node_id", "id_"))
    number = next((str(name) for name in ids if name is not None), None)
    rank: Any = getattr(document, "score", None)
    score = float(rank) if _is_number(rank) else None
    return None if text is None else Passage(text=text, id=number, score=score)


def _is_number(value: object) -> bool:
    """Return True for numbers of Python and numpy, False for a bool."""
    return not isinstance(value, bool | str) and hasattr(value, "__float__")


def _checked(score: object, name: object, *, comment: object) -> float:
    if isinstance(score, str) or not hasattr(score, "__float__"):
        raise TypeError(
            f"record_feedback() takes a score from 0 to 1 or a bool, not {type(score).__name__}"
        )
    number = float(score)
    if not 0 <= number <= 1:
        raise ValueError(
            f"record_feedback() takes a score from 0 (bad) to 1 (good), not {number:g}; bring stars"
            " to this scale with (stars - 1) / 4, and thumbs of -1 and 1 with (thumb + 1) / 2"
        )
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError("the name of feedback has 1 to 64 ASCII letters, digits, _ and -")
    if not isinstance(comment, str | None):
        raise TypeError(f"the comment of feedback is a str, not {type(comment).__name__}")
    return number


def _ids(
    trace_id: str | int | UUID | None, span_id: str | int | None
) -> tuple[int, int | None, Origin]:
    """Return trace id, span id and origin; the trace id is 0 if no span is current."""
    if trace_id is None:
        if span_id is not None:
            raise ValueError("record_feedback(span_id=...) needs trace_id=..., too")
        context, tree = get_current_span().get_span_context(), getattr(_active_run(), "tree", None)
        if context.is_valid or tree is None:  # another thread may just have ended the run
            return context.trace_id, context.span_id or None, "current"
        return tree.root.id, None, "run"
    origin: Origin = "run" if isinstance(trace_id, UUID) or "-" in str(trace_id) else "ids"
    trace = _number(trace_id, name="trace_id", digits=32)
    span_number = None if span_id is None else _number(span_id, name="span_id", digits=16)
    return trace, span_number, origin


def _number(value: object, *, name: str, digits: int) -> int:
    number = value.int if isinstance(value, UUID) else value
    if isinstance(number, str):
        match = re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", number.strip().replace("-", ""))
        number = None if match is None else int(match[0], 16)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 16**digits:
        raise ValueError(
            f"{name} must be {digits} hexadecimal digits, or an int, not {value!r}; take it from"
            " OpenTelemetry's span context, not from a backend"
        )
    return number


_MAX_TURNS: Final = 4096  # turns whose labels are remembered
_MAX_SAID: Final = 16  # feedback on one turn


@dataclass(slots=True)
class _Known:
    """A recent turn, with its feedback."""

    key: tuple[int, int]  # trace id and span id
    said: tuple[Feedback, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)  # as in `Evaluation`
    is_closed: bool = False  # whether what was said is on its way to the span


@dataclass(kw_only=True, eq=False, repr=False)
class FeedbackIntake:
    """Finds the turn of each feedback, scored or skipped; as a sink, it keeps `Evaluation.about`.

    ``pass_on`` gets the feedback with the ids of its turn, if known; feedback on a LangChain run
    waits for them. ``is_under_way(trace_id)``: whether a trace or run has yet to be read.
    ``on_late`` gets feedback that comes after the ending of its turn, with the turn's ``about``, or
    is on an unknown trace, with {}; not what was said on the current span.
    """

    instruments: InstrumentSink
    evaluator: BackgroundEvaluator
    pass_on: Callable[[Feedback], object]
    redactor: Redactor = Redactor()  # noqa: RUF009  # frozen
    is_under_way: Callable[[int], bool] = lambda _: False
    on_late: Callable[[Feedback, Mapping[str, Any]], object] = lambda _feedback, _about: None

    def __post_init__(self) -> None:
        self._warnings = LimitedLog()
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._turns: OrderedDict[tuple[int, int], _Known] = OrderedDict()
        self._runs: OrderedDict[Hashable, tuple[int, int | None]] = OrderedDict()
        # Feedback whose turn is not known yet, by the id of its trace or LangChain run.
        self._early: OrderedDict[Hashable, tuple[tuple[Feedback, bool], ...]] = OrderedDict()

    def submit(self, feedback: Feedback, origin: Origin) -> None:
        # Looked up now: the trace may end before the evaluator's thread takes the feedback.
        is_expected = origin == "current" or self.is_under_way(feedback.trace_id)
        take = partial(self.take, feedback, origin, is_expected=is_expected)
        job = Call(len(feedback.comment or ""), take, lambda _: self.drop(feedback))
        if not self.evaluator.submit(job):
            self.drop(feedback)

    def drop(self, feedback: Feedback) -> None:
        self.instruments.feedback(feedback, "dropped")
        self._warn("dropped", feedback, "there is no room for it, or the pipeline was shut down")

    def knows(self, trace_id: int) -> bool:
        is_known = trace_id in self._runs or any(key[0] == trace_id for key in tuple(self._turns))
        return is_known or self.is_under_way(trace_id)

    def note(self, span: SpanContext, *, runs: Iterable[Hashable] = ()) -> None:
        if not span.span_id:
            return
        ids = (span.trace_id, span.span_id)
        self._known(ids)
        for run in runs:
            is_shared = self._runs.get(run, ids) != ids
            self._runs[run] = (span.trace_id, None) if is_shared else ids
            if len(self._runs) > _MAX_TURNS:
                self._runs.popitem(last=False)
            for early, is_passed in self._early.pop(run, ()):  # it has waited for these ids
                known = self._find(early.trace_id, early.span_id)
                joined = early if known is None else self._add(known, early)
                if not is_passed:
                    self.pass_on(joined)

    def of(self, span: SpanRef) -> tuple[Feedback, ...]:
        if not span.span_id:
            return ()
        known = self._settled(span)
        known.is_closed = True
        return known.said

    def __call__(self, evaluation: Evaluation) -> None:
        if (span := evaluation.span) is not None and span.span_id:
            self._settled(span).about = evaluation.about

    def take(self, feedback: Feedback, origin: Origin, *, is_expected: bool = False) -> None:
        """Pass on ``feedback`` with the ids of its turn; store it if the turn is not known yet."""
        comment = None
        with suppress(RedactionError):
            if feedback.comment:
                comment = exportable(self.redactor.text(feedback.comment)) or None
        feedback = replace(feedback, comment=comment)
        known = self._find(feedback.trace_id, feedback.span_id)
        if known is not None:
            self.instruments.feedback(feedback, "joined")
            joined = self._add(known, feedback)
            self.pass_on(joined)
            if known.is_closed and origin != "current":  # else it is on the open span
                self.on_late(joined, known.about)
            return
        is_run = origin == "run"
        self.instruments.feedback(feedback, "joined" if is_expected else "unmatched")
        if not is_expected:
            self._warn("unmatched", feedback, "no turn of it is known here")
        if not is_run:
            self.pass_on(feedback)
            if not is_expected:
                self.on_late(feedback, {})
        self._wait(feedback, is_passed=not is_run)

    def _add(self, known: _Known, feedback: Feedback) -> Feedback:
        feedback = replace(feedback, trace_id=known.key[0], span_id=known.key[1])
        known.said = (*known.said, feedback)[-_MAX_SAID:]
        return feedback

    def _warn(self, kind: str, feedback: Feedback, why: str) -> None:
        message = "feedback %r on trace %032x: %s (docs/feedback.md; logged at most once a minute)"
        self._warnings.write(kind, message, feedback.name, feedback.trace_id, why)

    def _known(self, key: tuple[int, int]) -> _Known:
        known = self._turns.setdefault(key, _Known(key))
        if len(self._turns) > _MAX_TURNS:
            self._turns.popitem(last=False)
        return known

    def _find(self, trace_id: int, span_id: int | None) -> _Known | None:
        """Return the turn with this span, or else the only turn of the trace or LangChain run."""
        if trace_id in self._runs:
            trace_id, of_run = self._runs[trace_id]
            span_id = span_id or of_run
        if span_id is not None and (trace_id, span_id) in self._turns:
            return self._turns[trace_id, span_id]
        turns = [known for key, known in self._turns.items() if key[0] == trace_id]
        return turns[0] if len(turns) == 1 else None

    def _settled(self, span: SpanRef) -> _Known:
        """Return the turn of ``span``; give it the stored feedback that is about no other turn."""
        known = self._known((span.trace_id, span.span_id))
        for feedback, is_passed in self._early.pop(span.trace_id, ()):
            if self._find(span.trace_id, feedback.span_id) is known:
                self._add(known, feedback)
            else:
                self._wait(feedback, is_passed=is_passed)
        return known

    def _wait(self, feedback: Feedback, *, is_passed: bool) -> None:
        waiting = self._early.get(feedback.trace_id, ())
        self._early[feedback.trace_id] = (*waiting, (feedback, is_passed))[-_MAX_SAID:]
        if len(self._early) > 1024:  # noqa: PLR2004  # traces whose feedback waits for a turn
            self._early.popitem(last=False)


_intakes: Final[list[ReferenceType[FeedbackIntake]]] = []  # of this process, the newest last


def register(intake: FeedbackIntake) -> None:
    """Register ``intake`` for `record_feedback`; remove those of pipelines that were shut down."""
    alive = filter(None, [each() for each in _intakes])
    _intakes[:] = map(ref, [*(each for each in alive if not each.evaluator.is_closed), intake])


def intake_for(trace_id: int) -> FeedbackIntake | None:
    """Return the newest intake, preferably open and with knowledge of the trace, or None."""
    alive = filter(None, [each() for each in _intakes])
    newest_last = sorted(alive, key=lambda one: (not one.evaluator.is_closed, one.knows(trace_id)))
    return newest_last[-1] if newest_last else None


@cache
def _edge(place: str, *, raise_errors: bool) -> Edge:
    def count(place: str) -> None:
        intake = intake_for(0)
        instruments = InstrumentSink() if intake is None else intake.instruments
        instruments.internal_error(place)
        if place == "feedback":
            instruments.feedback(None, "refused")

    # The message on feedback says which argument is wrong.
    log = LimitedLog(raise_errors=place == "feedback")
    return Edge(place, count, raise_errors, log=log)

"""`record_question`, `record_retrieval`, `record_answer`, `record_feedback`: for applications.

A *turn* is one question of a user and its answer. The functions are for hand-written RAG, and for
retrievers that no instrumentation covers or that run in another process. A call belongs to the
LangChain run in which it is made, if the callback handler records that run. Otherwise the call
belongs to the current span. Recorded texts take precedence over observed texts. Feedback may come
later, for a turn that its trace id names.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import ReferenceType, ref

from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import Span, get_current_span

from rag_eval_otel import semconv
from rag_eval_otel.capture.documents import passage_of
from rag_eval_otel.capture.runs import Run
from rag_eval_otel.capture.step import Part
from rag_eval_otel.capture.text import exportable
from rag_eval_otel.config import raises_errors
from rag_eval_otel.export.attributes import feedback_attributes
from rag_eval_otel.export.events import EventSink
from rag_eval_otel.export.metrics import InstrumentSink
from rag_eval_otel.live.feedback import FeedbackIntake, Origin
from rag_eval_otel.log import log
from rag_eval_otel.runtime.guard import Edge
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.types import Feedback, Passage

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue


_PAIR = 2  # a document and its score
_ACCEPTED = (
    "a str, a Passage, a dict with 'text', 'content' or 'page_content', an object with such a text"
    " (LangChain, Haystack) or with get_content() (LlamaIndex), or a pair of one of these and its"
    " score"
)


def record_question(text: str) -> None:
    """Record the question of the user on the active LangChain run, or else on the current span.

    A span is one turn (one question and its answer), so start a span for each question. If the
    function is called several times, the last call counts. If there is no run and no span, a
    warning is logged. A span that is not sampled records nothing.

    If ``text`` is not a str, a `TypeError` is raised under pytest and with
    ``RAG_EVAL_RAISE_ERRORS=on``. Otherwise the error is logged and counted, and the application
    continues.
    """
    _record_text("record_question", text, part="input", attribute=semconv.QUESTION)


def record_answer(text: str) -> None:
    """Record the answer to the user on the active LangChain run, or else on the current span.

    If the function is called several times, the last call counts. For a streamed answer, record the
    whole text before the run or span ends. Errors are handled as in `record_question`.
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

    If a turn has several calls, on its span or on spans below that span, the documents of all calls
    count, in the order of the calls. A repeated text counts once. Errors are handled as in
    `record_question`.
    """
    with _edge(raise_errors=raises_errors()):
        asked = _text("record_retrieval", query)
        passages = passages_of(documents)
        run = _active_run()
        if run is not None:
            known = (run.said or {}).get("documents", ())
            run.said = {**(run.said or {}), "documents": (*known, *passages)}
            run.query = run.query or asked
            return
        span = _current_span("record_retrieval")
        found: dict[str, AttributeValue] = {
            semconv.RETRIEVAL_QUERY: asked,
            semconv.RETRIEVAL_DOCUMENTS: json.dumps(
                [_entry(one) for one in passages], ensure_ascii=False
            ),
            semconv.DOCUMENT_COUNT: len(passages),
        }
        span.add_event(semconv.RETRIEVAL_EVENT, found)
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
    ``format_trace_id(span.get_span_context().trace_id)``. A W3C ``traceparent`` is accepted, too,
    and for LangChain the ``run_id`` of the root run. ``span_id`` has 16 hexadecimal digits; it is
    needed only if a trace has several turns. ``name`` says who gave the feedback. ``comment`` is
    exported after the function of the option ``redact``.

    The feedback becomes an event ``gen_ai.evaluation.result``, and goes to metrics and to the
    backends that take feedback. If bad feedback (below 0.5) comes before the trace of its turn has
    ended, the turn is evaluated, unless ``sample_rate`` is 0 or a sampling rule says otherwise.

    The call does no I/O. A wrong argument raises `TypeError` or `ValueError` under pytest and with
    ``RAG_EVAL_RAISE_ERRORS=on``. Otherwise the error is logged and counted.
    """
    with _feedback_edge(raise_errors=raises_errors()):
        given = _checked(score, name, comment=comment)
        trace, span, origin = _ids(trace_id, span_id)
        if trace == 0:
            _warn_lost("record_feedback")
            return
        feedback = Feedback(trace_id=trace, span_id=span, score=given, name=name, comment=comment)
        if origin == "current" and get_current_span().is_recording():
            get_current_span().set_attributes(feedback_attributes(feedback))
        intake = _intake_for(trace)
        if intake is None:
            _emit_alone(feedback)
        else:
            intake.submit(feedback, origin)


def _record_text(caller: str, text: str, *, part: Part, attribute: str) -> None:
    with _edge(raise_errors=raises_errors()):
        checked = _text(caller, text)
        run = _active_run()
        if run is not None:
            run.said = {**(run.said or {}), part: checked}
        else:
            _current_span(caller).set_attribute(attribute, checked)


def _active_run() -> Run | None:
    """Return the LangChain run in which the caller runs; None if no callback handler records it."""
    langchain = sys.modules.get("rag_eval_otel.capture.langchain")  # else there is no handler
    active = None if langchain is None else langchain.active_run()
    return None if active is None else active[1]


def _current_span(caller: str) -> Span:
    """Return the current span; log a warning if there is none."""
    span = get_current_span()
    if not span.get_span_context().is_valid:
        _warn_lost(caller)
    return span


def _warn_lost(caller: str) -> None:
    _warnings().write(
        caller,
        "%s() has no effect: no span is current, and no LangChain run that reports to"
        " RagEvalCallbackHandler is active; start a span around the turn",
        caller,
    )


@cache
def _warnings() -> LimitedLog:
    """Return the log of all ``record_...()`` functions of the process."""
    return LimitedLog()


@cache
def _edge(*, raise_errors: bool) -> Edge:
    """Return the error handler of the ``record_...()`` functions."""
    return Edge("record", on_error=_count, raise_errors=raise_errors)


def _count(place: str) -> None:
    meter = get_meter_provider().get_meter(
        semconv.SCOPE, semconv.VERSION, schema_url=semconv.GEN_AI_SCHEMA_URL
    )
    counter = meter.create_counter(
        semconv.ERRORS, unit="{error}", description="Failures of this library, by place."
    )
    counter.add(1, {semconv.PLACE: place})


def _text(caller: str, text: object) -> str:
    if isinstance(text, str):
        return exportable(text)
    msg = f"{caller}() takes the text as a str, not {type(text).__name__}"
    raise TypeError(msg)


def passages_of(documents: object, *, caller: str = "record_retrieval()") -> list[Passage]:
    """Return ``documents``, which may have the types that `record_retrieval` takes, as passages.

    Raises `TypeError`, which names ``caller``, for other types.
    """
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Collection):
        msg = (
            f"{caller} takes a list of documents, not {type(documents).__name__};"
            " pass [document] for one and [] for none"
        )
        raise TypeError(msg)
    return [_passage(one) for one in documents]


def _entry(passage: Passage) -> dict[str, object]:
    score = None if passage.score is None else float(passage.score)  # JSON cannot encode numpy's
    name = None if passage.id is None else exportable(passage.id)
    finite = score if score is not None and isfinite(score) else None
    entry = {"content": exportable(passage.text), "id": name, "score": finite}
    return {key: value for key, value in entry.items() if value is not None}


def _passage(document: object) -> Passage:
    if isinstance(document, tuple) and len(document) == _PAIR and _is_number(document[1]):
        inner = _passage(document[0])
        return Passage(text=inner.text, id=inner.id, score=float(document[1]))
    found = _read_passage(document)
    if found is None:
        msg = f"a document is {_ACCEPTED}, not {type(document).__name__}"
        raise TypeError(msg)
    return found


def _read_passage(document: object) -> Passage | None:
    if isinstance(document, Passage):
        return document
    if isinstance(document, str):
        return Passage(text=document)
    if isinstance(document, Mapping):
        return passage_of(document)
    text = _text_in(document)
    return None if text is None else Passage(text=text, id=_id_of(document), score=_score(document))


def _text_in(document: Any) -> str | None:
    if callable(getattr(document, "get_content", None)):
        found = document.get_content()
        return found if isinstance(found, str) else None
    texts = (getattr(document, name, None) for name in ("page_content", "content", "text"))
    return next((text for text in texts if isinstance(text, str)), None)


def _id_of(document: object) -> str | None:
    names = (getattr(document, name, None) for name in ("id", "node_id", "id_"))
    return next((str(name) for name in names if name is not None), None)


def _score(document: object) -> float | None:
    found = getattr(document, "score", None)
    return float(found) if _is_number(found) else None  # type: ignore[arg-type]  # just checked


def _is_number(value: object) -> bool:
    """Return True if ``value`` is a number of Python, or a number of numpy from a vector store."""
    return not isinstance(value, bool | str) and hasattr(value, "__float__")


# --- arguments of feedback ------------------------------------------------------------------------

_TRACE_DIGITS, _SPAN_DIGITS = 32, 16
_TRACEPARENT_PARTS = 4
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _checked(score: object, name: object, *, comment: object) -> float:
    """Return ``score`` as a float; raise `TypeError` or `ValueError` for a wrong argument."""
    if isinstance(score, str) or not hasattr(score, "__float__"):
        msg = f"record_feedback() takes a score from 0 to 1 or a bool, not {type(score).__name__}"
        raise TypeError(msg)
    number = float(score)
    if not 0 <= number <= 1:
        msg = (
            f"record_feedback() takes a score from 0 (bad) to 1 (good), not {number:g}; bring stars"
            " to this scale with (stars - 1) / 4, and thumbs of -1 and 1 with (thumb + 1) / 2"
        )
        raise ValueError(msg)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        msg = f"the name of feedback has 1 to 64 ASCII letters, digits, _ and -, not {name!r}"
        raise ValueError(msg)
    if not isinstance(comment, str | None):
        msg = f"the comment of feedback is a str, not {type(comment).__name__}"
        raise TypeError(msg)
    return number


def _ids(
    trace_id: str | int | UUID | None, span_id: str | int | None
) -> tuple[int, int | None, Origin]:
    """Return trace id, span id and their origin. The trace id is 0 if there is no current span."""
    if trace_id is None:
        if span_id is not None:
            msg = "record_feedback(span_id=...) needs trace_id=..., too"
            raise ValueError(msg)
        return _current()
    if isinstance(trace_id, str) and trace_id.count("-") == _TRACEPARENT_PARTS - 1:
        _, trace_id, span, _ = trace_id.split("-")
        span_id = span if span_id is None else span_id
    is_run = isinstance(trace_id, UUID) or "-" in str(trace_id)
    origin: Origin = "run" if is_run else "ids"
    trace = _number(trace_id, name="trace_id", digits=_TRACE_DIGITS)
    return trace, None if span_id is None else _number(span_id, name="span_id"), origin


def _number(given: object, *, name: str, digits: int = _SPAN_DIGITS) -> int:
    found = given.int if isinstance(given, UUID) else given
    if isinstance(found, str):
        text = found.strip().replace("-", "")
        is_hex = len(text) == digits and all(sign in "0123456789abcdefABCDEF" for sign in text)
        found = int(text, 16) if is_hex else None
    if isinstance(found, bool) or not isinstance(found, int) or not 0 < found < 16**digits:
        msg = f"{name} must be {digits} hexadecimal digits, or an int, not {given!r}{_hint(given)}"
        raise ValueError(msg)
    return found


def _hint(given: object) -> str:
    """Return what an id that cannot be read looks like."""
    text = str(given).strip()
    if text.isdecimal():
        return "; decimal ids are Datadog's: take the id from OpenTelemetry's span context"
    if text.endswith("="):
        return "; this looks like base64, in which protobuf as JSON has ids"
    return "; ids of a backend's own objects are no trace ids"


def _current() -> tuple[int, int | None, Origin]:
    context = get_current_span().get_span_context()
    if context.is_valid:
        return context.trace_id, context.span_id, "current"
    run = _active_run()
    return (0, None, "current") if run is None else (run.tree.root.id, None, "run")


# --- the pipelines of the process -----------------------------------------------------------------


def register(intake: FeedbackIntake) -> None:
    """Let `record_feedback` find ``intake`` until its evaluator is shut down."""
    intakes = _intakes()
    intakes[:] = [*(one for one in intakes if _is_open(one)), ref(intake)]


@cache
def _intakes() -> list[ReferenceType[FeedbackIntake]]:
    """Return the list of the intakes of this process, the newest last."""
    return []


def _is_open(reference: ReferenceType[FeedbackIntake]) -> bool:
    intake = reference()
    return intake is not None and not intake.evaluator.is_closed


def _intake_for(trace_id: int) -> FeedbackIntake | None:
    """Return the intake that knows the trace, or else the newest open one, or else the newest."""
    found = [one for reference in reversed(_intakes()) if (one := reference()) is not None]
    still = [one for one in found if not one.evaluator.is_closed]
    known = (one for one in still if one.knows(trace_id))
    return next(known, next(iter([*still, *found]), None))


def _emit_alone(feedback: Feedback) -> None:
    """Emit ``feedback`` as an event and in metrics, in a process that scores no turns."""
    _warn_alone()
    instruments = InstrumentSink()
    instruments.feedback(feedback, "unmatched")
    instruments.emit_feedback(feedback)
    EventSink().emit_feedback(feedback)


@cache
def _warn_alone() -> None:
    log.warning(
        "record_feedback(): no pipeline of rag_eval_otel runs in this process, so feedback is only"
        " emitted as an event and a metric; call instrument() to reach backends (logged once)"
    )


@cache
def _feedback_edge(*, raise_errors: bool) -> Edge:
    """Return the error handler of `record_feedback`."""
    log = LimitedLog(raise_errors=True)  # the message says which argument is wrong
    return Edge("feedback", on_error=_count_refused, raise_errors=raise_errors, log=log)


def _count_refused(place: str) -> None:
    intake = _intake_for(0)
    instruments = InstrumentSink() if intake is None else intake.instruments
    instruments.internal_error(place)
    instruments.feedback(None, "refused")

"""Content in log records: joined with the spans they were written in, and looked at only then."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, set_span_in_context

from live import App, asked, attached, collecting_size, retrieved, said, told
from rag_eval_otel import instrument
from rag_eval_otel.capture.span import LogView
from rag_eval_otel.capture.trace import PendingLogs, may_be_read
from rag_eval_otel.live.instrument import pipeline_of
from rag_eval_otel.runtime.guard import JUDGING

OPENAI = "opentelemetry.instrumentation.openai_v2"
SCORED = ("scored", None)


@pytest.fixture
def app() -> Iterator[App]:
    with attached() as running:
        yield running


def shown(number: int) -> str:
    return "\n\n".join([*told(number), asked(number)])


def call(app: App, parent: Span) -> Span:
    tracer = app.provider.get_tracer(OPENAI)
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    return tracer.start_span("chat m", context=set_span_in_context(parent), attributes=attributes)


def write(app: App, span: Span, event: str, **record: Any) -> None:
    logger = app.logger_provider.get_logger(OPENAI)
    logger.emit(event_name=event, context=set_span_in_context(span), **record)


def older(app: App, span: Span, number: int) -> None:
    write(app, span, "gen_ai.system.message", body={"content": "Answer from the pages."})
    write(app, span, "gen_ai.user.message", body={"content": shown(number)})
    message = {"role": "assistant", "content": said(number)}
    write(app, span, "gen_ai.choice", body={"index": 0, "message": message})


def newer(app: App, span: Span, number: int) -> None:
    attributes = {
        "gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": shown(number)}]}
        ],
        "gen_ai.output.messages": [
            {
                "role": "assistant",
                "parts": [{"type": "text", "content": said(number)}],
                "finish_reason": "stop",
            }
        ],
    }
    write(app, span, "gen_ai.client.inference.operation.details", attributes=attributes)


def turn(app: App, number: int, written: Any) -> Span:
    """Record a turn whose LLM tells what it was asked and said in log records alone."""
    chain = app.step("CHAIN", **{"input.value": asked(number)})
    app.step("RETRIEVER", chain, **retrieved(number)).end()
    span = call(app, chain)
    written(app, span, number)
    span.end()
    chain.end()
    return chain


@pytest.mark.parametrize("written", [older, newer])
def test_a_turn_whose_content_is_in_logs(app: App, written: Any) -> None:
    """Question, contexts and answer are there, though no span of the LLM has them."""
    chain = turn(app, 1, written)
    assert app.handle.flush()
    assert app.counted() == {SCORED: 1}
    assert app.status_of(chain) == "scored"


@pytest.mark.parametrize(
    ("event", "reads"),
    [
        ("gen_ai.choice", True),
        ("gen_ai.user.message", True),
        ("gen_ai.client.inference.operation.details", True),
        ("gen_ai.evaluation.result", False),
        ("user.logged_in", False),
        ("", False),
        (None, False),
        (7, False),
    ],
)
def test_other_logs_are_none_of_its_business(app: App, event: Any, *, reads: bool) -> None:
    """By their name alone: what an application logs otherwise is not kept."""
    span = app.plain("request")
    write(app, span, event, body="text")
    assert (collecting_size(app.store) > 0) is reads
    assert may_be_read(event) is reads


def test_the_name_may_be_an_attribute(app: App) -> None:
    """The older events had their name among the attributes."""
    span = app.plain("request")
    write(app, span, None, attributes={"event.name": "gen_ai.choice"})  # type: ignore[arg-type]
    assert collecting_size(app.store) > 0


def test_what_the_judge_s_calls_write_is_not_kept(app: App) -> None:
    """Log records written while we judge are not the application's."""
    span = app.plain("request")

    def write_as_judge() -> None:
        JUDGING.set(app)
        write(app, span, "gen_ai.choice", body={})

    thread = threading.Thread(target=write_as_judge, name="rag-eval-otel")
    thread.start()
    thread.join()
    assert collecting_size(app.store) == 0


def test_a_failure_does_not_reach_whoever_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that logs hears nothing of ours, whatever goes wrong."""

    def fail(*_: Any) -> None:
        raise RuntimeError

    with attached(raise_errors=False) as app:
        monkeypatch.setattr(app.store._logs, "add", fail)  # noqa: SLF001
        turn(app, 1, older)
        assert app.handle.flush()
        assert len(app.exported()) == 3


def test_loggers_know_what_we_read() -> None:
    """A logger is enabled for the events of the conventions alone, and not after the end."""
    loggers = LoggerProvider()
    logger = loggers.get_logger("app")
    if not hasattr(logger, "enabled"):
        pytest.skip("this SDK's loggers do not tell whether they are enabled")
    handle = instrument(
        tracer_provider=TracerProvider(),
        logger_provider=loggers,
        judge="lexical",
        raise_errors=True,
    )
    assert logger.enabled(event_name="gen_ai.choice")
    assert not logger.enabled(event_name="something")
    handle.shutdown()
    assert not logger.enabled(event_name="gen_ai.choice")
    loggers.shutdown()


def test_after_shutdown_nothing_is_heard_and_again_once_after_a_new_start() -> None:
    """The SDK keeps a processor for ever: ours is inert, and is used again, not added again."""
    loggers, provider = LoggerProvider(), TracerProvider()
    processors = []
    for _ in range(3):
        handle = instrument(
            tracer_provider=provider, logger_provider=loggers, judge="lexical", raise_errors=True
        )
        assert handle.processor is not None
        logger, span = loggers.get_logger("app"), provider.get_tracer("app").start_span("s")
        context = set_span_in_context(span)
        logger.emit(event_name="gen_ai.choice", context=context)
        assert collecting_size(pipeline_of(handle).store) > 0
        handle.shutdown()
        logger.emit(event_name="gen_ai.choice", context=context)
        assert collecting_size(pipeline_of(handle).store) == 0
        processors.append(len(loggers._multi_log_record_processor._log_record_processors))  # noqa: SLF001
    assert processors == [1, 1, 1]
    loggers.shutdown()


def test_records_of_spans_that_never_end_are_bounded() -> None:
    """Over the limit those of the oldest span go; the count of bytes stays true."""
    logs = PendingLogs(max_bytes=10**9)
    for number in range(3000):
        logs.add((1, number), LogView(event="gen_ai.choice", body="x" * 100))
    assert logs.take((1, 0)) == ()
    assert len(logs.take((1, 2999))) == 1
    for number in range(3000):
        logs.take((1, number))
    assert logs.size == 0


def test_of_a_span_all_records_count_or_none() -> None:
    """Half of a conversation would be another one: what had to go takes the rest with it."""
    logs = PendingLogs(max_bytes=50_000)
    logs.add((1, 1), LogView(event="gen_ai.user.message", body="x" * 30_000))
    logs.add((1, 2), LogView(event="gen_ai.user.message", body="x" * 30_000))
    logs.add((1, 1), LogView(event="gen_ai.choice", body="y"))
    assert logs.size < 50_000
    assert [one.event for one in logs.take((1, 1))] == [""]
    assert [one.event for one in logs.take((1, 2))] == ["gen_ai.user.message"]
    assert logs.size == 0

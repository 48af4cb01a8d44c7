"""Spans of requests to the judge: what they say, where they stand, and that no one reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from live import SCORED, App, OnesEmbedder, attached, good_judge
from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel import OpenAIJudge, semconv
from rag_eval_otel.capture.conventions import kind_of
from rag_eval_otel.capture.sample import steps_in, turns_in
from rag_eval_otel.capture.span import Span as SpanRecord
from support import GOOD, good_parts

PRICES = {"models": {"gpt-x": {"input": 1.0, "output": 2.0}}}
METRICS = ("context_relevance",)
GOOD_REPLY = json.dumps(GOOD)


def of_judge(app: App) -> list[ReadableSpan]:
    scopes = ((span, span.instrumentation_scope) for span in app.exported())
    return [span for span, scope in scopes if scope and scope.name == semconv.JUDGE_SCOPE]


def asked_server(
    reply: Callable[[dict[str, Any]], object], **options: Any
) -> tuple[list[ReadableSpan], int, ReadableSpan]:
    """Return the judge's spans of one turn, the number of requests, and the turn's span."""
    with ScriptedOpenAI(reply) as server:
        judge = OpenAIJudge("gpt-x", base_url=server.base_url, api_key="sk-secret", retries=1)
        with attached(judge=judge, prices=PRICES, **{"judge_spans": True, **options}) as app:
            chain = app.turn()
            assert app.handle.flush(60)
            assert sum(app.counted().values()) == 1
            (anchor,) = [s for s in app.exported() if s.context == chain.get_span_context()]
            assert app.exported()[-1] is anchor
        return of_judge(app), len(server.requests), anchor


def test_each_request_is_a_span_below_the_evaluated_span() -> None:
    """It follows the GenAI conventions, leaves before the held span, and has no text."""
    spans, requests, anchor = asked_server(good_parts)
    assert len(spans) == requests == 2
    for span in spans:
        attributes = dict(span.attributes or {})
        assert (span.name, span.kind) == ("chat gpt-x", SpanKind.CLIENT)
        assert span.parent is not None
        assert span.parent.span_id == anchor.context.span_id
        assert span.context.trace_id == anchor.context.trace_id
        tokens = [attributes.pop(f"gen_ai.usage.{name}_tokens") for name in ("input", "output")]
        cost = (tokens[0] + 2 * tokens[1]) / 1e6
        assert attributes == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-x",
            "gen_ai.response.model": "gpt-x-2026-01-01",
            "gen_ai.response.finish_reasons": ("stop",),
            "rag.evaluation.cost": pytest.approx(cost),
            "rag.evaluation.currency": "USD",
        }


@pytest.mark.parametrize(
    ("reply", "error", "status"),
    [
        (HttpReply(status=503, body="secret"), "transport", 503),
        (HttpReply(status=401, body="secret"), "unauthorized", 401),
        ("secret nonsense", "unparsable", None),
    ],
)
def test_a_failed_request_says_how_it_failed(reply: object, error: str, status: int | None) -> None:
    """A retry is a span of its own, and no word of the server is on it."""
    spans, requests, _ = asked_server(lambda _: reply, metrics=METRICS)
    assert len(spans) == requests == (1 if error == "unauthorized" else 2)
    for span in spans:
        attributes = span.attributes or {}
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, error)
        assert attributes["error.type"] == error
        assert attributes.get("http.response.status_code") == status
        assert "secret" not in span.to_json()


@pytest.mark.parametrize("exported", ["foreign", "all", "none"])
def test_texts_are_on_a_span_only_if_all_texts_are_exported(exported: str) -> None:
    """The prompt quotes the question, so that both prompt and reply need the option."""
    spans, _, _ = asked_server(good_parts, export_content=exported)
    texts = "".join(span.to_json() for span in spans)
    assert ("Who founded company" in texts) == (exported == "all")
    for span in spans:
        names = {"gen_ai.input.messages", "gen_ai.output.messages"}
        assert names.issubset(span.attributes or {}) == (exported == "all")


def ask(_: str) -> str:
    return GOOD_REPLY


def of_langchain() -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage(GOOD_REPLY)] * 9))


@pytest.mark.parametrize(
    ("make", "model", "texts"),
    [
        (lambda: ask, "ask", 1),
        (of_langchain, "GenericFakeChatModel", 1),
        (good_judge, "fake", 0),
        (lambda: "lexical", None, 0),
    ],
)
def test_every_kind_of_judge_has_spans(
    make: Callable[[], Any], model: str | None, texts: int
) -> None:
    """The texts of an object with `reply` are not known; the offline judge sends nothing."""
    options: dict[str, Any] = {"metrics": METRICS, "judge_spans": True, "export_content": "all"}
    with attached(judge=make(), **options) as app:
        app.turn()
        assert app.handle.flush(60)
        assert app.counted() == {SCORED: 1}
        spans = of_judge(app)
    assert [span.name for span in spans] == ([] if model is None else [f"chat {model}"])
    for span in spans:
        said = str((span.attributes or {}).get("gen_ai.output.messages", ""))
        assert said.count("role") == texts


def shown(app: App) -> list[str]:
    others = [span for span in app.exported() if span not in of_judge(app)]
    pairs = [(span.name, dict(span.attributes or {})) for span in others]
    for _, attributes in pairs:
        attributes.pop("rag.evaluation.duration", None)
    return sorted(map(str, pairs))


@pytest.mark.parametrize("source", ["spans", "runs"])
def test_the_other_spans_are_the_same_with_and_without(source: Any) -> None:
    """Off is the default; on, the spans of a turn and its counts do not change."""
    found = []
    for is_on in (False, True):
        with attached(judge_spans=is_on) as app:
            app.turns(2, source)
            assert app.handle.flush(60)
            assert bool(of_judge(app)) == is_on
            found.append((shown(app), app.counted()))
    assert found[0] == found[1]


def test_no_one_reads_them_as_a_turn() -> None:
    """Another pipeline passes them on at once, and those who read exported spans skip them."""
    spans, _, _ = asked_server(good_parts, export_content="all")
    with attached(embedder=OnesEmbedder()) as app:
        for span in spans:
            app.processor.on_end(span)
        assert [span.name for span in app.exported()] == [span.name for span in spans]
        assert app.handle.flush(60)
        assert app.counted() == {}
    views = [SpanRecord.from_sdk(span) for span in spans]
    assert {kind_of(view) for view in views} == {"other"}
    assert turns_in(steps_in(views, most=1000) or [], contexts_from_prompt=True) == []


def test_an_error_while_a_span_is_made_costs_no_score() -> None:
    """It is counted as an internal error, and the evaluation goes on."""
    with attached(judge_spans=True, raise_errors=False) as app:
        app.pipeline.scorer.judge_tracer = cast("Any", object())
        app.turn()
        assert app.handle.flush(60)
        assert app.counted() == {SCORED: 1}
        assert app.counted_by("rag.evaluation.internal_errors", "place") == {"sink": 2}

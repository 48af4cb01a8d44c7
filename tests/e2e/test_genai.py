"""OpenTelemetry's own LangChain instrumentation, read by our processor alone.

It traces only models of OpenAI and Bedrock, so the app calls a scripted server.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from apps import company
from e2e.checks import EACH_CHECK, assert_refused
from e2e.langchain_apps import HandbookChain
from e2e.watched import Watched, instrumented
from openai_server import HttpReply, ScriptedOpenAI

langchain = pytest.importorskip("opentelemetry.instrumentation.genai.langchain")
langchain_openai = pytest.importorskip("langchain_openai")

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@contextmanager
def trace(watch: Watched, place: str = "span_only") -> Iterator[None]:
    """Trace with the place of content, spans or events."""
    providers = watch.providers
    options = {
        "tracer_provider": providers.tracer_provider,
        "logger_provider": providers.logger_provider,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CAPTURE, place)
        with instrumented(langchain.LangChainInstrumentor(), **options):
            yield


@pytest.fixture(scope="module")
def chain() -> Iterator[HandbookChain]:
    with ScriptedOpenAI(answer) as server:
        options = {"base_url": server.base_url, "api_key": "app", "max_retries": 0}
        yield HandbookChain(
            llm=langchain_openai.ChatOpenAI(model="m", disable_streaming=True, **options),
            dead_llm=langchain_openai.ChatOpenAI(model="dead", **options),
            error=openai.InternalServerError,
        )


def answer(body: Mapping[str, Any]) -> object:
    if body["model"] == "dead":
        return HttpReply(status=500)
    *system, user = (str(message["content"]) for message in body["messages"])
    return company.answer(user, "".join(system))


@EACH_CHECK
def test_turns_are_scored_from_spans_alone(
    watch: Watched, chain: HandbookChain, check: Callable[..., None]
) -> None:
    """Scores and spans arrive once, and only the turn's span waits for scores."""
    check(watch, chain)


@pytest.mark.parametrize("watch", ["no_content"], indirect=True, scope="module")
def test_missing_content_is_refused(watch: Watched, chain: HandbookChain) -> None:
    """Without captured content the turn is refused."""
    assert_refused(watch, lambda: chain.ask(company.FOUNDED), "no_answer")


@pytest.mark.parametrize("watch", ["event_only"], indirect=True, scope="module")
def test_messages_in_events_are_read(watch: Watched, chain: HandbookChain) -> None:
    """The contexts of a retrieval without texts come from the prompt in a log record."""
    run = watch.run(lambda: chain.ask(company.FOUNDED))
    assert run.outcomes == {("scored", None): 1}

"""Langfuse's spans of LangChain and of decorated functions, read by our processor alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps import company
from apps.parts import handbook
from e2e import checks
from e2e.checks import QUESTIONS, TRUTHS, assert_refused, assert_scored
from e2e.langchain_apps import HandbookChain
from e2e.watched import Watched

langfuse = pytest.importorskip("langfuse")
langchain = pytest.importorskip("langfuse.langchain")
test_turns_are_scored_from_spans_alone = checks.test_turns_are_scored_from_spans_alone

MASKS = {"[masked]": "redacted", "REDACTED": "redacted"}
"""What users put in the place of what they hide."""


@contextmanager
def trace(watch: Watched, masked: str | None = None) -> Iterator[None]:
    """Make a client, which replaces all content by ``masked``; its own exporter does nothing."""
    client = langfuse.Langfuse(
        public_key=key_of(masked),
        secret_key="of-no-account",
        tracer_provider=watch.provider,
        span_exporter=InMemorySpanExporter(),
        mask=(lambda data, **_: masked) if masked else None,
    )
    yield
    client.shutdown()


def key_of(masked: str | None) -> str:
    return f"key-{masked}"


def program(masked: str | None = None) -> HandbookChain:
    return HandbookChain(callbacks=[langchain.CallbackHandler(public_key=key_of(masked))])


def search(question: str) -> list[dict[str, Any]]:
    """Return pages as dicts."""
    return [{"id": page.id, "content": page.page_content} for page in handbook().invoke(question)]


SEARCHES = {
    "of the type of a retriever": langfuse.observe(search, as_type="retriever"),
    "of no type, by its name": langfuse.observe(search),
}


@langfuse.observe(as_type="generation")
def write(messages: list[dict[str, str]]) -> str:
    return company.answer(messages[-1]["content"], messages[0]["content"])


@langfuse.observe
def answer(question: str, how: str) -> str:
    context = "\n\n".join(page["content"] for page in SEARCHES[how](question))
    system = {"role": "system", "content": context}
    return write([system, {"role": "user", "content": question}])


@pytest.mark.parametrize("how", list(SEARCHES))
def test_decorated_functions_are_scored(watch: Watched, how: str) -> None:
    """An app without a framework is read from the types and names of its observations."""

    def use() -> None:
        for question in QUESTIONS:
            said = answer(question, how, langfuse_public_key=key_of(None))
            assert said == TRUTHS[question].answer

    assert_scored(watch, use, *QUESTIONS)


@pytest.mark.parametrize("watch", list(MASKS), indirect=True, scope="module")
def test_masked_content_is_refused(watch: Watched, request: pytest.FixtureRequest) -> None:
    """With masked content the turn is refused."""
    masked = request.node.callspec.params["watch"]
    use = program(masked)
    assert_refused(watch, lambda: use.ask(company.FOUNDED), MASKS[masked])

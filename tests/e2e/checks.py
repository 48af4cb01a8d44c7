"""Assertions on an instrumented app, for any framework and any instrumentation."""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Barrier
from typing import Protocol

import pytest

from apps import Truth, company
from apps.parts import handbook, join
from e2e.watched import PATIENCE, STATUS, Watched
from rag_eval_otel.types import SkipReason


class App(Protocol):
    """The interface of a RAG app over the handbook."""

    def ask(self, question: str) -> str:
        """Answer."""

    async def aask(self, question: str) -> str:
        """Answer asynchronously."""

    def stream(self, question: str) -> str:
        """Return the joined pieces of a streamed answer."""

    def fail(self, question: str) -> None:
        """Retrieve, then raise the model's error."""

    def chat(self, greeting: str) -> str:
        """Answer without retrieval."""


def _truth(question: str) -> Truth:
    pages = handbook().invoke(question)
    answer = company.answer(question, join(pages))
    contexts = tuple(page.page_content for page in pages)
    return Truth(question=question, contexts=contexts, answer=answer)


QUESTIONS = (company.FOUNDED, company.SPARS, company.TOWING, company.SAILMAKER)
"""Of those no two pages come second, which every vector store would order in its own way."""
TRUTHS = {question: _truth(question) for question in (*QUESTIONS, company.HANDBOOK)}


def assert_scored(watch: Watched, use: Callable[[], object], *questions: str) -> None:
    """Assert that ``use`` gives these scored turns, each on one span, and no others."""
    run = watch.run(use)
    assert run.truths == Counter(TRUTHS[question] for question in questions)
    assert run.outcomes == {("scored", None): len(questions)}
    assert sum(STATUS in span.attributes for span in run.spans) == len(questions)


def assert_refused(watch: Watched, use: Callable[[], object], *reasons: SkipReason) -> None:
    """Assert that each trace of ``use`` is skipped for its reason, and nothing is scored."""
    run = watch.run(use)
    assert run.outcomes == Counter(("skipped", reason) for reason in reasons)
    assert run.spans
    assert {span.attributes.get(STATUS) for span in run.spans} <= {None, "skipped"}


def assert_turns_in_a_row(watch: Watched, app: App) -> None:
    def use() -> None:
        for question in QUESTIONS:
            assert app.ask(question) == TRUTHS[question].answer

    assert_scored(watch, use, *QUESTIONS)


def assert_awaited_turns(watch: Watched, app: App) -> None:
    async def both() -> list[str]:
        return await asyncio.gather(app.aask(company.SPARS), app.aask(company.TOWING))

    def use() -> None:
        answers = [TRUTHS[question].answer for question in (company.SPARS, company.TOWING)]
        assert asyncio.run(both()) == answers

    assert_scored(watch, use, company.SPARS, company.TOWING)


def assert_turns_at_once(watch: Watched, app: App) -> None:
    """Assert that two concurrent turns in threads of one request are scored separately."""
    ready = Barrier(2)

    def ask(question: str) -> str:
        ready.wait(PATIENCE)
        return app.ask(question)

    def use() -> None:
        contexts = copy_context(), copy_context()
        with ThreadPoolExecutor(2) as pool:
            for context, question in zip(contexts, (company.FOUNDED, company.SPARS), strict=True):
                pool.submit(context.run, ask, question)

    assert_scored(watch, use, company.FOUNDED, company.SPARS)


def assert_streamed_turn(watch: Watched, app: App) -> None:
    """A streamed answer is scored as a whole."""

    def use() -> None:
        assert app.stream(company.SAILMAKER) == TRUTHS[company.SAILMAKER].answer

    assert_scored(watch, use, company.SAILMAKER)


def assert_failure_refused(watch: Watched, app: App) -> None:
    assert_refused(watch, lambda: app.fail(company.FOUNDED), "error")


def assert_only_the_turn_waits(watch: Watched, app: App) -> None:
    """Assert that only one span of a turn waits for the judge; spans outside RAG do not."""

    def use() -> None:
        with watch.judge.stopped():
            app.ask(company.HANDBOOK)
            watch.passed_on.wait_for(lambda: len(watch.waiting()) == 1)
            waiting.extend(watch.waiting())
            app.chat(company.GREETING)
            assert watch.waiting() == waiting

    waiting: list[tuple[int, int]] = []
    run = watch.run(use)
    assert run.truths == {TRUTHS[company.HANDBOOK]: 1}
    assert [(s.trace_id, s.span_id) for s in run.spans if STATUS in s.attributes] == waiting


def assert_nothing_lost_or_doubled(watch: Watched, app: App) -> None:
    assert watch.run(lambda: app.ask(company.FOUNDED)).truths
    arrived = Counter((span.trace_id, span.span_id) for span in watch.receiver.spans())
    assert arrived == Counter(watch.started.by_app)
    assert watch.started.by_judge == []


CHECKS: tuple[Callable[[Watched, App], None], ...] = (
    assert_turns_in_a_row,
    assert_awaited_turns,
    assert_turns_at_once,
    assert_streamed_turn,
    assert_failure_refused,
    assert_only_the_turn_waits,
    assert_nothing_lost_or_doubled,
)


EACH_CHECK = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@EACH_CHECK
def test_turns_are_scored_from_spans_alone(
    watch: Watched, check: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    """Scores and spans arrive once, and only the turn's span waits for scores."""
    check(watch, request.module.program())

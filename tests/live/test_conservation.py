"""Random applications over random options and faults: no turn and no span is lost or doubled.

Each seed makes an application with a real tracer provider and a judge behind HTTP. Its operations
are turns of several kinds and threads, repeats, faults of the server, flushes, forks, and the end.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import Span

from live import KIND, App, answered, asked, attached, generated, retrieved, said, told
from openai_server import HttpReply, ScriptedOpenAI
from parallel import at_once, forking, in_child
from rag_eval_otel import Evaluation, OpenAIEmbedder, OpenAIJudge, RagEvalSpanProcessor, instrument
from runs import run_chain
from support import good_parts

SEEDS = range(max(10, settings().max_examples // 5))
PATIENCE = 60.0  # seconds, for a slow machine
MODES = ("good", "good", "refused", "limited", "hanging", "prose", "too long", "mixed", "mixed")
PRICES = {"models": {"m": {"input": 1000, "output": 1000}, "e": {"input": 100}}}


class Recorder(SpanProcessor):
    """The application's own span processor, which counts the spans that reach it."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        if span.name != "evaluate turn":  # how many turns are late depends on the machine
            self.ended.append((span.context.trace_id, span.context.span_id))


class Faults:
    """The replies of the server of judge and embedder, in the present ``mode``."""

    def __init__(self, rng: random.Random) -> None:
        self.mode = "good"
        self._rng = random.Random(rng.random())
        self._lock = threading.Lock()

    def chat(self, body: dict[str, Any]) -> object:
        return self._bad() or good_parts(body)

    def embed(self, text: str) -> Sequence[float] | HttpReply:
        return self._bad() or [1.0, float(len(text))]

    def _bad(self) -> HttpReply | None:
        with self._lock:
            mode = self._rng.choice(MODES[:-2]) if self.mode == "mixed" else self.mode
        too_long = {"message": "m", "code": "context_length_exceeded"}
        bad = {
            "refused": HttpReply(status=500, body={"error": {"message": "down"}}),
            "limited": HttpReply(
                status=429, headers={"Retry-After": "0.2"}, body={"error": {"message": "slow"}}
            ),
            "hanging": HttpReply(status=500, delay=3.0),
            "prose": HttpReply(body={"id": "x", "choices": []}),
            "too long": HttpReply(status=400, body={"error": too_long}),
        }
        return bad.get(mode)


def chosen_options(rng: random.Random) -> dict[str, Any]:
    rules: list[Any] = [{"match": {"route": "/ask"}, "rate": 0.4}]
    some: dict[str, Sequence[Any]] = {
        "metrics": (("default",), ("default",), ("dual",), ("faithfulness",)),
        "cascade": (None, None, "lexical"),
        "budget": (
            *(None, None, "3 requests/day", "12 requests/day, 1 requests/minute"),
            *("2 turns/minute", "1 turns/hour, 5 requests/minute"),
            *("2000 tokens/day", "2 USD/day", "60 requests/day"),
        ),
        "sample_rate": (*(1.0, 1.0, 1.0, 0.5, 0.0), *(rules, [*rules, {"rate": 0.5}])),
        "max_held": (*[1024] * 8, 1, 3),
        "concurrency": (16, 4, 1),
        "hold_seconds": (60, 60, 0.5, 0.02, 0),
        "max_text_chars": (100_000, 100),
        "evaluation_timeout": (0.5, 0.5, 0.05),
        "export_content": ("foreign", "none", "all"),
        "redact": (None, None, str.upper, failing_redaction),
        "shutdown_seconds": (5.0, 0.3, 0.0),
        "explanations": (False, True),
        "drift": (True, False),
    }
    options = {name: rng.choice(values) for name, values in some.items()}
    if options["cascade"] is not None:
        options["sample_rate"] = options["sample_rate"] or 0.1
    return options


def failing_redaction(text: str) -> str:
    if "3" in text:
        msg = "cannot redact"
        raise ValueError(msg)
    return text


class Application:
    """An instrumented application that counts its turns and its spans."""

    def __init__(self, rng: random.Random, server: ScriptedOpenAI, faults: Faults) -> None:
        self.rng = rng
        self.faults = faults
        self.recorder = Recorder()
        self.provider = TracerProvider()
        self.is_wrapped = rng.random() < 0.5
        if not self.is_wrapped:
            self.provider.add_span_processor(self.recorder)
        self.open: list[tuple[int, Span]] = []
        self.started: list[Span] = []
        self.turns = 0
        self.extra = 0  # spans of LangChain runs
        self.seen: list[Evaluation] = []
        self.fails_every = rng.choice((0, 0, 3))
        self.options = chosen_options(rng)
        common: dict[str, Any] = {
            "judge": OpenAIJudge(
                "m",
                base_url=server.base_url,
                api_key="k",
                timeout=rng.choice((0.3, 30.0)),
                retries=rng.choice((0, 2)),
            ),
            "embedder": OpenAIEmbedder("e", base_url=server.base_url, api_key="k"),
            "prices": PRICES,
            "raise_errors": False,
        }
        common |= {"tracer_provider": self.provider, "sinks": [self.sink], **self.options}
        if self.is_wrapped:
            processor = RagEvalSpanProcessor(self.recorder, **common)
            self.provider.add_span_processor(processor)
            self.handle = processor.handle
        else:
            self.handle = instrument(**common)
        self.tracer = self.provider.get_tracer("openinference.instrumentation.fake")
        self._lock = threading.Lock()

    def sink(self, evaluation: Evaluation) -> None:
        self.seen.append(evaluation)
        if self.fails_every and len(self.seen) % self.fails_every == 0:
            raise ValueError(self.fails_every)

    def start(self, name: str, parent: Span | None, attributes: Mapping[str, Any]) -> Span:
        span = self.tracer.start_span(name, context=App.below(parent), attributes=attributes)
        with self._lock:
            self.started.append(span)
        return span

    def found(self, turns: int = 1) -> None:
        with self._lock:
            self.turns += turns

    def recorded(self, number: int, parent: Span | None = None) -> None:
        texts = {"question": asked(number), "contexts": told(number), "answer": said(number)}
        told_on_span = {f"rag.{name}": text for name, text in texts.items()}
        span = self.start("turn", parent, told_on_span)
        if parent is None:
            self.found()
        span.end()

    def traced(self, number: int, parent: Span | None = None, *, retry: bool = False) -> None:
        chain = self.start("chain", parent, {KIND: "CHAIN", **answered(number)})
        self.start("retriever", chain, {KIND: "RETRIEVER", **retrieved(number)}).end()
        for _ in range(1 + retry):
            self.start("llm", chain, {KIND: "LLM", **generated(number)}).end()
        if parent is None:
            self.found()
        chain.end()

    def request(self, number: int) -> None:
        request = self.start("POST /ask", None, {"http.route": "/ask"})
        self.found()
        self.recorded(number, request) if number % 2 else self.traced(number, request)
        request.end()

    def session(self, number: int) -> None:
        session = self.start("session", None, {})
        self.found(2)
        self.recorded(number, session)
        self.recorded(number + 1, session)
        session.end()

    def failed(self, number: int) -> None:
        self.traced(number, retry=True)

    def begin(self, number: int) -> None:
        chain = self.start("chain", None, {KIND: "CHAIN", **answered(number)})
        self.start("retriever", chain, {KIND: "RETRIEVER", **retrieved(number)}).end()
        with self._lock:
            self.open.append((number, chain))

    def finish(self, *_: object) -> None:
        with self._lock:
            begun, self.open = self.open, []
        for number, chain in begun:
            self.start("llm", chain, {KIND: "LLM", **generated(number)}).end()
            self.found()
            chain.end()

    def run_tree(self, number: int) -> None:
        self.found()
        with self._lock:
            self.extra += 3
        run_chain(self.handle.callback, f"chain {number}")

    def plain(self, number: int) -> None:
        outer = self.start("job", None, {"number": number})
        self.start("query", outer, {"db.system": "x"}).end()
        outer.end()

    def some_turns(self) -> None:
        kinds = [self.recorded, self.traced, self.request, self.run_tree, self.plain]
        kinds += [self.session, self.failed, self.begin, self.finish]
        for _ in range(self.rng.randint(1, 6)):
            self.rng.choice(kinds)(self.rng.randint(1, 12))

    def threads(self) -> None:
        kinds = [self.recorded, self.traced, self.request, self.run_tree]
        plans = [
            [(self.rng.choice(kinds), self.rng.randint(1, 12)) for _ in range(3)] for _ in "ab"
        ]

        def run(plan: Sequence[tuple[Callable[[int], None], int]]) -> None:
            for make, number in plan:
                make(number)

        flushes = [self.flush] if self.rng.random() < 0.5 else []
        at_once(*[partial(run, plan) for plan in plans], *flushes)

    def flush(self) -> None:
        seconds = self.rng.choice((0.0, 0.01, 0.3, 2.0))
        if self.rng.random() < 0.5:
            self.handle.flush(seconds)
        else:
            self.provider.force_flush(int(seconds * 1000))

    def change(self) -> None:
        self.faults.mode = self.rng.choice(MODES)

    def pause(self) -> None:
        threading.Event().wait(self.rng.choice((0.001, 0.05, 0.3)))

    def quiet(self) -> None:
        self.finish()
        self.wait(lambda: self.handle.stats.captured >= self.turns)
        self.check()

    def wait(self, is_so: Callable[[], bool] = lambda: True) -> None:
        give_up = time.monotonic() + PATIENCE
        while (stats := self.handle.stats).pending or stats.held or not is_so():
            assert stats.pending >= 0, stats
            assert time.monotonic() < give_up, (stats, self.turns)
            threading.Event().wait(0.01)

    def check(self) -> None:
        stats = self.handle.stats
        assert (stats.captured, sum(stats.turns.values())) == (self.turns, self.turns), stats
        assert (stats.pending, stats.held, stats.scoring) == (0, 0, 0), stats
        outcomes = Counter[str]()
        for name, number in stats.turns.items():
            outcomes[name.partition(" ")[0]] += number
        evaluated = outcomes["scored"] + outcomes["unscored"]
        assert evaluated <= len(self.seen) <= evaluated + outcomes["error"], stats
        allowed = {"sink", "redis"}
        assert not set(stats.failures) - allowed, stats

    def fork(self) -> None:
        """Make turns in a forked child, which counts its own turns and spans only."""

        def child() -> bool:
            self.turns = self.extra = 0
            self.started, self.recorder.ended, self.seen, self.open = [], [], [], []
            self.some_turns()
            self.finish()
            self.handle.shutdown(2.0)
            self.quiet()
            self.check_spans()
            return True

        assert in_child(child)

    def run(self) -> None:
        steps = [self.some_turns] * 4 + [self.threads] * 2 + [self.change] * 3
        steps += [self.flush, self.pause, self.quiet, self.fork]
        for _ in range(self.rng.randint(4, 12)):
            self.rng.choice(steps)()

    def end(self) -> None:
        """Shut down while a thread still makes turns; later turns are dropped, or only spans."""
        late = threading.Thread(target=self.some_turns)
        late.start()
        self.handle.shutdown(self.rng.choice((None, 0.0, 0.1, 3.0)))
        late.join()
        self.finish()
        self.recorded(1)
        # On a busy machine, the shutdown may end before evaluations are cancelled. A processor that
        # was detached does not see later turns.
        self.wait(lambda: not self.is_wrapped or self.handle.stats.captured >= self.turns)
        assert self.handle.stats.captured <= self.turns

    def check_spans(self) -> None:
        ids = Counter(self.recorder.ended)
        assert set(ids.values()) <= {1}
        contexts = [span.get_span_context() for span in self.started]
        own = {(context.trace_id, context.span_id) for context in contexts}
        assert own <= set(ids), f"{len(own - set(ids))} spans are lost"
        assert len(ids) - len(own) == self.extra


@pytest.fixture
def silent() -> Iterator[None]:
    """Log nothing: a child of a fork waits for ever for a stream that a thread was writing to."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@forking
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("seed", SEEDS)
def test_turns_and_spans_are_conserved(seed: int) -> None:
    """Each turn has one outcome at each quiet point, and each span leaves once."""
    rng = random.Random(seed)
    faults = Faults(rng)
    with ScriptedOpenAI(faults.chat, embed=faults.embed) as server:
        app = Application(rng, server, faults)
        try:
            app.run()
            if rng.random() < 0.6:
                app.quiet()
            app.end()
            app.check_spans()
        finally:
            app.handle.shutdown(0.0)
            app.provider.shutdown()


def test_a_turn_that_begins_during_a_flush_is_one_turn() -> None:
    """A flush does not read a trace whose first spans came after it looked for open spans."""
    with attached() as app:
        refresh, chains = app.store.open_spans.refresh, list[Span]()

        def refreshed() -> None:
            refresh()
            if not chains:
                chains.append(app.chain(1))
                app.retrieve(1, chains[0])

        app.turn(2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app.store.open_spans, "refresh", refreshed)
            app.handle.flush(60)
        app.generate(1, chains[0])
        chains[0].end()
        assert app.handle.flush(60)
        assert app.counted() == {("scored", None): 2}

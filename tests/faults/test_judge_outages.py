"""Faults of the judge and of the embedder: the real client in front of a server that fails."""

import asyncio
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from email.utils import formatdate
from typing import Any

import pytest

import questions
from live import App, Row, attached
from openai_server import HttpReply, ScriptedOpenAI
from rag_eval_otel import Config
from rag_eval_otel.embed import OpenAIEmbedder
from rag_eval_otel.errors import JudgeTimeoutError
from rag_eval_otel.judge.endpoint import Endpoint
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.types import Evaluation
from support import good_parts

Answer = Callable[[dict[str, Any]], object]

SECRET = "sk-not-to-be-shown"
SLOTS = 16
PATIENCE = 60.0
TASK = questions.context_relevance("Why?", ["Because."], voice=1)


class LiveJudge(OpenAIJudge):
    """A judge whose endpoint in live scoring can be inspected."""

    live: Endpoint

    def with_endpoint(self, endpoint: Endpoint) -> "LiveJudge":
        self.live = endpoint
        return super().with_endpoint(endpoint)


@contextmanager
def scoring(
    reply: Answer, *, embed: Callable[[str], Any] | None = None, **options: Any
) -> Iterator[tuple[App, LiveJudge, ScriptedOpenAI]]:
    """Attach the pipeline with a judge, whose server answers with ``reply``, and one metric."""
    with ScriptedOpenAI(reply, embed) as server:
        judge = LiveJudge("judge-1", base_url=server.base_url, api_key=SECRET)
        chosen = {"metrics": ["faithfulness"], "hold_seconds": PATIENCE, "judge": judge, **options}
        if embed is not None:
            chosen["embedder"] = OpenAIEmbedder(
                "embedder-1", base_url=server.base_url, api_key=SECRET
            )
        with attached(**chosen) as app:
            yield app, judge, server


def run_turns(app: App, number: int, first: int = 0) -> None:
    for i in range(first, first + number):
        app.turn(i)
    assert app.handle.flush(120)


def scored(app: App) -> int:
    return sum(count for (outcome, _), count in app.counted().items() if outcome == "scored")


def counted_attempts(judge: LiveJudge) -> tuple[list[str], list[str]]:
    """Return the outcomes of attempts that began before the breaker opened, and of probes.

    An attempt that was under way when the breaker opened ends soon after it, before any probe.
    """
    before, probes, opened = list[str](), list[str](), list[float]()

    def observe(outcome: str, seconds: float) -> None:
        now = time.monotonic()
        is_probe = bool(opened) and now - seconds > opened[0]
        (probes if is_probe else before).append(outcome)
        if judge.live.breaker.is_open and not opened:
            opened.append(now)

    judge.live.observers.append(observe)
    return before, probes


def always(reply: object) -> Answer:
    return lambda _: reply


@pytest.mark.slow
@pytest.mark.fault(1, expected="at most 5 failed requests, and those under way, then one probe")
@pytest.mark.parametrize("concurrency", [1, SLOTS])
def test_fault_01_a_judge_that_refuses_connections(concurrency: int, row: Row) -> None:
    """Sixty turns cost five attempts, or what was under way, and probes; all spans leave."""
    with ScriptedOpenAI(good_parts) as server:
        address = server.base_url
    judge = LiveJudge("judge-1", base_url=address, api_key=SECRET)
    options = {"metrics": ["faithfulness"], "concurrency": concurrency, "evaluation_timeout": 2.0}
    with attached(judge=judge, **options) as app:
        before, probes = counted_attempts(judge)
        run_turns(app, 60)
        row.check(app, turns=60, spans=180, secrets=[SECRET, "founded by"])
        assert 5 <= len(before) <= (5 if concurrency == 1 else 5 + SLOTS)
        assert 1 <= len(probes) <= 8
        assert judge.live.breaker.is_open
        row.measured(
            f"requests for 60 turns, {concurrency} at a time",
            f"{len(before)}, {len(probes)} probes",
        )


@pytest.mark.slow
@pytest.mark.fault(2, expected="each evaluation ends at its deadline (30 s by default)")
def test_fault_02_a_judge_that_never_answers(row: Row) -> None:
    """Four turns run out of time; their places are free for the turns after them."""
    assert Config().evaluation_timeout == 30
    hangs = threading.Event()
    hangs.set()

    def reply(body: dict[str, Any]) -> object:
        return HttpReply(delay=600) if hangs.is_set() else good_parts(body)

    with scoring(reply, evaluation_timeout=3.0, concurrency=2) as (app, _, _):
        run_turns(app, 4)
        assert app.counted() == {("error", "timeout"): 4}
        hangs.clear()
        run_turns(app, 5, first=4)
        assert scored(app) == 5
        row.check(app, turns=9, spans=27)
        row.measured("turns that timed out, then scored", "4, 5")


@pytest.mark.slow
@pytest.mark.fault(3, expected="an attempt ends after its timeout, whatever the server sends")
def test_fault_03_a_judge_that_drips(row: Row) -> None:
    """A byte every 20 ms keeps the connection alive, and does not prolong the attempt."""
    sent, ended = [0], threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            with suppress(OSError), closing(listening.accept()[0]) as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not ended.wait(0.02):
                    connection.sendall(b" ")
                    sent[0] += 1

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        judge = OpenAIJudge("m", base_url=address, api_key=SECRET, timeout=1.0, retries=0)
        began = time.monotonic()
        with pytest.raises(JudgeTimeoutError):
            asyncio.run(judge.reply([TASK]))
        row.measured("seconds with a timeout of 1 s", f"{time.monotonic() - began:.1f}")
        ended.set()
        thread.join(60)
    assert 0 < sent[0] < 100_000


@pytest.mark.slow
@pytest.mark.fault(4, expected="no request before the time; turns that cannot wait fail at once")
@pytest.mark.parametrize("told", ["20", "date", "3600"])
def test_fault_04_a_long_retry_after(told: str, row: Row) -> None:
    """Only what was under way is sent; nothing waits, and each turn says rate_limited."""
    after = formatdate(time.time() + 90, usegmt=True) if told == "date" else told
    refusal = HttpReply(status=429, headers={"Retry-After": after})
    with scoring(always(refusal), hold_seconds=10.0) as (app, _, server):
        run_turns(app, 60)
        assert app.counted() == {("error", "rate_limited"): 60}
        assert len(server.requests) <= SLOTS
        row.check(app, turns=60, spans=180, secrets=[SECRET])
        row.measured(f"requests for 60 turns, Retry-After: {told}", len(server.requests))


@pytest.mark.slow
@pytest.mark.fault(4, expected="one pause for all; refused requests are sent again, no retries")
def test_fault_04_a_short_retry_after(row: Row) -> None:
    """After a burst over the limit nothing is sent for two seconds, and every turn is scored."""
    refusal = HttpReply(status=429, headers={"Retry-After": "2"})
    first: list[float] = []
    attempts: list[tuple[float, float, str]] = []

    def reply(body: dict[str, Any]) -> object:
        first.append(time.monotonic())
        return refusal if first[-1] < first[0] + 1 else good_parts(body)

    def observe(outcome: str, seconds: float) -> None:
        now = time.monotonic()
        attempts.append((now - seconds, now, outcome))

    with scoring(reply) as (app, judge, server):
        judge.live.observers.append(observe)
        run_turns(app, 40)
        assert scored(app) == 40
        ends = [end for _, end, outcome in attempts if outcome == "rate_limited"]
        begins = [begin for begin, _, _ in attempts]
        assert 1 <= len(ends) <= SLOTS
        assert not [begin for begin in begins if any(end < begin < end + 1.9 for end in ends)]
        row.check(app, turns=40, spans=120)
        row.measured("requests for 40 turns", len(server.requests))


@pytest.mark.slow
@pytest.mark.fault(5, expected="at most as many retries as first attempts; the breaker opens")
def test_fault_05_a_storm_of_429(row: Row) -> None:
    """Pauses of our own, and after five of them no more requests."""
    with scoring(always(HttpReply(status=429)), evaluation_timeout=5.0) as (app, judge, server):
        run_turns(app, 60)
        assert len(server.requests) <= 5 * SLOTS
        assert judge.live.breaker.is_open
        assert scored(app) == 0
        row.check(app, turns=60, spans=180)
        row.measured("requests for 60 turns", len(server.requests))


@pytest.mark.slow
@pytest.mark.fault(6, expected="10 %: at least 97 % of turns scored, 50 %: 70 %, in each metric")
@pytest.mark.parametrize(("percent", "least"), [(10, 0.97), (50, 0.7)])
def test_fault_06_server_errors(percent: int, least: float, row: Row) -> None:
    """Two requests a turn to a server that fails by chance; a turn counts with all its scores."""
    draw, complete = random.Random(percent), list[bool]()

    class Kept:
        def __call__(self, evaluation: Evaluation) -> None:
            complete.append(all(score.value is not None for score in evaluation.scores))

    def reply(body: dict[str, Any]) -> object:
        fails = draw.random() < percent / 100
        return HttpReply(status=draw.choice((500, 503))) if fails else good_parts(body)

    options = {"metrics": ["faithfulness", "context_relevance"], "sinks": [Kept()]}
    with scoring(reply, hold_seconds=120.0, **options) as (app, _, server):
        for first in range(0, 1000, 50):
            run_turns(app, 50, first=first)
        assert complete.count(True) >= least * 1000
        assert len(server.requests) <= 2 * 2000
        row.check(app, turns=1000, spans=3000)
        row.measured(
            f"turns with all scores of 1,000 with {percent} % errors", complete.count(True)
        )
        row.measured("requests, of which 2,000 at most are first attempts", len(server.requests))


@pytest.mark.fault(7, expected="no retries; 401 and 403 cost one request, 404 five; one log line")
@pytest.mark.parametrize(("status", "requests"), [(401, 1), (403, 1), (404, 5)])
def test_fault_07_wrong_names(
    status: int, requests: int, row: Row, caplog: pytest.LogCaptureFixture
) -> None:
    """The breaker opens, and says so once."""
    body = {"error": {"message": f"no access with {SECRET}"}}
    refusal = HttpReply(status=status, body=body)
    with scoring(always(refusal), concurrency=1) as (app, _, server):
        run_turns(app, 20)
        assert len(server.requests) == requests
        row.check(app, turns=20, spans=60, secrets=[SECRET])
        row.measured(f"requests for 20 turns, {status}", requests)
    fails = r"rag_eval_otel: the judge openai/judge-1 at http://127\.0\.0\.1:\d+\S* fails"
    assert len(re.findall(fails, caplog.text)) == 1


@pytest.mark.slow
@pytest.mark.fault(9, expected="no score; five requests, then the breaker opens; a log line")
@pytest.mark.parametrize(
    "content",
    ["The answer looks fine.", '{"verdicts": [1', "I can't help with that.", ""],
    ids=["prose", "cut off", "refused", "empty"],
)
def test_fault_09_useless_replies(content: str, row: Row, caplog: pytest.LogCaptureFixture) -> None:
    """A judge that talks about something else is as good as down."""
    with scoring(always(content), concurrency=1) as (app, _, server):
        run_turns(app, 50)
        assert len(server.requests) == 5
        statuses = {status for status in app.statuses() if status is not None}
        assert statuses <= {"unscored", "error"}
        assert statuses >= {"unscored"}
        row.check(app, turns=50, spans=150)
        row.measured("requests for 50 turns", len(server.requests))
    assert len(re.findall(r"the judge openai/judge-1 at \S+ fails \(unparsable", caplog.text)) == 1


@pytest.mark.slow
@pytest.mark.fault("embedder", expected="as for the judge; metrics without embeddings are scored")
def test_fault_embedder_down(row: Row) -> None:
    """Sixty turns cost the embedder what was under way, and probes; each has its other score."""
    down = HttpReply(status=500)
    metrics = ["answer_relevancy", "faithfulness"]
    options = {"metrics": metrics, "evaluation_timeout": 2.0}
    with scoring(good_parts, embed=lambda _: down, **options) as (app, _, server):
        run_turns(app, 60)
        sent = sum(request.path.endswith("/embeddings") for request in server.requests)
        assert 5 <= sent <= 5 + SLOTS + 8, "with the probes"
        assert scored(app) == 60
        row.check(app, turns=60, spans=180, secrets=[SECRET])
        row.measured("requests to the embedder for 60 turns", sent)

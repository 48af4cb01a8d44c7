"""Processes that share one budget in a real Redis or Valkey server, which may be killed or hang."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from e2e.programs import eventually
from e2e.redis_server import serving
from openai_server import ScriptedOpenAI
from otlp_receiver import OtlpReceiver
from processes import PATIENCE, Stage, stage
from support import good_parts

PROCESSES = 4
OUTAGE = "the budget's Redis cannot be reached"

SCRIPT = """
import sys
from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=1e8)
metrics.set_meter_provider(MeterProvider([reader]))
from served import handle, turn
for line in sys.stdin:
    for _ in range(int(line)):
        turn()
    print("done" if handle.flush(100) else "late", flush=True)
"""
"""For each number on stdin: make this number of turns, and say when all are evaluated."""

Process: TypeAlias = "subprocess.Popen[str]"


@contextmanager
def processes(
    found: Stage, url: str, count: int = PROCESSES, **more: str
) -> Iterator[list[Process]]:
    """Run processes with a shared budget, each of whose turns takes one request."""
    variables = {
        "RAG_EVAL_METRICS": "response_groundedness",
        "RAG_EVAL_EMBEDDER": "hashing",
        "RAG_EVAL_REDIS": url,
        **more,
    }
    with ExitStack() as stack:
        yield [stack.enter_context(found.running("-c", SCRIPT, **variables)) for _ in range(count)]


def make(those: list[Process], turns: int) -> None:
    """Let each process make turns at the same time as the others, and wait for their scores."""
    for process in those:
        assert process.stdin
        process.stdin.write(f"{turns}\n")
        process.stdin.flush()
    for process in those:
        assert process.stdout
        told = process.stdout.readline()
        assert told == "done\n", told or process.communicate()[1]


def end(those: list[Process]) -> list[str]:
    errors = []
    for process in those:
        _, told = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, told
        assert "Traceback" not in told, told
        errors.append(told)
    return errors


def all_counted(found: Stage, turns: int) -> Counter[Any]:
    """Assert that each turn is on one span and counted once; return the turns by outcome."""
    assert len(found.spans()) == turns
    assert len({span.span_id for span in found.spans()}) == turns
    outcomes: Counter[Any] = Counter()
    for point in found.receiver.metrics():
        if point.name == "rag.evaluation.turns":
            outcome = (point.attributes["status"], point.attributes.get("reason"))
            outcomes[outcome] += int(point.value or 0)
    assert sum(outcomes.values()) == turns
    assert set(outcomes) <= {("scored", None), ("skipped", "budget"), ("error", "budget")}
    return outcomes


def failures(found: Stage) -> float:
    name, place = "rag.evaluation.internal_errors", "redis"
    points = [one for one in found.receiver.metrics() if one.name == name]
    return sum(one.value or 0 for one in points if one.attributes["place"] == place)


def test_processes_never_exceed_a_budget_of_requests(tmp_path: Path) -> None:
    """Four processes with sixteen requests under way each send exactly what the budget allows."""
    limit, each = 50, 40
    with stage(latency=0.05) as found, serving(tmp_path) as server:
        with processes(found, server.url(), RAG_EVAL_BUDGET=f"{limit} requests/day") as those:
            make(those, each)
            end(those)
        assert len(found.judge.requests) == server.counted() == limit
        outcomes = all_counted(found, PROCESSES * each)
        assert failures(found) == 0
    assert outcomes["scored", None] == limit


def test_processes_exceed_a_budget_of_money_by_one_request_each(tmp_path: Path) -> None:
    """Each reply is far longer than the first estimate, so each process may exceed the budget."""
    words, price = 2_000, 100.0
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"models": {"judge": {"input": price, "output": price}}}))

    def reply(body: dict[str, Any]) -> object:
        return {**good_parts(body), "remark": "so " * words}

    with OtlpReceiver() as receiver, ScriptedOpenAI(reply) as judge, serving(tmp_path) as server:
        found = Stage(receiver=receiver, judge=judge)
        options = {
            "RAG_EVAL_BUDGET": "2 USD/day",
            "RAG_EVAL_PRICES": str(prices),
            "RAG_EVAL_CONCURRENCY": "1",
        }
        with processes(found, server.url(), **options) as those:
            make(those, 10)
            end(those)
        spent = server.counted() / 1e9
        outcomes = all_counted(found, PROCESSES * 10)
        one = spent / len(judge.requests)
        assert failures(found) == 0
    assert one > words * price / 1e6
    assert 2 - 2 * one <= spent <= 2 + PROCESSES * one
    assert outcomes["skipped", "budget"] + outcomes["error", "budget"] == 40 - len(judge.requests)


@pytest.mark.parametrize(
    "options", [("--appendonly", "yes", "--appendfsync", "always"), ()], ids=["kept", "lost"]
)
def test_the_server_is_killed_and_comes_back(tmp_path: Path, options: tuple[str, ...]) -> None:
    """While it is away, each process counts alone, and no turn is lost; then they share again."""
    limit, rest = 400, 150
    with stage() as found, serving(tmp_path, *options) as server:
        with processes(found, server.url(), RAG_EVAL_BUDGET=f"{limit} requests/day") as those:
            make(those, 10)
            assert len(found.judge.requests) == server.counted() == 10 * PROCESSES
            server.kill()
            make(those, 10)
            assert len(found.judge.requests) == 20 * PROCESSES
            server.start()
            before, made = server.counted(), 20

            def is_counted() -> bool:
                nonlocal made
                make(those, 1)
                made += 1
                return server.counted() >= before + PROCESSES

            eventually(is_counted, "all processes count in Redis")
            make(those, rest)
            errors = end(those)
        outcomes = all_counted(found, PROCESSES * (made + rest))
        assert server.counted() == limit
        assert limit <= len(found.judge.requests) <= limit + made * PROCESSES
        assert failures(found) >= PROCESSES
    assert outcomes["scored", None] == len(found.judge.requests)
    assert [told.count(OUTAGE) > 0 for told in errors] == [True] * PROCESSES


def test_a_server_that_hangs_costs_no_turn(tmp_path: Path) -> None:
    """A server that accepts connections and does not answer: each process counts alone."""
    limit = 30
    with stage() as found, serving(tmp_path) as server:
        url = server.url(patience=None)
        with processes(found, url, 2, RAG_EVAL_BUDGET=f"{limit} requests/day") as those:
            make(those, 5)
            server.send(signal.SIGSTOP)
            make(those, 50)
            server.send(signal.SIGCONT)
            make(those, 50)
            errors = end(those)
        outcomes = all_counted(found, 2 * 105)
        assert failures(found) >= 2
        assert limit <= len(found.judge.requests) <= 2 * limit
    assert outcomes["scored", None] == len(found.judge.requests)
    assert all(OUTAGE in told for told in errors)

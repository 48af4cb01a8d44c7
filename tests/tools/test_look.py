"""`rag-eval-otel look`: its traffic, what its page shows, and what it starts and ends."""

import asyncio
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from email.message import Message
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import set_span_in_context

from processes import environment
from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.semconv import EVALUATION_STATUS
from rag_eval_otel.tools import stack
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.look import Look, Turns, served
from rag_eval_otel.tools.stack import Programs, started
from rag_eval_otel.tools.traffic import PHASES, HandbookJudge, planned, play

HOSTILE = "<img src=x onerror=alert(1)>"


def got(url: str | Request) -> tuple[Message, str]:
    with urlopen(url) as reply:  # noqa: S310  # of the test's own server
        return reply.headers, reply.read().decode()


def test_phases_follow_each_other_with_their_share_of_bad_answers() -> None:
    """Every second answer of the bad deployment is wrong, and few others; then all begins anew."""
    turns = [*islice(planned(1200), 1201)]
    *cycle, after = turns
    assert list(dict.fromkeys(phase for phase, _ in cycle)) == list(PHASES)
    assert after[0] == PHASES[0]
    bad = Counter(phase.name for phase, turn in cycle if turn.defect != "none")
    counted = Counter(phase.name for phase, _ in cycle)
    shares = [bad[phase.name] / counted[phase.name] for phase in PHASES]
    assert shares == pytest.approx([1 / 30, 1 / 2, 1 / 30, 1 / 30, 1 / 30], abs=0.02)


@pytest.mark.slow
def test_each_turn_of_the_traffic_arrives() -> None:
    """Once, with its contexts, and with scores where the judge answers."""
    turns, begun, waits = Turns(), list[str](), iter([False] * 60 + [True])
    end = {"begin": begun.append, "wait": lambda _: next(waits)}
    counts = play({"traces": [turns]}, minutes=1, rate=1, **end)
    assert begun == [phase.name for phase in PHASES]
    assert sum(counts.values()) == len(turns.latest) == 60
    assert counts["scored"] >= 30, counts
    assert all(len(turn["contexts"]) == 3 for turn in turns.latest)


def test_the_judge_has_outages() -> None:
    """In one, it fails as a server that is down."""
    judge = HandbookJudge()
    assert asyncio.run(judge.reply([])).model == "handbook-judge"
    judge.answers = False
    with pytest.raises(JudgeTransportError):
        asyncio.run(judge.reply([]))


def ended(turns: Turns, *rows: Mapping[str, Any]) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(turns))
    for row in rows:
        names = {"rag.evaluation.status": "scored", **row}
        provider.get_tracer("app").start_span("turn", attributes=names).end()


def a_turn(question: str, label: str, score: float) -> Mapping[str, Any]:
    names = {"label": label, "faithfulness.score": score, "cause": "unsupported"}
    return {"input.value": question} | {f"rag.evaluation.{n}": value for n, value in names.items()}


def test_worst_turns_come_first() -> None:
    """Those that fail by their scores, then the others; of a question, only the latest."""
    turns = Turns()
    ended(
        turns,
        a_turn("good", "pass", 0.1),
        a_turn("better now", "fail", 0.0),
        a_turn("bad", "fail", 0.4),
        a_turn("worst", "fail", 0.2),
        a_turn("better now", "pass", 0.9),
    )
    assert [turn["question"] for turn in turns.worst()] == ["worst", "bad", "good", "better now"]
    assert turns.worst()[0]["why"] == "unsupported: no context supports what is marked"


def test_contexts_of_traces_without_a_root_are_limited() -> None:
    """The oldest are forgotten, and the latest are on the page with their turn."""
    provider, turns = TracerProvider(), Turns()
    provider.add_span_processor(SimpleSpanProcessor(turns))
    tracer = provider.get_tracer("app")
    roots = [
        tracer.start_span("turn", attributes={EVALUATION_STATUS: "scored"}) for _ in range(1001)
    ]
    for root in roots:
        context, text = set_span_in_context(root), {"document.content": "a page"}
        tracer.start_span("retrieval", context, attributes=text).end()
    for root in (roots[0], roots[-1]):
        root.end()
    assert [turn["contexts"] for turn in turns.latest] == [[], ["a page"]]


@pytest.fixture
def look() -> Look:
    return Look(stopped=threading.Event(), traces="")


def test_the_page_runs_no_script_but_its_own(look: Look) -> None:
    """Its policy allows its own files only; texts of turns come as JSON, and nothing else does."""
    ended(look.turns, a_turn(HOSTILE, "fail", 0.0))
    with served(look, 0) as url:
        headers, page = got(url)
        with pytest.raises(HTTPError, match="403"):
            got(Request(f"{url}state", headers={"Host": "attacker.example"}))  # noqa: S310
        state = json.loads(got(f"{url}state")[1])
        with pytest.raises(HTTPError, match="404"):
            got(f"{url}../pyproject.toml")
        linked = re.findall(r'(?:src|href)="/([^"]+)"', page)
        kinds = [got(f"{url}{name}")[0].get_content_type() for name in linked]
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert state["worst"][0]["question"] == HOSTILE
    assert kinds[:2] == ["text/css", "text/css"]
    assert kinds[2].endswith("/javascript")
    assert not re.search(r"<script>|<style|https?://|\son\w+=", page)


def test_a_page_that_closes_is_no_error(look: Look, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed about a connection that ends before its reply."""
    with served(look, 0) as url:
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2][:-1]))) as page:
            page.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        got(url)
    assert capsys.readouterr().err == ""


def test_alerts_are_printed_when_they_fire_and_when_they_end(
    look: Look, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, although Prometheus is asked every second; what has ended stays in the page."""
    alert = {
        "labels": {"alertname": "RagBreakerOpen", "severity": "ticket"},
        "annotations": {"summary": "no requests to the judge"},
        "state": "firing",
    }
    replies: Iterator[Any] = iter([{"data": {"alerts": each}} for each in ([], [alert], [alert])])
    nothing: dict[str, Any] = {"data": {"alerts": []}}
    monkeypatch.setattr("rag_eval_otel.tools.look.fetched", lambda _: next(replies, nothing))
    look.addresses = {"Prometheus": "http://127.0.0.1:9"}
    for _ in range(4):
        look.asked = 0
        assert not look.wait(0)
    lines = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    summary = "RagBreakerOpen (ticket): no requests to the judge"
    assert lines == [f"firing    {summary}", f"resolved  {summary}"]
    assert [each["state"] for each in look.state()["alerts"]] == ["resolved"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--rate", "0"], "--minutes and --rate above 0"),
        (["--trace-url", "javascript:alert(1)"], "--trace-url must be an http(s) address"),
    ],
)
def test_options_that_cannot_be_used(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, with what is allowed, before anything is started."""
    assert main(["look", *options]) == 2
    assert message in capsys.readouterr().err


SCRIPTS = {"prometheus": "#!/bin/sh\nexit 1", "build.sh": "echo go: not found; exit 127"}


@pytest.mark.parametrize(
    ("installed", "advice"),
    [
        ((), "prometheus is not installed: apt install prometheus"),
        (("prometheus",), "not built (go: not found): install Go 1.25 or newer"),
    ],
)
def test_what_is_missing_is_named(
    installed: tuple[str, ...],
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With how to get it, and the look goes on without dashboards."""
    for name in (*installed, "build.sh"):
        (tmp_path / name).write_text(SCRIPTS[name])
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(stack, "_PLACES", str(tmp_path))
    monkeypatch.setattr(stack, "_source", lambda name: tmp_path / name)
    with closing(Programs(tmp_path, threading.Event())) as programs:
        assert started(programs, lambda _: None) == {}
    said = capsys.readouterr().err
    assert advice in said
    assert "the page shows the scores and turns of this process" in said


def test_programs_end_with_what_they_have_started(tmp_path: Path, monkeypatch: Any) -> None:
    """Also one that ignores SIGTERM; what has ended gets no signal, as its id may be another's."""
    kill, killed = os.killpg, list[int]()
    monkeypatch.setattr(os, "killpg", lambda *to: (killed.append(to[0]), kill(*to)))
    os.mkfifo(tmp_path / "open")
    script = "trap '' TERM; exec 3> open; sleep 600 & wait; wait"
    with closing(Programs(tmp_path, threading.Event())) as programs:
        assert not programs.start("broken", "/bin/sh", "-c", "echo no port; exit 3", ready=":1")
        deaf = programs.launch("deaf", "/bin/sh", "-c", script)
        pipe = (tmp_path / "open").open("rb")  # waits until the script opens it, too
    assert programs.last_line("broken") == "no port"
    assert killed == [deaf.pid] * 2
    assert deaf.returncode == -signal.SIGKILL
    with pipe:
        assert pipe.read() == b""  # nobody has it open any more


@pytest.mark.slow
def test_a_look_without_programs_ends_at_a_signal(tmp_path: Path) -> None:
    """Beside a port in use, it takes a free one; scores are on the page, and ^C is its end.

    It reads no ``OTEL_*`` variable of another application.
    """
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-m", "rag_eval_otel", "look", "--port", port, "--rate", "50"],
            env=environment(PATH=str(tmp_path), OTEL_TRACES_SAMPLER="always_off"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        lines = (next(process.stdout) for _ in range(9))
        url = next(found[0] for line in lines if (found := re.search(r"http://\S+/", line)))
        state: dict[str, Any] = {"turns": []}
        while not state["turns"]:
            state = json.loads(got(f"{url}state")[1])
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f":{port}/" not in url
    assert "turns: " in told
    assert state["turns"][0][2].keys() >= {"faithfulness"}
    assert state["alerts"] is None

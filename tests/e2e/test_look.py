"""`rag-eval-otel look` with its programs: panels fill, alerts fire, and ^C ends all of it."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.images import browse
from e2e.programs import Prometheus, eventually, get, program
from e2e.stack import QUERIES, built_collector, shown
from processes import environment

MINUTES, RATE = 2, 8  # of a cycle; so many questions a second that the rules have enough scores
FIRING = ("RagAnswersGoBad", "RagBadAnswerBurn", "RagBreakerOpen")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running command and the address of its page."""

    process: subprocess.Popen[str]
    url: str

    def state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = json.loads(get(f"{self.url}state") or "{}")
        return state

    def alert(self, name: str, state: str = "firing") -> Mapping[str, Any]:
        def found() -> Mapping[str, Any] | None:
            alerts = self.state().get("alerts") or ()
            named = [a for a in alerts if a["labels"]["alertname"] == name and a["state"] == state]
            return next(iter(named), None)

        alert = eventually(found, f"{name} {state}", patience=60 * MINUTES + 60)
        assert alert is not None
        return alert


@pytest.fixture
def running() -> Iterator[Running]:
    program("prometheus")
    program("prometheus-alertmanager")
    built_collector()
    command = [sys.executable, "-m", "rag_eval_otel", "look", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--minutes", str(MINUTES), "--rate", str(RATE)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+/", next(iter(process.stdout)))
    assert found is not None
    try:
        yield Running(process=process, url=found[0])
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.timeout(60 * MINUTES + 900)
def test_panels_fill_and_alerts_fire(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages and tickets fire and reach Alertmanager, every panel fills, and nothing is left."""
    for name in FIRING:
        alert = running.alert(name)
        if name == FIRING[0]:
            summary, traces = (alert["annotations"][note] for note in ("summary", "traces"))
            assert "more than 10% of the answers are bad" in summary
            assert "service=handbook&tags=%7B%22rag.evaluation." in traces
    running.alert("RagBreakerOpen", "resolved")
    sent = {alert["labels"]["alertname"]: alert for alert in running.state()["routed"]}
    assert [each["name"] for each in sent["RagAnswersGoBad"]["receivers"]] == ["page"]
    assert sent["RagBadAnswerBurn"]["status"]["state"] == "suppressed"
    addresses, since = running.state()["addresses"], running.state()["from"]
    asked = Prometheus(addresses["Prometheus"])
    empty = [q for q in QUERIES if not asked.has_data(shown(q, interval="15s"), since=since)]
    assert len(empty) <= 2, empty  # the mean score by offline judge: there is no cascade
    document, console = browse(running.url, tmp_path, "--virtual-time-budget=8000", "--dump-dom")
    assert console == []
    assert document.count('data-empty="false"') == 16
    assert all(name in document for name in FIRING)
    running.process.send_signal(signal.SIGINT)
    told, _ = running.process.communicate(timeout=60)
    assert running.process.returncode == 0
    assert not list(filter(_is_open, addresses.values()))
    with capsys.disabled():
        print(f"\n{told}")  # noqa: T201  # for the reader


def _is_open(address: str) -> bool:
    host, _, port = address.removeprefix("http://").partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False

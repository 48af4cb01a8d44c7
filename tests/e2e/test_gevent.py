"""Scoring under gevent, where threads are greenlets and a blocking call blocks them all."""

from collections.abc import Mapping
from threading import Event
from typing import Any

import pytest

from openai_server import ScriptedOpenAI
from otlp_receiver import OtlpReceiver
from processes import ran
from support import good_parts

pytest.importorskip("gevent")

PATIENCE = 120.0

SCRIPT = """
from gevent import monkey
monkey.patch_all()
import json, os, urllib.request
from apps.parts import rag
from rag_eval_otel import RagEvalCallbackHandler

forks = []
os.register_at_fork(before=lambda: forks.append(1))
handler = RagEvalCallbackHandler()
rag().invoke("When was Borealis Kites founded?", config={"callbacks": [handler]})
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "app", "messages": []}).encode(),
    {"Content-Type": "application/json"},
)
print(urllib.request.urlopen(request, timeout=120).status)
print(handler.flush(30))
print(len(forks))
"""


def test_scores_arrive_and_other_greenlets_run() -> None:
    """The app's greenlet runs during the judge's request; the judge waits for it.

    The client of the judge must not fork: a forked child would run the greenlets of this process
    for a while, and print their errors.
    """
    judge_asked, app_went_on = Event(), Event()

    def reply(body: Mapping[str, Any]) -> object:
        if body["model"] == "app":
            assert judge_asked.wait(PATIENCE)
            app_went_on.set()
            return "ok"
        judge_asked.set()
        assert app_went_on.wait(PATIENCE)
        return good_parts(body)

    with OtlpReceiver() as receiver, ScriptedOpenAI(reply, lambda _: [1.0, 0.0]) as server:
        done = ran(
            SCRIPT,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            RAG_EVAL_JUDGE="openai/judge",
            OPENAI_BASE_URL=server.base_url,
            OPENAI_API_KEY="judge",
            RAG_EVAL_HOLD_SECONDS="60",  # time to import the judge's client
        )
        assert done.stdout == "200\nTrue\n0\n", done.stderr
        assert "Traceback" not in done.stderr
        spans = receiver.spans()
    statuses = [span.attributes.get("rag.evaluation.status") for span in spans]
    assert sorted(statuses, key=str) == [None, None, "scored"]

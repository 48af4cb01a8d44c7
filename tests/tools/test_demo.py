"""The demo: turns are received once, with scores that are low where the app has a defect."""

import asyncio
import re
from collections.abc import Sequence
from functools import cache
from uuid import UUID

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document

from otlp_receiver import OtlpReceiver
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.evaluation import aevaluate
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.demo import TURNS, Turn, build_app, run_demo
from rag_eval_otel.types import Evaluation, Passage, Sample


@pytest.mark.slow
def test_failures_come_first_and_say_why() -> None:
    """At most a screen: each turn with its label, failures with the reason and marked sentences."""
    written: list[str] = []
    assert run_demo({}, write=written.append) == 0
    text = "".join(written)
    assert "\x1b[1;31m[Larkfield pays 400 euros" in text
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    asked = re.findall(r"^(pass|fail)  (.+)$", text, re.MULTILINE)
    labels = [label for label, _ in asked]
    assert labels == sorted(labels)
    assert {question for _, question in asked} == {turn.question for turn in TURNS}
    assert "unsupported: no context supports" in text
    assert "no score: no_claims" in text
    assert text.count("      faithfulness") == labels.count("fail")
    assert f"{len(TURNS)} turns ({len(TURNS)} scored), {labels.count('pass')} pass\n" in text
    assert "no LLM judge" in text
    assert text.count("\n") <= 40


@pytest.mark.slow
def test_environment_endpoint_gets_the_traces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``OTEL_EXPORTER_OTLP_ENDPOINT`` the traces are exported there as well."""
    with OtlpReceiver() as elsewhere:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", elsewhere.http_endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        written: list[str] = []
        run_demo({}, write=written.append)
        roots = [span for span in elsewhere.spans() if span.parent_span_id is None]
    assert len(roots) == len(TURNS)
    assert all("rag.evaluation.status" in root.attributes for root in roots)
    told = f"Also exported to {elsewhere.http_endpoint}/v1/traces: traces"
    assert told in "".join(written)


@pytest.mark.slow
def test_export_that_fails_is_not_called_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens at the endpoint: the demo says so, and what to do, instead of "exported"."""
    with OtlpReceiver() as gone:
        pass
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", gone.http_endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    written: list[str] = []
    assert run_demo({}, write=written.append) == 0
    text = "".join(written)
    assert "Also exported" not in text
    assert f"Not exported: traces to {gone.http_endpoint}/v1/traces" in text
    assert "port 4317 is for gRPC, 4318 for HTTP" in text


def test_missing_scores_fail_the_demo() -> None:
    """The exit status is 1 if turns were not scored."""
    written: list[str] = []
    assert run_demo({"sample_rate": 0.0}, write=written.append) == 1
    assert f"{len(TURNS)} turns ({len(TURNS)} skipped)" in written[-1]


@pytest.mark.slow
def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs the demo; it refuses an unknown judge and names the right form."""
    assert main(["demo", "--judge", "lexical"]) == 0
    out = capsys.readouterr().out
    assert all(f" {turn.question}\n" in out for turn in TURNS)
    assert "\x1b" not in out
    assert main(["demo", "--judge", "gpt"]) == 2
    assert "openai/<model>" in capsys.readouterr().err


GOOD = [turn for turn in TURNS if turn.defect == "none"]


class Retrieved(BaseCallbackHandler):
    """Keeps the retrieved documents."""

    def __init__(self) -> None:
        self.documents: Sequence[Document] = ()

    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: object
    ) -> None:
        self.documents = documents


@cache
def ask(question: str) -> tuple[str, tuple[Passage, ...]]:
    retrieved = Retrieved()
    answer = build_app().invoke(question, {"callbacks": [retrieved]})
    found = (Passage(text=one.page_content, id=one.id) for one in retrieved.documents)
    return answer, tuple(found)


@cache
def scores_of(turn: Turn) -> Evaluation:
    answer, contexts = ask(turn.question)
    sample = Sample(question=turn.question, answer=answer, contexts=contexts)
    return asyncio.run(aevaluate(sample, judge=LexicalJudge(), embedder=HashingEmbedder()))


def value(turn: Turn, name: str) -> float:
    score = scores_of(turn)[name]
    assert score.value is not None, score
    return score.value


@pytest.mark.parametrize(
    ("defect", "name"),
    [
        ("incomplete", "answer_relevancy"),
        ("made_up", "faithfulness"),
        ("made_up", "response_groundedness"),
        ("off_topic", "context_relevance"),
        ("refusal", "answer_relevancy"),
    ],
)
def test_a_defect_lowers_the_score_of_its_metric(defect: str, name: str) -> None:
    """Below 0.5, and below every good answer; a refusal has no claims."""
    (turn,) = (turn for turn in TURNS if turn.defect == defect)
    assert value(turn, name) < 0.5 < min(value(good, name) for good in GOOD)
    if defect == "refusal":
        assert scores_of(turn)["faithfulness"].reason == "no_claims"

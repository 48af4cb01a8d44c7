"""The collector from our manifest handles turns as its configurations define."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from opentelemetry.trace import StatusCode

from e2e.fickle import BAD, GOOD, SECRET, Fickle, fickle
from e2e.programs import eventually, get
from e2e.stack import GATEWAY, Collector, collector, validate
from otlp_receiver import OtlpReceiver, ReceivedSpan

SERVICE = "shop"
GOOD_TURNS, BAD_TURNS, METRICS = 8, 4, 4
DOCUMENT = Path(__file__).parents[2] / "docs" / "backends.md"
SNIPPETS = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
CARD_LIKE = "4111111111111111"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The results of 8 good and 4 bad turns behind an agent and a gateway with sampling 0."""

    backend: OtlpReceiver
    gateway: Collector

    @property
    def turns(self) -> list[ReceivedSpan]:
        return [s for s in self.backend.spans() if "rag.evaluation.status" in s.attributes]


def noted(app: Fickle) -> None:
    """End a failed span with a user's note."""
    tracer = app.providers.tracer_provider.get_tracer("app")
    with tracer.start_as_current_span("noted") as span:
        span.set_attribute("note", f"I am ada@example.com, {SECRET}, {CARD_LIKE}")
        span.set_attribute("session.id", CARD_LIKE)
        span.set_status(StatusCode.ERROR)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("collector")
    with ExitStack() as stack:
        backend = stack.enter_context(OtlpReceiver())
        gateway = stack.enter_context(
            collector(
                folder / "gateway",
                *GATEWAY,
                "events.yaml",
                RAG_TRACES=backend.grpc_endpoint.removeprefix("http://"),
                RAG_EVENTS=backend.http_endpoint,
                RAG_DECISION_WAIT="2s",
                RAG_SAMPLING_PERCENTAGE="0",
            )
        )
        agent = stack.enter_context(
            collector(folder / "agent", "agent.yaml", RAG_GATEWAY=gateway.grpc)
        )
        app = stack.enter_context(fickle(agent, SERVICE, export_content="all"))
        app.ask(GOOD_TURNS)
        app.ask(BAD_TURNS, BAD)
        noted(app)
        app.providers.tracer_provider.force_flush()
        found = Seen(backend=backend, gateway=gateway)
        told = f"{BAD_TURNS} turns and a noted span"
        eventually(lambda: len(found.turns) >= BAD_TURNS and any(_noted(backend)), told)
        yield found


def _noted(backend: OtlpReceiver) -> Iterator[ReceivedSpan]:
    return (span for span in backend.spans() if span.name == "noted")


@pytest.mark.parametrize(
    "names", [GATEWAY, (*GATEWAY, "events.yaml"), ("agent.yaml",)], ids=" ".join
)
def test_configuration_is_valid(names: tuple[str, ...], tmp_path: Path) -> None:
    """The collector accepts each documented combination of configurations."""
    validate(*names, environment={"RAG_QUEUE": str(tmp_path)})


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_documented_exporters_are_valid(number: int, tmp_path: Path) -> None:
    """The collector accepts each exporter of `docs/backends.md` with our gateway configuration."""
    shown = tmp_path / "backend.yaml"
    shown.write_text(SNIPPETS[number], encoding="utf-8")
    validate(*GATEWAY, str(shown), environment={"RAG_QUEUE": str(tmp_path)})


def test_traces_of_bad_turns_are_complete(seen: Seen) -> None:
    """With sampling 0, the traces of the bad turns arrive with all their spans."""
    assert len(seen.turns) == BAD_TURNS
    assert all(span.attributes["rag.evaluation.label"] == "fail" for span in seen.turns)
    scores = [span.attributes["rag.evaluation.faithfulness.score"] for span in seen.turns]
    assert len(scores) == BAD_TURNS
    assert max(scores) < 0.1, "the offline judge is graded"
    turns = [s for s in seen.backend.spans() if s.name != "noted"]
    kinds = Counter(span.attributes.get("gen_ai.operation.name") for span in turns)
    assert kinds["retrieval"] == kinds["chat"] == BAD_TURNS


def test_texts_are_gone_and_scores_are_there(seen: Seen) -> None:
    """No question, context or answer leaves the gateway."""
    told = " ".join(str(v) for span in seen.backend.spans() for v in span.attributes.values())
    assert "Borealis" not in told
    assert "cheese" not in told
    for span in seen.turns:
        assert span.attributes["rag.evaluation.status"] == "scored"
        assert isinstance(span.attributes["rag.evaluation.answer_relevancy.score"], float)


def test_secrets_are_masked_and_ids_are_not(seen: Seen) -> None:
    """An address, a key and a card number in a note are masked; a session's id is not."""
    span = next(_noted(seen.backend))
    assert span.attributes["note"] == "I am ****, ****, ****"
    assert span.attributes["session.id"] == CARD_LIKE


def counts(address: str, name: str) -> dict[str, int]:
    """Return each metric's count in a collector's histogram ``name``."""
    pattern = rf'^{name}_count{{.*gen_ai_evaluation_name="(\w+)".*}} (\d+)'
    found: Counter[str] = Counter()
    for metric, count in re.findall(pattern, get(f"http://{address}/metrics"), re.MULTILINE):
        found[metric] += int(count)
    return found


def test_scores_are_counted_before_sampling(seen: Seen) -> None:
    """The histograms of the spans and of the app include the good turns that were not kept."""
    turns = GOOD_TURNS + BAD_TURNS
    for address, name in (
        (seen.gateway.spans, "rag_evaluation_span_score"),
        (seen.gateway.apps, "rag_evaluation_score"),
    ):
        told = f"{METRICS} times {turns} in {name}"
        eventually(lambda a=address, n=name: _all(counts(a, n), turns), told)


def _all(found: dict[str, int], turns: int) -> bool:
    return len(found) == METRICS and set(found.values()) == {turns}


def test_each_score_is_an_event_in_the_log_store(seen: Seen) -> None:
    """Events are not sampled: each score of every turn has one, and so has its outcome."""
    turns = GOOD_TURNS + BAD_TURNS
    seen.backend.wait_for(lambda store: len(store.logs()) >= turns * (METRICS + 1), 60)
    logs = seen.backend.logs()
    assert {log.event_name for log in logs} == {"gen_ai.evaluation.result"}
    events = Counter(log.attributes["gen_ai.evaluation.name"] for log in logs)
    del events["cause"]  # of some turns
    assert set(events.values()) == {turns}
    assert len(events) == METRICS + 1


def test_agent_queues_spans_during_an_outage_of_the_gateway(tmp_path: Path) -> None:
    """Turns that end during an outage of the gateway arrive afterwards, also after a restart."""
    with OtlpReceiver() as backend:
        away = "127.0.0.1:9"
        with (
            collector(tmp_path / "agent", "agent.yaml", RAG_GATEWAY=away) as agent,
            fickle(agent, SERVICE, signals="traces") as app,
        ):
            app.ask(3, GOOD)
        gateway = collector(
            tmp_path / "gateway",
            *GATEWAY,
            RAG_TRACES=backend.grpc_endpoint.removeprefix("http://"),
            RAG_DECISION_WAIT="1s",
            RAG_SAMPLING_PERCENTAGE="100",
        )
        with gateway as back, collector(tmp_path / "agent", "agent.yaml", RAG_GATEWAY=back.grpc):
            backend.wait_for_spans(9, 60)
        statuses = [s.attributes.get("rag.evaluation.status") for s in backend.spans()]
    assert Counter(filter(None, statuses)) == {"scored": 3}

"""What the real client of Langfuse sends for the scores of live turns."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("langfuse", reason="the client of the backend is not installed")

from e2e.proxy import Fault, Proxy, proxied
from e2e.recorded import KEY, Langfuse, langfuse_observation, serving
from live import App, attached
from rag_eval_otel.tools.cli import main

TURNS = 200
PATIENCE = 300.0

pytestmark = [
    pytest.mark.timeout(1200),
    # The client warns at its import, and leaves connections to the garbage collector.
    pytest.mark.filterwarnings("ignore"),
]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A service that records, the proxy in front of it, and the application that is scored."""

    service: Langfuse
    proxy: Proxy
    app: App

    def outcomes(self) -> dict[Any, int]:
        points = self.app.points("rag.evaluation.backend.scores")
        return {p.attributes.get("reason", p.attributes["outcome"]): p.value for p in points}


@contextmanager
def running(*, fault: Fault = "none", models: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run an application whose scores go to the service, through a proxy."""
    service = Langfuse()
    with serving(service), proxied(service.url) as proxy, pytest.MonkeyPatch.context() as patch:
        proxy.fault = fault
        settings = {"BASE_URL": proxy.url, "PUBLIC_KEY": "public", "SECRET_KEY": KEY}
        for name, value in settings.items():
            patch.setenv(f"LANGFUSE_{name}", value)
        options = {"shutdown_seconds": 5, "hold_seconds": 60, **(models or {})}
        with attached(backends=["langfuse"], **options) as app:
            yield Running(service=service, proxy=proxy, app=app)


def expected(app: App) -> set[tuple[Any, ...]]:
    """Return span, name, score and label of all scores, and of the overall labels."""
    found: set[tuple[Any, ...]] = set()
    for span in app.exported():
        attributes: Any = span.attributes or {}
        if "rag.evaluation.status" not in attributes:
            continue
        own = span.context.span_id
        found.add((own, "rag.evaluation", None, attributes["rag.evaluation.label"]))
        scores = [one for one in attributes if one.startswith("rag.") and one.endswith(".score")]
        for prefix in [one.removesuffix(".score") for one in scores]:
            score, label = attributes[f"{prefix}.score"], attributes[f"{prefix}.label"]
            found.add((own, prefix.split(".")[2], score, label))
    return found


def seen(service: Langfuse) -> list[tuple[Any, ...]]:
    """Return the same of what the service has stored."""
    stored = list(service.stored.values())
    labels = {
        (one["observationId"], one["name"].removesuffix(".label")): one["value"]
        for one in stored
        if one["dataType"] == "CATEGORICAL"
    }
    numbers = {
        (one["observationId"], one["name"]): one["value"]
        for one in stored
        if one["dataType"] == "NUMERIC"
    }
    return [(int(key[0], 16), key[1], numbers.get(key), label) for key, label in labels.items()]


@pytest.mark.parametrize("fault", ["none", "errors"])
def test_every_score_is_sent(fault: Fault) -> None:
    """Each once, also with the service failing a tenth of the requests."""
    with running(fault=fault) as run:
        for number in range(TURNS):
            run.app.turn(number)
        run.app.pipeline.submit_ended()
        assert run.app.store.wait_left(PATIENCE)  # a flush waits for scores for five seconds only
        assert run.app.handle.flush(PATIENCE)
        found = seen(run.service)
        assert len(found) == len(set(found))
        assert set(found) == expected(run.app)
        assert set(run.outcomes()) == {"delivered"}
        assert (run.proxy.failed > 0) == (fault == "errors")


def test_backfill_equals_live_scores() -> None:
    """Turns that Langfuse has stored get the scores of live evaluation, each once."""
    with running(models={"judge": "lexical", "embedder": "hashing"}) as run:
        turns = [run.app.turn(number) for number in range(TURNS)]
        assert run.app.store.wait_left(PATIENCE)
        assert run.app.handle.flush(PATIENCE)
        live = {id_: {**one, "timestamp": ""} for id_, one in run.service.stored.items()}
        assert len(turns) == TURNS
        run.service.observations = [*map(langfuse_observation, run.app.exported())]
        run.service.stored.clear()
        assert main(["backfill", "langfuse", "--yes"]) == 0
        found = {id_: {**one, "timestamp": ""} for id_, one in run.service.stored.items()}
        marks = [one["metadata"].pop("backfill", None) for one in found.values()]
        assert found == live
        assert len(marks) - marks.count(None) == TURNS
        sent = len(run.service.sent("POST", "/api/public/scores"))
        assert main(["backfill", "langfuse", "--yes"]) == 0
        assert len(run.service.sent("POST", "/api/public/scores")) == sent

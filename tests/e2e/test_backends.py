"""What the real clients of LangSmith, Langfuse and Opik send for the scores of live turns."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("opik", reason="the clients of the backends are not installed")

from langsmith import utils

from e2e.proxy import Fault, Proxy, proxied
from e2e.recorded import (
    KEY,
    PROJECT,
    Langfuse,
    LangSmith,
    Opik,
    Service,
    langfuse_observation,
    opik_id,
    serving,
)
from live import App, attached
from rag_eval_otel.tools.cli import main

TURNS = 200
PATIENCE = 300.0
SERVICES: dict[str, type[Service]] = {"langsmith": LangSmith, "langfuse": Langfuse, "opik": Opik}
FAULTS = pytest.mark.parametrize("fault", ["none", "errors"])
NAMES = pytest.mark.parametrize("name", SERVICES)

pytestmark = [
    pytest.mark.timeout(1200),
    # The clients warn at their import, and leave connections to the garbage collector.
    pytest.mark.filterwarnings("ignore"),
]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A service that records, the proxy in front of it, and the application that is scored."""

    service: Service
    proxy: Proxy
    app: App

    def outcomes(self) -> dict[Any, int]:
        points = self.app.points("rag.evaluation.backend.scores")
        return {p.attributes.get("reason", p.attributes["outcome"]): p.value for p in points}


@contextmanager
def running(
    name: str, *, fault: Fault = "none", models: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Run an application whose scores go to the service ``name``, through a proxy."""
    service = SERVICES[name]()
    with serving(service), proxied(service.url) as proxy, pytest.MonkeyPatch.context() as patch:
        proxy.fault = fault
        settings = {
            "LANGSMITH_ENDPOINT": proxy.url,
            "LANGSMITH_API_KEY": KEY,
            "LANGSMITH_PROJECT": PROJECT,
            "LANGFUSE_BASE_URL": proxy.url,
            "LANGFUSE_PUBLIC_KEY": "public",
            "LANGFUSE_SECRET_KEY": KEY,
            "OPIK_URL_OVERRIDE": proxy.url,
            "OPIK_API_KEY": KEY,
            "OPIK_PROJECT_NAME": PROJECT,
            "OPIK_WORKSPACE": "default",
            "OPIK_ANALYTICS_ENABLED": "false",
            "OPIK_SENTRY_ENABLE": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        for variable, value in settings.items():
            patch.setenv(variable, value)
        if name == "langsmith":
            utils.get_env_var.cache_clear()  # a process reads its variables once
            utils.get_tracer_project.cache_clear()
        options = {"shutdown_seconds": 5, "hold_seconds": 60, **(models or {})}
        with attached(backends=[name], **options) as app:
            yield Running(service=service, proxy=proxy, app=app)


def scores(app: App) -> dict[int, dict[str, Any]]:
    return {
        span.context.span_id: dict(span.attributes or {})
        for span in app.exported()
        if "rag.evaluation.status" in (span.attributes or {})
    }


def expected(app: App) -> set[tuple[Any, ...]]:
    """Return span, name, score and label of all scores, and of the overall labels."""
    found: set[tuple[Any, ...]] = set()
    for span, attributes in scores(app).items():
        found.add((span, "rag.evaluation", None, attributes["rag.evaluation.label"]))
        for name in [one.split(".")[2] for one in attributes if one.endswith(".score")]:
            prefix = f"rag.evaluation.{name}"
            label = attributes[f"{prefix}.label"]
            found.add((span, name, attributes[f"{prefix}.score"], label))
    return found


def seen(name: str, service: Service) -> list[tuple[Any, ...]]:
    """Return the same of what the service has stored."""
    stored = list(service.stored.values())
    if name == "langsmith":
        return [
            (UUID(one["run_id"]).int, one["key"], one.get("score"), one["value"]) for one in stored
        ]
    if name == "opik":
        spans = {opik_id(span): span for span in service.known}
        overall = {"rag.evaluation": None}
        return [
            (
                spans[one["id"]],
                one["name"],
                overall.get(one["name"], one["value"]),
                one["category_name"],
            )
            for one in stored
        ]
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


@NAMES
@FAULTS
def test_every_score_is_sent(name: str, fault: Fault) -> None:
    """Each once, also with the service failing a tenth of the requests."""
    with running(name, fault=fault) as run:
        turns = [run.app.turn(number) for number in range(TURNS)]
        run.service.known = {turn.get_span_context().span_id for turn in turns}
        run.app.pipeline.submit_ended()
        assert run.app.store.wait_left(PATIENCE)  # a flush waits for scores for five seconds only
        assert run.app.handle.flush(PATIENCE)
        found = seen(name, run.service)
        assert len(found) == len(set(found))
        assert set(found) == expected(run.app)
        assert set(run.outcomes()) == {"delivered"}
        assert (run.proxy.failed > 0) == (fault == "errors")


def test_backfill_equals_live_scores() -> None:
    """Turns that Langfuse has stored get the scores of live evaluation, each once."""
    with running("langfuse", models={"judge": "lexical", "embedder": "hashing"}) as run:
        turns = [run.app.turn(number) for number in range(TURNS)]
        assert run.app.store.wait_left(PATIENCE)
        assert run.app.handle.flush(PATIENCE)
        live = {id_: {**one, "timestamp": ""} for id_, one in run.service.stored.items()}
        assert len(turns) == TURNS
        assert isinstance(run.service, Langfuse)
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

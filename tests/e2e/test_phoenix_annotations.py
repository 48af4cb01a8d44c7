"""Scores as annotations in a real Phoenix: each once, and equal to the scores on the span."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from e2e.backfilled import backfill, kill_in_the_middle
from e2e.fickle import BAD, GOOD, fickle
from e2e.phoenix_server import MARKS, PATIENCE, Phoenix
from e2e.phoenix_server import phoenix as phoenix  # noqa: PLC0414  # a fixture
from e2e.programs import eventually
from e2e.proxy import Fault, Proxy, proxied

TURNS, BAD_TURNS = 200, 20

pytestmark = MARKS

Found = Mapping[str, Counter[tuple[Any, ...]]]


@pytest.fixture
def proxy(phoenix: Phoenix, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxied(phoenix.http) as made:
        monkeypatch.setenv("PHOENIX_ENDPOINT", made.url)
        yield made


def expected(turns: Mapping[str, Mapping[str, Any]]) -> Found:
    found: dict[str, Counter[tuple[Any, ...]]] = {}
    for span, turn in turns.items():
        attributes = turn["attributes"]
        names = [
            n.split(".")[2] for n in attributes if n.startswith("rag.") and n.endswith(".score")
        ]
        scores = Counter(
            (
                name,
                attributes[f"rag.evaluation.{name}.score"],
                attributes.get(f"rag.evaluation.{name}.label"),
                attributes[f"rag.evaluation.{name}.version"],
                attributes.get(f"rag.evaluation.{name}.threshold"),
            )
            for name in names
        )
        scores["rag.evaluation", None, attributes["rag.evaluation.label"], None, None] += 1
        found[span] = scores
    return found


def seen(annotations: list[dict[str, Any]]) -> Found:
    found: dict[str, Counter[tuple[Any, ...]]] = {}
    for one in annotations:
        result, metadata = one["result"], one["metadata"]
        told = (one["name"], result.get("score"), result.get("label"))
        limits = (metadata.get("version"), metadata.get("threshold"))
        found.setdefault(one["span_id"], Counter())[(*told, *limits)] += 1
    return found


@pytest.mark.parametrize("fault", ["none", "errors"])
def test_annotations_equal_the_scores(phoenix: Phoenix, proxy: Proxy, fault: Fault) -> None:
    """Also with Phoenix failing a tenth of the requests."""
    service = f"shop-{fault}"
    proxy.fault = fault
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={service}")
        with fickle(
            phoenix, service, signals="traces", backends=["phoenix"], score_attributes="rag"
        ) as app:
            app.run(TURNS - BAD_TURNS, GOOD)
            app.run(BAD_TURNS, BAD)
            assert app.handle.flush(PATIENCE)
    turns = phoenix.turns(service)
    assert len(turns) == TURNS
    assert seen(phoenix.annotations(service, list(turns))) == expected(turns)
    assert (proxy.failed > 0) == (fault == "errors")


def test_backfill_equals_live_scores(phoenix: Phoenix, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle and run again: each once. A third run writes nothing."""
    count = 500
    monkeypatch.setenv("PHOENIX_ENDPOINT", phoenix.http)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=past")
    options = {"export_content": "all", "score_attributes": "rag"}
    with fickle(phoenix, "past", signals="traces", **options) as app:
        app.run(count - BAD_TURNS, GOOD)
        app.run(BAD_TURNS, BAD)
        assert app.handle.flush(PATIENCE)
        assert app.providers.tracer_provider.force_flush()
    eventually(lambda: len(phoenix.turns("past")) == count, "all turns in Phoenix", PATIENCE)
    turns = phoenix.turns("past")

    def written() -> list[dict[str, Any]]:
        return phoenix.annotations("past", list(turns))

    kill_in_the_middle("phoenix:past", lambda: len(seen(written())), turns=count)
    backfill("phoenix:past")
    annotations = written()
    assert seen(annotations) == expected(turns)
    backfill("phoenix:past")
    assert written() == annotations  # also their times

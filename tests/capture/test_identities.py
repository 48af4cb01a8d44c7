"""Whose turn it was is found under the names that libraries use, and told with its scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from live import attached, points_of
from plain_views import View
from rag_eval_otel import record_answer, record_question, record_retrieval
from rag_eval_otel.capture.conventions import read
from rag_eval_otel.capture.span import about
from replay import load

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
ALL = {"session.id": "s-1", "user.id": "u-1", "gen_ai.conversation.id": "s-1"}


@pytest.mark.parametrize(
    "attributes",
    [
        {"session.id": "s-1", "user.id": "u-1"},
        {"metadata": '{"session_id": "s-1", "user_id": "u-1"}'},
        {"langsmith.metadata.session_id": "s-1", "langsmith.metadata.user_id": "u-1"},
        {
            "langfuse.observation.metadata.langfuse_session_id": '"s-1"',
            "langfuse.observation.metadata.langfuse_user_id": '"u-1"',
        },
        {
            "traceloop.association.properties.session_id": "s-1",
            "traceloop.association.properties.user_id": "u-1",
        },
        {"mlflow.trace.session": "s-1", "mlflow.trace.user": "u-1"},
        {"session.id": "s-1", "enduser.id": "u-1", "metadata": "{broken"},
        {"session.id": "s-1", "user.id": "u-1", "metadata": '["a list"]'},
        {"session.id": "s-1", "user.id": "u-1", "metadata": '{"session_id": null, "user_id": ""}'},
    ],
)
def test_names_of_libraries(attributes: Mapping[str, Any]) -> None:
    """Session and user are read from the attributes of each library."""
    assert about([read(View(attributes=attributes)).metadata]) == ALL


@pytest.mark.parametrize("value", [True, ["s"], {"a": 1}, None, "", 0])
def test_what_is_no_name_of_anybody(value: object) -> None:
    """A session is a text or a number."""
    assert about([{"session_id": value}]) == {}


def test_the_nearest_counts() -> None:
    """What a step says of itself goes before what is above it."""
    steps = [{"user_id": ""}, {"user_id": "near"}, {"user_id": "far", "thread_id": "t"}]
    assert about(steps) == {"user.id": "near", "gen_ai.conversation.id": "t"}


def test_chosen_metadata() -> None:
    """Of everything else only what is asked for is told, where it is a plain value."""
    metadata = {"tenant": "a", "tier": 2, "beta": False, "list": [1], "secret": "x"}
    assert about([metadata], ["tenant", "tier", "beta", "list", "missing"]) == {
        "rag.metadata.tenant": "a",
        "rag.metadata.tier": 2,
        "rag.metadata.beta": False,
    }


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.exists(), reason="the shared recordings are not here")
@pytest.mark.parametrize(
    "library", ["langfuse", "langsmith-otel", "openinference-langchain", "traceloop-langchain"]
)
def test_recorded_names(library: str) -> None:
    """Instrumentations of LangChain write what the application gave as metadata."""
    paths = [p for p in FOLDER.glob(f"{library}__*.json") if "attribute_limit" not in p.stem]
    assert paths
    for path in paths:
        found = about([read(span).metadata for span in load(path).spans])
        assert found["session.id"] == "s-1"
        assert "gen_ai.conversation.id" in found  # a graph has a thread of its own


def test_scores_can_be_grouped() -> None:
    """Events say whose turn it was; metrics do not: there are too many sessions."""
    attributes = {"session.id": "s-1", "user.id": "u-1", "metadata.tenant": "a"}
    with attached(metadata_keys=["tenant"]) as app:
        with app.within(attributes=attributes):
            record_question("When?")
            record_retrieval("When?", ["Then."])
            record_answer("Then.")
        assert app.handle.flush()
        events = app.score_events()
        points = [point for named in points_of(app.reader).values() for point in named]
    assert events
    assert points
    for event in events:
        assert {**ALL, "rag.metadata.tenant": "a"}.items() <= event.attributes.items()
    assert not [p for p in points if {*ALL, "rag.metadata.tenant"} & set(p.attributes)]

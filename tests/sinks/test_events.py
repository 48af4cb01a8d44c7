"""Scores as log events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rag_eval_otel.sinks.events import EventSink
from rag_eval_otel.types import Evaluation, Score

OK = Score(name="faithfulness", value=1, label="pass", version="v", explanation="x" * 2000)


NORMAL = Score(name="correctness", value=4, normalized=0.75, label="pass")


class Noted:
    """A logger provider and logger that keeps the attributes of events."""

    def __init__(self) -> None:
        """Start empty."""
        self.attributes: list[Mapping[str, Any]] = []

    def get_logger(self, *_: object, **__: object) -> Noted:
        """Return the only logger."""
        return self

    def emit(self, *, attributes: Mapping[str, Any], **_: object) -> None:
        """Note an event."""
        self.attributes.append(attributes)


def emitted(evaluation: Evaluation) -> list[Mapping[str, Any]]:
    """Return the attributes of the events that an event sink emits for ``evaluation``."""
    provider = Noted()
    EventSink(provider).emit(evaluation)  # type: ignore[arg-type]
    return provider.attributes


def test_events_keep_the_scale_of_the_metric() -> None:
    """The standard attribute has the score, not the normalized one."""
    (event,) = emitted(Evaluation(scores=(NORMAL,)))
    assert event["gen_ai.evaluation.score.value"] == 4.0
    assert not any("normalized" in key for key in event)


def test_events_have_the_threshold_of_the_label() -> None:
    """A score without a threshold has neither."""
    passed = Score(name="mrr", value=1.0, label="pass", threshold=1)
    events = emitted(Evaluation(scores=(passed, Score(name="ndcg", value=1.0))))
    assert [one.get("rag.evaluation.threshold") for one in events] == [1.0, None]
    assert [one.get("gen_ai.evaluation.score.label") for one in events] == ["pass", None]


def test_events_of_names_with_a_lone_surrogate_are_exported() -> None:
    """A server's name of a model is made encodable."""
    odd = Evaluation(scores=(replace(OK, version="v/\ud800"),), judge="\ud800m")
    assert emitted(odd)[0]["rag.evaluation.judge"] == "?m"

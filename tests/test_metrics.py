"""Metrics by name: ours, sets of them, and those of other packages."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rag_eval_otel import metrics as m
from rag_eval_otel import semconv
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.tasks import AskLike
from rag_eval_otel.types import EmbedFn, Sample, Score
from scoring import evaluated
from support import install


@dataclass(frozen=True)
class Own:
    """A metric of somebody's own."""

    name: str = "own"
    needs: ClassVar[frozenset[str]] = frozenset()
    asks: ClassVar[tuple[()]] = ()

    async def measure(self, sample: Sample, ask: AskLike, embed: EmbedFn) -> Score:
        return Score(name=self.name, value=1.0)


ON_SPANS = {
    name.removeprefix(f"{semconv.METRIC_PREFIX}.").split(".")[0]
    for key, name in vars(semconv).items()
    if key.startswith(("EVALUATION_", "DRIFT_")) and name.startswith(semconv.METRIC_PREFIX)
}
"""Where a span or event has an attribute of the whole evaluation."""


def test_metrics_sets_and_objects_may_be_mixed() -> None:
    """The order is that in which they were asked for."""
    wanted = ["mrr", Own(), "default", m.StatementFaithfulness()]
    assert [metric.name for metric in m.resolve_metrics(wanted)] == [
        *("mrr", "own", "answer_relevancy", "context_relevance", "faithfulness"),
        *("response_groundedness", "statement_faithfulness"),
    ]


def test_a_lone_name_is_a_name() -> None:
    """One name that was not put in a list is not read letter by letter."""
    assert m.resolve_metrics("faithfulness") == (m.Faithfulness(),)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (["nonsense"], "unknown metric 'nonsense'. There are: answer_accuracy, .*, retrieval$"),
        (["faithfulnes"], "unknown metric 'faithfulnes'; did you mean 'faithfulness'?"),
        (["onlin"], "did you mean 'online'?"),
        (["mrr", "mrr"], r"metrics named twice: mrr; give each its own name=..."),
        ([], "no metrics; name at least one, or 'default'"),
        ([m.Faithfulness], r"Faithfulness is a class; pass Faithfulness\(\)"),
        ([5], "5 is no metric: it has no name, needs, measure"),
        ([None], "None is no metric"),
        ([Own(name="My own")], "a metric can't be named 'My own'; use a-z, 0-9 and _, and none of"),
        ([Own(name="")], "a metric can't be named ''"),
        *(
            (
                [Own(name=name)],
                f"a metric can't be named '{name}'; .* none of annotator, cause, citations",
            )
            for name in sorted(ON_SPANS | {semconv.OFFLINE})
        ),
    ],
)
def test_what_cannot_be_resolved(wanted: Any, told: str) -> None:
    """The error says what there is, or what to pass instead."""
    with pytest.raises(ConfigError, match=told):
        m.resolve_metrics(wanted)


MODULE = """
from rag_eval_otel.metrics import LLMMetric
from rag_eval_otel.types import Score


class Politeness:
    name = "politeness"
    needs = frozenset({"answer"})
    asks = ()

    async def measure(self, sample, ask, embed):
        return Score(name=self.name, value=float("please" in sample.answer))


def brevity():
    return LLMMetric(name="brevity", instructions="Is it brief?")


def broken(argument):
    return Politeness()


nothing = object
"""
ENTRIES = """[rag_eval_otel.metrics]
politeness = polite_metrics:Politeness
brevity = polite_metrics:brevity
broken = polite_metrics:broken
nothing = polite_metrics:nothing
absent = polite_metrics:absent
gone = no_such_module_anywhere:thing
faithfulness = polite_metrics:Politeness
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch, tmp_path, "polite_metrics", MODULE, ENTRIES)
    yield
    sys.modules.pop("polite_metrics", None)


@pytest.mark.usefixtures("installed")
def test_a_metric_of_another_package_is_used_by_name() -> None:
    """What a package registers stands beside ours, in the list and in an evaluation."""
    assert m.metric_names()[: len(m.METRICS)] == tuple(m.METRICS)
    assert {"politeness", "brevity"} <= set(m.metric_names())
    score = evaluated(["politeness", "mrr"], answer="Yes please.").scores[0]
    assert (score.name, score.value) == ("politeness", 1)
    assert m.resolve_metrics(["brevity"])[0].needs == {"question", "answer"}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", "the metric 'broken' \\(polite_metrics:broken\\) could not be made: .*argument"),
        ("absent", "the metric 'absent' \\(polite_metrics:absent\\) could not be imported"),
        ("gone", "\\(no_such_module_anywhere:thing\\) could not be imported: No module"),
        ("nothing", "is no metric: it has no name, needs, measure"),
        ("rudeness", "unknown metric 'rudeness'.*There are: .*politeness"),
    ],
)
def test_a_package_that_is_broken(name: str, told: str) -> None:
    """The error names the entry point, and the others go on working."""
    with pytest.raises(ConfigError, match=told):
        m.resolve_metrics([name])
    assert m.resolve_metrics(["politeness"])

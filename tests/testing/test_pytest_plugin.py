"""The pytest plugin: its fixture, its options, its report, and that it costs others nothing."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rag_eval_otel import Sample, instrument, record_answer, record_question, record_retrieval
from rag_eval_otel.errors import ConfigError, FailedRowError
from rag_eval_otel.testing import FakeEmbedder, FakeJudge, RagEval, assertions
from rag_eval_otel.tools.demo import TURNS, build_app
from rag_eval_otel.types import Passage

ROOT = Path(__file__).parents[2]
GOOD = Sample(question="When?", contexts=(Passage(text="It opens at 9."),), answer="It opens at 9.")
BAD = Sample(question="When?", contexts=(Passage(text="It opens at 9."),), answer="In July.")

INSTALLED = any(one.name == "rag_eval_otel" for one in entry_points(group="pytest11"))
PLUGIN = [] if INSTALLED else ["-p", "rag_eval_otel.testing.pytest_plugin"]

TESTS = """
import pytest
from rag_eval_otel import Sample
from rag_eval_otel.types import Passage

CONTEXTS = (Passage(text="It opens at 9."),)

@pytest.mark.parametrize("answer", ["It opens at 9.", "In July."])
def test_answer(rag_eval, answer):
    sample = Sample(question="When?", contexts=CONTEXTS, answer=answer)
    rag_eval.assert_scores(sample, faithfulness=0.8, response_groundedness=0.1)

def test_without_scores():
    pass
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*PLUGIN, "-p", "no:randomly", *arguments)


def test_a_low_score_fails_and_is_reported(pytester: pytest.Pytester) -> None:
    """The message has score, bound and texts, and no frame of ours; reports have the score."""
    pytester.makepyfile(test_it=TESTS)
    result = run(pytester, "--junitxml", "junit.xml")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AssertionError: faithfulness is 0.000, below 0.8",
            "*question: When?",
            "*answer: In July.",
        ]
    )
    result.stdout.no_fnmatch_line("*assertions.py*")
    cases = list(ET.parse(pytester.path / "junit.xml").iter("testcase"))  # noqa: S314
    assert [len(list(case.iter("property"))) for case in cases] == [6, 6, 0]
    told = {one.get("name"): one.get("value") for one in cases[1].iter("property")}
    assert told["rag_eval.faithfulness"] == "0.0"
    assert told["rag_eval.faithfulness.at_least"] == "0.8"
    assert told["rag_eval.judge"] == "lexical"


@pytest.mark.slow
def test_other_sessions_are_left_alone(pytester: pytest.Pytester) -> None:
    """No report, no property, and no library is imported but pytest and our names."""
    pytester.makepyfile(
        """
        import sys

        def test_plain(request):
            heavy = {"numpy", "pydantic", "openai", "langchain_core", "opentelemetry", "jinja2"}
            assert not heavy & set(sys.modules)
            ours = {name for name in sys.modules if name.startswith("rag_eval_otel")}
            assert ours == {
                "rag_eval_otel",
                "rag_eval_otel.semconv",
                "rag_eval_otel.testing",
                "rag_eval_otel.testing.pytest_plugin",
            }
            assert request.node.user_properties == []
        """
    )
    # Other plugins of this environment import what they like.
    options = ["-p", "rag_eval_otel.testing.pytest_plugin", "-q", "--junitxml", "junit.xml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "COVERAGE_PROCESS_START"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        env=environment,
        cwd=pytester.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "scores" not in done.stdout
    assert "properties" not in (pytester.path / "junit.xml").read_text(encoding="utf-8")


def offline() -> RagEval:
    return RagEval(judge="lexical", embedder="hashing")


def test_several_samples_are_asserted_by_their_mean() -> None:
    """A sample, a mapping with usual other names, or a list of either."""
    evaluations = offline().assert_scores([GOOD, BAD], faithfulness=0.4)
    assert [evaluation.scores[0].value for evaluation in evaluations] == [1.0, 0.0]
    row = {"user_input": "When?", "retrieved_contexts": ["It opens at 9."], "response": "At 9."}
    for source in (row, [row]):
        assert len(offline().assert_scores(source, context_relevance=0.0)) == 1


def long_answer(sample: Sample) -> float:
    return float(len(sample.answer) > 10)


SILENT = Sample(question="When?", contexts=GOOD.contexts, answer="Hm.")


@pytest.mark.parametrize(
    ("source", "bounds", "told"),
    [
        ([GOOD, BAD], {"faithfulness": 0.6}, r"(?s)mean of faithfulness is 0.500.*sample 1: quest"),
        (SILENT, {"faithfulness": 0.0}, r"faithfulness has no score \(no_claims\)"),
        (BAD, {"metrics": [long_answer], "long_answer": 1}, r"long_answer is 0\.000, below 1"),
    ],
)
def test_a_score_that_is_low_or_undefined_fails(source: Any, bounds: Any, told: str) -> None:
    """The message names metric, bound and the worst sample; a function is a metric."""
    with pytest.raises(AssertionError, match=told):
        offline().assert_scores(source, **bounds)


def test_low_scores_are_good_if_the_metric_says_so(pytester: pytest.Pytester) -> None:
    """The bound of needless refusals is the highest score."""
    pytester.makepyfile(
        """
        import pytest

        TEXT = "Albert Einstein was born in Ulm on 14 March 1879."

        @pytest.mark.parametrize("answer", ["He was born in Ulm.", "I don't know."])
        def test_answer(rag_eval, answer):
            turn = {"query": "Where was Albert Einstein born?", "contexts": [TEXT]}
            turn["answer"] = answer
            rag_eval.assert_scores(turn, needless_refusal=0.05)
        """
    )
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: needless_refusal is 1.000, above 0.05"])


def test_the_sentence_that_is_not_backed_is_named() -> None:
    """A judge without reasons says it by its verdicts."""
    turn = Sample(question="When?", contexts=GOOD.contexts, answer="It is open. Cats   purr.")
    verdicts = [{"index": i, "verdict": 2 - i} for i in (1, 2)]
    judge = FakeJudge(lambda _: {"verdicts": verdicts})
    with pytest.raises(AssertionError, match=r"not backed by the contexts: Cats   purr\."):
        RagEval(judge=judge, embedder=FakeEmbedder({})).assert_scores(turn, faithfulness=0.8)


def test_a_judge_that_fails_is_another_error() -> None:
    """An outage is not a bad answer."""

    def fail(_: object) -> object:
        raise ConnectionError

    judge = FakeJudge(fail)
    with pytest.raises(FailedRowError, match="context_agreement could not be measured"):
        RagEval(judge=judge, embedder=FakeEmbedder({})).assert_scores(GOOD, context_agreement=0.5)


def keeping(samples: list[Sample]) -> Callable[[Sample], float]:
    def keep(sample: Sample) -> float:
        samples.append(sample)
        return 1.0

    return keep


NO_SAMPLE = "takes samples, mappings or an application"


@pytest.mark.parametrize(
    ("source", "least", "told"),
    [
        *(
            (bad, {"faithfulness": 0.8}, NO_SAMPLE)
            for bad in ("rows.jsonl", 3, [{"question": "?"}])
        ),
        (GOOD, {}, "needs a lowest score"),
        (GOOD, {"faithfulness": "high"}, "a threshold must be a number"),
        (GOOD, {"faithfullness": 0.5}, "unknown metric 'faithfullness'"),
    ],
)
def test_what_cannot_be_asserted(source: object, least: Any, told: str) -> None:
    """The error says what is missing; files of samples are for `evaluate_dataset`."""
    with pytest.raises(ConfigError, match=told):
        offline().assert_scores(source, **least)


def museum(question: str) -> str:
    record_question(question)
    record_retrieval(question, ["The museum opens at 9."])
    record_answer("It opens at 9.")
    return "It opens at 9."


async def async_museum(question: str) -> str:
    await asyncio.sleep(0)
    return museum(question)


def test_a_langchain_application_is_called_and_read() -> None:
    """Its retriever and its model are seen without a callback."""
    assert offline().assert_scores(build_app(), TURNS[0].question, faithfulness=0.8)


@pytest.mark.parametrize("app", [museum, async_museum])
def test_a_hand_written_application_is_called_and_read(app: Any) -> None:
    """Recorded texts need no tracer provider of the application."""
    samples: list[Sample] = []
    metric = keeping(samples)
    offline().assert_scores(app, "When does it open?", metrics=[metric], keep=1)
    assert samples == [
        Sample(
            question="When does it open?",
            contexts=(Passage(text="The museum opens at 9."),),
            answer="It opens at 9.",
        )
    ]


def test_an_application_is_called_within_an_event_loop() -> None:
    """An asynchronous test asserts in the same way."""

    async def body() -> None:
        offline().assert_scores(async_museum, "When does it open?", faithfulness=0.8)

        assert asyncio.get_running_loop().is_running()

    asyncio.run(body())


@pytest.mark.parametrize(
    "returned",
    [
        GOOD,
        Sample(contexts=GOOD.contexts, answer=GOOD.answer),
        {"answer": "It opens at 9.", "contexts": ["It opens at 9."]},
        {"input": "When?", "answer": "It opens at 9.", "context": [{"text": "It opens at 9."}]},
        ("It opens at 9.", ["It opens at 9."]),
    ],
)
def test_an_application_may_return_its_turn(returned: object) -> None:
    """Then nothing needs to be traced; the question is the argument."""
    samples: list[Sample] = []
    offline().assert_scores(lambda _: returned, "When?", metrics=[keeping(samples)], keep=1)
    assert [(sample.question, sample.context_texts) for sample in samples] == [
        ("When?", ("It opens at 9.",))
    ]


def test_the_argument_may_be_a_mapping() -> None:
    """LangChain's chains take one; without an argument, the application is called without."""
    ask = {"input": "When?", "chat_history": []}
    pair = ("It opens at 9.", ["It opens at 9."])
    samples: list[Sample] = []
    offline().assert_scores(lambda _: pair, ask, metrics=[keeping(samples)], keep=1)
    assert samples[0].question == "When?"
    assert offline().assert_scores(lambda: GOOD, faithfulness=0.8)


def test_an_application_that_shows_nothing_is_told() -> None:
    """The error says what to return or to trace."""
    with pytest.raises(ConfigError, match=r"call of _mute has 0 turns.*Return a Sample"):
        offline().assert_scores(_mute, "When?", faithfulness=0.8)


def _mute(question: str) -> str:
    return question


def test_errors_of_the_application_are_its_own() -> None:
    """They reach the test unchanged, and the next call is read as usual."""
    with pytest.raises(ZeroDivisionError):
        offline().assert_scores(lambda: 1 / 0, faithfulness=0.8)
    assert offline().assert_scores(museum, "When?", faithfulness=0.8)


@pytest.mark.parametrize("instrumented", ["no", "yes"])
def test_the_global_provider_is_read(instrumented: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another pipeline reads them already, which then scores and exports as before."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(assertions, "get_tracer_provider", lambda: provider)
    handle = (
        instrument(tracer_provider=provider, judge="lexical", host_hooks=False)
        if instrumented == "yes"
        else None
    )

    def ask(question: str) -> str:
        with provider.get_tracer("app").start_as_current_span("ask"):
            return museum(question)

    if handle is None:
        assert offline().assert_scores(ask, "When?", faithfulness=0.8)
        assert len(exporter.get_finished_spans()) == 2
        return
    with pytest.raises(ConfigError, match="0 turns"):
        offline().assert_scores(ask, "When?", faithfulness=0.8)
    handle.flush()
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["rag.evaluation.status"] == "scored"
    handle.shutdown()

"""A metric in the user's own words."""

from typing import Any

import pytest

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.wire import compose
from rag_eval_otel.metrics import LLMMetric
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Score
from scoring import FULL, score_of, script

KIND = "Is the answer kind?"


def kindness(**parameters: Any) -> LLMMetric:
    return LLMMetric(**{"name": "kindness", "instructions": KIND, **parameters})


def replied(reply: object, **parameters: Any) -> Score:
    return score_of(kindness(**parameters), FakeJudge(script(custom_kindness=reply)))


@pytest.mark.parametrize(
    ("parameters", "value", "expected", "normalized"),
    [
        ({}, 0.25, 0.25, None),
        ({}, 1, 1, None),
        ({"bounds": (1, 5)}, 2, 2, 0.25),
        ({"bounds": [-1, 1]}, 0.5, 0.5, 0.75),
        ({"outputs": {"score": int}, "bounds": (0, 10)}, 7, 7, 0.7),
        ({"outputs": {"score": int}, "bounds": (0, 10)}, 7.0, 7, 0.7),
        ({"outputs": {"score": bool}}, True, 1, None),
        ({"outputs": {"score": bool}}, False, 0, None),
        ({"outputs": {"score": [0, 0.5, 1]}}, 0.5, 0.5, None),
        ({"outputs": {"score": [1, 3, 5]}, "bounds": (0, 1)}, 3, 3, 0.5),
        ({"outputs": {"score": (-1, 1)}}, 1, 1, 1),
    ],
)
def test_the_output_that_is_the_score(
    parameters: dict[str, Any], value: object, expected: float, normalized: float | None
) -> None:
    """A number within bounds, a bool or one of a list; brought to [0, 1] where it is not there."""
    score = replied({"score": value}, **parameters)
    assert (score.value, score.status) == (expected, "ok")
    assert score.normalized == (normalized and pytest.approx(normalized))
    assert score.detail == {"score": value}


@pytest.mark.parametrize(
    ("parameters", "value"),
    [
        *(({}, bad) for bad in (1.01, -0.01, "1", None, True, [1], float("nan"), 10**400)),
        *(({"outputs": {"score": int}}, bad) for bad in (0.5, 2, "1", True, None, 10**400)),
        *(({"outputs": {"score": bool}}, bad) for bad in (1, 0, "true", None)),
        *(({"outputs": {"score": [1, 3]}}, bad) for bad in (2, "3", True, None)),
    ],
)
def test_what_is_not_of_its_type_is_asked_again(parameters: dict[str, Any], value: object) -> None:
    """Off the bounds, of another type or null: asked again, then undefined."""
    judge = FakeJudge(script(custom_kindness={"score": value}))
    score = score_of(kindness(**parameters), judge)
    assert (score.value, score.status, score.reason) == (None, "undefined", "unparsable")
    assert len(judge.requests) == 2


OUTPUTS = {"score": float, "tone": ["warm", "cold"], "why": str, "words": int, "sure": bool}
REPLY = {"score": 0.5, "tone": "warm", "why": "It thanks.", "words": 3, "sure": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [("tone", "hot"), ("tone", None), ("why", 1), ("words", 1.5), ("words", "3"), ("sure", 1)],
)
def test_every_output_is_checked(name: str, value: object) -> None:
    """An output beside the score that is of another type spoils the reply."""
    assert replied({**REPLY, name: value}, outputs=OUTPUTS).reason == "unparsable"
    assert replied({k: v for k, v in REPLY.items() if k != name}, outputs=OUTPUTS).value is None


def test_what_the_judge_is_sent() -> None:
    """Instructions under the metric's heading, the bounds in words, the inputs in their tags."""
    metric = kindness(inputs=("answer", "house_style"), bounds=(1, 5))
    judge = FakeJudge(script(custom_kindness={"score": 3}))
    score_of(metric, judge, extra={"house_style": "Say please.", "other": "nowhere"})
    request = compose(judge.requests[0])
    assert f"# custom_kindness\n{KIND}\n`score` is a number from 1 to 5." in request.user
    assert "house_style]\nSay please.\n" in request.user
    assert FULL.question not in request.user
    assert "nowhere" not in request.user
    assert request.schema["required"] == ["custom_kindness"]


@pytest.mark.parametrize(
    ("inputs", "texts", "reason"),
    [
        (("answer",), {"answer": " "}, "empty_answer"),
        (("question",), {"question": ""}, "missing_question"),
        (("contexts",), {"contexts": [" "]}, "no_context"),
        (("reference",), {"reference": None}, "missing_reference"),
        (("house_style",), {}, "missing_input"),
        (("house_style",), {"extra": {"house_style": " "}}, "missing_input"),
        (("answer", "house_style"), {}, "missing_input"),
    ],
)
def test_an_input_that_is_missing(
    inputs: tuple[str, ...], texts: dict[str, Any], reason: str
) -> None:
    """What the sample lacks is named, and nobody is asked."""
    judge = FakeJudge(script())
    score = score_of(kindness(inputs=inputs), judge, **texts)
    assert (score.value, score.status, score.reason) == (None, "undefined", reason)
    assert score.detail == {"missing": [inputs[-1]]}
    assert judge.requests == []


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"name": "My metric"}, "'My metric' can't be a name here; use a-z, 0-9 and _"),
        ({"name": "2nd"}, "'2nd' can't be a name"),
        ({"inputs": ("context",)}, "'context' can't be a name"),
        ({"inputs": ("example",)}, "'example' can't be a name"),
        ({"inputs": ("Answer",)}, "'Answer' can't be a name"),
        ({"inputs": "answer"}, r"kindness needs .* inputs, as in \('answer',\)"),
        ({"inputs": ()}, "kindness needs instructions and inputs"),
        ({"instructions": " "}, "kindness needs instructions"),
        *(
            ({"outputs": {"score": float, name: str}}, f"'{name}' can't be a name")
            for name in ("copy", "json", "schema", "model_dump", "model_config", "_x", "a-b", "")
        ),
        ({"outputs": ["score"]}, "outputs must map names to types, as {'score': float}"),
        ({"outputs": {"score": float, 5: str}}, "5 can't be a name"),
        ({"value": "kind"}, "value='kind' must be an output: score"),
        ({"outputs": {}}, "value='score' must be an output"),
        ({"outputs": {"score": str}}, "output 'score' must be bool, int, float or a"),
        ({"outputs": {"score": ["a", "b"]}}, "output 'score' must be"),
        ({"outputs": {"score": [1]}}, "output 'score' must be"),
        ({"outputs": {"score": []}}, "output 'score' must be"),
        ({"outputs": {"score": [True, False]}}, "output 'score' must be"),
        ({"outputs": {"score": [[1], [2]]}}, "output 'score' must be"),
        ({"outputs": {"score": "float"}}, "output 'score' must be"),
        ({"outputs": {"score": 1}}, "output 'score' must be"),
        ({"outputs": {"score": float, "why": list}}, "bool, int, float, str or a list of values"),
        ({"bounds": (1, 0)}, r"bounds must be two numbers, low < high"),
        ({"bounds": (1, 1)}, "bounds must be"),
        ({"bounds": (0, 1, 2)}, "bounds must be"),
        ({"bounds": (0, float("inf"))}, "bounds must be"),
        ({"bounds": (float("nan"), 1)}, "bounds must be"),
        (
            {"examples": [{"inputs": {"answer": "a"}, "outputs": {"score": 3}}]},
            r"examples\[0\] of kindness must be .* with inputs \['question', 'answer'\] with outp",
        ),
    ],
    ids=repr,
)
def test_what_cannot_be_asked_is_refused(parameters: dict[str, Any], told: str) -> None:
    """Names, types, bounds and examples are checked when the metric is made."""
    with pytest.raises(ConfigError, match=told):
        kindness(**parameters)

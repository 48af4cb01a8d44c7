"""Recorded traces of applications that combine what the plain ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_eval_otel.types import Sample, SkipReason
from replay import load, replay
from verdicts import verdict

PATHS = sorted((Path(__file__).parent / "shapes" / "recordings").glob("*.json"))

REFUSED: dict[str, SkipReason] = {
    # the turn does not say what it returned, and its last call may grade, translate or be it
    "openinference-langchain__own_names_and_a_grade": "ambiguous",
    "openinference-langchain__plain_function_graded": "ambiguous",
    "openinference-langchain__plain_function_graded_short": "ambiguous",
    "openinference-langchain__plain_function_translated": "ambiguous",
    # the question was only ever written inside of prompts
    "openinference-langchain__plain_function_with_rewrite": "no_question",
    # which field of the model's JSON is the answer is not to be seen
    "openinference-langchain__structured_in_unusual_fields": "ambiguous",
    "traceloop-langchain__structured_in_unusual_fields": "ambiguous",
    # a call that was made while the stream stood still is written as a part of it
    "traceloop-langchain__stream_read_late": "ambiguous",
}
"""Where nothing is scored though there is a turn, and why."""


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_a_combination(path: Path) -> None:
    """Every turn is found as it was, or refused for a known reason; what is none is not scored."""
    recording = load(path)
    found = replay(recording.calls)
    if path.stem in REFUSED:
        assert {one.result for one in found} == {REFUSED[path.stem]}
    else:
        assert verdict(recording, found) == ("exact" if recording.truths else "none")
        assert recording.truths or not any(isinstance(one.result, Sample) for one in found)


def test_every_refusal_is_shown() -> None:
    """No reason is given for what is not there."""
    assert set(REFUSED) <= {path.stem for path in PATHS}

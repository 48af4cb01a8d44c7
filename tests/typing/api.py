"""The public API as a type checker sees it. Never run: mypy and pyright check it strictly."""

from typing import Literal

from typing_extensions import assert_type

from rag_eval_otel import Passage, Sample, Score


def a_sample_takes_passages() -> None:
    sample = Sample(question="Who?", contexts=(Passage(text="Ada."),), answer="Ada.")
    assert_type(sample.question, str)
    assert_type(sample.contexts, tuple[Passage, ...])
    assert_type(sample.reference, str | None)


def a_score_is_a_number_or_has_a_reason(score: Score) -> None:
    assert_type(score.value, float | None)
    assert_type(score.status, Literal["ok", "undefined", "error"])

"""Recorded traces of applications of the corpus, by ten instrumentations of three frameworks.

`corpus.keep_spans --again` records them anew.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rag_eval_otel.capture.sample import Outcome
from rag_eval_otel.types import Sample, SkipReason
from replay import Recording, load, verdict
from steps import outcomes_of

PATHS = sorted((Path(__file__).parent / "capture" / "recordings").glob("*.json"))

DOUBTFUL = "doubtful_langchain__"
REFUSED: dict[str, SkipReason] = {
    # the turn does not say what it returned, and its last call may grade, translate or be it
    f"openinference__{DOUBTFUL}own_names_and_a_grade": "ambiguous",
    f"openinference__{DOUBTFUL}plain_calls_graded": "ambiguous",
    f"openinference__{DOUBTFUL}plain_calls_graded_at_length": "ambiguous",
    f"openinference__{DOUBTFUL}plain_calls_translated": "ambiguous",
    "genai__langchain__guardrail_that_replaces_the_answer": "no_answer",
    # the question was only ever written inside of prompts
    f"langsmith__{DOUBTFUL}plain_calls_with_a_rewrite": "no_question",
    f"openinference__{DOUBTFUL}plain_calls_with_a_rewrite": "no_question",
    "genai__langchain__hypothetical_document": "no_question",
    # which field of the model's JSON is the answer is not to be seen
    f"openinference__{DOUBTFUL}structured_in_unusual_fields": "ambiguous",
    f"traceloop__{DOUBTFUL}structured_in_unusual_fields": "ambiguous",
    # a call that was made while the stream stood still is written as a part of it
    f"traceloop__{DOUBTFUL}stream_read_late": "ambiguous",
    # the passages, or their order, are only in the prompt
    f"genai__{DOUBTFUL}plain_calls_graded_at_length": "no_contexts",
    "genai__langchain__lcel_rag_streamed": "ambiguous",
    "genai__langchain__only_the_best_document": "no_contexts",
    # the answer or a passage comes from a step that is no model and no retriever
    "langfuse__langgraph__answer_replaced_by_a_check": "partial",
    "openinference__haystack__fallback_to_the_web": "partial",
    # Haystack writes only the beginning of a long document
    "openinference__haystack__auto_merging": "truncated",
    # the search was not made by a retriever
    "traceloop__langchain__two_step_chain_by_dynamic_prompt": "no_retrieval",
}
"""Where nothing is scored though there is a turn, and why."""


def is_as_stated(recording: Recording, found: Sequence[Outcome]) -> bool:
    """Return True if every turn is found as it was, or refused for the known reason."""
    reason = REFUSED.get(recording.path.stem)
    if reason is not None:
        return {one.result for one in found} == {reason}
    if recording.truths:
        return verdict(recording, found) == "exact"
    return not any(isinstance(one.result, Sample) for one in found)


@cache
def misread() -> list[str]:
    """Return the names of the recordings whose spans are not read as stated."""
    recordings = map(load, PATHS)
    return [one.path.stem for one in recordings if not is_as_stated(one, outcomes_of(one.spans))]

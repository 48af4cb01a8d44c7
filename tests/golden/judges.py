"""The judge of a golden case, as one that answers our questions.

For each prompt there are the replies that a case gives to it, one after the other: the JSON of a
reply, an error, or a text, which our own reader is to make something of. None stands for a reply
that does not parse; so does everything after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, zip_longest
from typing import Any, TypeAlias

from golden import protocol, texts
from golden.cases import Case, Row, rows_of
from rag_eval_otel.errors import JudgeTransportError

Replies: TypeAlias = "dict[str, Iterator[object]]"
Script: TypeAlias = "Callable[[Row, Mapping[str, Any]], Mapping[str, Iterable[object]]]"

_ATTEMPTS = 5
_SCALES = {"accuracy": {0, 2, 4}, "context_relevance": {0, 1, 2}, "groundedness": {0, 1, 2}}
_TRANSPORT = "<transport error>"


class GoldenJudge:
    """Answers by prompt, as the judge of one row of a case does."""

    def __init__(self, case: Case, row: Row | None = None) -> None:
        row = row or rows_of(case)[0]
        script = SCRIPTS.get(case["metric"], _nothing)
        failed = row.judge.get("error") or row.judge.get("transport_error")
        found = {} if failed and failed is not True else script(row, case["params"])
        self._down = failed is True
        self._replies: Replies = {prompt: iter(replies) for prompt, replies in found.items()}

    def __call__(self, prompt: str) -> object:
        if self._down:
            return JudgeTransportError("scripted")
        return next(self._replies.get(prompt, iter(())), None)


def _nothing(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    return {}


def _reverse(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    questions, flags = (row.judge.get(name) or [] for name in ("questions", "noncommittal"))
    pairs = zip_longest(questions, flags)
    return {"reverse_question": [{"question": q, "noncommittal": flag} for q, flag in pairs]}


def _dual(family: str) -> Script:
    def script(row: Row, params: Mapping[str, Any]) -> dict[str, Iterable[object]]:
        attempts = _attempts(row.judge, _SCALES[family])
        return {f"{family}_{i}": map(_rating, one) for i, one in enumerate(attempts, start=1)}

    return script


def _attempts(judge: Mapping[str, Any], scale: set[int]) -> Sequence[Iterable[Any]]:
    stream = judge.get("reply_stream")
    if stream is not None:  # voice 1 takes what it needs, and voice 2 what is left
        first = [i for i, rating in enumerate(stream) if rating in scale][:1] or [_ATTEMPTS]
        taken = min(first[0] + 1, _ATTEMPTS)
        return [stream[:taken], stream[taken:]]
    if "attempts" in judge:
        return judge["attempts"]  # type: ignore[no-any-return]
    single = judge.get("raw") or judge.get("ratings") or judge.get("final_ratings") or []
    return [cycle([rating]) for rating in single]


def _rating(given: object) -> object:
    if given == _TRANSPORT:
        return JudgeTransportError("scripted")
    value = texts.number(given)
    return given if value is None else {"rating": value}


def _faithfulness(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    judge = row.judge
    replies: dict[str, list[object]] = {"statements": [{"statements": judge["statements"]}]}
    if "verdicts" in judge:
        replies["verdicts"] = [protocol.verdicts(judge["verdicts"]), {"verdicts": []}]
    return replies


def _ranked(prompt: str) -> Script:
    def script(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
        texts_of = [passage.text for passage in row.sample.contexts]
        verdicts = [*row.judge["verdicts"], *(None for _ in texts_of)]
        # A blank context is not asked about, and one that comes twice only once.
        first = {text: i for i, text in reversed(list(enumerate(texts_of))) if text.strip()}
        return {prompt: [{"verdict": verdicts[i]} for i in sorted(first.values())]}

    return script


def _recall(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    return {"reference_statements": [_judged(row.judge["attributed"])]}


def _judged(verdicts: object, statements: object = None) -> object:
    flags = verdicts if isinstance(verdicts, list) else [verdicts]
    said = statements if isinstance(statements, list) else [f"claim {i}" for i in range(len(flags))]
    padded = [*flags, *(None for _ in said)]
    return {
        "statements": [{"statement": s, "verdict": v} for s, v in zip(said, padded, strict=False)]
    }


def _correctness(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    judge = row.judge
    if "classification_error" in judge:
        return {}
    tp, fp, fn = (int(judge.get(name) or 0) for name in ("tp", "fp", "fn"))
    if not tp + fp + fn:
        return {"compared_statements": [_sides([], [])]}
    wanted = max(len(judge.get("reference_statements", [])), fn) - fn
    return {"compared_statements": [_sides([1] * tp + [0] * fp, [1] * wanted + [0] * fn)]}


def _sides(answer: list[int], reference: list[int]) -> object:
    said, wanted = (
        [{"statement": f"{side} {i}", "verdict": flag} for i, flag in enumerate(flags)]
        for side, flags in (("a", answer), ("g", reference))
    )
    return {"answer_statements": said, "reference_statements": wanted}


def _rubric(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    return {"rubric": [{"rating": row.judge.get("score")}]}


def _said(row: Row, key: str, read: Callable[[str], object]) -> object:
    raw = row.judge.get("raw") or [None]
    meant = row.judge.get(key)
    if meant is None and isinstance(raw[0], str):
        meant = read(raw[0])
    return raw[0] if meant is None else meant


def _grade(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    said = _said(row, "score", texts.first_line)
    return {"correctness": [said if isinstance(said, str | None) else {"rating": said}]}


def _points(prompt: str, *, second: str, most: int) -> Script:
    def script(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
        said = _said(row, "points", texts.result)
        if not isinstance(said, int | float):
            return {prompt: [said]}
        first = min(said, most)
        return {prompt: [{"subject": first, second: said - first}]}

    return script


def _decision(prompt: str) -> Script:
    def script(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
        chunks = row.judge.get("raw_per_chunk")
        if chunks is not None:  # ours is shown all at once: one chunk is enough
            return {prompt: [{"passing": any(texts.yes(chunk) for chunk in chunks)}]}
        said = _said(row, "supported", texts.yes)
        return {prompt: [{"passing": said} if isinstance(said, bool) else said]}

    return script


def _guideline(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    raw = row.judge.get("raw")
    return {"guideline": list(raw) if raw else [{"passing": row.judge.get("passing")}]}


def _relevant(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    judge = row.judge
    if "statement_scores" in judge:
        judged = _judged(judge["statement_scores"], judge.get("statements"))
        return {"context_statements": [judged]}
    raw = judge.get("raw")
    said = {"relevant_statements": judge.get("relevant_statements")}
    return {"relevant_statements": list(raw) if raw else [said]}


def _one_step(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    judge = row.judge
    if judge.get("verdicts") is None:
        return {"judged_statements": list(judge.get("raw", []))}
    return {"judged_statements": [_judged(judge["verdicts"], judge.get("statements"))]}


def _custom(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    raw = row.judge.get("raw", [])
    return {"custom_llm": [JudgeTransportError(text) if text == "503" else text for text in raw]}


SCRIPTS: Mapping[str, Script] = {
    "answer_accuracy": _dual("accuracy"),
    "answer_correctness": _correctness,
    "answer_relevancy": _reverse,
    "context_precision": _ranked("useful_for_reference"),
    "context_recall": _recall,
    "context_relevance_dual": _dual("context_relevance"),
    "context_utilization": _ranked("useful_for_answer"),
    "faithfulness": _faithfulness,
    "hs_context_relevance": _relevant,
    "hs_faithfulness": _one_step,
    "hs_llm_evaluator": _custom,
    "instance_rubric_score": _rubric,
    "li_answer_relevancy": _points("answer_relevancy_rubric", second="focus", most=1),
    "li_context_relevancy": _points("context_relevancy_rubric", second="sufficiency", most=2),
    "li_correctness": _grade,
    "li_faithfulness": _decision("response_supported"),
    "li_guideline": _guideline,
    "li_relevancy": _decision("context_agreement"),
    "mm_comprehensive": protocol.comprehensive,
    "mm_decomposition": protocol.decomposition,
    "mm_direct": protocol.direct,
    "mm_intent": protocol.intent,
    "mm_reverse": protocol.reverse,
    "response_groundedness": _dual("groundedness"),
    "rubric_score": _rubric,
}
"""From a metric's name in the golden files to what its judge says to each prompt of ours."""

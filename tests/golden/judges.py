"""The judge of a golden case, as one that answers our questions.

For each prompt there are the replies that a case gives to it, one after the other: the JSON of a
reply, an error, or a text, which our own reader is to make something of. None stands for a reply
that does not parse; so does everything after the last one. Where a case has no JSON, its texts are
in the form that the peer asked for; where it says what the judge meant, that counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle, zip_longest
from typing import Any, TypeAlias

from golden.cases import Case, Row, rows_of
from rag_eval_otel.errors import JudgeTransportError

Params: TypeAlias = "Mapping[str, Any]"
Script: TypeAlias = "Callable[[Row, Params], Mapping[str, Iterable[object]]]"

_ATTEMPTS = 5
_DRAWN = 3
_TRANSPORT = "<transport error>"
_RESULT = re.compile(r".\s*\[RESULT\]\s*(\d+(?:\.\d+)?)\.?\s*$", re.DOTALL)
_YES_OR_NO = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_NUMBERING = "0123456789.-)( \t*"


class GoldenJudge:
    """Answers by prompt, as the judge of one row of a case does."""

    def __init__(self, case: Case, row: Row | None = None) -> None:
        row = row or rows_of(case)[0]
        script = SCRIPTS.get(case["metric"])
        failed = row.judge.get("error") or row.judge.get("transport_error")
        self._down = failed is True
        replies = {} if script is None or failed else script(row, case["params"])
        self._replies = {prompt: iter(of_prompt) for prompt, of_prompt in replies.items()}

    def __call__(self, prompt: str) -> object:
        if self._down:
            return JudgeTransportError("scripted")
        return next(self._replies.get(prompt, iter(())), None)


def _number(text: object) -> float | None:
    with suppress(TypeError, ValueError):
        return text if isinstance(text, int | float) else float(text)  # type: ignore[arg-type]
    return None


def _result(text: str) -> float | None:
    found = _RESULT.search(text)
    return None if found is None else float(found[1])


def _yes(text: object) -> bool | None:
    found = _YES_OR_NO.match(str(text))
    return None if found is None else found[1].lower() == "yes"


def _lines(text: object) -> list[str]:
    lines = (line.strip().lstrip(_NUMBERING).strip() for line in str(text).splitlines())
    return [line for line in lines if line]


def _unless_down(reply: object, *said: object) -> object:
    return JudgeTransportError("scripted") if _TRANSPORT in said else reply


def _rating(said: object) -> object:
    value = _number(said)
    return _unless_down(said if value is None else {"rating": value}, said)


def _verdicts(flags: object) -> object:
    if not isinstance(flags, Sequence):
        return None
    numbered = [{"index": i, "verdict": flag} for i, flag in enumerate(flags, start=1)]
    return {"verdicts": [one for one in numbered if one["verdict"] is not None]}


def _judged(verdicts: object, statements: object = None) -> object:
    flags = verdicts if isinstance(verdicts, list) else [verdicts]
    said = statements if isinstance(statements, list) else [f"claim {i}" for i in range(len(flags))]
    return {"statements": _flagged(said, [*flags, *(None for _ in said)])}


def _flagged(said: Iterable[object], flags: Iterable[object]) -> list[dict[str, object]]:
    return [{"statement": s, "verdict": v} for s, v in zip(said, flags, strict=False)]


def _meant(row: Row, key: str, read: Callable[[str], object]) -> object:
    """Return what the judge meant, or its text if that does not follow the form."""
    raw = row.judge.get("raw") or [None]
    meant = row.judge.get(key)
    if meant is None and isinstance(raw[0], str):
        meant = read(raw[0])
    return raw[0] if meant is None else meant


def _questions(row: Row, _: Params) -> dict[str, list[object]]:
    questions, flags = (row.judge.get(name) or [] for name in ("questions", "noncommittal"))
    pairs = zip_longest(questions, flags)
    return {"reverse_question": [{"question": q, "noncommittal": flag} for q, flag in pairs]}


def _dual(family: str, *scale: int) -> Script:
    def script(row: Row, _: Params) -> dict[str, Iterable[object]]:
        attempts = _attempts(row.judge, scale)
        return {f"{family}_{i}": map(_rating, one) for i, one in enumerate(attempts, start=1)}

    return script


def _attempts(judge: Mapping[str, Any], scale: Sequence[int]) -> Sequence[Iterable[Any]]:
    stream = judge.get("reply_stream")
    if stream is not None:  # voice 1 takes what it needs, and voice 2 what is left
        first = [i for i, rating in enumerate(stream) if rating in scale][:1] or [_ATTEMPTS]
        taken = min(first[0] + 1, _ATTEMPTS)
        return [stream[:taken], stream[taken:]]
    if "attempts" in judge:
        return judge["attempts"]  # type: ignore[no-any-return]
    single = judge.get("raw") or judge.get("ratings") or judge.get("final_ratings") or []
    return [cycle([rating]) for rating in single]


def _faithfulness(row: Row, _: Params) -> dict[str, list[object]]:
    replies: dict[str, list[object]] = {"statements": [{"statements": row.judge["statements"]}]}
    if "verdicts" in row.judge:
        replies["verdicts"] = [_verdicts(row.judge["verdicts"]), {"verdicts": []}]
    return replies


def _ranked(prompt: str) -> Script:
    def script(row: Row, _: Params) -> dict[str, list[object]]:
        texts = [passage.text for passage in row.sample.contexts]
        verdicts = [*row.judge["verdicts"], *(None for _ in texts)]
        # A blank context is not asked about, and one that comes twice only once.
        first = {text: i for i, text in reversed(list(enumerate(texts))) if text.strip()}
        return {prompt: [{"verdict": verdicts[i]} for i in sorted(first.values())]}

    return script


def _correctness(row: Row, _: Params) -> dict[str, list[object]]:
    judge = row.judge
    if "classification_error" in judge:
        return {}
    tp, fp, fn = (int(judge.get(name) or 0) for name in ("tp", "fp", "fn"))
    wanted = max(len(judge.get("reference_statements", [])), fn) - fn if tp + fp + fn else 0
    sides = {
        f"{side}_statements": _flagged(
            [f"{side} {i}" for i in range(yes + no)], [1] * yes + [0] * no
        )
        for side, yes, no in (("answer", tp, fp), ("reference", wanted, fn))
    }
    return {"compared_statements": [sides]}


def _grade(row: Row, _: Params) -> dict[str, list[object]]:
    said = _meant(row, "score", lambda text: _number(text.partition("\n")[0]))
    return {"correctness": [said if isinstance(said, str | None) else {"rating": said}]}


def _points(prompt: str, *, second: str, most: int) -> Script:
    def script(row: Row, _: Params) -> dict[str, list[object]]:
        said = _meant(row, "points", _result)
        if not isinstance(said, int | float):
            return {prompt: [said]}
        first = min(said, most)
        return {prompt: [{"subject": first, second: said - first}]}

    return script


def _decision(prompt: str) -> Script:
    def script(row: Row, _: Params) -> dict[str, list[object]]:
        chunks = row.judge.get("raw_per_chunk")
        if chunks is not None:  # ours is shown all at once: one chunk is enough
            return {prompt: [{"passing": any(map(_yes, chunks))}]}
        said = _meant(row, "supported", _yes)
        return {prompt: [{"passing": said} if isinstance(said, bool) else said]}

    return script


def _said(prompt: str, name: str) -> Script:
    """Return a script that gives the raw texts, or the member ``name`` of the judge."""
    return lambda row, _: {prompt: row.judge.get("raw") or [{name: row.judge.get(name)}]}


def _relevant(row: Row, params: Params) -> Mapping[str, Iterable[object]]:
    if "statement_scores" not in row.judge:
        return _said("relevant_statements", "relevant_statements")(row, params)
    judged = _judged(row.judge["statement_scores"], row.judge.get("statements"))
    return {"context_statements": [judged]}


def _one_step(row: Row, _: Params) -> dict[str, list[object]]:
    if row.judge.get("verdicts") is None:
        return {"judged_statements": list(row.judge.get("raw", []))}
    return {"judged_statements": [_judged(row.judge["verdicts"], row.judge.get("statements"))]}


def _custom(row: Row, _: Params) -> dict[str, list[object]]:
    raw = row.judge.get("raw", [])
    return {"custom_llm": [JudgeTransportError(text) if text == "503" else text for text in raw]}


# The seed's multi-method relevancy is a sequence of texts: the questions that the answer would
# answer, one a line; for each a similarity; the direct rating; the sub-questions, one a line; for
# each YES or NO; the intent; how far it is met. The metrics of one part have its texts alone.


def _reverse(raw: Iterator[Any], params: Params) -> dict[str, list[object]]:
    drawn = params.get("n", _DRAWN)
    asked = [line for line in _lines(next(raw, "")) if "?" in line][:drawn]
    said = [next(raw, None) for _ in asked]
    found = [{"index": i, "similarity": _number(text)} for i, text in enumerate(said, start=1)]
    usable = {"similarities": [one for one in found if one["similarity"] is not None]}
    questions = [*asked, *[""] * (drawn - len(asked))]
    return {
        "reverse_question": [{"question": q, "noncommittal": 0} for q in questions],
        "similarities": [_unless_down(usable, *said)],
    }


def _direct(raw: Iterator[Any], _: Params) -> dict[str, list[object]]:
    return {"direct_relevancy": [_rating(next(raw, None))]}


def _decomposition(raw: Iterator[Any], _: Params) -> dict[str, list[object]]:
    parts = _lines(next(raw, ""))
    said = [next(raw, None) for _ in parts]
    flags = [None if flag is None else int(flag) for flag in map(_yes, said)]
    addressed = _unless_down(_verdicts(flags), *said)
    return {"sub_questions": [{"sub_questions": parts}], "addressed": [addressed]}


def _intent(raw: Iterator[Any], _: Params) -> dict[str, list[object]]:
    wanted, met = next(raw, None), next(raw, None)
    return {
        "intent": [_unless_down({"intent": wanted}, wanted)],
        "intent_fulfilment": [_rating(met)],
    }


def _of_texts(*parts: Any, otherwise: Callable[[Any], list[Any]] = lambda _: []) -> Script:
    """Return a script of the raw texts of ``parts``, or of those that ``otherwise`` makes."""

    def script(row: Row, params: Params) -> dict[str, list[object]]:
        raw = iter(row.judge.get("raw") or otherwise(row.judge))
        return {prompt: said for part in parts for prompt, said in part(raw, params).items()}

    return script


SCRIPTS: Mapping[str, Script] = {
    "answer_accuracy": _dual("accuracy", 0, 2, 4),
    "answer_correctness": _correctness,
    "answer_relevancy": _questions,
    "context_precision": _ranked("useful_for_reference"),
    "context_recall": lambda row, _: {"reference_statements": [_judged(row.judge["attributed"])]},
    "context_relevance_dual": _dual("context_relevance", 0, 1, 2),
    "context_utilization": _ranked("useful_for_answer"),
    "faithfulness": _faithfulness,
    "hs_context_relevance": _relevant,
    "hs_faithfulness": _one_step,
    "hs_llm_evaluator": _custom,
    "instance_rubric_score": lambda row, _: {"rubric": [{"rating": row.judge.get("score")}]},
    "li_answer_relevancy": _points("answer_relevancy_rubric", second="focus", most=1),
    "li_context_relevancy": _points("context_relevancy_rubric", second="sufficiency", most=2),
    "li_correctness": _grade,
    "li_faithfulness": _decision("response_supported"),
    "li_guideline": _said("guideline", "passing"),
    "li_relevancy": _decision("context_agreement"),
    "mm_comprehensive": _of_texts(_reverse, _direct, _decomposition, _intent),
    "mm_decomposition": _of_texts(
        _decomposition,
        otherwise=lambda judge: [
            "\n".join(judge["sub_questions"]),
            *("YES" if flag else "NO" for flag in judge["addressed"]),
        ],
    ),
    "mm_direct": _of_texts(_direct, otherwise=lambda judge: [judge.get("score")]),
    "mm_intent": _of_texts(_intent, otherwise=lambda judge: ["intent", judge.get("score")]),
    "mm_reverse": _of_texts(
        _reverse, otherwise=lambda judge: ["\n".join(judge["questions"]), *judge["similarities"]]
    ),
    "response_groundedness": _dual("groundedness", 0, 1, 2),
    "rubric_score": lambda row, _: {"rubric": [{"rating": row.judge.get("score")}]},
}
"""From a metric's name in the golden files to what its judge says to each prompt of ours."""

"""The seed's multi-method relevancy: a sequence of texts, as replies to our prompts.

The texts come in this order: the questions that the answer would answer, one a line; for each a
similarity; the direct rating; the sub-questions, one a line; for each YES or NO; the intent; how
far it is met. The metrics of one part have the texts of that part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from golden import texts
from golden.cases import Row
from rag_eval_otel.errors import JudgeTransportError

_TRANSPORT = "<transport error>"
_DRAWN = 3


def verdicts(flags: object) -> object:
    if not isinstance(flags, Sequence):
        return None
    found = [{"index": i, "verdict": flag} for i, flag in enumerate(flags, start=1)]
    return {"verdicts": [one for one in found if one["verdict"] is not None]}


def comprehensive(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    raw = iter(row.judge["raw"])
    return {**_reverse(raw, params), **_direct(raw), **_decomposition(raw), **_intent(raw)}


def reverse(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    raw = row.judge.get("raw")
    if raw is None:
        raw = ["\n".join(row.judge["questions"]), *row.judge["similarities"]]
    return _reverse(iter(raw), params)


def direct(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    return _direct(iter(row.judge.get("raw") or [row.judge.get("score")]))


def decomposition(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    raw = row.judge.get("raw")
    if raw is None:
        flags = ("YES" if flag else "NO" for flag in row.judge["addressed"])
        raw = ["\n".join(row.judge["sub_questions"]), *flags]
    return _decomposition(iter(raw))


def intent(row: Row, params: Mapping[str, Any]) -> dict[str, list[object]]:
    return _intent(iter(row.judge.get("raw") or ["intent", row.judge.get("score")]))


def _reverse(raw: Iterator[Any], params: Mapping[str, Any]) -> dict[str, list[object]]:
    drawn = params.get("n", _DRAWN)
    asked = texts.questions(str(next(raw, "")), at_most=drawn)
    blanks = [""] * (drawn - len(asked))
    similarities = [next(raw, None) for _ in asked]
    found = [
        {"index": i, "similarity": texts.number(text)} for i, text in enumerate(similarities, 1)
    ]
    usable = [one for one in found if one["similarity"] is not None]
    return {
        "reverse_question": [{"question": q, "noncommittal": 0} for q in [*asked, *blanks]],
        "similarities": [_unless_down({"similarities": usable}, similarities)],
    }


def _direct(raw: Iterator[Any]) -> dict[str, list[object]]:
    return {"direct_relevancy": [_rating(next(raw, None))]}


def _decomposition(raw: Iterator[Any]) -> dict[str, list[object]]:
    parts = texts.lines(str(next(raw, "")))
    said = [next(raw, None) for _ in parts]
    flags = [texts.yes(text) for text in said]
    addressed = verdicts([None if flag is None else int(flag) for flag in flags])
    return {
        "sub_questions": [{"sub_questions": parts}],
        "addressed": [_unless_down(addressed, said)],
    }


def _intent(raw: Iterator[Any]) -> dict[str, list[object]]:
    wanted = next(raw, None)
    return {
        "intent": [_unless_down({"intent": wanted}, [wanted])],
        "intent_fulfilment": [_rating(next(raw, None))],
    }


def _rating(text: object) -> object:
    value = texts.number(text)
    return _unless_down(text if value is None else {"rating": value}, [text])


def _unless_down(reply: object, said: Sequence[object]) -> object:
    return JudgeTransportError("scripted") if _TRANSPORT in said else reply

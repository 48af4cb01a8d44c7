"""Ratings as the mean of the scale under the judge's own probabilities.

A judge that gives the token of its rating gives with it the probabilities of the tokens it did not
choose. Their mean agrees better with people than the token chosen.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from rag_eval_otel.judge.replies import Graded
from rag_eval_otel.judge.tasks import Task

_NUMBER = re.compile(r"[\s:]*(\d+(?:\.\d+)?)[\s,}]*")
_RATING = re.compile(r'"rating"\s*:\s*')


def with_expectations(
    parts: Sequence[object], tasks: Sequence[Task[Any]], *, names: Sequence[str], choice: Any
) -> tuple[object, ...]:
    """Return ``parts`` with what was expected of each rating, where its task wants that.

    ``choice`` is the server's, with ``logprobs.content``. A rating whose probabilities are not
    there, or that is not a single token, is returned as it was.
    """
    tokens = _tokens(choice)
    return tuple(
        _weighed(part, task, name=name, tokens=tokens) if task.rated == "logprobs" else part
        for part, task, name in zip(parts, tasks, names, strict=True)
    )


def _tokens(choice: Any) -> list[Mapping[str, Any]]:
    try:
        tokens = choice["logprobs"]["content"] or []
        return [token for token in tokens if isinstance(token["token"], str)]
    except (KeyError, TypeError):
        return []


def _weighed(
    part: object, task: Task[Any], *, name: str, tokens: Sequence[Mapping[str, Any]]
) -> object:
    if not isinstance(part, Graded) or not tokens:
        return part
    token = _token_at(_rating_at("".join(token["token"] for token in tokens), name), tokens)
    if token is None or _value(token["token"], task) != part.rating:
        return part
    expected = _expectation(token.get("top_logprobs"), task)
    return part if expected is None else part.expecting(expected)


def _rating_at(text: str, name: str) -> int:
    """Return where in the reply the rating of part ``name`` stands; -1 if that can't be told.

    A part is its rating alone, or an object that has one.
    """
    member = re.search(rf'"{re.escape(name)}"\s*:\s*(?=[{{\d])', text)
    start = member.end() if member else text.find("{")
    if member and text[start] != "{":
        return start
    try:
        _, end = json.JSONDecoder().raw_decode(text, max(start, 0))
    except ValueError:
        return -1
    rating = _RATING.search(text, start, end)
    return rating.end() if rating else -1


def _token_at(position: int, tokens: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    end = 0
    for token in tokens:
        end += len(token["token"])
        if 0 <= position < end:
            return token
    return None


def _value(token: str, task: Task[Any]) -> float | None:
    """Return the number a token writes, where it is on the task's scale."""
    match = _NUMBER.fullmatch(token)
    if match is None:
        return None
    value = float(match[1])
    try:
        task.reply.model_validate({"rating": value})
    except ValidationError:
        return None
    return value


def _expectation(alternatives: object, task: Task[Any]) -> float | None:
    """Return the mean of the alternatives on the scale, weighted by their probabilities."""
    weighted = list(_weights(alternatives, task))
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total > 0 else None


def _weights(alternatives: object, task: Task[Any]) -> Iterator[tuple[float, float]]:
    for one in alternatives if isinstance(alternatives, list) else ():
        token, logprob = one.get("token"), one.get("logprob")
        value = _value(token, task) if isinstance(token, str) else None
        if value is not None and isinstance(logprob, int | float) and logprob <= 0:
            yield value, math.exp(logprob)

"""200 turns, and the replies of a scripted judge to our, Haystack's and LlamaIndex's prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

COUNT = 200
_SUBJECTS = ("river", "bridge", "market", "school", "harbour", "garden", "station", "library")
_SENTENCE = "The {what} of town {i} was {verb} in {year} by people who lived near the old road"
_VERBS = ("built", "painted", "closed", "widened", "moved", "sold", "measured", "described")
_FEEDBACK = " ".join(["The answer names what was asked for and stays with the matter"] * 4)
_REASON = "the contexts name another year than the one in the sentence"
_NEEDED = 6  # sentences that the judge copies into its reply


def _sentences(i: int, *, first: int, count: int) -> list[str]:
    """Return sentences of 15 to 17 words."""
    return [
        _SENTENCE.format(what=_SUBJECTS[k % 8], i=i, verb=_VERBS[k // 8 % 8], year=1800 + k) + "."
        for k in range(first, first + count)
    ]


def turns() -> list[dict[str, Any]]:
    """Return turns: question of 15 words, 4 contexts of about 130, answer of about 65."""
    return [
        {
            "question": f"When was the {_SUBJECTS[i % 8]} of town {i} built,"
            " and who were the people that built it?",
            "contexts": [" ".join(_sentences(i, first=8 * k, count=8)) for k in range(4)],
            "answer": " ".join(_sentences(i, first=0, count=4)),
        }
        for i in range(COUNT)
    ]


def reply(body: Mapping[str, Any]) -> object:
    """Reply to a chat request at usual length: 113 and 292 tokens a turn for the peers."""
    text = "\n".join(str(message["content"]) for message in body["messages"])
    if "CODE is " in text:
        return json.dumps(_ours(body["response_format"]["json_schema"]["schema"], text))
    if "[RESULT]" in text:
        return f"{_FEEDBACK}.\n\n[RESULT] 2"
    if '"relevant_statements"' in text:
        return json.dumps({"relevant_statements": _sentences(1, first=0, count=_NEEDED)})
    if '"statement_scores"' in text:
        statements = _sentences(1, first=0, count=4)
        return json.dumps({"statements": statements, "statement_scores": [1, 1, 0, 1]})
    if '"written_questions"' in text:
        return json.dumps({"written_questions": list(_questions()), "noncommittal": 0})
    return "YES"


def _questions() -> Iterator[str]:
    for what in _SUBJECTS[:3]:
        yield f"When was the {what} of the town built, and by whom was it done?"


def _ours(schema: Mapping[str, Any], text: str) -> Any:
    """Return a reply that fits our schema: the requested number of entries, three questions."""
    due = {name: int(n) for name, n in re.findall(r"^(\w+): (\d+) entries$", text, re.MULTILINE)}
    return {
        name: _member(name, member, count=due.get(name, 3))
        for name, member in schema["properties"].items()
    }


def _member(name: str, schema: Mapping[str, Any], *, count: int) -> Any:
    if "items" in schema:
        if name == "question":
            return list(_questions())
        return [_member(name, schema["items"], count=i) for i in range(count)]
    if "properties" in schema:
        return {n: _member(n, one, count=count) for n, one in schema["properties"].items()}
    if name == "reason":  # every second entry gives a reason
        return _REASON if count % 2 else ""
    if name == "verdict":
        return 1 - count % 2
    return 0 if name == "noncommittal" else 1


def embed(text: str) -> list[float]:
    """Return an embedding of 256 numbers for ``text``."""
    return [((len(text) * (i + 1)) % 17) / 17 + 0.1 for i in range(256)]

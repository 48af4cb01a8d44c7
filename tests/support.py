"""What several tests share: a sample, scripts for judges, and the reading of golden cases."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rag_eval_otel.errors import JudgeTransportError
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Sample

GOLDEN_CORE = Path(__file__).parents[2] / "shared" / "golden" / "core.json"

SAMPLE = Sample(
    question="When was Einstein born?",
    contexts=["Albert Einstein was born March 14, 1879.", "He was born at Ulm."],
    answer="Einstein was born in 1879.",
)

GOOD: Mapping[str, object] = {
    "reverse_question": {"question": "In which year was Einstein born?", "noncommittal": 0},
    "statements": {"statements": ["Einstein was born in 1879.", "Einstein was a person."]},
    "verdicts": {"verdicts": [{"index": 1, "verdict": 1}, {"index": 2, "verdict": 0}]},
    "judged_statements": {"statements": [{"statement": "Born in 1879.", "verdict": 1}]},
    "context_relevance_1": {"rating": 2},
    "context_relevance_2": {"rating": 1},
    "groundedness_1": {"rating": 2},
    "groundedness_2": {"rating": 2},
}
"""A usable reply to every prompt of the metrics."""


def answers(**by_prompt: object) -> Callable[[Task[Any]], object]:
    """Answer each task by its prompt: `GOOD`, except for those named here."""
    replies = {**GOOD, **by_prompt}
    return lambda task: replies[task.prompt]


def in_turn(replies: Iterable[object]) -> Callable[..., object]:
    """Return the replies one after the other, whatever is asked; the last one for ever."""
    waiting = list(replies)
    return lambda *_: waiting.pop(0) if len(waiting) > 1 else waiting[0]


# --- what a server was asked ----------------------------------------------------------------------


def names_asked(body: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts that a chat request asks for, by its schema or its headings."""
    schema = (body.get("response_format") or {}).get("json_schema")
    if schema:
        return list(schema["schema"]["required"])
    headings = re.findall(r"^# ([a-z0-9_, ]+)$", text_asked(body), flags=re.MULTILINE)
    return ", ".join(headings).split(", ")


def text_asked(body: Mapping[str, Any]) -> str:
    """Return the text of the user's message of a chat request."""
    return str(body["messages"][-1]["content"])


def prompt_of(name: str) -> str:
    """Return the prompt of a part: its name without the number of the drawing."""
    return "reverse_question" if name.startswith("reverse_question") else name


def good_parts(body: Mapping[str, Any]) -> dict[str, object]:
    """Answer a chat request from `GOOD`."""
    return {name: GOOD[prompt_of(name)] for name in names_asked(body)}


# --- golden cases ---------------------------------------------------------------------------------

MAX_ATTEMPTS = 5
SCALE = {0, 1, 2}


def golden_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a golden file, or of all in a directory."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [case for file in files for case in json.loads(file.read_text(encoding="utf-8"))]


def golden_sample(case: Mapping[str, Any]) -> Sample:
    """Return the sample of a golden case."""
    names = ("question", "answer", "contexts", "reference")
    return Sample(**{name: case["inputs"][name] for name in names if name in case["inputs"]})


class GoldenJudge:
    """The judge of a golden case: for each prompt its replies, one after the other.

    None stands for a reply that does not parse; so does a prompt that the case has no more
    replies to.
    """

    def __init__(self, judge: Mapping[str, Any]) -> None:
        """Read the ``judge`` block of a case."""
        voices = [_ratings(attempts) for attempts in _attempts(judge)]
        self._replies: dict[str, Iterator[object]] = {
            "reverse_question": _questions(judge),
            "statements": iter(
                [{"statements": judge["statements"]}] if "statements" in judge else []
            ),
            "verdicts": _verdicts(judge.get("verdicts")),
        }
        for voice, ratings in enumerate(voices, start=1):
            self._replies[f"context_relevance_{voice}"] = ratings
            self._replies[f"groundedness_{voice}"] = ratings

    def __call__(self, prompt: str) -> object:
        """Return the next reply to ``prompt``."""
        return next(self._replies[prompt], None)


def _questions(judge: Mapping[str, Any]) -> Iterator[object]:
    pairs = zip(judge.get("questions", []), judge.get("noncommittal", []), strict=True)
    for question, noncommittal in pairs:
        yield {"question": question, "noncommittal": noncommittal}


def _verdicts(flags: list[Any] | None) -> Iterator[object]:
    if flags is not None:
        yield {"verdicts": [{"index": i, "verdict": v} for i, v in enumerate(flags, start=1)]}


def _attempts(judge: Mapping[str, Any]) -> list[list[Any]]:
    """Return the successive ratings of each voice, in whichever form the case gives them."""
    stream = judge.get("reply_stream")
    if stream is not None:  # voice 1 takes what it needs, and voice 2 what is left
        first = [i for i, rating in enumerate(stream) if rating in SCALE][:1] or [MAX_ATTEMPTS]
        taken = min(first[0] + 1, MAX_ATTEMPTS)
        return [stream[:taken], stream[taken:]]
    single = judge.get("ratings") or judge.get("raw") or []
    attempts: list[list[Any]] = judge.get("attempts") or [[rating] for rating in single]
    return attempts or [[], []]


def _ratings(attempts: list[Any]) -> Iterator[object]:
    for rating in attempts:
        if rating == "<transport error>":
            yield JudgeTransportError("scripted")
        else:
            yield None if rating is None else {"rating": rating}

"""What several tests share: a sample, and scripts for judges."""

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.types import Sample

SAMPLE = Sample(
    question="When was Einstein born?",
    contexts=["Albert Einstein was born March 14, 1879.", "He was born at Ulm."],
    answer="Einstein was born in 1879.",
)

GOOD: Mapping[str, object] = {
    "reverse_question": {"question": "In which year was Einstein born?", "noncommittal": 0},
    "statements": {"statements": ["Einstein was born in 1879.", "Einstein was a person."]},
    "verdicts": {"verdicts": [{"index": 1, "verdict": 1}, {"index": 2, "verdict": 0}]},
    "supported": {"verdicts": [{"index": 1, "verdict": 1}]},
    "judged_statements": {"statements": [{"statement": "Born in 1879.", "verdict": 1}]},
    "context_relevance_1": {"rating": 2},
    "context_relevance_2": {"rating": 1},
    "groundedness_1": {"rating": 2},
    "groundedness_2": {"rating": 2},
}
"""A usable reply to every prompt of the metrics."""


DRAWINGS = {
    "question": ["When?", "In which year?", "What is his year of birth?"],
    "noncommittal": 0,
}
"""What a judge writes where it is asked for three questions at once."""


class ManualClock:
    """A clock in seconds that moves only by `advance`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


def benchmark(name: str) -> Any:
    """Return a module of the benchmarks, such as ``_turns``."""
    folder = Path(__file__).parents[1] / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        for path in (folder / "data", folder):
            patch.syspath_prepend(path)
        return import_module(name)


def answers(**by_prompt: object) -> Callable[[Task[Any]], object]:
    replies = {**GOOD, **by_prompt}
    return lambda task: replies[task.prompt]


def in_turn(replies: Iterable[object]) -> Callable[..., object]:
    waiting = list(replies)
    return lambda *_: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def names_asked(body: Mapping[str, Any]) -> list[str]:
    return re.findall(r"^# ([a-z0-9_]+)$", text_asked(body), flags=re.MULTILINE)


def text_asked(body: Mapping[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def drawings_asked(body: Mapping[str, Any]) -> int:
    told = re.search(r"^Do this (\d+) times", text_asked(body), flags=re.MULTILINE)
    return int(told[1]) if told else 1


def good_parts(body: Mapping[str, Any]) -> dict[str, object]:
    several: dict[str, object] = {"reverse_question": DRAWINGS} if drawings_asked(body) > 1 else {}
    sentences = re.search(r"^supported: (\d+) entr", text_asked(body), flags=re.MULTILINE)
    if sentences:
        several["supported"] = [1] * int(sentences[1])
    return {name: {**GOOD, **several}[name] for name in names_asked(body)}


def hide(*patterns: str) -> Callable[[str], str]:
    """Return a function for the option ``redact`` that hides what matches one of ``patterns``."""

    def hidden(text: str) -> str:
        for pattern in patterns:
            text = re.sub(pattern, "[redacted]", text)
        return text

    return hidden


def install(patch: pytest.MonkeyPatch, folder: Path, name: str, module: str, entries: str) -> None:
    """Install a package ``name`` in ``folder``: its module, and its entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    (folder / f"{name}.py").write_text(module)
    patch.syspath_prepend(str(folder))


def yes(body: dict[str, Any]) -> object:
    """Reply that whatever is asked is so."""
    said = {"passing": True, "reason": "so it is"}
    names = names_asked(body)
    return said if "passing" in names else dict.fromkeys(names, said)

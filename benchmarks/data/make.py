"""Make the labelled rows of a domain from its facts: `python benchmarks/data/make.py`.

A ``.txt`` file here holds passages, each followed by its questions: ``?`` a question, ``+`` a right
answer, ``-`` an answer that the passage does not support. All texts are invented and written by
hand. Each question gives these rows: the right answers; the wrong ones (not faithful; the
answer's relevance is unlabelled); the answers to another question of the domain (not faithful, not
answer-relevant); and the passage of another question in place of its own (not relevant).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass
class Fact:
    """A question, its passage, and right and wrong answers."""

    question: str
    passage: str
    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def facts(text: str) -> Iterator[Fact]:
    """Yield the facts that ``text`` describes."""
    for block in text.strip().split("\n\n"):
        passage, *lines = block.splitlines()
        fact = None
        for line in lines:
            mark, told = line[0], line[2:].strip()
            if mark == "?":
                if fact:
                    yield fact
                fact = Fact(question=told, passage=passage)
            elif fact:
                (fact.right if mark == "+" else fact.wrong).append(told)
        if fact:
            yield fact


def row(
    fact: Fact, answer: str | None, passage: str | None = None, **labels: Any
) -> dict[str, Any]:
    """Return one row; omitted labels are null."""
    names = ("context_relevant", "faithful", "answer_relevant")
    return {
        "question": fact.question,
        "contexts": [passage or fact.passage],
        "answer": answer,
        **{name: labels.get(name) for name in names},
    }


def rows(found: list[Fact]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a domain."""
    pick = random.Random(7)  # the same rows every time
    for fact in found:
        others = [one for one in found if one.passage != fact.passage and _differ(one, fact)]
        other, elsewhere = pick.choice(others), pick.choice(others)
        for answer in fact.right:
            yield row(fact, answer, context_relevant=True, faithful=True, answer_relevant=True)
        for answer in fact.wrong:
            yield row(fact, answer, context_relevant=True, faithful=False)
        for answer in other.right:
            yield row(fact, answer, context_relevant=True, faithful=False, answer_relevant=False)
        yield row(fact, None, elsewhere.passage, context_relevant=False)


def _differ(one: Fact, other: Fact) -> bool:
    """Return True if ``one`` and ``other`` have different answers, not both yes or no."""
    return not all(
        fact.right[0].startswith(("Yes", "No", "Ja", "Nein", "Oui", "Non")) for fact in (one, other)
    )


def main() -> None:
    """Write a ``.jsonl`` file beside every ``.txt`` file."""
    for source in sorted(HERE.glob("*.txt")):
        made = rows(list(facts(source.read_text(encoding="utf-8"))))
        lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in made)
        source.with_suffix(".jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The handbook of an invented company, and ten turns of conversation about it.

The answers are scripted: most are right, and four have one defect each, of the kind that the
scores are there to show.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from rag_eval_otel.types import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question, what the demo's model answers, and what is wrong with that.

    ``incomplete``: only a part of the question is answered. ``made_up``: the answer is not in the
    handbook. ``off_topic``: the handbook has nothing on the question, so what is retrieved does
    not help. ``refusal``: the model evades.
    """

    question: str
    answer: str
    defect: Literal["none", "incomplete", "made_up", "off_topic", "refusal"] = "none"


def passages() -> tuple[Passage, ...]:
    """Return the sections of the handbook; a passage's id is its section's heading."""
    text = (files("rag_eval_otel.demo") / "handbook.md").read_text(encoding="utf-8")
    return tuple(_passage(section) for section in text.split("\n## ")[1:])


def _passage(section: str) -> Passage:
    heading, _, body = section.partition("\n")
    return Passage(id=heading.strip(), text=" ".join(body.split()))


TURNS: tuple[Turn, ...] = (
    Turn(
        question="How many days of paid leave does a full-time employee get each year?",
        answer="A full-time employee gets 27 days of paid leave each year.",
    ),
    Turn(
        question="How long is the warranty of the Skylark 2 weather station?",
        answer="The warranty of the Skylark 2 weather station is 5 years.",
    ),
    Turn(
        question="How do I claim travel costs, and by when must the claim be handed in?",
        answer="In the Tally app.",
        defect="incomplete",
    ),
    Turn(
        question="What is the daily allowance for meals on a business trip?",
        answer="The daily allowance for meals on a business trip is 38 euros.",
    ),
    Turn(
        question="How much does Larkfield pay towards a bicycle for commuting?",
        answer=(
            "Larkfield pays 400 euros towards a bicycle for commuting, once every three years,"
            " if it is bought from the dealer Velomark."
        ),
        defect="made_up",
    ),
    Turn(
        question="Until when may a weather station bought in the online shop be sent back?",
        answer=(
            "A weather station bought in the online shop may be sent back until 45 days after"
            " delivery."
        ),
    ),
    Turn(
        question="What does the pension plan pay when somebody retires at the age of 63?",
        answer="Larkfield pays the full salary for the first 7 weeks of an illness.",
        defect="off_topic",
    ),
    Turn(
        question="How many days a week is remote work possible, and which day is for the office?",
        answer=(
            "Remote work is possible on up to 3 days a week. Tuesday is the day on which everybody"
            " comes to the office."
        ),
    ),
    Turn(
        question="Is damage by lightning covered by the warranty of the Skylark 2?",
        answer="I'm sorry, I could not find that in the handbook. Please ask customer support.",
        defect="refusal",
    ),
    Turn(
        question="By when must a lost or stolen laptop be reported to the service desk?",
        answer="A lost or stolen laptop must be reported to the service desk within 2 hours.",
    ),
)
"""The conversation, in the order in which it is held."""

"""Contexts in a prompt: the block below a heading such as "Context:".

Where a retrieval is seen, and only the texts of what it found are not, they must be in the prompt.
Without one this is a guess at what the prompt means, which somebody has to ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_eval_otel.capture.retrieval import is_verdict, joined_lines, paragraphs, parts_of
from rag_eval_otel.capture.step import Step
from rag_eval_otel.types import Passage

_NAMES = (
    r"contexts?|documents|passages|sources|excerpts|snippets|background|references"
    r"|knowledge(?: base)?|(?:search |retrieval )?results|(?:context |background )?information"
)
_ASKED = r"(?:user(?:'s)? |customer |original )?(?:question|query|request|message|input)"
_TAGGED = re.compile(rf"<({_NAMES})>\s*(.*?)\s*</\1>", re.DOTALL | re.IGNORECASE)
_RULED = re.compile(
    rf"\b(?:{_NAMES})\b[^\n]*\n[ \t]*([-=*_#`~]{{3,}})[ \t]*\n(.*?)\n[ \t]*\1",
    re.DOTALL | re.IGNORECASE,
)
_ADJECTIVES = (
    r"(?:(?:the|retrieved|relevant|given|provided|following|supporting|additional)[ \t]+)*"
)
_HEADED = re.compile(  # on a line of its own, or with nothing before it
    rf"(?:^|\n)[ \t]*(?:[^\n:]{{0,200}}\b(?:{_NAMES})\b[^\n:.]{{0,40}}:[*]*[ \t]*\n"
    rf"|[#*\[]*{_ADJECTIVES}(?:{_NAMES})[\]*]*[ \t]*:)",
    re.IGNORECASE,
)
_NEXT = re.compile(
    rf"\n\s*[#*\[]*(?:{_ASKED}|(?:helpful |final |your )?answer|response|assistant|human|user"
    r"|customer|(?:chat |conversation )?history|instructions?|rules?|task|output|format)\b"
    r"[^\n:]{0,20}:",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    rf"(?:^|\n)\s*[#*\[]*(?:{_ASKED}|user|human|customer)[\]*]*\s*:[*]*\s*([^\n]+)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What stands below a heading, and what is asked beside it."""

    text: str
    question: str | None = None

    def passages(self, count: int | None = None) -> tuple[Passage, ...] | None:
        """Return the documents in it; None unless they are ``count``, where that is known."""
        if count is None:
            return joined_lines(self.text)
        ways = (parts_of(self.text), joined_lines(self.text), paragraphs(self.text))
        return next((found for found in ways if found is not None and len(found) == count), None)


def block_in(prompt: Sequence[str]) -> Block | None:
    """Return the block below a heading in the last message of ``prompt`` that has one."""
    for message in reversed(prompt):
        text = next((found for found in _blocks(message) if found), None)
        if text is not None:
            asked = _QUESTION.search(message.replace(text, "\n"))
            return Block(text=text, question=asked[1].strip() if asked else None)
    return None


def _blocks(message: str) -> Iterator[str]:
    for found in _TAGGED.finditer(message):
        yield found[2].strip()
    for found in _RULED.finditer(message):
        yield found[2].strip()
    for found in _HEADED.finditer(message):
        rest = message[found.end() :]
        end = _NEXT.search(f"\n{rest}")
        yield (rest if end is None else rest[: max(0, end.start() - 1)]).strip()


def retrieval_in(call: Step) -> Step | None:
    """Return the retrieval whose documents stand in the prompt of ``call``."""
    graded = len((call.output or "").split()) < 2 or is_verdict(call.output or "")  # noqa: PLR2004
    block = None if call.calls_tools or graded else block_in(call.prompt)
    documents = block.passages() if block is not None else None
    if block is None or not documents:
        return None
    return Step(
        id=(call.id, "prompt"),
        parent=call.parent,
        kind="retriever",
        name="prompt",
        start=call.start,
        end=call.start,
        input=block.question,
        documents=documents,
        contexts_source="prompt",
    )

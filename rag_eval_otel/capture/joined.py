"""Join a LangChain root run with retrievals that ran before it in its thread, by their texts."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rag_eval_otel.capture.documents import consists_of, parts_around
from rag_eval_otel.capture.runs import RunTree
from rag_eval_otel.capture.sample import why_none
from rag_eval_otel.capture.step import Step
from rag_eval_otel.capture.turns import StepTree, find_retrievals, is_long, is_verdict
from rag_eval_otel.capture.values import Messages, normalised, plain
from rag_eval_otel.types import SkipReason

_SHORTLY: Final = 60_000_000_000  # ns from a retrieval to the run that shows its documents
_ANSWERED = re.compile(  # an answer in a prompt, which is to be judged
    r"(?im)^[^\w\n]{0,9}(?:\w{1,20} )?(?:answer|generation|reply|response)"
    r"[^\w\n:]{0,5}:[ \t]{0,9}\w"
)


def retrievals_before(tree: RunTree, steps: Sequence[Step], *, most: int) -> list[Step]:
    """Return the retrievals before ``tree``, in its thread, whose documents its ``steps`` show.

    They become steps of ``tree``, and are not returned again. The list is empty if the prompts
    show other texts, too, or if the answer may be a draft or a grade.
    """
    beside, root = [*tree.beside], steps[0]
    at = beside.index(tree) if tree in beside else 0
    prompts = [text for step in steps for text in step.prompt]
    messages = Messages(prompts)
    used: dict[RunTree, list[Step]] = {}
    known: list[str] = []
    for before in reversed(beside[:at]):
        is_shortly = 0 <= tree.root.start - (before.root.end or 0) <= _SHORTLY
        may_be_used = is_shortly and before.has_only_searched and not before.is_used
        for one in find_retrievals(StepTree(before.steps(most=most))) if may_be_used else ():
            texts = [passage.text for passage in one.documents or ()]
            shown = [text for text in texts if text not in known and messages.find(text)]
            if shown:
                used.setdefault(before, []).append(one)
                known += shown
    found = [one for several in used.values() for one in several]
    if not found or not _shows_only(known, found, root, prompts):
        return []
    first = min(map(beside.index, used))
    drafts = [text for other in beside[first + 1 : at] for text in _replies(other.steps(most=most))]
    later = beside[at + 1 : at + 2]
    if any(map(messages.find, drafts)) or any(_follows(steps, one, known, most) for one in later):
        return []
    for before in used:
        before.is_used = True
    if root.kind == "llm":
        return [replace(one, id=(root.id, n), parent=None) for n, one in enumerate(found)]
    return [replace(one, parent=root.id) for one in found]


def _replies(steps: Sequence[Step]) -> list[str]:
    return [s.output for s in steps if s.kind == "llm" and s.output and is_long(s.output)]


def _follows(steps: Sequence[Step], later: RunTree, known: Sequence[str], most: int) -> bool:
    """Return True if ``later`` shows the reply or the ``known`` texts, not both to grade them."""
    asked = Messages([json.dumps(plain(later.root.asked), ensure_ascii=False)])
    has_reply = any(asked.find(step.output or "") for step in steps)
    has_documents = any(map(asked.find, known))
    if not (has_reply and has_documents):
        return has_reply or has_documents
    said = [step.output for step in later.steps(most=most) if step.kind == "llm" and step.output]
    return later.root.end is None or not all(map(is_verdict, said))


def _shows_only(
    known: Sequence[str], found: Sequence[Step], root: Step, prompts: Sequence[str]
) -> bool:
    is_whole = {p.text for one in found for p in one.documents or ()} <= {*known}
    around = [part for text in prompts for part in parts_around(text, known)]
    if any(map(_ANSWERED.search, around)) or (len(known) == 1 and not is_whole):
        return False  # one of several documents may be shown for one of several drafts
    if root.documents_given:
        given = {normalised(passage.text) for passage in root.documents_given}
        return given <= {*map(normalised, known)}
    others = [text for text in root.input_texts if not any(map(text.__contains__, known))]
    is_asked = sum(len(text.split()) > 1 for text in others) <= 1  # no answer beside the question
    below = (text.partition("\n\n")[2] for text in prompts)  # an instruction
    texts, queries = [*root.input_texts, *prompts, *below], [one.input or "" for one in found]
    return is_asked and any(consists_of(text, known, beside=queries) for text in texts)


class Reasons:
    """Says why traces have no turn; remembers what the last traces without answer retrieved."""

    def __init__(self) -> None:
        self._searched = deque[str](maxlen=64)

    def why_none(self, steps: Sequence[Step]) -> SkipReason | None:
        """Return `sample.why_none`, or ``split`` if prompts show what another trace retrieved."""
        reason = why_none(steps)
        if reason in {None, "no_answer"}:
            texts = (passage.text for step in steps for passage in step.documents or ())
            self._searched.extend(filter(is_long, texts))
        messages = Messages(text for step in steps for text in step.prompt)
        searched = tuple(self._searched)  # another thread may add to it
        is_split = reason == "no_retrieval" and any(map(messages.find, searched))
        return "split" if is_split else reason

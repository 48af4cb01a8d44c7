"""From a turn to its sample: question, contexts and answer, or the reason why there is none.

This reads texts and runs on the evaluator's thread. Where the parts of a turn contradict each
other a refusal is better than a guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from rag_eval_otel.capture.fragment import Fragment
from rag_eval_otel.capture.turns import Turn
from rag_eval_otel.types import Passage, Sample, SkipReason

_LINK = 20  # characters from which an LLM's output found in a later prompt is no coincidence


def extract(turn: Turn) -> Sample | SkipReason:
    """Return the sample of ``turn``, or why it can't be scored."""
    if any(step.error is not None for step in turn.line):
        return "error"
    answer = _first(step.output for step in reversed(turn.line))
    if _was_abandoned(turn, answer):
        return "abandoned"
    answer = answer or _first(call.output for call in reversed(turn.calls))
    if answer is None:
        return "no_answer"
    generator = _generator(turn, answer)
    contexts = _contexts(turn, generator)
    question = _question(turn, generator, contexts)
    if question is None:
        return "no_question"
    ids = tuple(passage.id for passage in contexts if passage.id is not None)
    return Sample(
        question=question,
        contexts=contexts,
        answer=answer,
        retrieved_ids=ids if len(ids) == len(contexts) else (),
    )


def _first(texts: Iterable[str | None]) -> str | None:
    return next((text for text in texts if text is not None and text.strip()), None)


def _was_abandoned(turn: Turn, answer: str | None) -> bool:
    """Tell whether the consumer of a stream left early: the anchor ended before its LLM.

    What the application then saw is nothing, or the beginning of what the LLM went on to say.
    """
    end = turn.anchor.end
    last = turn.calls[-1]
    if end is None or (last.end is not None and last.end <= end):
        return end is None
    told = last.output or ""
    return answer is None or last.end is None or (answer != told and told.startswith(answer))


def _generator(turn: Turn, answer: str) -> Fragment:
    """Return the LLM call that wrote the answer: the last that said just that, else most of it.

    A grader's "no" is in many an answer: what is longer counts for more. Else the last call.
    """
    spoken = [call for call in turn.calls if call.output and call.output.strip()]
    wrote = [call for call in spoken if _same(call.output, answer)]
    parts = [call for call in spoken if _is_in(call.output or "", answer)]
    parts.sort(key=lambda call: len(call.output or ""))
    return (wrote or parts or spoken or turn.calls)[-1]


def _question(turn: Turn, generator: Fragment, contexts: Sequence[Passage]) -> str | None:
    """Weigh what the application was asked, what was searched, and what the LLM was asked."""
    asked = _first(step.input for step in reversed(turn.line))
    searched = _first(retriever.input for retriever in turn.retrievers)
    message = generator.input or ""
    clean = message.strip() and not any(p.text in message for p in contexts if p.text)
    if asked is not None and (
        _same(asked, message) or _same(asked, searched) or _is_in(asked, message)
    ):
        return asked
    if any(_same(call.output, searched) for call in (*turn.rewrites, *turn.calls)):
        return _first((asked, message if clean else None, searched))
    if searched is not None and _is_in(searched, message):
        return searched
    return _first((message if clean else None, asked, searched))


def _contexts(turn: Turn, generator: Fragment) -> tuple[Passage, ...]:
    """Return the passages that reached the generator, as it saw them; all where none can be told.

    A passage reaches it in its own prompt, or through an earlier call whose output it was shown
    (refine, map-reduce, a chain used as a tool).
    """
    retrieved = tuple(_distinct(turn.retrievers))
    shown = _Prompts(generator.prompt)
    direct = [(place, p) for p in retrieved if (place := shown.place(p.text))]
    behind = _prompts_behind(turn, generator)
    used = tuple(p for p in retrieved if behind.place(p.text))
    if len(used) > len(direct):
        return used
    return tuple(p for _, p in sorted(direct, key=lambda pair: pair[0])) or retrieved


def _distinct(retrievers: Sequence[Fragment]) -> Iterator[Passage]:
    seen: set[str] = set()
    for retriever in retrievers:
        for passage in retriever.documents or ():
            text = _normal(passage.text)
            if text not in seen:
                seen.add(text)
                yield passage


def _prompts_behind(turn: Turn, generator: Fragment) -> _Prompts:
    """Return the generator's prompt and those of the earlier calls whose output it was shown."""
    seen = _Prompts(generator.prompt)
    open_calls = [
        call for call in turn.calls if call is not generator and len(call.output or "") >= _LINK
    ]
    grown = True
    while grown:
        linked = [call for call in open_calls if seen.place(call.output or "")]
        open_calls = [call for call in open_calls if call not in linked]
        seen.add(message for call in linked for message in call.prompt)
        grown = bool(linked)
    return seen


class _Prompts:
    """Messages to look for texts in; each is re-spaced once at most, since they may be long."""

    def __init__(self, messages: Iterable[str]) -> None:
        self._messages = list(messages)
        self._normal: list[str] = []

    def add(self, messages: Iterable[str]) -> None:
        self._messages.extend(messages)

    def place(self, text: str) -> tuple[int, int] | None:
        """Return message and offset at which ``text`` stands, as it is, escaped or re-spaced."""
        if not text.strip():  # would be found everywhere
            return None
        for messages, forms in self._readings(text):
            for number, message in enumerate(messages):
                for form in forms:
                    at = message.find(form)
                    if at >= 0:
                        return number, at
        return None

    def _readings(self, text: str) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        """Yield messages and what to find in them, the cheap first."""
        yield self._messages, (text,)
        escaped = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]} - {text}
        yield self._messages, sorted(escaped)
        self._normal.extend(map(_normal, self._messages[len(self._normal) :]))
        yield self._normal, (_normal(text),)


def _normal(text: str) -> str:
    return " ".join(text.split())


def _same(one: str | None, other: str | None) -> bool:
    return bool(one and other) and _normal(one or "").casefold() == _normal(other or "").casefold()


def _is_in(part: str, whole: str) -> bool:
    return bool(part.strip()) and _normal(part).casefold() in _normal(whole).casefold()

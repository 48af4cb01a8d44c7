"""The messages before a question, and the query, as each way of capture records them."""

from pathlib import Path
from typing import Any

import pytest

from apps.fakes import ScriptedChat
from conversations import KINDS, TOPICS, alone, chain, said, turns_of
from live import attached
from rag_eval_otel import Evaluation, Sample, record_answer, record_question, record_retrieval
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.types import Message
from replay import load, replay

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
PAGE = "Bo built it in 1890."
TURN = [("user", "Who built it?"), ("assistant", "Bo.")]


class Noting(LexicalJudge):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []

    async def reply(self, tasks: Any) -> Any:
        self.shown += [dict(task.inputs) for task in tasks if task.prompt == "context_relevance_1"]
        return await super().reply(tasks)


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_in_langchain(kind: str) -> None:
    """Each turn of two has the messages before it, and the query if the question is rewritten."""
    judge, results = Noting(), list[Evaluation]()
    with attached(judge=judge, sinks=[results.append], metrics=["context_relevance"]) as app:
        ask = chain(ScriptedChat(reply=said), kind, {"callbacks": [app.handle.callback]})
        turns = [(*turn, app.handle.flush(60)) for turn in turns_of(ask)]
    told = [tuple(f"{role}: {text}" for role, text in history) for _, _, history, _ in turns]
    assert [texts.get("history", ()) for texts in judge.shown] == told
    assert [one.messages for one in results] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [one.is_rewritten for one in results] == [kind == "rewritten"] * 8
    queries = [alone(topic, asked[n]) for n in range(4) for topic, asked in TOPICS.items()]
    expected = queries if kind == "rewritten" else [None] * 8
    assert [texts.get("query") for texts in judge.shown[2:]] == expected[2:]


def test_a_recorded_history() -> None:
    """`record_question` records the messages before it; the last call counts, with any text."""
    judge = Noting()
    with attached(judge=judge, metrics=["context_relevance"]) as app:
        for history in (TURN, []):
            with app.provider.get_tracer("app").start_as_current_span("ask"):
                record_question("Who?", history=[("user", "Who \ud800?")])
                record_question("And when?", history=history)
                record_retrieval("And when?", [PAGE])
                record_answer("In 1890.")
        assert app.handle.flush(60)
    told = [texts.get("history", ()) for texts in judge.shown]
    assert told == [("user: Who built it?", "assistant: Bo."), ()]


@pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared recordings are not here")
def test_recorded_conversations() -> None:
    """Of all recordings, those of conversations have a history, exact; most have the query, too."""
    found = {}
    for path in sorted(FOLDER.glob("*hist*.json")) + sorted(FOLDER.glob("*condense*.json")):
        for outcome in replay(load(path).calls):
            if isinstance(outcome.result, Sample):
                found[path.stem] = (outcome.result.history, outcome.result.query)
    earlier = (
        Message("user", "Tell me about Acme Rockets"),
        Message("assistant", "Acme Rockets sells rockets."),
    )
    told = [history for history, _ in found.values() if history]
    assert len(told) >= 11
    assert set(told) == {earlier}
    asked = [query for history, query in found.values() if history]
    assert set(asked) <= {"When was the company Acme Rockets founded?", None}

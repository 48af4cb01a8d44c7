"""What matches the user's patterns is out of every text before anybody is shown it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import good_answers, running
from rag_eval_otel import (
    Config,
    Evaluation,
    Passage,
    Sample,
    evaluate,
    record_answer,
    record_question,
)
from rag_eval_otel.cli import main
from rag_eval_otel.dataset.read import open_dataset
from rag_eval_otel.dataset.run import Plan, scored_rows
from rag_eval_otel.errors import ConfigError, RedactionError
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.live.recorded import record_retrieval
from rag_eval_otel.metrics import resolve_metrics
from rag_eval_otel.redaction import Redactor, redactor, scrubbed
from rag_eval_otel.results.rows import Row
from rag_eval_otel.testing import FakeJudge, HttpReply, ScriptedOpenAI
from support import good_parts

JSON = {"Content-Type": "application/json"}
CARD = r"\b\d{4}-\d{4}\b"
SAID = "My card is 1234-5678, and my name is Ada."
SHOWN = "My card is [redacted], and my name is [redacted]."


def test_all_texts_of_a_sample() -> None:
    """Question, contexts, answer and reference lose what matches; the rest stays as it is."""
    sample = Sample(
        question=SAID,
        contexts=[Passage(text=SAID, id="Ada", score=0.5), Passage(text="nothing")],
        answer=SAID,
        reference=SAID,
        relevant_ids={"Ada": 2.0},
        extra={"Ada": SAID},
    )
    clean = redactor((CARD, "(?i)ada")).sample(sample)
    assert clean == Sample(
        question=SHOWN,
        contexts=[Passage(text=SHOWN, id="Ada", score=0.5), Passage(text="nothing")],
        answer=SHOWN,
        reference=SHOWN,
        relevant_ids={"Ada": 2.0},
        extra={"Ada": SHOWN},
    )
    assert Redactor().sample(sample) is sample


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ("is Ada", "is [redacted]"),
        (["Ada", "Bob"], ["[redacted]", "Bob"]),
        (json.dumps([{"content": "Ada", "id": "1"}]), '[{"content": "[redacted]", "id": "1"}]'),
        (json.dumps({"Ada": "Bob"}), '{"[redacted]": "Bob"}'),
        ("[Ada", "[[redacted]"),
        ("[" * 10_000 + "Ada", "[" * 10_000 + "[redacted]"),
        (True, True),
        (7, 7),
        (json.dumps({"Ada": 5, "n": [1, None, True]}), '{"[redacted]": 5, "n": [1, null, true]}'),
    ],
)
def test_values_of_attributes(value: object, clean: object) -> None:
    """Texts, lists of them and JSON of them are looked through; numbers are no texts."""
    assert redactor(("Ada",)).value(value) == clean


@pytest.mark.parametrize(
    ("patterns", "told"),
    [
        (("(",), r"redact \(RAG_EVAL_REDACT\): '\(' is not a regular expression: missing \)"),
        (("a", "*"), "'\\*' is not a regular expression: nothing to repeat"),
        *(
            ((name,), f"'{name}' is not a rule; the rules with names are email, phone, card, key")
            for name in (
                *(
                    "emails",
                    "Email",
                    "e-mail",
                    "EMAIL",
                    " phone",
                    "phones",
                    "phone_number",
                    "cards",
                ),
                *("credit-card", "api_key", "keys", "email,phone", "email;Ada", "phone email"),
            )
        ),
        (("a*",), "'a\\*' matches the empty text"),
        (("a|",), "matches the empty text"),
        ((r"\b",), "matches the empty text"),
        ("abc", "redact must be a list of names, regular expressions or functions, not 'abc'"),
        (5, "redact must be a list of names, regular expressions or functions, not 5"),
        ((5,), "takes regular expressions as str, not 5"),
    ],
)
def test_a_bad_pattern_is_told_at_the_start(patterns: Any, told: str) -> None:
    """Nobody finds out later that nothing was redacted."""
    with pytest.raises(ConfigError, match=told):
        Config(redact=patterns)


class NotingEmbedder:
    """Gives every text the same direction, and notes it."""

    def __init__(self) -> None:
        """Start with none."""
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> Any:
        """Return ones."""
        self.texts += texts
        return np.ones((len(texts), 3))


class NotingSink:
    """Keeps what it is told."""

    def __init__(self) -> None:
        """Start with none."""
        self.told: list[Evaluation] = []

    def emit(self, evaluation: Evaluation) -> None:
        """Keep it."""
        self.told.append(evaluation)


def quoting(task: Task[Any]) -> object:
    """Answer as a content judge would, with a reason that quotes all it was shown."""
    answer: Any = good_answers(task)
    text = str(task)
    if "reason" in answer:
        return {**answer, "reason": text}
    if "verdicts" in answer:
        return {"verdicts": [{**one, "reason": text} for one in answer["verdicts"]]}
    return answer


def test_nobody_sees_what_is_redacted() -> None:
    """Judge, embedder and sinks see the texts without it, and so does who reads explanations."""
    judge, embedder, sink = FakeJudge(quoting), NotingEmbedder(), NotingSink()
    options = {"judge": judge, "embedder": embedder, "sinks": [sink], "explanations": "on"}
    with running(redact=(CARD, "Ada"), **options) as app:
        with app.tracer.start_as_current_span("ask"):
            record_question(f"Question: {SAID}")
            record_retrieval("q", [f"Context: {SAID}"])
            record_answer(f"Answer: {SAID}")
        app.stop()
        exported = str([app.receiver.spans(), app.receiver.logs()])
    (evaluation,) = sink.told
    explained = [score.explanation for score in evaluation.scores if score.explanation]
    assert any("[redacted]" in text for text in explained)
    assert "explanation" in exported
    for seen in (str(judge.requests), str(embedder.texts), str(sink.told), exported):
        assert "[redacted]" in seen
        assert not any(text in seen for text in ("1234-5678", "Ada"))


def test_datasets_are_redacted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line reads the same variable; its judge sees no more than the one of traces."""
    data, output = tmp_path / "data.jsonl", tmp_path / "scores.jsonl"
    data.write_text(json.dumps({"question": SAID, "contexts": [SAID], "answer": SAID}) + "\n")
    monkeypatch.setenv("RAG_EVAL_REDACT", f"{CARD}\nAda")
    with ScriptedOpenAI(good_parts) as server:
        monkeypatch.setenv("RAG_EVAL_JUDGE_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
        options = ["--judge", "openai/m", "--embedder", "hashing", "--metrics", "faithfulness"]
        assert main(["evaluate", str(data), "--output", str(output), *options]) == 0
        asked = str([request.body for request in server.requests])
    assert "[redacted]" in asked
    assert not any(text in asked for text in ("1234-5678", "Ada"))


# --- rules with names, and functions --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "clean"),
    [
        ("email", "Write to ada.l+x@mail.example.co.uk now", "Write to [redacted] now"),
        ("email", "a@b is no address", "a@b is no address"),
        ("phone", "Call +49 (0)30 1234-5678.", "Call [redacted]."),
        ("phone", "Call 030/123456 or (212) 555-0123", "Call [redacted] or [redacted]"),
        ("phone", "On 2024-01-15, 01.02.2024: 12345678 of 3.14159265", None),
        ("card", "Card 4111 1111 1111 1111!", "Card [redacted]!"),
        ("card", "Card 4111-1111-1111-1112, id 0000000000000000", None),
        ("card", "378282246310005", "[redacted]"),
        ("card", "4111 1111 1111 1111 12/27 123", "[redacted] 12/27 123"),
        ("card", "card 4111111111111111 12/27", "card [redacted] 12/27"),
        ("card", "4111-1111-1111-1111 123", "[redacted] 123"),
        ("card", "order 77 4111 1111 1111 1111", "order 77 [redacted]"),
        ("card", "3782 822463 10005 5500 0000 0000 0004", "[redacted] [redacted]"),
        (
            "card",
            "4111.1111.1111.1111 and 4111\u20131111\u20131111\u20131111",
            "[redacted] and [redacted]",
        ),
        ("card", "1 4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 27", "1 [redacted] 27"),
        ("card", "2019 2020 2021 2022 2023 2024 2025 2026", None),
        ("card", "12 34 56 78 90 12 34 56 78 90 41 11 11 11", None),
        ("phone", "0.1234567 0.8812345, 0.001234567 and +0.1234567-0.2", None),
        ("phone", "ratio 0.95 0.91 0.88 0.97, matrix 0 1 0 1 1 0 1 or 0/0/0/0/1/0/0", None),
        ("phone", "axis 0 10 20 30 40 50", None),
        ("phone", "01/02/2024 10 11, 2024-01-02 10 11, 01.02.24 10 11", None),
        ("phone", "01.02.2024 03.04.2024 05.06.2024 12:30:00", None),
        ("phone", "01.02.2024 030 1234567", "01.02.2024 [redacted]"),
        ("phone", "0.95 030/1234567 0171 12-34-56", "0.95 [redacted] [redacted]"),
        ("phone", "0171 2345678 0172 3456789", "[redacted] [redacted]"),
        ("phone", "06 12 34 56 78 07 12 34 56 78", "[redacted] [redacted]"),
        ("phone", "06.12.34.56.78, 06 12 34 56 78", "[redacted], [redacted]"),
        ("phone", "0 800 123 456, 212.555.0123", "[redacted], [redacted]"),
        ("key", "sk-proj-abcdefghijkl1234", "[redacted]"),
        ("key", "Authorization: Bearer abc.def-123456", "Authorization: Bearer [redacted]"),
        ("key", "AKIAIOSFODNN7EXAMPLE ghp_abcdefghijklmnop1234", "[redacted] [redacted]"),
        ("key", "api_key = 'zxcvbnm123'", "[redacted]'"),
        ("key", "The key to success is a token of trust.", None),
        ("key", "eyJhbGciOiJI.eyJzdWIiOiIx.abc", "[redacted]"),
    ],
)
def test_named_rules(name: str, text: str, clean: str | None) -> None:
    """Addresses, numbers and keys are found; dates, amounts and ordinary words are not."""
    assert redactor([name]).text(text) == (clean or text)


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        (json.dumps({"password": "hunter2hunter2"}), '{"password": "[redacted]"}'),
        (json.dumps({"card": 4111111111111111, "n": 5}), '{"card": "[redacted]", "n": 5}'),
        (json.dumps([{"a": {"api_key": ["zxcvbnm123"]}}]), '[{"a": {"api_key": ["[redacted]"]}}]'),
        (json.dumps({"secret": 12345678.5}), '{"secret": "[redacted]"}'),
        (json.dumps({"body": '{"password": "hunter2"}'}), '{"body": "{\\"[redacted]\\"}"}'),
        (4111111111111111, "[redacted]"),
        ([1, 4111111111111111], ["1", "[redacted]"]),
        ((0.5, 0.25), [0.5, 0.25]),
    ],
)
def test_values_are_redacted_by_name_and_as_numbers(value: object, clean: object) -> None:
    """A password in JSON is private by its name, and a card is private without quotes, too."""
    assert redactor(["email", "phone", "card", "key"]).value(value) == clean


@pytest.mark.parametrize("pattern", ["Project Phone Home", "(?:email)", "keys?", "Ada", "cord"])
def test_patterns_that_contain_a_name_are_patterns(pattern: str) -> None:
    """Only a lone word, or a list, is taken for a name."""
    assert Config(redact=[pattern]).redact == [pattern]


@pytest.mark.slow
def test_named_rules_are_fast() -> None:
    """No rule takes quadratic time on a long text, whatever it is made of."""
    rules = redactor(["email", "phone", "card", "key"])
    for text in (
        "4 5 " * 50_000,
        "411 " * 50_000,
        "0.1 " * 50_000,
        "a" * 200_000,
        "1" * 200_000,
        "1 " * 100_000,
        "a@" * 100_000,
        "sk-" * 60_000,
    ):
        assert len(rules.text(text)) <= len(text) + 10


def test_functions_and_patterns_work_in_their_order() -> None:
    """A function gets the text that the rules before it have left."""
    clean = redactor(["Ada", lambda text: text.replace(" and", "; [redacted]").upper(), "MARK"])
    assert clean.text("Ada and Mark") == "[REDACTED]; [REDACTED] [redacted]"


def broken(text: str) -> str:
    """Fail, with the text in the message."""
    raise KeyError(text)


@pytest.mark.parametrize("rule", [broken, lambda _: None, lambda text: text.encode()])
def test_a_function_that_fails_lets_no_text_out(rule: Any) -> None:
    """The error names the function or the type, and not the text."""
    with pytest.raises(RedactionError) as caught:
        redactor([rule]).text("secret")
    assert "secret" not in str(caught.value)
    with pytest.raises(RedactionError):
        redactor([rule]).sample(Sample(question="secret"))


def test_a_row_whose_redaction_fails_is_not_judged(tmp_path: Path) -> None:
    """Its scores have failed with the reason; the other rows are scored."""

    def fussy(text: str) -> str:
        return broken(text) if "secret" in text else text

    judge = FakeJudge(good_answers)
    plan = Plan(
        metrics=resolve_metrics(["response_groundedness"]),
        judge=judge,
        embedder=NotingEmbedder(),
        redactor=redactor([fussy]),
    )
    data = [{"question": q, "answer": "A b.", "contexts": ["C"]} for q in ("open", "secret")]

    async def rows() -> list[Row]:
        return [row async for row in scored_rows(open_dataset(data), plan)]

    found = asyncio.run(rows())
    assert [row["response_groundedness"].reason for row in found] == [None, "redaction_error"]
    assert found[1].sample == Sample()
    assert "secret" not in str(judge.requests)


# --- messages of servers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "clean"),
    [
        ("The model `m` does not exist", None),
        ("Unsupported value: 'temperature' does not support 0", None),
        ("maximum context length is 8192 tokens", None),
        ("blocked by filter: Ada Lovelace of Ockham", "blocked by filter: [...] of [...]"),
        ("invalid: 'where is the Lovela", "invalid: '[...]"),
        ("key sk-abcdef123456789 is over its limit", "key [redacted] is over its limit"),
        ("key TOPSECRET is over its limit", "key *** is over its limit"),
        ("不适当的内容：阿达的电话", "不适当的内容：[...]"),  # noqa: RUF001
    ],
)
def test_messages_of_servers_lose_keys_and_texts(message: str, clean: str | None) -> None:
    """What the server says about the request stays, what it quotes of the texts goes."""
    texts = ["Where is the Lovelace grave? Ada Lovelace lived at Ockham, at this temperature."]
    texts.append("阿达的电话是什么")
    assert scrubbed(message, texts=texts, key="TOPSECRET") == (clean or message)


@pytest.mark.parametrize("length", range(1950, 2050, 9))
def test_no_half_of_a_key_is_left_where_a_message_is_cut(length: int) -> None:
    """Keys are replaced before the message is cut, also the long ones."""
    key = "Zq" * 40
    for told in (key, f"sk-{key}"):
        clean = scrubbed(f"{'x' * length} {told} more", texts=[], key=key)
        assert "Zq" not in clean
        assert len(clean) <= 2000


def test_a_quoted_reply_loses_its_key_before_it_is_cut() -> None:
    """A server that replies with a text quotes the key at any place."""
    key = "Zq" * 40
    for length in (130, 190):
        with ScriptedOpenAI(
            lambda _, n=length: HttpReply(
                body=json.dumps(f"{'x' * n} {key}").encode(), headers=JSON
            )
        ) as server:
            judge = OpenAIJudge("m", base_url=server.base_url, api_key=key)
            sample = Sample(question="Q", contexts=["C"], answer="A is B.")
            (score,) = asyncio.run(
                evaluate(sample, ["faithfulness"], judge=judge, repairs=0)
            ).scores
        assert "Zq" not in str(score)

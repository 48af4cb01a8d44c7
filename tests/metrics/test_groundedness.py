"""Faithfulness: an answer in sentences or claims, and what backs them."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.metrics import Faithfulness, StatementFaithfulness, metric
from rag_eval_otel.metrics.groundedness import sentences_of
from rag_eval_otel.testing.fakes import FakeJudge
from scoring import BLANK, DOWN, Case, assert_case, case, flagged, score_of, script, shown, verdicts


def claims_of(*claims: str) -> dict[str, object]:
    return {"statements": {"statements": list(claims)}}


def short_forms(one: Faithfulness) -> Iterator[Case]:
    claims = ["Ada was born in London.", "She was born in 1815."]
    texts = {"answer": f"{' '.join(claims)} Ask me anything!"}
    backed = {"explanation": f"Not backed: {claims[1]}", "statements": claims}
    yield case(one, 0.5, {"supported": verdicts(1, 0, 2)}, texts=texts, **backed)
    yield case(
        one,
        0,
        {"supported": {"verdicts": [{"index": 1, "verdict": 0, "reason": "It was Paris."}]}},
        texts={"answer": claims[0]},
        explanation=f"Not backed: {claims[0]} (It was Paris.)",
    )
    yield case(one, None, {"supported": verdicts(2, 2, 2)}, texts=texts, reason="no_claims")
    for flags in ((1, 1), (1, None, 1), ()):
        reply = {"supported": verdicts(*flags)}
        yield case(one, None, reply, texts=texts, reason="judge_incomplete")
    for text, reason in ((" ", "empty_answer"), ("?!", "no_claims")):
        yield case(one, None, texts={"answer": text}, reason=reason, requests=0)
    yield case(one, 0, texts={"contexts": []}, reason="no_context", requests=0)


FULL_FORM, ONE_STEP = Faithfulness(form="full"), StatementFaithfulness(form="full")
CASES = [
    *short_forms(Faithfulness()),
    *short_forms(StatementFaithfulness()),
    *(
        case(ONE_STEP, None, {"judged_statements": {"statements": found}}, reason="no_claims")
        for found in ([], [BLANK])
    ),
    *(
        case(metric(name), int(flag), {name: {"passing": flag, "reason": "So."}}, explanation="So.")
        for name in ("response_supported", "context_agreement")
        for flag in (True, False)
    ),
    case(
        FULL_FORM,
        2 / 3,
        {**claims_of("a", "b", " ", "c"), "verdicts": verdicts(1, 0, 1)},
        explanation="Not backed: b",
        statements=["a", "b", "c"],
        requests=2,
    ),
    case(
        FULL_FORM,  # by number: the first of equal numbers counts, and unknown numbers do not
        0.5,
        {
            **claims_of("a", "b"),
            "verdicts": {
                "verdicts": [
                    {"index": i, "verdict": v} for i, v in ((2, 0), (9, 0), (1, 1), (2, 1))
                ]
            },
        },
        verdicts=[1, 0],
        requests=2,
    ),
    case(FULL_FORM, None, claims_of(" "), reason="no_claims", requests=1),
    case(
        FULL_FORM,
        0,
        claims_of("a", "b"),
        texts={"contexts": [" "]},
        reason="no_context",
        verdicts=[0, 0],
        requests=1,
    ),
    # the second verdict comes when it is asked alone; the third one never
    case(FULL_FORM, 1, {**claims_of("a", "b"), "verdicts": verdicts(1)}, requests=3),
    case(
        FULL_FORM,
        None,
        {**claims_of("a", "b", "c"), "verdicts": verdicts(1)},
        reason="judge_incomplete",
        statements=["a", "b", "c"],
        requests=3,
    ),
    *(case(FULL_FORM, None, {"verdicts": verdicts(f)}, reason="unparsable") for f in (2, -1)),
    case(FULL_FORM, None, {"verdicts": DOWN}, reason="transport"),
    case(
        ONE_STEP,
        0.5,
        {"judged_statements": {"statements": [*flagged(1, 0), BLANK]}},
        explanation="Not backed: claim 1",
        requests=1,
    ),
    case(ONE_STEP, 0, texts={"contexts": [" "]}, reason="no_context", requests=0),
]


@pytest.mark.parametrize("one", CASES)
def test_the_score_of_replies(one: Case) -> None:
    """Replies of a judge become value, reason, explanation and detail."""
    assert_case(one)


def test_missing_verdicts_are_asked_once_more() -> None:
    """Only the claims without a verdict are put again, under new numbers."""
    rounds = [{"verdicts": [{"index": 2, "verdict": 1}]}, verdicts(0, 1)]
    replies = {**claims_of("a", "b", "c"), "verdicts": lambda _: rounds.pop(0)}
    judge = FakeJudge(script(**replies))
    assert score_of(FULL_FORM, judge).detail["verdicts"] == [0, 1, 1]
    assert [texts.get("statements") for texts in shown(judge)[1:]] == [("a", "b", "c"), ("a", "c")]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        (
            "It costs 3.50 euros, e.g. at Dr. Lee's. Yes.",
            ["It costs 3.50 euros, e.g. at Dr. Lee's.", "Yes."],
        ),
        ("Am 3. Mai war es so. Dann nicht.", ["Am 3. Mai war es so.", "Dann nicht."]),
        ('He said "no." She left.', ['He said "no."', "She left."]),
        ("- One thing\n- Another\n\n1. A third", ["One thing", "Another", "A third"]),
        ("第一句。第二句！第三句", ["第一句。", "第二句！", "第三句"]),  # noqa: RUF001  # Chinese
        ("पहला वाक्य। दूसरा वाक्य।", ["पहला वाक्य।", "दूसरा वाक्य।"]),
        ("جملة أولى؟ جملة ثانية.", ["جملة أولى؟", "جملة ثانية."]),
        ("One... two. ***", ["One... two. ***"]),
        ("", []),
        (" \n ", []),
        ("!?", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    """Marks of many scripts end a sentence; abbreviations, numbers and ordinals do not."""
    found = sentences_of(text)
    assert [sentence.text for sentence in found] == sentences
    for sentence, start, end in found:
        assert text[start:end].endswith(sentence)  # without its bullet


@given(st.lists(st.sampled_from(["One", "two", ". ", "! ", "\n", "。", "- ", "3", "\u0964", '"'])))
def test_no_word_is_lost(pieces: list[str]) -> None:
    """Whatever the text, its words are in the sentences, in order, and there are at most forty."""
    text = "".join(pieces)
    found = [sentence.text for sentence in sentences_of(text)]
    words = "".join(c for c in " ".join(found) if c.isalpha())
    assert words == "".join(c for c in text if c.isalpha())
    assert all(any(c.isalnum() for c in one) for one in found)


def test_a_long_answer_is_put_together() -> None:
    """Of more than forty sentences, neighbours are judged as one."""
    found = sentences_of(" ".join(f"Sentence number {i} is here." for i in range(100)))
    assert len(found) == 34
    assert found[0].text.count("Sentence") == 3

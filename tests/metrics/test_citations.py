"""Citation precision and recall: markers of all forms, and ALCE's definition computed apart."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval_otel.judge.tasks import Task
from rag_eval_otel.metrics import CitationPrecision, CitationRecall
from rag_eval_otel.metrics.citations import cited_sentences
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.types import Score
from scoring import evaluated, script

CONTEXTS = [f"Fact {number} is true." for number in range(1, 6)]


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("Rome is old [1].", [("Rome is old .", (1,))]),
        ("Rome is old.[1] It is big.[2]", [("Rome is old .", (1,)), ("It is big .", (2,))]),
        ("Rome is old. [1] It is big.", [("Rome is old .", (1,)), ("It is big.", ())]),
        ("Rome is old [1][3].", [("Rome is old .", (1, 3))]),
        ("Rome is old [1, 3].", [("Rome is old .", (1, 3))]),
        ("Rome is old [1; 3].", [("Rome is old .", (1, 3))]),
        ("Rome [2] is old [2].", [("Rome is old .", (2,))]),
        ("Rome is old[^1].\n\n[^1]: History of Rome, p. 12", [("Rome is old .", (1,))]),
        ("Rome is old【1†source】.", [("Rome is old .", (1,))]),
        ("Rome is old【2:0†rome.pdf】. It is big.", [("Rome is old .", (2,)), ("It is big.", ())]),
        ("罗马很古老[1]。它很大。[2]", [("罗马很古老 。", (1,)), ("它很大 。", (2,))]),
        ("- Rome is old [1]\n- It is big [2]", [("Rome is old", (1,)), ("It is big", (2,))]),
        ("Rome is old (1) [see p. 2] [a].", [("Rome is old (1) [see p. 2] [a].", ())]),
        ("[1]", []),
        ("Rome is old.\n[1]", [("Rome is old .", (1,))]),
        (
            "**Rome is old.** [1] **It is big.** [2]",
            [("**Rome is old .**", (1,)), ("**It is big .**", (2,))],
        ),
        (
            'He said "yes." [1] Then he left. [2]',
            [('He said "yes ."', (1,)), ("Then he left .", (2,))],
        ),
        ("نعم؟ [1] لا. [2]", [("نعم ؟", (1,)), ("لا .", (2,))]),
        ("It is [0] so.", [("It is [0] so.", ())]),
    ],
)
def test_markers(answer: str, cited: list[tuple[str, tuple[int, ...]]]) -> None:
    """Each form of marker belongs to the sentence before it, and is no part of its text."""
    assert [(s.text, s.numbers) for s in cited_sentences(answer)] == cited


def scores(answer: str, judge: FakeJudge, contexts: list[str] = CONTEXTS) -> list[Score]:
    both = [CitationRecall(), CitationPrecision()]
    return list(evaluated(both, judge, answer=answer, contexts=contexts).scores)


def judge_of(needed: dict[str, list[set[int]]]) -> FakeJudge:
    """Support a sentence by a group of contexts if the group has one of the sets that it needs."""

    def answer(task: Task[object]) -> object:
        verdicts = []
        for index, claim in enumerate(task.texts("claims"), start=1):
            numbers, _, sentence = claim.partition(": ")
            group = {int(number) for number in numbers.split(", ")}
            flag = any(group >= enough for enough in needed[sentence.split(" ", 1)[0]])
            verdicts.append({"index": index, "verdict": int(flag)})
        return {"verdicts": verdicts}

    return FakeJudge(answer)


def alce(cited: list[list[int]], needed: list[list[set[int]]]) -> tuple[float, float]:
    """Compute recall and precision as the article defines them, sentence by sentence."""
    recalls, precisions = [], []
    for numbers, enough in zip(cited, needed, strict=True):

        def entails(group: set[int], enough: list[set[int]] = enough) -> bool:
            return any(group >= one for one in enough)

        exist = bool(numbers) and all(number <= len(CONTEXTS) for number in numbers)
        recall = exist and entails(set(numbers))
        recalls.append(float(recall))
        for number in numbers:
            irrelevant = not entails({number}) and entails(set(numbers) - {number})
            precisions.append(float(recall and not irrelevant))
    return sum(recalls) / len(recalls), sum(precisions) / len(precisions)


@given(st.integers(0, 10**9))
def test_both_are_those_of_the_article(seed: int) -> None:
    """For random citations and random truths, both scores are those of ALCE's definition."""
    draw = random.Random(seed)
    cited = [draw.sample(range(1, 8), draw.randint(0, 4)) for _ in range(draw.randint(1, 6))]
    cited[0] = cited[0] or [1]
    needed = [
        [set(draw.sample(range(1, 6), draw.randint(1, 2))) for _ in range(draw.randint(0, 2))]
        for _ in cited
    ]
    marks = ["".join(f"[{number}]" for number in numbers) for numbers in cited]
    answer = " ".join(f"Fact{i} is so {mark}." for i, mark in enumerate(marks))
    judge = judge_of({f"Fact{i}": enough for i, enough in enumerate(needed)})
    recall, precision = scores(answer, judge)
    assert (recall.value, precision.value) == pytest.approx(alce(cited, needed))
    assert recall.detail["citations"] == sum(map(len, cited))
    assert recall.detail["invalid"] == sum(number > 5 for numbers in cited for number in numbers)
    assert len(judge.requests) <= 1  # none, if no sentence cites only what exists


def test_contexts_keep_their_numbers() -> None:
    """A blank context has a number that points at nothing; equal contexts are shown once."""
    judge = judge_of({"Rome": [{2}]})
    recall, _ = scores("Rome is old [4].", judge, ["One.", " ", "One.", "Two."])
    assert recall.value == 1
    assert judge.requests[0][0].texts("claims") == ("2: Rome is old .",)
    assert [one.value for one in scores("Rome [2].", judge, ["One.", " "])] == [0, 0]


def test_without_a_marker_there_is_no_score() -> None:
    """An answer that cites nothing is undefined; one without contexts is 0."""
    assert {one.reason for one in scores("Rome is old.", FakeJudge(script()))} == {"no_citations"}
    assert [one.reason for one in scores("Rome is old [1].", FakeJudge(script()), [])] == [
        "no_context"
    ] * 2

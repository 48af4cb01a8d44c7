"""A judge on a local classifier: fakes with the surface of sentence-transformers."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import questions
from rag_eval_otel import LexicalJudge, LocalJudge, aevaluate
from rag_eval_otel.errors import ConfigError, MissingDependencyError
from rag_eval_otel.judge import tasks
from support import SAMPLE

NLI = ("contradiction", "entailment", "neutral")
CONTEXTS = ("Albert Einstein was born in 1879.", "Bread is made of flour.")
BORN, BAKED = "Einstein was born in 1879.", "Einstein baked bread."


class Words:
    """A tokenizer of words."""

    is_fast = True
    model_max_length = 10**30

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        places = [found.span() for found in re.finditer(r"\S+", text)]
        return {"input_ids": [1] * len(places), "offset_mapping": places}


class Encoder:
    """Goes by the share of the words of the second text that stand in the first."""

    labels: Sequence[str] = NLI
    architectures: Sequence[str] = ("BertForSequenceClassification",)
    length = 40

    def __init__(self, name: str, device: str | None = None) -> None:
        if name == "nobody/nothing":
            message = "nobody/nothing is not a local folder\nand not on the hub"
            raise OSError(message)
        self.tokenizer = Words()
        self.config = SimpleNamespace(
            num_labels=len(self.labels),
            id2label=dict(enumerate(self.labels)),
            architectures=list(self.architectures),
            max_position_embeddings=self.length,
        )
        self.model = SimpleNamespace(state_dict=lambda: {name: np.arange(12.0)})
        self.calls: list[tuple[list[tuple[str, str]], int, int]] = []

    def predict(
        self, pairs: list[tuple[str, str]], *, batch_size: int, **options: Any
    ) -> np.ndarray[Any, Any]:
        self.calls.append((pairs, batch_size, threading.get_ident()))
        if len(self.labels) == 1:
            return np.array([_logit(one, other) for one, other in pairs])
        rows = np.zeros((len(pairs), len(self.labels)))
        rows[:, 1] = [_logit(one, other) for one, other in pairs]
        return rows


def _logit(one: str, other: str) -> float:
    words, among = (set(re.findall(r"\w+", text.lower())) for text in (other, one))
    return 20 * len(words & among) / max(1, len(words)) - 14


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> type[Encoder]:
    class Mine(Encoder):
        pass

    fake: Any = ModuleType("sentence_transformers")
    fake.CrossEncoder = Mine
    torch: Any = ModuleType("torch")
    torch.nn = SimpleNamespace(Identity=lambda: None)
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return Mine


def replied(judge: LocalJudge, *tasks: tasks.Task[Any]) -> list[Any]:
    return list(asyncio.run(judge.reply(tasks)).parts)


def calls_of(judge: LocalJudge) -> list[Any]:
    return judge._classifier._model.calls  # type: ignore[no-any-return]  # noqa: SLF001


def verdicts(*claims: str, contexts: Sequence[str] = CONTEXTS) -> tasks.Task[Any]:
    return tasks.VERDICTS.task({"contexts": contexts, "statements": claims})


def test_verdicts_carry_probabilities(library: type[Encoder]) -> None:
    """A claim has the probability of the context that backs it best, one half is a yes."""
    (found,) = replied(LocalJudge("an/nli"), verdicts(BORN, BAKED))
    assert [one.verdict for one in found.verdicts] == [1, 0]
    expected = pytest.approx([0.995067, 0.000326], abs=1e-6)
    assert [one.probability for one in found.verdicts] == expected


def test_all_pairs_of_a_request_are_one_batch(library: type[Encoder]) -> None:
    """Pairs that several questions share are classified once, on a thread of the judge's own."""
    judge = LocalJudge("an/nli", batch_size=7)
    tasks = [verdicts(BORN, BAKED), verdicts(BORN), questions.groundedness(BORN, CONTEXTS, voice=1)]
    replied(judge, *tasks)
    ((pairs, size, thread),) = calls_of(judge)[:1]
    assert (len(pairs), len(set(pairs)), size) == (4, 4, 7)
    assert thread != threading.get_ident()


def test_every_question_of_its_own(library: type[Encoder]) -> None:
    """Each kind of question that it answers, in the reply that the kind asks for."""
    answer = f"{BORN} {BAKED}"
    shown = {"question": "When was Einstein born?", "answer": answer, "contexts": CONTEXTS}
    sentences = {**shown, "sentences": [BORN, BAKED, "I don't know."]}
    judge = LocalJudge("an/nli")
    supported, judged, decided, useful, relevant, rated = replied(
        judge,
        tasks.SUPPORTED.task(sentences),
        tasks.JUDGED_STATEMENTS.task(shown),
        tasks.RESPONSE_SUPPORTED.task(shown),
        tasks.USEFUL_FOR_ANSWER.task({**shown, "context": CONTEXTS[0]}),
        tasks.RELEVANT_CONTEXTS.task(shown),
        questions.context_relevance("Albert Einstein born 1879", CONTEXTS, voice=1),
    )
    assert [one.verdict for one in supported.verdicts] == [1, 0, 2]
    assert [one.verdict for one in judged.statements] == [1, 0]
    assert decided.passing is False
    assert 0 <= useful.probability <= 1
    assert relevant.numbers == []
    assert 0 <= rated.expected <= 2
    texts = {text for pairs, *_ in calls_of(judge) for _, text in pairs}
    assert "This text answers the question: When was Einstein born?" in texts


def test_a_cross_encoder_with_one_label(library: type[Encoder]) -> None:
    """It is shown question and context as rerankers are, context and claim as NLI models are."""
    library.labels = ("LABEL_0",)
    judge = LocalJudge("a/reranker")
    replied(judge, questions.context_relevance("Why?", ("One.",), voice=1), verdicts("Two."))
    pairs = [pair for call, *_ in calls_of(judge) for pair in call]
    assert ("Why?", "One.") in pairs
    assert (CONTEXTS[0], "Two.") in pairs


@pytest.mark.parametrize(("times", "windows"), [(1, [31] * 12), (6, [16] * 25)])
def test_long_contexts_are_read_in_windows(
    library: type[Encoder], times: int, windows: list[int]
) -> None:
    """What stands anywhere in a long context is found; a long claim leaves half of the length."""
    filler = [f"word{i}" for i in range(300)]
    context = " ".join([*filler[:200], BORN, *filler[200:]])
    judge = LocalJudge("an/nli")
    (found,) = replied(judge, verdicts(BORN * times, contexts=[context]))
    assert found.verdicts[0].probability > 0.9
    ((pairs, *_),) = calls_of(judge)
    assert [len(window.split()) for window, _ in pairs[:-1]] == windows
    assert set(context.split()) == {word for window, _ in pairs for word in window.split()}


def test_the_offline_judge_answers_the_rest(library: type[Encoder]) -> None:
    """A whole set is scored; what is no matter of entailment is compared by words."""
    judge = LocalJudge("an/nli")
    evaluation = asyncio.run(aevaluate(SAMPLE, judge=judge, embedder="hashing"))
    assert {score.status for score in evaluation.scores} == {"ok"}
    assert evaluation.judge == judge.model
    assert evaluation.usage.judge_requests == 0
    version = evaluation["faithfulness"].version
    assert version.endswith(f"{judge.model}.{100 + LexicalJudge.revision}")
    shown = questions.statements("Why?", "Because of rain.")
    assert replied(judge, shown) == list(asyncio.run(LexicalJudge().reply([shown])).parts)


def test_models_of_one_name_are_told_apart(library: type[Encoder]) -> None:
    """Weights, and the label that counts, are in the name, which releases do not change."""
    names = [LocalJudge("an/nli", label=label).model for label in (None, "neutral")]
    assert names == ["local/an/nli-815277df", "local/an/nli-63aa59a5"]


@pytest.mark.parametrize(
    ("labels", "label", "told"),
    [
        (NLI, None, None),
        (("hallucinated", "consistent"), None, None),
        (("not_entailment", "entailment"), None, None),
        (("unsupported", "SUPPORTED"), None, None),
        (("LABEL_0", "LABEL_1"), "LABEL_1", None),
        (("LABEL_0",), None, None),
        (("LABEL_0", "LABEL_1", "LABEL_2"), None, "name it: LocalJudge"),
        (("a", "b", "c", "d", "entailment"), None, "has 5 labels"),
        (("entailment", "supported"), None, "has 2 labels"),
        (NLI, "yes", "has no label 'yes'; its labels: contradiction"),
    ],
)
def test_the_label_that_means_yes(
    labels: Sequence[str], label: str | None, told: str | None, library: type[Encoder]
) -> None:
    """It is the only one, or known by its name, or named by the user; it is not guessed."""
    library.labels = labels
    if told is None:
        (found,) = replied(LocalJudge("an/nli", label=label), verdicts(BORN))
        assert found.verdicts[0].probability > 0.9
    else:
        with pytest.raises(ConfigError, match=re.escape(told)):
            LocalJudge("an/nli", label=label)


def test_models_that_cannot_judge(library: type[Encoder], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trained classifier it would judge by random weights; the extra may be missing."""
    with pytest.raises(ConfigError, match=r"loaded: nobody/nothing is not a local folder$"):
        LocalJudge("nobody/nothing")
    with pytest.raises(ConfigError, match="batch_size"):
        LocalJudge("an/nli", batch_size=0)
    monkeypatch.setattr(Words, "is_fast", False)
    with pytest.raises(ConfigError, match="fast tokenizer"):
        LocalJudge("an/nli")
    library.architectures = ["BertModel"]
    with pytest.raises(ConfigError, match=r"no classifier of pairs \(BertModel\)"):
        LocalJudge("a/bert")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingDependencyError, match=r"rag-eval-otel\[local\]"):
        LocalJudge("an/nli")

"""`LocalJudge`: use an NLI model, a hallucination model or a cross-encoder as the judge."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.lexical import BY_EVIDENCE, EVEN, Answers, LexicalJudge
from rag_eval_otel.judge.tasks import Reply, Task
from rag_eval_otel.runtime.guard import require
from rag_eval_otel.runtime.threads import Workers
from rag_eval_otel.types import Replies

Pair: TypeAlias = "tuple[str, str]"
Shares: TypeAlias = Mapping[Pair, float]

_POSITIVE = ("entail", "support", "consist", "faithful", "ground", "relevant", "factual")
_NEGATED = ("not", "non", "un", "in", "ir")
_ASKED = "This text answers the question: "
_MOST_LABELS = 3
_OVERLAP = 4  # two windows in succession share a quarter of their tokens
_LEAST = 8  # the fewest tokens of a window
_SPECIAL = 4  # the most tokens that a tokenizer adds to a pair


class LocalJudge:
    """A judge that is a classifier of pairs of texts on this machine.

    Faithfulness, groundedness, context relevance and usefulness are probabilities of the model.
    `LexicalJudge` breaks up an answer into claims and answers all other questions of metrics. A
    context that is too long for the model is split into windows, and the window with the highest
    probability counts.

    - ``model``: the name or path of a ``CrossEncoder`` of ``sentence-transformers``: an NLI or
      hallucination model, which tells whether a text entails a claim, or a cross-encoder with one
      label, which scores how well two texts match. A named model is downloaded once.
      For context relevance, a model with one label classifies (question, context), another one the
      context and the hypothesis that it answers the question.
    - ``label``: the label that means entailment, if its name does not say so.
    - ``device``: for example ``"cuda"``; PyTorch chooses by default. ``batch_size``: how many pairs
      of texts are classified together.

    Raises `ConfigError` for a model that does not exist, is not a classifier, or has no label that
    is known to mean "supported". Raises `MissingDependencyError` if the extra ``local`` is not
    installed.
    """

    is_offline = True
    label_metrics = LexicalJudge.label_metrics
    revision = 100 + LexicalJudge.revision  # hundreds: of this judge

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        label: str | None = None,
        device: str | None = None,
        batch_size: int = 32,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more, not {batch_size}")
        self._classifier = Classifier(model, label, device=device, batch=batch_size)
        path = Path(model)
        name = path.name if path.is_dir() else model
        self.model = f"local/{name}-{self._classifier.digest}"
        self._others = LexicalJudge()
        self._workers = Workers(1)

    def __repr__(self) -> str:
        return f"LocalJudge({self.model.removeprefix('local/')!r})"

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the replies to ``tasks``; the model classifies all pairs of texts in batches."""
        others = await self._others.reply(tasks)
        mine = [t for t in tasks if t.kind.family in BY_EVIDENCE and not t.kind.instructions]
        replies = await self._workers.run(lambda: self._replies(mine)) if mine else []
        by_task = dict(zip(map(id, mine), replies, strict=True))
        pairs = zip(tasks, others.parts, strict=True)
        parts = (by_task.get(id(task), other) for task, other in pairs)
        return Replies(parts=tuple(parts), model=self.model)

    def _replies(self, tasks: Sequence[Task[Any]]) -> list[Reply]:
        """Answer ``tasks`` twice: the first time only records which pairs of texts are needed."""

        def answered(claims: Shares, questions: Shares) -> list[Reply]:
            answers = [_ModelAnswers(task, claims, questions) for task in tasks]
            return [getattr(each, f"to_{each.task.kind.family}")() for each in answers]

        claims, questions = _Wanted(), _Wanted()
        answered(claims, questions)
        found = self._classifier.probabilities(claims), self._classifier.relevances(questions)
        return answered(*found)


class _Wanted(dict[Pair, float]):
    """Records the pairs of texts that a question needs, to classify all of them in one batch."""

    def __missing__(self, pair: Pair) -> float:
        self[pair] = EVEN
        return EVEN


class _ModelAnswers(Answers):
    def __init__(self, task: Task[Any], claims: Shares, questions: Shares) -> None:
        super().__init__(task)
        self._claims, self._questions = claims, questions
        self._texts = [text for text in self.contexts if text.strip()]

    def support(self, claim: str) -> float:
        return max([self._claims[text, claim] for text in self._texts], default=0.0)

    new_support = support

    def sentence_support(self, sentence: str, claims: Sequence[str]) -> float:  # noqa: ARG002
        return self.support(sentence)

    def relevances(self) -> list[float]:
        return [self._questions[text, self.question] for text in self.contexts]

    def relevance(self) -> float:
        return max([self._questions[text, self.question] for text in self._texts], default=0.0)

    def reason(self, share: float) -> str:
        return f"probability {share:.2f}"


class Classifier:
    """Computes how probably a text supports a claim or answers a question, by ``CrossEncoder``."""

    def __init__(
        self, model: str | os.PathLike[str], label: str | None, *, device: str | None, batch: int
    ) -> None:
        self._model = _load(model, device)
        config = self._model.config
        self._count = int(config.num_labels)
        self._label = _label_of(str(model), dict(config.id2label), label)
        self._options = {"batch_size": batch, "show_progress_bar": False}
        self._tokenizer = self._model.tokenizer

    @cached_property
    def digest(self) -> str:
        """A hash of the label and some weights, for the version of scores: eight hex digits."""
        told = [str(self._label)]
        for name, weights in self._model.model.state_dict().items():
            flat = weights.flatten()
            told.append(f"{name} {tuple(weights.shape)} {flat[:4].tolist()} {flat[-4:].tolist()}")
        return hashlib.sha256("\n".join(told).encode()).hexdigest()[:8]

    @cached_property
    def length(self) -> int:
        config = self._model.config
        limits = [getattr(self._model, "max_seq_length", None)]
        limits.append(getattr(self._tokenizer, "model_max_length", None))
        limits.append(getattr(config, "max_position_embeddings", None))
        return int(min(filter(None, limits), default=512))

    def probabilities(self, pairs: Iterable[Pair]) -> dict[Pair, float]:
        return self._best({pair: list(self._windows(*pair)) for pair in pairs})

    def relevances(self, pairs: Iterable[Pair]) -> dict[Pair, float]:
        asked: dict[Pair, list[Pair]] = {}
        for text, question in pairs:
            claim = question if self._count == 1 else f"{_ASKED}{question}"
            windows = list(self._windows(text, claim))
            flipped = [(claim, window) for window, _ in windows]
            asked[text, question] = flipped if self._count == 1 else windows
        return self._best(asked)

    def _best(self, windows: Mapping[Pair, Sequence[Pair]]) -> dict[Pair, float]:
        pairs = list(dict.fromkeys(window for of_pair in windows.values() for window in of_pair))
        if not pairs:
            return {}
        identity = import_module("torch").nn.Identity()
        rows = self._model.predict(pairs, activation_fn=identity, **self._options)
        logits = np.asarray(rows, dtype=float).reshape(len(pairs), -1)
        if self._count == 1:  # the other label has the logit 0
            logits = np.column_stack([logits, np.zeros(len(pairs))])
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = (powers[:, self._label] / powers.sum(axis=1)).tolist()
        known = dict(zip(pairs, shares, strict=True))
        return {pair: max(known[one] for one in of_pair) for pair, of_pair in windows.items()}

    def _windows(self, text: str, claim: str) -> Iterator[Pair]:
        """Yield overlapping parts of ``text``, each with ``claim``, that fit into the model."""
        tokens = partial(self._tokenizer, add_special_tokens=False, verbose=False)
        told, shown = tokens(claim), tokens(text, return_offsets_mapping=True)
        half = self.length // 2
        size = max(_LEAST, self.length - _SPECIAL - min(len(told["input_ids"]), half))
        places = shown["offset_mapping"]
        if len(places) <= size:
            yield text, claim
            return
        step = size - size // _OVERLAP
        for start in range(0, len(places) - size // _OVERLAP, step):
            part = places[start : start + size]
            yield text[part[0][0] : part[-1][1]], claim


def _load(model: str | os.PathLike[str], device: str | None) -> Any:
    make = require("sentence_transformers", "local").CrossEncoder
    try:
        found = make(str(Path(model).expanduser()), device=device)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        told = str(error).partition("\n")[0]
        raise ConfigError(f"local/{model} cannot be loaded: {told}") from error
    kinds = getattr(found.config, "architectures", None) or []
    if not any("SequenceClassification" in kind for kind in kinds):
        raise ConfigError(
            f"local/{model} is no classifier of pairs ({', '.join(kinds) or 'of no known kind'});"
            " take an NLI or hallucination model, or a cross-encoder"
        )
    if not found.tokenizer.is_fast:
        raise ConfigError(f"local/{model} has no fast tokenizer, which long contexts need")
    return found


def _label_of(model: str, names: Mapping[Any, str], wanted: str | None) -> int:
    labels = [names[i] for i in sorted(names)]
    if wanted is not None:
        if wanted in labels:
            return labels.index(wanted)
        raise ConfigError(f"local/{model} has no label {wanted!r}; its labels: {', '.join(labels)}")
    if len(labels) == 1:
        return 0
    words = [name.lower().replace("_", " ").replace("-", " ") for name in labels]
    positive = [any(word.startswith(_POSITIVE) for word in name.split()) for name in words]
    found = [i for i, name in enumerate(words) if positive[i] and not name.startswith(_NEGATED)]
    if len(labels) <= _MOST_LABELS and len(found) == 1:
        return found[0]
    raise ConfigError(
        f"local/{model} has {len(labels)} labels ({', '.join(labels[:5])}), of which it is not"
        " clear which one means that a claim is supported; take a model with one, two or three, or"
        f" name it: LocalJudge({model!r}, label=...)"
    )

"""The data classes of the library (`Sample`, `Score`, `Evaluation`) and its protocols.

A *turn* is one question of a user and its answer. This module reads no environment and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Vectors: TypeAlias = "NDArray[np.float64]"
EmbedFn: TypeAlias = Callable[[Sequence[str]], Awaitable[Vectors]]

ScoreStatus = Literal["ok", "undefined", "error"]
Label = Literal["pass", "fail"]
Form = Literal["short", "full"]  # who splits an answer into claims: this library, or the judge

_Refused = Literal["transport", "timeout", "unauthorized", "rate_limited", "bad_request"]
_NotSent = Literal["circuit_open", "budget", "shutdown", "internal", "redaction_error"]
ErrorReason = Literal[_Refused, _NotSent]

_Missing = Literal["missing_question", "missing_reference", "missing_rubric", "missing_input"]
_Empty = Literal["no_claims", "no_context", "no_questions", "empty_answer", "zero_vector"]
_NotMeant = Literal["insufficient_context", "no_citations"]  # the metric is about other turns
_Unusable = Literal["too_long", "judge_incomplete", "unparsable"]  # texts or replies
_Remark = Literal["noncommittal", "no_logprobs", "partial"]  # on a score with a value
Reason = Literal[_Missing, _Empty, _NotMeant, _Unusable, ErrorReason, _Remark, "span_missed"]
"""Why a score has no value, or (``status="ok"``) a remark on its value.

``span_missed`` is the reason of a scored turn whose span was exported before the turn was found.
"""

_NotChosen = Literal["budget", "duplicate", "not_sampled", "sample_rate"]
_NoPart = Literal["no_answer", "no_contexts", "no_question", "no_retrieval"]
_NotRead = Literal["abandoned", "ambiguous", "error", "evicted", "partial", "split", "truncated"]
SkipReason = Literal[_NotChosen, _NoPart, _NotRead, "redacted", "redaction_error"]
"""Why a turn was not evaluated at all."""

_Scored = Literal["scored", "partial", "unscored", "error"]
HoldStatus = Literal[_Scored, "skipped", "timeout", "overload", "flushed", "shutdown"]
"""The values of ``rag.evaluation.status`` on the exported span of a turn."""

ContextsSource = Literal["retrieval", "tool", "memory", "prompt", "none"]

Outcome = Literal["answered", "declined"]
"""Whether the answer answers the question, or says that it cannot."""
Cause = Literal["retrieval", "unsupported", "needless_refusal", "off_topic", "metric"]
"""What is to blame for a turn that fails, or for a refusal that is right; see docs/outcomes.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One retrieved context: text, id of the document, and the retriever's score on its scale."""

    text: str
    id: str | None = None
    score: float | None = None

    def __post_init__(self) -> None:
        _require_text("Passage.text", self.text)


class Message(NamedTuple):
    """A message of a conversation: ``role`` is ``user`` or ``assistant``."""

    role: str
    text: str


Messages: TypeAlias = Iterable[Message | tuple[str, str] | Mapping[str, Any]]
"""Messages, pairs of role and text, or dicts with ``role`` and ``content``."""
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_MOST_MESSAGES, _MOST_HISTORY = 8, 2000  # messages, and their characters, that a judge is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question of a user with the retrieved contexts and the answer, as metrics see it.

    - ``contexts``: strings or `Passage`s in rank order. An empty question, answer or sequence of
      contexts means that there is none; each metric says which score it then gives.
    - ``history``: the messages before the question, oldest first, as `Message`s, pairs of role and
      text, or dicts with ``role`` and ``content``. Only those of user and assistant are kept, of
      these the last 8, and of their texts the last 2,000 characters.
    - ``query``: the text that was given to the retriever, if it is not the question.
    - ``reference``: the right answer (ground truth). Live traces have none.
    - ``retrieved_ids``: the ids of the retrieved documents in rank order.
    - ``relevant_ids``: the ids that should have been retrieved, or a mapping from these ids to
      grades of relevance, which are then in ``grades``. Live traces have none.
    - ``rubric``: a scale for this sample only: a mapping from numbers to their meanings.
    - ``extra``: further texts by name, for metrics of your own.

    Raises `TypeError` or `ValueError`, which name the field, for a value that cannot be used.
    """

    question: str = ""
    contexts: tuple[Passage, ...] = ()
    answer: str = ""
    history: tuple[Message, ...] = ()
    query: str | None = None
    reference: str | None = None
    retrieved_ids: tuple[str, ...] = ()
    relevant_ids: tuple[str, ...] = ()
    grades: tuple[float, ...] = ()
    rubric: Mapping[float, str] = field(default_factory=dict, hash=False)
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)

    if TYPE_CHECKING:  # `__post_init__` turns these wider types into those of the fields

        def __init__(
            self,
            *,
            question: str = "",
            contexts: Iterable[str | Passage] = (),
            answer: str = "",
            history: Messages = (),
            query: str | None = None,
            reference: str | None = None,
            retrieved_ids: Iterable[object] = (),
            relevant_ids: Iterable[object] | Mapping[str, float] = (),
            grades: Iterable[float] = (),
            rubric: Mapping[float, str] = ...,
            extra: Mapping[str, str] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in ("question", "answer", "query", "reference"):
            if name in {"question", "answer"} or getattr(self, name) is not None:
                _require_text(f"Sample.{name}", getattr(self, name))
        graded = self.relevant_ids.values() if isinstance(self.relevant_ids, Mapping) else ()
        changed = {
            "contexts": _contexts(self.contexts),
            "history": _history(self.history),
            "retrieved_ids": _ids("Sample.retrieved_ids", self.retrieved_ids),
            "relevant_ids": (relevant := _ids("Sample.relevant_ids", self.relevant_ids)),
            "grades": _grades(tuple(graded or self.grades), ids=len(relevant)),
            "rubric": _texts("Sample.rubric", self.rubric),
            "extra": _texts("Sample.extra", self.extra),
        }
        for name, value in changed.items():
            object.__setattr__(self, name, value)

    @property
    def context_texts(self) -> tuple[str, ...]:
        """The texts of the contexts in rank order; blank contexts are left out."""
        return tuple([p.text for p in self.contexts if p.text.strip()])

    @property
    def ranked_ids(self) -> tuple[str, ...]:
        """The ``retrieved_ids``; if there are none, the ids of the contexts if all have one."""
        ids = tuple(p.id for p in self.contexts if p.id is not None)
        return self.retrieved_ids or (ids if len(ids) == len(self.contexts) else ())


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}; pass '' where there is none."
        raise TypeError(msg)


def _items(name: str, value: object, *, kind: str, example: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        msg = f"{name} must be a sequence of {kind}, not {type(value).__name__}; pass {example}."
        raise TypeError(msg)
    return tuple(value)


def _ids(name: str, value: object) -> tuple[str, ...]:
    return tuple(map(str, _items(name, value, kind="ids", example="[id]")))


def _grades(grades: tuple[Any, ...], *, ids: int) -> tuple[float, ...]:
    for grade in grades:
        is_number = isinstance(grade, int | float) and not isinstance(grade, bool)
        if not (is_number and 0 <= grade < math.inf):
            raise ValueError(f"a grade must be a finite number, 0 or more, not {grade!r}")
    if grades and len(grades) != ids:
        raise ValueError(f"{len(grades)} grades for {ids} relevant_ids; pass one for each, or none")
    return tuple(map(float, grades))


def _texts(name: str, value: object) -> dict[Any, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping to texts, not {type(value).__name__}")
    for key, text in value.items():
        _require_text(f"{name}[{key!r}]", text)
    return dict(value)


def _history(value: object) -> tuple[Message, ...]:
    form = 'messages as ("user", text) or {"role": "user", "content": text}'
    messages: list[Message] = []
    left = _MOST_HISTORY
    for item in reversed(_items("Sample.history", value, kind="messages", example="[]")):
        entry = (item.get("role"), item.get("content")) if isinstance(item, Mapping) else item
        match entry:
            case [str(author), str(said)]:
                role, text = _ROLES.get(author.lower()), said.strip()
            case [str(author), None | [*_] as parts] if isinstance(item, Mapping):
                role = _ROLES.get(author.lower())  # with calls of tools, or images
                shown = (part.get("text") for part in parts or () if isinstance(part, Mapping))
                text = "".join(each for each in shown if isinstance(each, str)).strip()
            case _:
                raise TypeError(f"Sample.history takes {form}, not {type(item).__name__}")
        if role and text and left and len(messages) < _MOST_MESSAGES:
            messages.append(Message(role, text[-left:]))
            left -= len(messages[-1].text)
    return tuple(reversed(messages))


def _contexts(value: object) -> tuple[Passage, ...]:
    example = "[text] for a single context and [] for none"
    contexts = _items("Sample.contexts", value, kind="str or Passage", example=example)
    for context in contexts:
        if not isinstance(context, str | Passage):
            raise TypeError(f"A context must be a str or a Passage, not {type(context).__name__}.")
    return tuple([Passage(text=each) if isinstance(each, str) else each for each in contexts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How many requests and tokens judge and embedder took. Add two usages with ``+``.

    A request that was sent again counts again. ``cached_tokens`` are the part of ``prompt_tokens``
    that the provider had in its cache. ``embedding_tokens`` are the tokens of embedded texts.
    """

    judge_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    embedding_requests: int = 0
    embedding_tokens: int = 0

    @property
    def tokens(self) -> int:
        """All tokens: of prompts, replies and embedded texts."""
        return self.prompt_tokens + self.completion_tokens + self.embedding_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in COUNTS})


COUNTS = tuple(Usage.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The result of one metric for one sample.

    - ``value``: a finite float if ``status`` is ``"ok"``, else None. A failure is never a number.
    - ``normalized``: the value brought to [0, 1], if the metric has another scale.
    - ``reason``: why there is no value, or a remark on the value.
    - ``label``: ``"pass"`` on the good side of ``threshold``, else ``"fail"``; None: not compared.
    - ``explanation``, ``detail``: the judge's reasons and verdicts. They may quote the user's texts
      and are exported only if an option says so.
    - ``version``: a text that changes with metric, prompts and judge. Scores of different versions
      must not be compared.
    - ``usage``: the requests and tokens of the score. Requests that several metrics share are
      divided among them. ``cost``: the money for these tokens; None if a price is not known.
      ``==`` compares neither.
    """

    name: str
    value: float | None = None
    normalized: float | None = None
    status: ScoreStatus = "ok"
    reason: Reason | None = None
    label: Label | None = None
    threshold: float | None = None
    explanation: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    usage: Usage = field(default_factory=Usage, compare=False)
    cost: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raise `ValueError` if a field breaks a rule above, or if a failure has no reason."""
        if self.status == "ok":
            if self.value is None or not math.isfinite(self.value):
                msg = f"Score {self.name!r} is ok, but {self.value!r} is not a finite number."
                raise ValueError(msg)
            if self.normalized is not None and not 0 <= self.normalized <= 1:
                msg = f"Score {self.name!r}: normalized must be from 0 to 1, not {self.normalized}"
                raise ValueError(msg)
            object.__setattr__(self, "value", float(self.value))
        elif self.reason is None or (self.value, self.normalized) != (None, None):
            msg = f"Score {self.name!r} is {self.status}: it needs a reason, and no number."
            raise ValueError(msg)

    @property
    def unsupported(self) -> tuple[tuple[int, int], ...] | None:
        """Start and end of each sentence of the answer that the contexts do not support.

        They are half-open, in code points of the answer. None if the places are not known.
        """
        match self.detail:  # perhaps of a metric that is not ours
            case {"offsets": [*places], "verdicts": [*verdicts]} if len(places) == len(verdicts):
                pairs = [pair for pair, flag in zip(places, verdicts, strict=True) if not flag]
                if all([type(place) for place in pair] == [int, int] for pair in pairs):
                    return tuple((start, end) for start, end in pairs)
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return ``value`` and all other fields that are not empty, except ``name``, for JSON."""
        entries: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        counts = asdict(self.usage) if self.usage.tokens else {}
        entries["usage"] = {name: count for name, count in counts.items() if count}
        return {k: v for k, v in entries.items() if k == "value" or v not in (None, "", {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a turn was chosen for the judge that scored it.

    - ``probability``: the probability, above 0, with which turns like this one were chosen.
    - ``stage``: which judge of a cascade made the scores: the judge, or the offline judge.
    - ``is_targeted``: whether the turn was chosen only because turns like it are chosen more often
      than others. The turns that are not targeted are a uniform sample.
    - ``reason``: why the turn has only offline scores, although it was chosen for the judge.
    """

    probability: float = 1.0
    stage: Literal["judge", "offline"] = "judge"
    is_targeted: bool = False
    reason: Literal["budget"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRef:
    """The ids of an evaluated span, as in OpenTelemetry's ``SpanContext``."""

    trace_id: int
    span_id: int
    trace_flags: int = 1


SUFFICIENT = 0.75
"""The context relevance from which contexts suffice: halfway from the rating 1 of 2 to 2 of 2."""
_TABLE = frozenset(
    "answer_relevancy context_relevance context_sufficiency faithfulness needless_refusal".split()
)
_OF_CLAIMS = frozenset(
    "context_agreement response_groundedness response_supported statement_faithfulness".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All scores of one sample: `evaluate` returns it, and every sink receives it.

    - ``judge``: the model that answered (``"lexical"`` offline), None if no judge answered.
      ``embedder``: the embedder that was asked, or None.
    - ``duration``: the seconds from the start to the last score.
    - ``usage``: the requests and tokens of all scores. ``cost``: the money for these tokens, in
      ``currency``; None if no tokens were used, or if a price is not known.
    - ``span``: the evaluated span, if there is one. ``lag``: the seconds from the end of the span
      to its scores. ``is_span_missed``: whether it was exported before its turn was found.
    - ``about``: attributes of the user and the conversation: ``session.id``, ``user.id``,
      ``gen_ai.conversation.id``, and metadata that the user of the library chose.
    - ``answer_length``: the characters of the answer, if the sample is from a live application.
    - ``messages``: the number of messages in `Sample.history`. ``is_rewritten``: whether the
      application searched with another text than the question (`Sample.query`).
    - ``sampling``: how the turn was chosen. ``offline``: the offline scores of a cascade beside it.
    - ``computed``: the names of the metrics that ask no judge.
    - ``label_metrics``: the names of the metrics that decide ``label``; None means all metrics.

    Three fields follow from the scores:

    - ``outcome``: ``declined`` or ``answered``, by ``answer_relevancy``; None without its score.
    - ``cause``: what is to blame, by the table in docs/outcomes.md. None if the turn is good. A
      right refusal passes with the cause ``retrieval``. There is no cause without scores of context
      relevance and answer relevancy, and of the faithfulness of an answer with claims.
    - ``label``: ``fail`` or ``pass`` by that table, if its three metrics have scores. The table
      needs ``context_relevance`` and ``faithfulness`` in ``label_metrics``, if any. Else ``fail``
      if at least one metric failed its threshold; None if no metric has a label. If at least one of
      ``label_metrics`` was measured, only these metrics count.
    """

    scores: tuple[Score, ...]
    judge: str | None = None
    duration: float = 0.0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    currency: str = "USD"
    about: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    span: SpanRef | None = None
    lag: float | None = None
    answer_length: int | None = None
    messages: int = 0
    is_rewritten: bool = False
    embedder: str | None = None
    computed: frozenset[str] = frozenset()
    label_metrics: frozenset[str] | None = None
    sampling: Sampling | None = None
    offline: Evaluation | None = None
    is_span_missed: bool = False
    outcome: Outcome | None = field(init=False, repr=False, compare=False)
    cause: Cause | None = field(init=False, repr=False, compare=False)
    label: Label | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Once, because the attributes of spans, events and sinks all have them.
        chosen, counted = self.label_metrics, self.scores
        if chosen is not None:
            counted = tuple([score for score in self.scores if score.name in chosen])
        labels = {score.label for score in counted or self.scores} - {None}
        label: Label | None = "fail" if "fail" in labels else "pass" if labels else None
        outcome = _outcome(self.scores)
        label, cause = _verdict(outcome, counted) or (label, None)
        for name, value in (("outcome", outcome), ("cause", cause), ("label", label)):
            object.__setattr__(self, name, value)

    def __getitem__(self, name: str) -> Score:
        """Return the score of the metric ``name``; raise `KeyError`, which lists the scores."""
        for score in self.scores:
            if score.name == name:
                return score
        raise KeyError(f"no score {name!r}; there are {[s.name for s in self.scores]}")

    @property
    def judged(self) -> tuple[tuple[str, Evaluation], ...]:
        """The evaluation by each judge, in a pair with the prefix of its scores' names.

        The prefix is ``offline.`` for the scores of a cascade's offline judge, else empty.
        """
        is_offline = self.sampling is not None and self.sampling.stage == "offline"
        offline, own = (self, None) if is_offline else (self.offline, self)
        pairs = (("", own), ("offline.", offline))
        return tuple((prefix, each) for prefix, each in pairs if each is not None)

    @property
    def status(self) -> _Scored:
        """Return whether the evaluation gave numbers.

        ``scored``: at least one metric has a number, and none an error (or there are no metrics).
        ``partial``: some have a number, some an error. ``unscored``: none has a number, although
        asking the judge did not fail. ``error``: none has one, because asking the judge failed.
        """
        statuses = {score.status for score in self.scores}
        if not statuses or "ok" in statuses:
            return "partial" if "error" in statuses else "scored"
        is_error = statuses == {"error"} or ("error" in statuses and self.judge is None)
        return "error" if is_error else "unscored"

    @property
    def reason(self) -> Reason | None:
        """The most frequent reason why no metric has a number; None if a metric has a number."""
        if any(score.status == "ok" for score in self.scores):
            return None
        counted = {"error"} if self.status == "error" else {"error", "undefined"}
        reasons = [s.reason for s in self.scores if s.reason and s.status in counted]
        return max(reasons, key=reasons.count, default=None)

    @property
    def is_useless(self) -> bool:
        """Whether the judge answered, but no metric could compute a number from its replies."""
        faults = {"unparsable", "judge_incomplete", "no_questions"}
        return self.status == "unscored" and any(s.reason in faults for s in self.scores)


def _outcome(scores: Iterable[Score]) -> Outcome | None:
    for score in scores:
        if score.name == "answer_relevancy" and score.value is not None:
            if score.reason == "empty_answer":
                return None
            return "declined" if score.reason == "noncommittal" else "answered"
    return None


def _verdict(
    outcome: Outcome | None, counted: Sequence[Score]
) -> tuple[Label, Cause | None] | None:
    """Return label and cause by the table in docs/outcomes.md; None if it lacks a score.

    ``counted`` are the scores that decide the label.
    """
    scores = {score.name: score for score in counted}
    relevance, faithful = scores.get("context_relevance"), scores.get("faithfulness")
    if outcome is None or relevance is None or relevance.value is None or faithful is None:
        return None
    suffices, declines = relevance.value >= SUFFICIENT, outcome == "declined"
    is_supported = faithful.label == "pass" or faithful.reason == "no_claims"
    if faithful.label is None and not (declines or is_supported):
        return None
    failed = {score.name for score in counted if score.label == "fail"}
    if declines and suffices:
        return "fail", "needless_refusal"
    if not declines and "answer_relevancy" in failed and (suffices or is_supported):
        return "fail", "off_topic"
    if not declines and not is_supported:
        return "fail", "unsupported" if suffices else "retrieval"
    # A refusal makes no claims that contexts could back.
    is_failed = failed - _TABLE - (_OF_CLAIMS if declines else frozenset())
    return ("fail", "metric") if is_failed else ("pass", "retrieval" if declines else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What a person said about one answer, as `record_feedback` passes it to the sinks.

    - ``trace_id``, ``span_id``: ids of the rated span; no ``span_id`` if the turn is not known.
    - ``name``: who or what gave the feedback, for example ``user``. ``comment``: the words.
    - ``score``: from 0 (bad) to 1 (good). ``label``: by default ``fail`` below 0.5, else ``pass``.
    """

    trace_id: int
    span_id: int | None = None
    name: str = "user"
    score: float
    comment: str | None = None
    label: Label | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for a score out of range; derive the label unless it is given."""
        if not 0 <= self.score <= 1:
            raise ValueError(f"feedback has a score from 0 (bad) to 1 (good), not {self.score!r}")
        object.__setattr__(self, "score", float(self.score))
        label = "pass" if self.score >= 0.5 else "fail"  # noqa: PLR2004
        object.__setattr__(self, "label", self.label or label)

    @property
    def span(self) -> SpanRef:
        """The rated span; its id is 0 if only the trace is known."""
        return SpanRef(trace_id=self.trace_id, span_id=self.span_id or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """A judge's response: ``parts`` has a `Reply` or a `JudgeError` for each task, in order."""

    parts: tuple[object, ...]
    model: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the evaluation of a turn ended, for the attributes of the turn's span.

    - ``status``: the value of ``rag.evaluation.status``; None if there was nothing to evaluate.
    - ``reason``: why the turn was skipped or has no scores.
    - ``contexts``: where the contexts were read: a retrieval, a tool, a memory or the prompt.
    - ``feedback``: what people said about the answer before the evaluation ended.
    - ``outcome``: of an answer without a retrieval, by its words.
    - ``searches``: the numbers of all searches, of those that repeat a query, and without result.
    """

    status: HoldStatus | None = None
    reason: SkipReason | Reason | None = None
    evaluation: Evaluation | None = None
    contexts: ContextsSource | None = None
    feedback: tuple[Feedback, ...] = ()
    outcome: Outcome | None = None
    searches: tuple[int, int, int] | None = None


UNTOUCHED = Ending()  # of a span that is exported without any attributes of an evaluation


class Embedder(Protocol):
    """Computes vectors (embeddings) of texts for metrics."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a float array of shape ``(len(texts), dim)``; raise `JudgeError` on failure."""


class Sink(Protocol):
    """A function, or an object that can be called, which gets every finished evaluation.

    It is called on the evaluator's thread. An exception is counted and logged, and not raised
    again. An object may also have these methods:

    - ``flush(timeout)`` is called at a flush and at shutdown, after the spans were exported. It
      returns False if it could not send everything in ``timeout`` seconds.
    - ``close()`` is called at shutdown.
    - ``emit_feedback(feedback)`` gets each `Feedback`, perhaps before the scores of its turn.
    """

    def __call__(self, evaluation: Evaluation, /) -> object: ...


class MetricLike(Protocol):
    """The type of options that take a metric. `Metric` is the complete protocol."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def measure(self) -> Callable[..., Coroutine[Any, Any, Score]]: ...


class JudgeLike(Protocol):
    """The type of options that take a judge. `Judge` is the complete protocol."""

    @property
    def model(self) -> str: ...
    @property
    def reply(self) -> Callable[..., Coroutine[Any, Any, Replies]]: ...


JudgeFunction: TypeAlias = Callable[[str], str | Awaitable[str]]
"""A function of a prompt that returns the text of a judge's reply; see `FunctionJudge`."""


class ChatModel(Protocol):
    """The type of options that take a LangChain chat model."""

    @property
    def invoke(self) -> Callable[..., Any]: ...


class TextEmbeddings(Protocol):
    """The type of options that take LangChain ``Embeddings``."""

    @property
    def embed_documents(self) -> Callable[..., Any]: ...


class DriftSettings(Protocol):
    """The type of options that take settings of drift detection; see `drift.DriftOptions`."""

    @property
    def make_detector(self) -> Callable[..., Any]: ...

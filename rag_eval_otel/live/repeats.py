"""Evaluate identical turns once: those that come at the same time, and those that come again.

A turn comes again if an application asks the same, or if a worker gets its spans again after a
crash. Then the scores that are kept are used, so that they are equal and cost no request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast, get_args

from rag_eval_otel.config import Config
from rag_eval_otel.environment import first_set
from rag_eval_otel.evaluation import Measurement, is_final
from rag_eval_otel.judge.models import is_offline
from rag_eval_otel.providers import parts_of
from rag_eval_otel.runtime.fork import call_in_child
from rag_eval_otel.runtime.limited_log import LimitedLog
from rag_eval_otel.runtime.redis_calls import RedisCalls
from rag_eval_otel.sinks.instruments import InstrumentSink
from rag_eval_otel.types import Evaluation, Label, Sample, Score, ScoreStatus, Usage

T = TypeVar("T")

_SCHEMA = 1
"""The version of the encoding of scores in Redis. Scores in another encoding are not found."""
_EXPORTED = ("injection", "truncated")
"""The entries of details that are exported, and quote no texts."""
_FIELDS = ("value", "normalized", "status", "reason", "label", "threshold", "version")
_TEXTS = ("reason", "version", "explanation")
_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""Errors of `decoded` for texts that `encoded` has not returned."""
_AWAY = (
    "the Redis with scores cannot be reached (%s): until it is back, turns are evaluated without it"
)

# Arguments: the seconds to keep the scores, then each field and its score. A score that is there
# stays. Returns the scores that are there in the end.
_KEEP = """
local names = {}
for i = 2, #ARGV, 2 do
  redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
  names[#names + 1] = ARGV[i]
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return redis.call('HMGET', KEYS[1], unpack(names))
"""


class Evaluates(Protocol):
    """A `Measurement`, or a `KeptMeasurement` around it."""

    async def of(self, sample: Sample) -> Evaluation:
        """Return the scores of ``sample``."""


class SharedEvaluations:
    """Evaluates identical samples that come at the same time once.

    The first caller evaluates the sample, and the others get its result, without usage and cost.
    """

    def __init__(self) -> None:
        # The thread is a part of the key: a blocked event loop may never finish an evaluation.
        self._under_way: dict[tuple[int, int, Sample], Future[Evaluation | None]] = {}
        # A forked child has none of the threads, and the system reuses their numbers.
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._under_way.clear()

    async def of(self, measurement: Evaluates, sample: Sample) -> Evaluation:
        """Return the scores of ``sample`` by ``measurement``."""
        key = (threading.get_ident(), id(measurement), sample)
        shared = self._under_way.get(key)
        while shared is not None:
            # A caller that is cancelled must not cancel what the other callers wait for.
            evaluation = await asyncio.shield(asyncio.wrap_future(shared))
            if evaluation is not None:
                return _unpaid(evaluation)
            shared = self._under_way.get(key)  # the first evaluation has failed
        made = self._under_way[key] = Future()
        evaluation = None
        try:
            evaluation = await measurement.of(sample)
        finally:
            del self._under_way[key]
            if not made.done():  # at a shutdown, one of the other callers may have cancelled it
                made.set_result(evaluation)
        return evaluation


def _unpaid(evaluation: Evaluation) -> Evaluation:
    """Return ``evaluation`` without its usage and cost, which count for another turn."""
    scores = tuple(replace(score, usage=_UNUSED, cost=None) for score in evaluation.scores)
    return replace(evaluation, scores=scores, usage=_UNUSED, cost=None)


_UNUSED: Final = Usage()  # one object for all scores that are kept


# --- scores that are kept -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A score that is kept, without usage and cost, and the models that gave it."""

    score: Score
    judge: str | None
    embedder: str | None


Found: TypeAlias = "dict[str, Kept]"
"""Scores that are kept of one sample, by the name of the metric."""


class ScoreMemory:
    """Keeps the scores of up to ``max_turns`` samples in memory; the least recently used go."""

    def __init__(self, max_turns: int) -> None:
        self._max = max_turns
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._turns: OrderedDict[str, Found] = OrderedDict()

    def get(self, key: str) -> Found:
        """Return the scores that are kept under ``key``."""
        with self._lock:
            if key not in self._turns:
                return {}
            self._turns.move_to_end(key)
            return dict(self._turns[key])

    def put(self, key: str, scores: Found) -> None:
        """Keep ``scores`` under ``key``, beside those of other metrics."""
        with self._lock:
            self._turns[key] = {**self._turns.pop(key, {}), **scores}
            while len(self._turns) > self._max:
                self._turns.popitem(last=False)


class RedisScores:
    """Keeps scores in the Redis at ``url`` for ``seconds``, for all processes that use it.

    The first process that keeps a score wins: the others get its score. Texts of users are in no
    key. They are in no score either, unless ``explanations`` is ``on``: explanations and details of
    scores may quote them. A score that cannot be read is removed, and ``on_unreadable()``
    is called. `RedisCalls` says what ``on_error`` and ``timeout`` mean.
    """

    def __init__(
        self,
        url: str,
        *,
        seconds: float,
        explanations: str = "off",
        on_unreadable: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        """Connect with the first call; raise `ConfigError` for a wrong ``url``."""
        self._redis = RedisCalls(url, option="redis", told=_AWAY, **options)
        self._keep = self._redis.client.register_script(_KEEP)
        self._seconds = max(1, round(seconds))
        self._explains = explanations == "on"
        self._on_unreadable = on_unreadable
        self._log = LimitedLog()

    def _key(self, key: str) -> str:
        return f"rag_eval_otel:scores:{self._redis.name}:{key}"

    async def _call(self, call: Callable[[], T]) -> T | None:
        """Return the result of ``call``, or None if Redis cannot be reached."""
        if self._redis.is_away:
            return None
        return await self._redis.result_of(self._redis.submit(call))

    async def get(self, key: str, fields: Mapping[str, str]) -> Found:
        """Return the scores of the sample ``key``; ``fields`` maps metrics to names of fields."""
        client, there = self._redis.client, self._key(key)
        texts = await self._call(partial(client.hmget, there, list(fields.values())))
        found, unreadable = self._read(fields, texts or ())
        if unreadable:
            await self._call(partial(client.hdel, there, *unreadable))
        return found

    async def put(self, key: str, fields: Mapping[str, str], scores: Found) -> Found:
        """Keep ``scores``, and return those of them that another process has kept before."""
        written = {name: encoded(one, explains=self._explains) for name, one in scores.items()}
        arguments = [part for name, text in written.items() for part in (fields[name], text)]
        keep = partial(self._keep, keys=[self._key(key)], args=[self._seconds, *arguments])
        there: list[bytes | None] = await self._call(keep) or []
        pairs = zip(written.values(), there, strict=False)
        others = [None if there == text.encode() else there for text, there in pairs]
        return self._read({name: fields[name] for name in written}, others)[0]

    def _read(
        self, fields: Mapping[str, str], texts: Sequence[bytes | None]
    ) -> tuple[Found, list[str]]:
        """Return the scores in ``texts``, and the fields of those that cannot be read."""
        pairs = list(zip(fields.items(), texts, strict=False))
        read = {name: self._decoded(name, text) for (name, _), text in pairs if text is not None}
        found = {name: kept for name, kept in read.items() if kept is not None}
        return found, [fields[name] for name in read if name not in found]

    def _decoded(self, name: str, text: bytes) -> Kept | None:
        try:
            return decoded(name, text)
        except _UNREADABLE as error:
            self._on_unreadable()
            told = "a score in Redis cannot be read (%s) and is replaced; logged at most once a"
            self._log.write("unreadable", f"{told} minute", type(error).__name__)
            return None


def encoded(kept: Kept, *, explains: bool) -> str:
    """Return ``kept`` as JSON; with ``explains``, including the explanation and all details."""
    score = kept.score
    entries: dict[str, Any] = {name: getattr(score, name) for name in _FIELDS}
    detail = {n: v for n, v in score.detail.items() if explains or n in _EXPORTED}
    entries |= {"schema": _SCHEMA, "judge": kept.judge, "embedder": kept.embedder}
    if explains:
        entries["explanation"] = score.explanation
    filled = {name: entry for name, entry in entries.items() if entry is not None}
    to_json = partial(json.dumps, sort_keys=True, separators=(",", ":"), default=str)
    try:
        return to_json(filled | ({"detail": detail} if detail else {}))
    except (TypeError, ValueError, RecursionError):  # a metric of the user may put anything there
        return to_json(filled)


def decoded(name: str, text: bytes) -> Kept:
    """Return the score of the metric ``name`` from ``text``, which `encoded` has returned.

    Raises one of several built-in exceptions if ``text`` is anything else.
    """
    found = json.loads(text)
    models = [found.get(part) for part in ("judge", "embedder")]
    texts = [found.get(part) for part in _TEXTS]
    detail = found.get("detail", {})
    numbers = [found.get(part) for part in ("value", "normalized", "threshold")]
    is_right = (
        found["schema"] == _SCHEMA
        and all(isinstance(one, str | None) for one in (*models, *texts))
        and all(one is None or _is_number(one) for one in numbers)
        and found["status"] in get_args(ScoreStatus)
        and found.get("label") in {None, *get_args(Label)}
        and isinstance(detail, dict)
    )
    if not is_right:
        msg = "not the encoding of a score"
        raise ValueError(msg)
    score = Score(
        name=name,
        **{part: found[part] for part in _FIELDS if part in found},
        explanation=found.get("explanation"),
        detail=detail,
    )
    return Kept(score=score, judge=models[0], embedder=models[1])


def _is_number(value: object) -> bool:
    return type(value) in {int, float} and math.isfinite(cast("float", value))


class KeptMeasurement:
    """Evaluates samples by ``measurement``, unless their scores are kept in memory or in Redis.

    Scores are found by a digest of the sample, as metrics see it, of the definition of the metric
    and its threshold, and of ``settings``, a text that describes other options that matter. Failed
    scores, and scores without a usable reply of the judge, are not kept. ``count`` is called with
    ``hit``, ``partial`` or ``miss`` for each sample, by the number of scores that were kept.
    """

    def __init__(
        self,
        measurement: Measurement,
        *,
        memory: ScoreMemory,
        redis: RedisScores | None = None,
        settings: str = "",
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._measurement = measurement
        self._memory = memory
        self._redis = redis
        self._settings = settings
        self._count = count
        defined = measurement.definitions()
        self._fields = {
            metric.name: f"{metric.name}:{_digest((defined[metric.name], _threshold(metric)))[:32]}"
            for metric in measurement.metrics
        }

    async def of(self, sample: Sample) -> Evaluation:
        """Return the scores of ``sample``: those that are kept, and the others by evaluation.

        Raise `RedactionError` if a function of the option ``redact`` fails.
        """
        whole, started = self._measurement, self._measurement.clock()
        seen, cut = whole.prepared(sample)
        key = self._key(seen, cut)
        found = await self._find(key)
        missing = tuple(metric for metric in whole.metrics if metric.name not in found)
        self._count("miss" if not found else "partial" if missing else "hit")
        if not missing:
            return self._restored(seen, found, started)
        part = replace(whole, metrics=missing) if found else whole
        fresh = await part.of_prepared(seen, cut)
        found |= await self._keep(key, fresh)
        spent = {score.name: score for score in fresh.scores}
        scores = {name: kept.score for name, kept in found.items()}
        return replace(
            fresh,
            scores=tuple(_with_cost(scores, spent, metric.name) for metric in whole.metrics),
            judge=fresh.judge or _first(kept.judge for kept in found.values()),
            embedder=fresh.embedder or _first(kept.embedder for kept in found.values()),
            duration=whole.clock() - started,
            label_metrics=whole.labelling,
        )

    async def known(self, sample: Sample) -> Evaluation | None:
        """Return the scores of ``sample`` if all of them are kept, else None.

        Raise `RedactionError` if a function of the option ``redact`` fails.
        """
        started = self._measurement.clock()
        seen, cut = self._measurement.prepared(sample)
        found = await self._find(self._key(seen, cut))
        if len(found) < len(self._fields):
            return None
        self._count("hit")
        return self._restored(seen, found, started)

    def _key(self, sample: Sample, cut: Mapping[str, int]) -> str:
        # A judge may change its model, also while a process runs.
        model = self._measurement.judge.model
        return _digest((_SCHEMA, self._settings, model, sample, sorted(cut.items())))

    async def _find(self, key: str) -> Found:
        found = {n: kept for n, kept in self._memory.get(key).items() if n in self._fields}
        if self._redis is None or len(found) == len(self._fields):
            return found
        elsewhere = {name: field for name, field in self._fields.items() if name not in found}
        more = await self._redis.get(key, elsewhere)
        if more:
            self._memory.put(key, more)
        return found | more

    async def _keep(self, key: str, fresh: Evaluation) -> Found:
        """Keep the scores of ``fresh`` that are final; return those of them that then count."""
        scores = _unpaid(fresh).scores
        kept = {
            score.name: Kept(score=score, judge=fresh.judge, embedder=fresh.embedder)
            for score in scores
            if is_final(score)
        }
        if not kept:
            return {}
        if self._redis is not None:
            kept |= await self._redis.put(key, self._fields, kept)
        explains = self._measurement.explanations == "on"
        self._memory.put(key, kept if explains else {n: _lean(one) for n, one in kept.items()})
        return kept

    def _restored(self, sample: Sample, found: Found, started: float) -> Evaluation:
        """Return an evaluation with the scores ``found``, for which nothing was asked."""
        whole = self._measurement
        embedding = None
        if whole.embedding == "keep" and whole.vectors is not None:
            embedding = whole.vectors.get(sample.question)
        return Evaluation(
            scores=tuple(found[metric.name].score for metric in whole.metrics),
            judge=_first(kept.judge for kept in found.values()),
            embedder=_first(kept.embedder for kept in found.values()),
            duration=whole.clock() - started,
            currency=whole.prices.currency,
            label_metrics=whole.labelling,
            question_embedding=embedding,
        )


def _lean(kept: Kept) -> Kept:
    """Return ``kept`` without texts that are not exported, which take most of its memory."""
    detail = {name: kept.score.detail[name] for name in _EXPORTED if name in kept.score.detail}
    return replace(kept, score=replace(kept.score, explanation=None, detail=detail))


def _with_cost(scores: Mapping[str, Score], spent: Mapping[str, Score], name: str) -> Score:
    """Return the score ``name`` that counts, with the usage and cost of the one in ``spent``."""
    if name not in spent or name not in scores:
        return scores[name] if name in scores else spent[name]
    return replace(scores[name], usage=spent[name].usage, cost=spent[name].cost)


def _first(names: Any) -> str | None:
    return next((cast("str", name) for name in names if name is not None), None)


def _threshold(metric: object) -> object:
    return getattr(metric, "threshold", None)


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()


_OF_MODELS = (
    *("judge_base_url", "embedder_base_url", "temperature", "seed", "max_tokens", "extra_body"),
)
"""The options that change what a model says, apart from its name."""


def _providers(config: Config) -> list[tuple[str, str | None]]:
    """Return the providers that ``config`` names, with their addresses in the environment.

    Models of equal names at two providers may say different things.
    """
    found = [parts_of(name) for name in (config.judge, config.embedder) if isinstance(name, str)]
    providers = [part[0] for part in found if part is not None]
    return [(one.name, first_set(one.addresses)) for one in providers]


def keeping(
    config: Config, measurement: Measurement, *, instruments: InstrumentSink
) -> KeptMeasurement | None:
    """Return ``measurement`` with the memory and the Redis of ``config``.

    Return None if scores are not kept: without both, and without Redis for an offline judge, which
    costs no request.
    """
    asks = not is_offline(measurement.judge)
    if config.redis is None and not (asks and config.score_cache_turns):
        return None
    options = {name: getattr(config, name) for name in _OF_MODELS}
    options["providers"] = _providers(config)
    redis = None
    if config.redis is not None:
        redis = RedisScores(
            config.redis,
            seconds=config.score_cache_seconds,
            explanations=config.explanations,
            on_error=partial(instruments.internal_error, "redis"),
            on_unreadable=partial(instruments.internal_error, "score_cache"),
        )
    return KeptMeasurement(
        measurement,
        memory=ScoreMemory(config.score_cache_turns),
        redis=redis,
        settings=json.dumps(options, sort_keys=True, default=str),
        count=instruments.cache_lookup,
    )

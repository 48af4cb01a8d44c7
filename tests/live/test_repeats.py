"""Scores that are kept, in memory and in Redis, and used for a turn that comes again."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.redis_server import Server, serving
from live import attached
from pipeline import OnesEmbedder, good_judge
from rag_eval_otel import Config, Sample
from rag_eval_otel.errors import ConfigError, JudgeTransportError, RedactionError
from rag_eval_otel.judge.budget import Budget
from rag_eval_otel.limits import limits_of
from rag_eval_otel.live.repeats import (
    Kept,
    KeptMeasurement,
    RedisScores,
    ScoreMemory,
    decoded,
    encoded,
    keeping,
)
from rag_eval_otel.live.spending import Spending, build_measurement
from rag_eval_otel.metrics.rubric import Guideline
from rag_eval_otel.sampling import Sampling
from rag_eval_otel.sinks.instruments import InstrumentSink
from rag_eval_otel.testing import FakeEmbedder, FakeJudge
from rag_eval_otel.types import Evaluation, Score, Usage

SECRET = "Ada Lovelace, born 1815"
SAMPLE = Sample(question=f"Who is {SECRET}?", contexts=[f"{SECRET}."], answer=f"It is {SECRET}.")
METRICS = tuple(Guideline(guidelines=f"It is {name}.", name=name) for name in ("polite", "short"))


def verdicts(*later: object) -> FakeJudge:
    """Return a judge with these replies one after the other, and then alternating verdicts."""
    rest, numbers = list(later), count()

    def reply(_: object) -> object:
        return rest.pop(0) if rest else {"passing": next(numbers) % 2 == 0, "reason": SECRET}

    return FakeJudge(reply)


def config(judge: FakeJudge, **options: Any) -> Config:
    """Return the options of a pipeline with ``judge`` and two metrics, each with its request."""
    given = {"metrics": METRICS, "embedder": FakeEmbedder({}), "drift": "off", "fusion": "off"}
    return Config(judge=judge, **{**given, **options})


def kept(judge: FakeJudge, **options: Any) -> tuple[KeptMeasurement, Counter[str]]:
    """Return a measurement that keeps scores, as a process has it, and its counts.

    The replies of the judge are not kept apart from the scores.
    """
    given, counts = config(judge, **options), Counter[str]()

    class Counts(InstrumentSink):
        def cache_lookup(self, outcome: str) -> None:
            counts[outcome] += 1

        def internal_error(self, place: str) -> None:
            counts[place] += 1

    measurement = replace(build_measurement(given), cache=None, vectors=None)
    found = keeping(given, measurement, instruments=Counts())
    assert found is not None
    return found, counts


def evaluated(one: KeptMeasurement, sample: Sample = SAMPLE) -> Evaluation:
    """Return the scores of ``sample``."""
    return asyncio.run(one.of(sample))


def exported(evaluation: Evaluation) -> list[tuple[object, ...]]:
    """Return what is exported of the scores, without explanations."""
    names = [each.name for each in fields(Score) if each.name not in _NOT_EXPORTED]
    return [tuple(getattr(score, name) for name in names) for score in evaluation.scores]


_NOT_EXPORTED = {"usage", "cost", "detail", "explanation"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Run a Redis server."""
    with serving(tmp_path) as found:
        yield found


# --- in memory ------------------------------------------------------------------------------------


def test_a_turn_that_comes_again_has_equal_scores_and_asks_nothing() -> None:
    """The judge would say something else, and is not asked."""
    judge = verdicts()
    one, counts = kept(judge)
    first, second = evaluated(one), evaluated(one)
    assert exported(first) == exported(second)
    assert (first.judge, first.label_metrics) == (second.judge, second.label_metrics)
    assert len(judge.requests) == 2
    assert first.usage.judge_requests == 2
    assert second.usage == Usage()
    assert {score.cost for score in second.scores} == {None}
    assert counts == {"miss": 1, "hit": 1}


@dataclass(frozen=True)
class _Detailed:
    """A metric whose score has details."""

    name: str = "detailed"
    needs: frozenset[str] = frozenset({"question"})
    asks: tuple[Any, ...] = ()

    async def measure(self, *_: object) -> Score:
        """Return a score with a detail that is exported, and one that is not."""
        return Score(name=self.name, value=1.0, detail={"said": SECRET, "truncated": 1})


@pytest.mark.parametrize("explanations", ["on", "off"])
def test_texts_are_kept_in_memory_only_if_they_are_exported(explanations: Any) -> None:
    """Explanations and details may be long; the first evaluation has them, and a later one not."""
    one, _ = kept(verdicts(), metrics=(_Detailed(),), explanations=explanations)
    first, second = (evaluated(one).scores[0].detail for _ in range(2))
    assert first == {"said": SECRET, "truncated": 1}
    assert second == (first if explanations == "on" else {"truncated": 1})


def test_any_change_of_the_sample_or_of_an_option_is_another_turn() -> None:
    """Another answer, another passage id and another cut are evaluated."""
    judge = verdicts()
    one, _ = kept(judge)
    for change in ({}, {"answer": "Ada."}, {"extra": {"a": "b"}}, {"reference": ""}):
        evaluated(one, replace(SAMPLE, **change))
    assert len(judge.requests) == 2 * 4


def test_a_judge_that_changes_its_model_is_asked_again() -> None:
    """Its scores have another version."""
    judge = verdicts()
    one, _ = kept(judge)
    first = evaluated(one)
    judge.model = "another"
    assert evaluated(one).scores[0].version != first.scores[0].version
    assert len(judge.requests) == 4


def test_failed_scores_are_asked_again_and_the_others_are_kept() -> None:
    """A metric that failed is evaluated when the turn comes again; the other is not."""
    judge = verdicts({"passing": True}, JudgeTransportError("reset"))
    one, counts = kept(judge)
    first = evaluated(one)
    assert [score.status for score in first.scores] == ["ok", "error"]
    second = evaluated(one)
    assert exported(first)[0] == exported(second)[0]
    assert [score.status for score in second.scores] == ["ok", "ok"]
    assert [score.usage.judge_requests for score in second.scores] == [0, 1]
    assert counts == {"miss": 1, "partial": 1}
    assert exported(evaluated(one)) == exported(second)
    assert len(judge.requests) == 3


def test_a_reply_that_cannot_be_used_is_not_kept() -> None:
    """The judge is asked again when the turn comes again."""
    judge = verdicts(*["nonsense"] * 4)
    one, _ = kept(judge)
    assert [score.reason for score in evaluated(one).scores] == ["unparsable"] * 2
    assert [score.status for score in evaluated(one).scores] == ["ok"] * 2


def test_memory_is_bounded() -> None:
    """The turn that was used longest ago is dropped."""
    memory = ScoreMemory(2)
    one = {"m": Kept(score=Score(name="m", value=1.0), judge="j", embedder=None)}
    for key in ("a", "b", "a", "c"):
        memory.get(key) or memory.put(key, one)
    assert [bool(memory.get(key)) for key in "abc"] == [True, False, True]


def test_an_offline_judge_keeps_no_scores_in_memory() -> None:
    """It costs no request, so its scores are computed again; with Redis, they are kept."""
    for options, is_kept in (
        ({"judge": "lexical"}, False),
        ({"judge": "lexical", "redis": "redis://127.0.0.1:9"}, True),
        ({"judge": verdicts(), "score_cache_turns": 0}, False),
    ):
        given = Config(**{"embedder": "hashing", "drift": "off", **options})  # type: ignore[arg-type]
        found = keeping(given, build_measurement(given), instruments=InstrumentSink())
        assert (found is not None) == is_kept


def test_kept_scores_are_used_when_the_budget_is_spent() -> None:
    """They cost nothing; a turn that is not known is skipped."""
    judge = verdicts()
    given = config(judge)
    budget = Budget(limits_of("2 requests/day", where="budget"))
    measurement = build_measurement(given)

    def keep(one: Any) -> KeptMeasurement | None:
        return keeping(given, one, instruments=InstrumentSink())

    spending = Spending(measurement, budget=budget, keep=keep)
    first = asyncio.run(spending.of(SAMPLE, Sampling()))
    assert spending.is_spent
    second = asyncio.run(spending.of(SAMPLE, Sampling()))
    assert isinstance(first, Evaluation)
    assert isinstance(second, Evaluation)
    assert exported(first) == exported(second)
    assert asyncio.run(spending.of(replace(SAMPLE, answer="No."), Sampling())) == "budget"
    assert len(judge.requests) == 2


def test_a_rule_of_redaction_that_fails_is_told_in_any_case() -> None:
    """No score is looked up for texts that could not be redacted."""

    def fails(_: str) -> str:
        raise ValueError

    one, counts = kept(verdicts(), redact=[fails])
    for call in (one.of, one.known):
        with pytest.raises(RedactionError):
            asyncio.run(call(SAMPLE))  # type: ignore[arg-type]
    assert not counts


def test_drift_still_sees_the_question_of_a_turn_that_comes_again() -> None:
    """The vector of the question comes from the cache of vectors."""
    given = Config(judge=good_judge(), embedder=OnesEmbedder(), metrics=["answer_relevancy"])
    one = keeping(given, build_measurement(given), instruments=InstrumentSink())
    assert one is not None
    found = [evaluated(one).question_embedding for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].tolist() == found[1].tolist()


def test_the_pipeline_counts_what_it_looks_up() -> None:
    """An application that asks the same twice gets equal scores on both spans."""
    judge = good_judge()
    with attached(judge=judge, embedder=OnesEmbedder()) as app:
        for _ in range(2):
            app.turn()
            assert app.handle.flush(60)
        found = app.counted_by("rag.evaluation.cache.lookups", "outcome")
    assert found == {"miss": 1, "hit": 1}


# --- in Redis -------------------------------------------------------------------------------------


def test_another_process_has_equal_scores_and_asks_nothing(server: Server) -> None:
    """Two processes with one Redis: what the first has evaluated, the second only looks up."""
    judges = verdicts(), verdicts({"passing": False}, {"passing": False})
    (one, _), (other, counts) = (kept(judge, redis=server.url()) for judge in judges)
    first, second = evaluated(one), evaluated(other)
    assert exported(first) == exported(second)
    assert (first.judge, first.embedder) == (second.judge, second.embedder)
    assert [len(judge.requests) for judge in judges] == [2, 0]
    assert counts == {"hit": 1}
    with server.client() as client:
        (key,) = client.keys()
        assert 86_000 < client.ttl(key) <= 86_400


def test_two_processes_at_once_export_the_same_scores(server: Server) -> None:
    """Both ask the judge, which says different things; the scores that came first count for both.

    Each still counts the cost of its own requests.
    """
    gates = asyncio.Event(), asyncio.Event()

    class Slow(FakeJudge):
        async def reply(self, tasks: Any) -> Any:
            gates[0].set()
            await gates[1].wait()
            return await super().reply(tasks)

    slow = Slow(lambda _: {"passing": False})
    one, _ = kept(slow, redis=server.url())
    other, _ = kept(FakeJudge(lambda _: {"passing": True}), redis=server.url())

    async def use() -> list[Evaluation]:
        task = asyncio.ensure_future(one.of(SAMPLE))
        await gates[0].wait()
        first = await other.of(SAMPLE)
        gates[1].set()
        return [first, await task]

    first, late = asyncio.run(use())
    assert [score.value for score in first.scores] == [1.0, 1.0]
    assert exported(first) == exported(late)
    assert late.usage.judge_requests == 2
    assert [score.usage.judge_requests for score in late.scores] == [1, 1]


CHANGES: dict[str, dict[str, Any]] = {
    "fusion": {"fusion": "on"},
    "temperature": {"temperature": 1.0},
    "address": {"judge_base_url": "http://there/v1"},
    "explanations": {"explanations": "on"},
    "metric": {"metrics": [replace(m, guidelines="It is kind.") for m in METRICS]},
    "threshold": {"thresholds": {"polite": 0.9, "short": 0.9}},
    "name": {"redis": "#another"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_version_of_a_score_is_evaluated(change: dict[str, Any], server: Server) -> None:
    """Scores that would not be comparable, or would have another label, are not used."""
    evaluated(kept(verdicts(), redis=server.url())[0])
    options = {"redis": server.url(), **change}
    if "redis" in change:
        options["redis"] = server.address + change["redis"]
    judge = verdicts()
    _, counts = found = kept(judge, **options)
    evaluated(found[0])
    assert judge.requests
    assert counts == {"miss": 1}


def test_models_of_equal_names_have_scores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider of the judge, and its address in the environment, are a part of the key."""

    def key(judge: str) -> str:
        given = Config(judge=judge, judge_api_key="k", metrics=METRICS)
        one = keeping(given, build_measurement(given), instruments=InstrumentSink())
        assert one is not None
        return one._key(SAMPLE, {})  # noqa: SLF001

    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    keys = [key("ollama/m"), key("mistral/m")]
    assert keys[0] == key("ollama/m")
    monkeypatch.setenv("OLLAMA_HOST", "http://another")
    keys.append(key("ollama/m"))
    assert len(set(keys)) == 3


def test_a_metric_that_is_added_is_evaluated_alone(server: Server) -> None:
    """The scores of the other metrics are used."""
    evaluated(kept(verdicts(), metrics=METRICS[:1], redis=server.url())[0])
    judge = verdicts()
    one, counts = kept(judge, redis=server.url())
    assert len(evaluated(one).scores) == 2
    assert len(judge.requests) == 1
    assert counts == {"partial": 1}


@pytest.mark.parametrize("explanations", ["off", "on"])
def test_texts_of_users_are_kept_only_as_explanations(explanations: Any, server: Server) -> None:
    """Without the option, neither keys nor values have a word of the turn."""
    one, _ = kept(verdicts(), redis=server.url(), explanations=explanations)
    told = evaluated(one).scores[0].explanation
    with server.client() as client:
        (key,) = client.keys()
        content = b" ".join([key, *client.hgetall(key), *client.hvals(key)])
    assert (SECRET.encode() in content) == (explanations == "on")
    again, _ = kept(verdicts(), redis=server.url(), explanations=explanations)
    assert evaluated(again).scores[0].explanation == (told if explanations == "on" else None)


GOOD = {"schema": 1, "status": "ok", "value": 1.0, "version": "v", "judge": "j"}
UNREADABLE: dict[str, object] = {
    "no JSON": b"\xff\x00",
    "no object": [1.0],
    "another schema": {**GOOD, "schema": 2},
    "no status": {"schema": 1, "value": 1.0},
    "a text as a value": {**GOOD, "value": "high"},
    "NaN": json.dumps({**GOOD, "value": float("nan")}).encode(),
    "a number that is too large": {**GOOD, "value": 10**400},
    "a threshold that is no number": b'{"schema": 1, "status": "ok", "value": 1, "threshold": NaN}',
    "deep nesting": b"[" * 100_000,
    "an unknown label": {**GOOD, "label": "good"},
    "a label of another type": {**GOOD, "label": ["pass"]},
    "no value": {**GOOD, "value": None},
    "a version of another type": {**GOOD, "version": 3},
    "details of another type": {**GOOD, "detail": "x"},
    "a truth value as a value": {**GOOD, "value": True},
}


@pytest.mark.parametrize("bad", UNREADABLE.values(), ids=UNREADABLE)
def test_a_score_that_cannot_be_read_is_ignored(
    bad: object, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, logged once, evaluated again and replaced."""
    evaluated(kept(verdicts(), redis=server.url())[0])
    text = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
    with server.client() as client:
        (key,) = client.keys()
        for field in client.hkeys(key):
            client.hset(key, field, text)
    judge = verdicts()
    one, counts = kept(judge, redis=server.url(), score_cache_turns=0)
    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        first = evaluated(one)
    assert [score.status for score in first.scores] == ["ok", "ok"]
    assert counts == {"score_cache": 2, "miss": 1}
    assert caplog.text.count("a score in Redis cannot be read") == 1
    assert exported(evaluated(one)) == exported(first)
    assert len(judge.requests) == 2


def test_without_redis_turns_are_evaluated(caplog: pytest.LogCaptureFixture) -> None:
    """The outage is counted and logged once, and Redis is not asked again for a while."""
    judge = verdicts()
    one, counts = kept(judge, redis="redis://127.0.0.1:9/0", score_cache_turns=0)
    with caplog.at_level(logging.WARNING, "rag_eval_otel"):
        for _ in range(3):
            assert evaluated(one).status == "scored"
    assert len(judge.requests) == 6
    assert counts["miss"] == 3
    assert counts["redis"] >= 1
    assert caplog.text.count("the Redis with scores cannot be reached") == 1
    assert "127.0.0.1" not in caplog.text


@pytest.mark.slow
def test_a_redis_that_does_not_answer_costs_little_and_no_score(server: Server) -> None:
    """The call is given up after its timeout, and the turn is evaluated."""
    one, counts = kept(verdicts(), redis=server.address)
    with server.client() as client:
        client.client_pause(3_600_000, all=True)
    assert evaluated(one).status == "scored"
    assert counts == {"miss": 1, "redis": 1}


def test_a_wrong_address_is_refused_at_the_start() -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=r"^redis must be a URL"):
        kept(verdicts(), redis="nowhere")
    with pytest.raises(ConfigError, match=r"^redis must be a URL"):
        RedisScores("nowhere", seconds=1)


# --- the encoding ---------------------------------------------------------------------------------

NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@given(
    value=NUMBER,
    normalized=st.none() | st.floats(0, 1),
    label=st.sampled_from([None, "pass", "fail"]),
    threshold=st.none() | NUMBER,
    version=st.text(),
    explanation=st.none() | st.text(),
    detail=st.dictionaries(st.text(), st.booleans() | st.text() | st.lists(st.integers())),
)
def test_a_score_is_the_same_after_the_encoding(**entries: Any) -> None:
    """All that a score has comes back exactly, floats to the last bit."""
    one = Kept(score=Score(name="m", **entries), judge="j", embedder=None)
    assert decoded("m", encoded(one, explains=True).encode()) == one


def test_an_undefined_score_keeps_its_reason() -> None:
    """A score without a value by definition needs no second evaluation."""
    score = Score(name="m", status="undefined", reason="no_claims")
    one = Kept(score=score, judge=None, embedder="e")
    assert decoded("m", encoded(one, explains=False).encode()) == one


def test_details_that_are_no_json_are_left_out() -> None:
    """A metric of the user may put anything into the details."""
    score = Score(name="m", value=1.0, detail={"key": {(1, 2): "x"}})
    text = encoded(Kept(score=score, judge="j", embedder=None), explains=True)
    assert decoded("m", text.encode()).score == replace(score, detail={})

"""`estimate()`: score files of two judges to means with intervals, and clear refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import good_answers, running
from rag_eval_otel import LexicalJudge
from rag_eval_otel.calibration.estimate import Estimate, estimate, table
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.results import Row
from rag_eval_otel.testing import FakeJudge
from rag_eval_otel.types import Evaluation, Sample, Score

PAID, OFFLINE = "faithfulness/1/fused/paid", "faithfulness/1/fused/lexical.4"
DAY = 86_400


def row(turn: object, score: float | None, version: str = PAID, **more: Any) -> dict[str, Any]:
    """Return a row of a score file."""
    cells = {"id": turn, "metric": "faithfulness", "score": score, "version": version}
    return {"sampling_probability": 1.0, **cells, **more}


def cascade(turns: int = 600, *, rate: float = 0.2, **more: Any) -> list[dict[str, Any]]:
    """Return the rows of a cascade: offline scores of all turns, and those of a sample."""
    rng = np.random.default_rng(4)
    rows = []
    for turn in range(turns):
        score = float(rng.beta(4, 1.5))
        offline = min(1.0, max(0.0, score / 2 + rng.normal(0, 0.05)))
        rows.append(row(turn, offline, OFFLINE, **more))
        if rng.random() < rate:
            rows.append(row(turn, score, sampling_probability=rate, **more))
    return rows


def written(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write ``rows`` as JSON Lines."""
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def estimated(tmp_path: Path, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[Estimate]:
    """Return the estimates for ``rows``."""
    return estimate(written(tmp_path / "scores.jsonl", rows), **options)


def test_a_cascade_is_estimated_with_the_offline_scores(tmp_path: Path) -> None:
    """The interval has the true mean, and is narrower than that of the sample alone."""
    (found,) = estimated(tmp_path, cascade())
    assert found.method == "prediction-powered"
    assert (found.turns, found.version, found.offline) == (600, PAID, OFFLINE)
    assert 90 < found.judged < 150
    (low, high), (low2, high2) = (one.interval or (0, 0) for one in (found.mean, found.weighted))
    assert low < 4 / 5.5 < high
    assert high - low < 0.7 * (high2 - low2)
    assert found.slope == pytest.approx(1.7, abs=0.3)


def test_rows_of_a_turn_may_be_in_several_files(tmp_path: Path) -> None:
    """Trace and span id, or the row id, say what belongs together; a repeated row counts once."""
    rows = cascade()
    parts = [[one for one in rows if one["version"] == version] for version in (PAID, OFFLINE)]
    files = [written(tmp_path / f"{i}.jsonl", part) for i, part in enumerate([*parts, parts[0]])]
    assert estimate(files) == estimated(tmp_path, rows)


def numbered(count: int, *, first: int = 0, **columns: Any) -> list[dict[str, Any]]:
    """Return rows with different scores; ``{}`` in a column becomes the number of the row."""
    return [
        {
            "metric": "faithfulness",
            "score": 0.1 + (first + i) / 100,
            "version": PAID,
            "sampling_probability": 1,
            **{
                name: cell.format(i) if isinstance(cell, str) else cell
                for name, cell in columns.items()
            },
        }
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("monday", "tuesday"),
    [
        ({}, {}),
        ({"trace_id": "t"}, {"trace_id": "t"}),
        ({"trace_id": "t", "id": "{}"}, {"trace_id": "u", "id": "{}"}),
        ({"trace_id": "t", "turn_id": "{}"}, {"trace_id": "u", "turn_id": "{}"}),
        ({"trace_id": "t", "span_id": "{}"}, {"trace_id": "u", "span_id": "{}"}),
        ({"id": "a{}"}, {"id": "b{}"}),
        ({"turn_id": "a{}", "id": 1}, {"turn_id": "b{}", "id": 1}),
        ({"row": "{}"}, {"row": "{}"}),
        ({"row": "{}", "sample": "a{}"}, {"row": "{}", "sample": "b{}"}),
        ({"row": "{}", "sample": "same"}, {"row": "1{}", "sample": "same"}),
        ({"sample": "same"}, {"sample": "same"}),
        ({"id": ""}, {"id": None}),
    ],
)
def test_no_turn_is_lost(tmp_path: Path, monday: Any, tuesday: Any) -> None:
    """Ten turns in each of two files are 20 turns, whatever columns say which turn a row is."""
    files = [
        written(tmp_path / "monday.jsonl", numbered(10, **monday)),
        written(tmp_path / "tuesday.jsonl", numbered(10, first=10, **tuesday)),
    ]
    (found,) = estimate(files)
    assert (found.turns, found.judged, found.repeated) == (20, 20, 0)


@pytest.mark.parametrize(
    ("columns", "files"),
    [
        ({"trace_id": "t", "span_id": "{}"}, 2),
        ({"trace_id": "t", "id": "{}"}, 2),
        ({"turn_id": "{}"}, 2),
        ({"id": "{}"}, 2),
        ({"row": "{}", "sample": "s{}"}, 2),
        ({"row": "{}"}, 1),
    ],
)
def test_two_judges_of_a_turn_are_joined(tmp_path: Path, columns: Any, files: int) -> None:
    """The same ids join the rows of a turn in all files; a bare row number, in one file only."""
    paid = numbered(10, **columns)
    offline = [{**one, "version": OFFLINE, "score": one["score"] / 2} for one in paid]
    parts = [paid, offline] if files == 2 else [[*paid, *offline]]
    found = estimate([written(tmp_path / f"{i}.jsonl", part) for i, part in enumerate(parts)])
    assert [(one.turns, one.judged, one.offline) for one in found] == [(10, 10, OFFLINE)]


def test_evaluated_data_sets_keep_their_rows_apart(tmp_path: Path) -> None:
    """Files of `evaluate` all have the rows 0, 1, ...; each sample is one turn in all files."""
    days = []
    for day in ("monday", "tuesday"):
        rows = [
            Row(
                index=i,
                sample=Sample(question=f"{day} {i}", answer="x"),
                evaluation=Evaluation(scores=(Score(name="faithfulness", value=i / 10),)),
            ).to_dict()
            for i in range(10)
        ]
        days.append(written(tmp_path / f"{day}.jsonl", rows))
    (found,) = estimate([*days, days[0]], probability=1)
    assert (found.turns, found.repeated) == (20, 0)


def test_scores_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    """The first score of a turn counts; others of its version are named, unless they are equal."""
    rows = [*numbered(10, id="{}"), *numbered(10, id="{}"), *numbered(4, first=50, id="{}")]
    (found,) = estimated(tmp_path, rows)
    assert (found.turns, found.repeated, found.to_dict()["repeated"]) == (10, 4, 4)
    assert found.mean.value == pytest.approx(0.145)
    assert "4 scores were left out" in table([found])


@pytest.mark.parametrize("probability", [0.05, 0.2, 1.0])
def test_the_named_probability_is_the_judges(tmp_path: Path, probability: float) -> None:
    """`--probability` changes nothing about offline scores, whether or not they carry one."""
    rows = cascade()
    for one in rows:
        if one["version"] == PAID:
            one["sampling_probability"] = probability
    expected = estimated(tmp_path, rows)
    for kept in (PAID, None):  # the other rows carry their probability still
        for one in rows:
            if kept is None or one["version"] == kept:
                one["sampling_probability"] = None
        assert estimated(tmp_path, rows, probability=probability) == expected


def test_each_service_and_day_has_an_estimate(tmp_path: Path) -> None:
    """Groups are sorted, and their turns add up."""
    rows = [
        {**one, "service": service, "time": DAY * day}
        for service in ("a", "b")
        for day in range(2)
        for one in cascade(200)
    ]
    for place, one in enumerate(rows):
        one["id"] = f"{one['service']} {one['time']} {one['id']} {place if place < 0 else ''}"
    found = estimated(tmp_path, rows, by=("service", "day"))
    assert [(one.service, one.period) for one in found] == [
        (service, day) for service in ("a", "b") for day in ("1970-01-01", "1970-01-02")
    ]
    assert {one.turns for one in found} == {200}
    shown = table(found).splitlines()
    assert shown[0].split()[:3] == ["metric", "service", "period"]
    assert len(shown) == 5
    json.dumps([one.to_dict() for one in found], allow_nan=False)


def test_a_plain_sample_is_weighted(tmp_path: Path) -> None:
    """Without an offline judge, scores are weighted by the inverse of their probability."""
    rows = [row(i, 1.0, sampling_probability=0.1) for i in range(30)]
    rows += [row(30 + i, 0.0, sampling_probability=1.0) for i in range(30)]
    (found,) = estimated(tmp_path, rows)
    assert found.method == "weighted"
    assert found.mean.value == pytest.approx(300 / 330)
    assert found.note == ""


def test_scores_that_are_missing_are_counted(tmp_path: Path) -> None:
    """A turn whose judge failed is no score, and the table says how many there are."""
    rows = [row(i, None if i % 10 == 0 else 0.5 + i / 100, status="error") for i in range(30)]
    for one in rows:
        one["status"] = "error" if one["score"] is None else "ok"
    (found,) = estimated(tmp_path, rows)
    assert (found.judged, found.failed) == (27, 3)
    assert "chosen turns without a score of the judge: 3;" in table([found])


def test_failed_scores_are_no_version_of_their_own(tmp_path: Path) -> None:
    """Their version names the model that was asked, without the date of the one that replied."""
    dated, failed = f"{PAID}-2026-08-07", {"status": "error", "sampling_probability": 0.2}
    rows = [
        {**one, "version": OFFLINE if one["version"] == OFFLINE else dated} for one in cascade()
    ]
    (without,) = estimated(tmp_path, rows)
    (found,) = estimated(tmp_path, [*rows, *(row(turn, None, **failed) for turn in range(600))])
    assert found.mean == without.mean
    assert (found.judged, found.failed) == (without.judged, 600 - without.judged)
    assert (found.version, found.offline) == (dated, OFFLINE)


def test_few_scores_give_a_wide_interval_and_one_gives_a_reason(tmp_path: Path) -> None:
    """Below 20 scored turns the offline scores are left out, below 2 there is no number."""
    rows = [one for one in cascade(50) if one["version"] == OFFLINE]
    few = [row(turn, 0.5 + turn / 50) for turn in range(5)]
    (found,) = estimated(tmp_path, [*rows, *few], judge="paid")
    assert found.method == "weighted"
    assert found.note == "offline scores need 20 scored turns"
    low, high = found.mean.interval or (0, 0)
    assert high - low > 0.05
    (found,) = estimated(tmp_path, [*rows, *few[:1]], judge="paid")
    assert found.mean.reason == "one scored turn gives no interval"


def test_two_versions_of_the_judge_are_not_mixed(tmp_path: Path) -> None:
    """A group with two judges has a reason; a group with one has its number."""
    other = "faithfulness/1/fused/newer"
    rows = [
        row(i, 0.5 + i / 100, PAID if i < 30 else other, time=DAY * (i // 20)) for i in range(40)
    ]
    first, second = estimated(tmp_path, rows, by=["day"])
    assert first.mean.value is not None
    assert "scores of 2 versions" in second.mean.reason
    (found,) = estimated(tmp_path, rows, judge="newer")
    assert (found.judged, found.version) == (10, other)


def test_a_judge_that_scored_every_turn_is_told_by_its_name(tmp_path: Path) -> None:
    """If both judges scored all turns, the offline one is the one that is lexical or local."""
    rows = cascade(100, rate=1.0)
    (found,) = estimated(tmp_path, rows)
    assert (found.version, found.offline) == (PAID, OFFLINE)
    renamed = [{**one, "version": one["version"].replace("lexical.4", "small")} for one in rows]
    with pytest.raises(ConfigError, match=r"which judge's mean is wanted.*--judge: paid, small"):
        estimated(tmp_path, renamed)
    (found,) = estimated(tmp_path, renamed, judge="paid")
    assert found.offline.endswith("small")


@pytest.mark.parametrize("value", [0, -0.1, 1.5, "often", "nan"])
def test_an_impossible_probability_is_refused(tmp_path: Path, value: object) -> None:
    """The message names the file and the value."""
    with pytest.raises(ConfigError, match=r"scores.jsonl: a sampling probability must be") as told:
        estimated(tmp_path, [row(1, 0.5, sampling_probability=value)])
    assert str(value) in str(told.value)


def test_scores_without_probabilities_are_refused(tmp_path: Path) -> None:
    """The way out is to say that all turns were scored."""
    rows = [row(i, 0.5 + i / 100, sampling_probability=None) for i in range(20)]
    with pytest.raises(ConfigError, match="--probability 1"):
        estimated(tmp_path, rows)
    (found,) = estimated(tmp_path, rows, probability=1)
    assert found.mean.value == pytest.approx(0.595)
    rows[0]["sampling_probability"] = 0.5
    (found,) = estimated(tmp_path, rows)
    assert found.mean.reason.startswith("19 of 20 scores have no sampling probability")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"by": ("week",)}, "must be names of service, hour, day, month"),
        ({"by": "day"}, "must be names of"),
        ({"by": ("day",)}, "row 0 has no time"),
        ({"probability": 0}, "probability must be above 0"),
        ({"confidence": 1}, "confidence must be between 0 and 1"),
        ({"judge": "nobody"}, "no turn has a score of the judge"),
        ({"metric": "other"}, "has no scores of other"),
    ],
)
def test_options_that_cannot_be_used(tmp_path: Path, options: Any, told: str) -> None:
    """Each message names the option or what is missing."""
    with pytest.raises(ConfigError, match=told):
        estimated(tmp_path, cascade(40), **options)


def test_no_file_is_refused() -> None:
    """An empty list of files is an error, not an empty result."""
    with pytest.raises(ConfigError, match="at least one score file"):
        estimate([])


@pytest.mark.slow
def test_the_telemetry_of_a_cascade_is_read(tmp_path: Path) -> None:
    """Spans and events of a live cascade give the same estimate, each score read once."""
    judge = FakeJudge(good_answers, model="paid")
    with running(judge=judge, cascade=LexicalJudge(), sample_rate=0.5) as app:
        app.run_turns(60)
        assert app.handle.flush()
        app.stop()
        spans, logs = app.receiver.spans(), app.receiver.logs()
    spans_file, events_file = tmp_path / "spans.json", tmp_path / "events.json"
    spans_file.write_text(
        json.dumps(
            {
                "resourceSpans": [
                    {
                        "scopeSpans": [
                            {
                                "spans": [
                                    _identity(one) | {"attributes": _attributes(one.attributes)}
                                    for one in spans
                                ]
                            }
                        ]
                    }
                ]
            }
        ),
        encoding="utf-8",
    )
    events_file.write_text(
        json.dumps(
            {
                "resourceLogs": [
                    {
                        "scopeLogs": [
                            {
                                "logRecords": [
                                    _identity(one)
                                    | {
                                        "eventName": one.event_name,
                                        "attributes": _attributes(one.attributes),
                                    }
                                    for one in logs
                                ]
                            }
                        ]
                    }
                ]
            }
        ),
        encoding="utf-8",
    )
    found = [estimate(one, metric="faithfulness") for one in (spans_file, events_file)]
    assert found[0] == found[1] == estimate([spans_file, events_file], metric="faithfulness")
    (one,) = found[0]
    assert one.turns == 60
    assert one.version.endswith("/paid")
    assert one.offline.split("/")[-1].startswith("lexical")
    assert one.mean.value == 1.0
    assert 0 < one.judged < 60


def _identity(one: Any) -> dict[str, Any]:
    return {"traceId": f"{one.trace_id:032x}", "spanId": f"{one.span_id:016x}"}


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    return [
        {"key": name, "value": {kinds[type(value)]: value}}
        for name, value in attributes.items()
        if type(value) in kinds and value != math.inf
    ]

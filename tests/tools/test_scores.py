"""`read_scores`: the forms of a score file, and what is selected of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from live import attached, retrieved
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.rows import Row, flat_columns, unit_value
from rag_eval_otel.tools.scores import metric_names, moment, read_scores
from rag_eval_otel.types import Evaluation, Sample, Score
from score_files import event, exported, jsonl, otlp_json, page_of, span
from tools.test_read import SUFFIXES, write

EVALUATED = Row(
    index=0,
    sample=Sample(question="q"),
    evaluation=Evaluation(
        scores=(
            Score(name="faithfulness", value=0.25, label="fail", version="v", explanation="why"),
            Score(name="correctness", value=4.0, normalized=0.75),
            Score(name="mrr", status="error", reason="timeout"),
        ),
        judge="j",
    ),
)


def rows_of(path: Path, **options: Any) -> list[Row]:
    return [record for record in read_scores(path, **options) if record.scores]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_evaluated_row_is_read_back(suffix: str, tmp_path: Path) -> None:
    """All formats keep value, scale, status, label, version, explanation and judge."""
    path, flat = tmp_path / f"scores{suffix}", EVALUATED.to_flat()
    assert list(flat) == list(flat_columns(["faithfulness", "correctness", "mrr"]))
    write(path, [EVALUATED.to_dict() if suffix == ".jsonl" else flat])
    (row,) = rows_of(path)
    assert row.scores == EVALUATED.scores
    assert (row.index, row.place, row.evaluation.judge) == (0, "row 0", "j")
    assert [unit_value(score) for score in row.scores] == [0.25, 0.75, None]
    assert [score.name for score in row.failed] == ["mrr"]
    assert row["mrr"].reason == "timeout"


def test_row_of_a_file_has_time_and_service(tmp_path: Path) -> None:
    """The columns that describe the turn are read too."""
    cells = {"score": 1, "time": "1970-01-01T00:00:07Z", "service": "shop", "duration": 2}
    path = jsonl(tmp_path / "a.jsonl", [{**cells, "question": "q", "contexts": 5}])
    (row,) = rows_of(path)
    assert row.sample.contexts == ()
    assert (row.time, row.service) == (7.0, "shop")
    assert (row.sample.question, row.evaluation.duration) == ("q", 2.0)


def test_metric_selects_its_scores(tmp_path: Path) -> None:
    """In tables, spans and events."""
    named = {"gen_ai__evaluation__name": "g", "gen_ai__evaluation__score__value": 0.5}
    table = jsonl(tmp_path / "a.jsonl", [{"scores": {"f": 0.1, "g": 0.2}}])
    traces = jsonl(tmp_path / "b.jsonl", [span(1, f__score=0.1, g__score=0.2), event(2, **named)])
    for path, values in ((table, [0.2]), (traces, [0.2, 0.5])):
        assert [one.value for row in rows_of(path, metric="g") for one in row.scores] == values
    with pytest.raises(ConfigError, match="has no scores of h; use score"):
        rows_of(traces, metric="h")


def test_score_on_span_and_event_is_read_once(tmp_path: Path) -> None:
    """An event of the same span adds only scores that the span does not have."""
    both = [
        event(1, gen_ai__evaluation__name=name, gen_ai__evaluation__score__value=0.5)
        for name in ("f", "g")
    ]
    rows = rows_of(jsonl(tmp_path / "a.jsonl", [span(1, f__score=0.5), *both]))
    assert [(row.index, score.name) for row in rows for score in row.scores] == [(0, "f"), (0, "g")]


def test_unscored_turns_are_records(tmp_path: Path) -> None:
    """Also of a file in which another metric is selected."""
    requests = [span(1, f__score=0.5), span(2, status="overload")]
    _, unscored = read_scores(jsonl(tmp_path / "a.jsonl", requests))
    assert (unscored.service, unscored.stored) == ("shop", {"status": "overload"})


@pytest.mark.parametrize(
    ("cells", "value", "status"),
    [
        ({"score": 0.5, "normalized": 7}, 0.5, "ok"),
        ({"score": None, "normalized": 0.5}, 0.5, "ok"),
        ({"score": "n/a"}, None, "undefined"),
        ({"score": 0.5, "status": "error"}, None, "error"),
    ],
)
def test_score_is_a_finite_number_or_has_a_status(
    cells: dict[str, Any], value: float | None, status: str, tmp_path: Path
) -> None:
    """A value on another scale than [0, 1] is no normalized value."""
    (row,) = rows_of(jsonl(tmp_path / "a.jsonl", [cells]))
    assert (row.scores[0].value, row.scores[0].status) == (value, status)


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        ({"scores": {"f": 1, "g": 2}}, ("f", "g")),
        ({"score": 1, "metric": "f"}, ("f",)),
        ({"score": 1}, ("score",)),
        ({"f": 1, "f.status": "ok", "f.version": "v", "n": 3}, ("f",)),
        ({"quality": 1}, ("quality",)),
        ({"other": 1}, ()),
    ],
)
def test_metrics_are_found_in_all_forms(cells: dict[str, Any], names: tuple[str, ...]) -> None:
    """One score a row, scores by name, or columns with the endings that mark a metric."""
    assert metric_names(cells, metric="quality") == names


def test_json_file_may_hold_one_request_or_one_a_line(tmp_path: Path) -> None:
    """As exporters and collectors write them."""
    requests = [span(1, f__score=0.5), span(2, f__score=0.5)]
    lines = jsonl(tmp_path / "lines.json", requests)
    whole = tmp_path / "whole.json"
    spans = [request["resourceSpans"][0] for request in requests]
    whole.write_text(json.dumps({"resourceSpans": spans}), encoding="utf-8")
    assert rows_of(lines) == rows_of(whole)


@pytest.mark.parametrize("unit", [1, 1e3, 1e6, 1e9])
def test_times_in_finer_units_are_recognised(unit: float) -> None:
    """As pandas, JavaScript and OTLP write them: seconds, and thousandths of it, and so on."""
    assert moment(1_795_251_649 * unit) == pytest.approx(1_795_251_649)
    assert moment(str(int(1_795_251_649 * unit))) == pytest.approx(1_795_251_649)


TURNS = 12


@pytest.mark.parametrize("form", ["both", "openinference", "rag"])
def test_exported_turns_are_read(form: Any, tmp_path: Path) -> None:
    """Spans and events agree, and the spans alone: each score once, with judge and version."""
    evaluations = list[Evaluation]()
    options = {"score_attributes": form, "sinks": [evaluations.append]}
    with attached(hold_seconds=30, **options) as app:
        for number in range(TURNS):
            app.turn(number)
        assert app.handle.flush()
        path = jsonl(tmp_path / "otlp.json", exported(app))
        alone = jsonl(tmp_path / "spans.json", exported(app)[:1])
    first = evaluations[0]
    for file in (path, alone):
        rows = [record for record in read_scores(file) if record.scores]
        assert {row.place for row in rows} == {
            f"trace {each.span.trace_id:032x}" for each in evaluations if each.span
        }
        names = [score.name for score in rows[0].scores]
        assert [len(row.scores) for row in rows] == [len(set(names))] * TURNS
        found = {(s.name, s.value, s.label, s.version) for s in rows[0].scores}
        assert found == {(s.name, s.value, s.label, s.version) for s in first.scores}
        assert (rows[0].evaluation.judge, rows[0].stored["label"]) == (first.judge, first.label)
    assert page_of(path).count("<summary>Time line: 12 scores") == len(names)


def test_late_scores_are_read_as_those_of_the_turn(tmp_path: Path) -> None:
    """The span that carries them has a link to it."""
    with attached() as app:
        chain = app.chain()
        chain.end()
        search = app.step("RETRIEVER", chain, **retrieved(1))
        app.generate(1, chain)
        search.end()
        assert app.handle.flush()
        path = jsonl(tmp_path / "late.json", [otlp_json(encode_spans(app.carriers()))])
    (row,) = [record for record in read_scores(path) if record.scores]
    assert row.span == f"{chain.get_span_context().span_id:016x}"
    assert {"faithfulness", "context_relevance"} <= {score.name for score in row.scores}
    assert row.evaluation.judge == "fake"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"scores": {"f": 0.5, "g": 0.5}}] * 3, "has over 3 scores; choose one metric by"),
        ([{"scores": {"f": {"score": 0.5}}}], "neither value nor status: another version wrote"),
        ([{"scores": [{"name": "f", "value": 0.5}]}], "has no scores; use score, scores, or a"),
    ],
)
def test_files_that_cannot_be_read(rows: list[Any], told: str, tmp_path: Path) -> None:
    """Too long, or of a form that another version may have: a message, and no page."""
    with pytest.raises(ConfigError, match=told):
        list(read_scores(jsonl(tmp_path / "a.jsonl", rows), most=3))

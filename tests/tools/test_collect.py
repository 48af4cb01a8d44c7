"""`rag-eval-otel collect`: the samples in exported traces."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from corpus.kit import App, all_apps, call
from corpus.retold import as_recorded
from corpus.run import as_truth, match
from live import attached
from rag_eval_otel.capture.span import Span
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.collect import Collected, CollectedTurn, Selection, collect
from rag_eval_otel.tools.otlp import as_attributes, read_messages
from rag_eval_otel.tools.read import open_dataset
from rag_eval_otel.types import Sample
from replay import Recording, ReplayedSpan, load, replay
from score_files import otlp_json

NAMES = {
    *("agent_with_retriever_tool", "corrective_rag", "lcel_rag_streamed"),
    *("retrieval_chain_of_the_tutorial", "two_chains_in_parallel"),
}
OWN_APPS = [one for one in all_apps("langchain", "langgraph") if one.name in NAMES]
RECORDINGS = sorted((Path(__file__).parents[3] / "shared" / "recordings").glob("*.json"))


def otlp_logs(span: Span) -> list[dict[str, Any]]:
    return [
        {
            "traceId": f"{span.trace_id:032x}",
            "spanId": f"{span.span_id:016x}",
            "eventName": log.event,
            "body": as_attributes({"": log.body})[0]["value"],
            "attributes": as_attributes(log.attributes),
        }
        for log in span.logs
    ]


def messages(spans: Iterable[Span]) -> list[dict[str, Any]]:
    resource = {"attributes": as_attributes({"service.name": "shop"})}
    found: list[dict[str, Any]] = []
    for span in spans:
        scope = {"scope": {"name": span.scope}}
        logs = otlp_logs(span)
        if logs:
            scoped = [{**scope, "logRecords": logs}]
            found.append({"resourceLogs": [{"resource": resource, "scopeLogs": scoped}]})
        (spans_of,) = otlp_json(encode_spans([ReplayedSpan(span)]))["resourceSpans"]
        found.append({"resourceSpans": [{**spans_of, "resource": resource}]})
    return found


def told(samples: Iterable[object]) -> Counter[object]:
    return Counter(
        (one.question, tuple(passage.text for passage in one.contexts), one.answer)
        if isinstance(one, Sample)
        else one
        for one in samples
    )


def limit_of(recording: Recording) -> int | None:
    return next((span.value_limit for span in recording.spans), None)


def collected(found: Iterable[Mapping[str, Any]], **chosen: Any) -> list[CollectedTurn]:
    return list(collect(found, Selection(**chosen), Collected()))


@pytest.mark.slow
@pytest.mark.skipif(not RECORDINGS, reason="the shared recordings are not here")
def test_the_samples_of_the_recordings_are_those_of_the_live_pipeline() -> None:
    """Also the reasons are the same, unless a span never ended: a file does not have it at all."""
    different, samples = [], 0
    for path in RECORDINGS:
        recording = load(path)
        live = replay(recording.calls)
        counts, choice = Collected(), Selection(value_limit=limit_of(recording))
        spans = [span for span in recording.spans if span.end]
        found = list(collect(messages(spans), choice, counts))
        samples += len(found)
        if told(one.result for one in live if isinstance(one.result, Sample)) != told(
            turn.sample for turn in found
        ):
            different.append(path.stem)
    assert different == ["traceloop-llamaindex__chat_context_stream"]  # three spans never ended
    assert samples > len(RECORDINGS) / 2


ASKED, PAGE, TOLD = "When was it founded?", "The house was founded in 1949.", "In 1949, it says."


def turn_spans(
    trace: int = 0xA, *, label: str | None = None, start: int = 10**18 + 10_000, before: str = ""
) -> list[Span]:
    texts = [f"{PAGE}\n{ASKED}"] if not before else [before, "Yes.", f"{PAGE}\n{ASKED}"]
    prompt = {"llm.output_messages.0.message.content": TOLD}
    for i, text in enumerate(texts):
        prompt[f"llm.input_messages.{i}.message.role"] = "assistant" if i == 1 else "user"
        prompt[f"llm.input_messages.{i}.message.content"] = text
    found = {"input.value": ASKED, "retrieval.documents.0.document.content": PAGE}
    status = {"rag.evaluation.status": "scored"}
    scored = {} if label is None else {**status, "rag.evaluation.label": label}
    whole = {"input.value": ASKED, "output.value": TOLD, **scored}
    return [
        _span(2, 1, trace=trace, at=(start + 10, start + 20), kind="RETRIEVER", **found),
        _span(3, 1, trace=trace, at=(start + 30, start + 80_000), kind="LLM", **prompt),
        _span(1, None, trace=trace, at=(start, start + 90_000), kind="CHAIN", **whole),
    ]


def _span(
    number: int, parent: int | None, *, trace: int, at: tuple[int, int], kind: str, **values: Any
) -> Span:
    return Span(
        name=kind.lower(),
        scope="openinference.instrumentation.langchain",
        trace_id=trace,
        span_id=number,
        parent_id=parent,
        start=at[0],
        end=at[1],
        attributes={"openinference.span.kind": kind, **values},
    )


def lines(found: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in found)


FORMS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], bytes]] = {
    "lines": lines,
    "a byte order mark": lambda found: b"\xef\xbb\xbf" + lines(found),
    "gzip": lambda found: gzip.compress(lines(found)),
    "a file that is being written": lambda found: lines(found) + lines(found)[:99],
    "exported twice": lambda found: lines([*found, *found]),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_file_gives_the_turn(tmp_path: Path, form: str) -> None:
    """Compressed or not, in lines or not, also while the collector writes on."""
    path = tmp_path / "traces"
    path.write_bytes(FORMS[form](messages(turn_spans())))
    (turn,) = collected(read_messages(path))
    assert (turn.sample.question, turn.sample.answer) == (ASKED, TOLD)
    assert [passage.text for passage in turn.sample.contexts] == [PAGE]
    assert (turn.trace_id, turn.span_id, turn.service) == (f"{0xA:032x}", f"{1:016x}", "shop")
    assert turn.time == pytest.approx(10**9)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"question": "x"}\n', "line 1: is no OTLP export request"),
        (b'{"a"\n{"b"\n', "line 1: is not JSON"),
        (b'{"resourceSpans": []}\nnot json\n', "line 2: is not JSON"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}\n', "not valid OTLP"),
        (b"\x28\xb5\x2f\xfdabc", "must be OTLP JSON"),
        (b"\0\0\0\x05\x0a\x03\x12\xff\xff", "must be OTLP JSON"),  # protobuf
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    """The message names the file, the line, and what to do."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        collected(read_messages(path))


@pytest.mark.parametrize(
    "changed",
    [
        {"traceId": 7},
        {"spanId": "zzzzzzzzzzzzzzzz"},
        {"parentSpanId": "abc"},
        {"startTimeUnixNano": "yesterday"},
        {"attributes": [{"key": "n", "value": {"intValue": "x"}}]},
    ],
)
def test_spans_that_are_not_valid_are_refused(changed: dict[str, object]) -> None:
    """Ids of another form, and values of another type, are no tracebacks."""
    (message, *_) = messages(turn_spans())
    message["resourceSpans"][0]["scopeSpans"][0]["spans"][0] |= changed
    with pytest.raises(ConfigError, match="is not valid OTLP"):
        collected([message])


def test_a_share_is_random_and_the_same_each_time() -> None:
    """About a tenth of 2,000 traces, whatever their order; a larger share has them, too."""
    traces = [f"{i:032x}" for i in range(2000)]  # ids that are not random at all
    tenth, half = Selection(share=0.1), Selection(share=0.5)
    drawn = [trace for trace in traces if tenth.has_chosen(trace)]
    assert 150 < len(drawn) < 250  # 200 +- 3.7 standard deviations
    assert all(half.has_chosen(trace) for trace in drawn)


ENDED = datetime.fromtimestamp(10**9, timezone.utc)


@pytest.mark.parametrize(
    "chosen",
    [
        {"label": "fail"},
        {"since": ENDED, "until": ENDED + timedelta(seconds=1)},
        {"since": ENDED - timedelta(1), "until": ENDED + timedelta(seconds=1), "label": "fail"},
    ],
)
def test_only_turns_of_a_label_and_a_period(chosen: dict[str, Any]) -> None:
    """By the label and the end of the span; others are counted."""
    second = 10**9
    spans = [
        *turn_spans(1, label="fail"),
        *turn_spans(2, label="pass", start=10**18 + second),
        *turn_spans(3, start=10**18 - second),
    ]
    counts = Collected()
    (turn,) = collect(messages(spans), Selection(**chosen), counts)
    assert (turn.trace_id, turn.label) == (f"{1:032x}", "fail")
    assert (counts.samples, counts.others) == (1, 2)


def test_what_is_skipped_is_counted_with_its_reason() -> None:
    """A turn without an answer, two spans of one id, and a trace that has no RAG."""
    search, _, chain = turn_spans(1)
    asked = {name: value for name, value in chain.attributes.items() if "output" not in name}
    no_answer = [search, replace(chain, attributes=asked)]
    doubled = [*turn_spans(2), replace(turn_spans(2)[0], name="another")]
    other = [replace(turn_spans(3)[2], attributes={"http.route": "/"}, scope="web")]
    counts = Collected()
    assert list(collect(messages([*no_answer, *doubled, *other]), Selection(), counts)) == []
    assert counts.traces == 3
    assert counts.skipped == {"no_answer": 1, "ambiguous": 1}
    assert str(counts) == "0 samples of 3 traces; skipped: 1 no_answer, 1 ambiguous"


def test_texts_that_were_cut_are_skipped_if_the_limit_is_told() -> None:
    """A file does not say to which length texts were cut."""
    spans = turn_spans()
    assert len(collected(messages(spans))) == 1
    assert collected(messages(spans), value_limit=len(TOLD)) == []


@pytest.mark.parametrize("app", OWN_APPS, ids=lambda app: app.name)
def test_spans_that_this_library_wrote_are_read(app: App) -> None:
    """A LangChain application without another instrumentation, with content capture on."""
    with attached(export_content="all") as live:
        call(app, {"callbacks": [live.handle.callback]})
        live.handle.flush()
        spans = [as_recorded(Span.from_sdk(span)) for span in live.exporter.get_finished_spans()]
    found = collected(messages(spans))
    assert match(app, [as_truth(turn.sample) for turn in found]) == ([], [])
    assert {turn.label for turn in found} <= {"pass", "fail"}


def test_evaluate_takes_the_samples_as_they_are(tmp_path: Path) -> None:
    """With ids and scores of passages, and without: the samples are equal to those of the trace."""
    traces, output = tmp_path / "traces.json", tmp_path / "samples.jsonl"
    spans = turn_spans(1, label="fail")
    document = "retrieval.documents.0.document"
    more = {f"{document}.id": "page-1", f"{document}.score": 0.5}
    spans[0] = replace(spans[0], attributes={**spans[0].attributes, **more})
    found = messages([*spans, *turn_spans(2)])
    traces.write_bytes(lines(found))
    assert main(["collect", str(traces), "-o", str(output)]) == 0
    turns = collected(found)
    dataset = open_dataset(str(output))
    assert list(dataset.samples()) == [turn.sample for turn in turns]
    assert turns[0].sample.contexts[0].id == "page-1"
    assert [(row.trace, row.span, row.service) for row in dataset.rows()] == [
        (turn.trace_id, turn.span_id, turn.service) for turn in turns
    ]
    times = [row.time for row in dataset.rows()]
    assert times == pytest.approx([turn.time for turn in turns], abs=1e-5)  # as text


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, with the reasons; without a sample the status is 1."""
    traces, output = tmp_path / "traces.json", tmp_path / "samples.jsonl"
    doubled = [*turn_spans(2), replace(turn_spans(2)[0], name="another")]
    traces.write_bytes(lines(messages([*turn_spans(1), *doubled])))
    assert main(["collect", str(traces), "-o", str(output)]) == 0
    assert "1 samples of 2 traces; skipped: 1 ambiguous" in capsys.readouterr().err
    assert main(["collect", str(traces), "-o", str(output), "--failed"]) == 1
    assert "1 samples of another label or period" in capsys.readouterr().err
    assert output.read_text() == ""


def test_scores_of_collected_turns_have_texts_and_origin(tmp_path: Path) -> None:
    """From the trace to the score file: texts, ids, time and service."""
    traces, samples, scores = (
        tmp_path / name for name in ("traces.json", "samples.jsonl", "scores.jsonl")
    )
    traces.write_bytes(lines(messages(turn_spans())))
    main(["collect", str(traces), "-o", str(samples)])
    main(["evaluate", str(samples), "--output", str(scores), "--judge", "lexical"])
    (row,) = map(json.loads, scores.read_text().splitlines())
    assert (row["question"], row["contexts"], row["answer"]) == (ASKED, [PAGE], TOLD)
    assert (row["trace_id"], row["span_id"]) == (f"{0xA:032x}", f"{1:016x}")
    assert (row["service"], row["time"][:10]) == ("shop", "2001-09-09")
    main(["evaluate", str(samples), "--output", str(scores), "--texts", "off"])
    (row,) = map(json.loads, scores.read_text().splitlines())
    assert row.keys().isdisjoint({"question", "contexts", "answer"})
    assert row["trace_id"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["a.json", "--since", "2026-01-02", "--until", "2026-01-01"], "must be before"),
        (["a.json", "--value-limit", "0"], "--value-limit must be 1 or more"),
        (["a.json", "--sample-rate", "0"], "the share must be above 0"),
        (["a.json", "-o", "rows.csv"], "samples have lists of contexts; use .jsonl"),
    ],
)
def test_unusable_options(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the option and the way out."""
    assert main(["collect", "-o", "rows.jsonl", *options]) == 2
    assert told in capsys.readouterr().err


def test_a_time_that_cannot_be_read_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With an example."""
    with pytest.raises(SystemExit, match="2"):
        main(["collect", "-o", "rows.jsonl", "a.json", "--since", "soon"])
    assert "must be a time, as 2026-11-22T09:00Z" in capsys.readouterr().err

"""The options: where they are read, and values that are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rag_eval_otel.config import Config, ConfigOptions, Limit, limits_of, read_thresholds
from rag_eval_otel.embed import HashingEmbedder
from rag_eval_otel.environment import Signal, exporter_names, sdk_disabled
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.live.scorer import build_measurement
from rag_eval_otel.metrics import Correctness, with_thresholds
from rag_eval_otel.sampling import SamplingRule
from rag_eval_otel.testing.fakes import FakeJudge
from rag_eval_otel.tools.cli import main
from rag_eval_otel.tools.dataset import evaluate_dataset
from rag_eval_otel.tools.rules import Target, render
from rag_eval_otel.types import Evaluation, Sample
from score_files import jsonl

PRICES = str(Path(__file__).parent / "judge" / "prices.json")
GIVEN: dict[str, tuple[str, object]] = {
    "metrics": ("default, mrr,", ("default", "mrr")),
    "judge": (" openai/gpt-x ", "openai/gpt-x"),
    "embedder": ("openai/small", "openai/small"),
    "prompts": ("mine", "mine"),
    "prices": (f" {PRICES} ", PRICES),
    "explanations": ("on", True),
    "thresholds": ("faithfulness=0.8, mrr = .5", {"faithfulness": 0.8, "mrr": 0.5}),
    "label_metrics": ("faithfulness, mrr", ("faithfulness", "mrr")),
    "drift": ("off", False),
    "backends": ("phoenix, acme", ("phoenix", "acme")),
    "sample_rate": (
        ' [{"match": {"route": "/chat"}, "rate": 0.5}] ',
        (SamplingRule(match={"route": "/chat"}, rate=0.5),),
    ),
    "cascade": (" local/nli ", "local/nli"),
    "budget": (" 5 USD/day ", "5 USD/day"),
    "redis": (" redis://there/0 ", "redis://there/0"),
    "hold_seconds": ("0", 0.0),
    "max_held": ("7", 7),
    "max_text_chars": ("1000", 1000),
    "evaluation_timeout": ("5", 5.0),
    "concurrency": ("2", 2),
    "shutdown_seconds": ("1", 1.0),
    "host_hooks": ("FALSE", False),
    "spans": ("all", "all"),
    "export_content": ("none", "none"),
    "contexts_from_prompt": ("1", True),
    "score_events": ("span", "span"),
    "judge_spans": ("on", True),
    "on_sample": (" pprint:pprint ", "pprint:pprint"),
    "score_attributes": ("rag", "rag"),
    "redact": (" textwrap:dedent ", "textwrap:dedent"),
    "metadata_keys": ("tenant, tier", ("tenant", "tier")),
    "raise_errors": ("yes", True),
}
"""For each option a value of its variable, and the parsed value."""

REFUSED = {
    "spans": ("some", "one of essential, all, none"),
    "export_content": ("keep", "one of foreign, all, none"),
    "score_events": ("some", "one of log, span, both"),
    "score_attributes": ("some", "one of both, openinference, rag"),
    "hold_seconds": ("3601", "a number between 0 and 3,600"),
    "max_held": ("0", "a whole number between 1 and 1,000,000"),
    "max_text_chars": ("0", "a whole number at least 100"),
    "evaluation_timeout": ("nan", "a number at least 0.001"),
    "concurrency": ("0", "a whole number between 1 and 10,000"),
    "shutdown_seconds": ("-0.1", "a number between 0 and 3,600"),
    "sample_rate": ("1.5", "a number between 0 and 1"),
}
NUMBERS = [name for name, (_, allowed) in REFUSED.items() if "number" in allowed]
SWITCHES = (
    *("explanations", "drift", "host_hooks", "contexts_from_prompt", "judge_spans", "raise_errors"),
)
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
OTLP = "OTEL_EXPORTER_OTLP"
GRPC, HTTP = ("otlp_proto_grpc",), ("otlp_proto_http",)


def variable(option: str) -> str:
    return f"RAG_EVAL_{option.upper()}"


def test_every_option_has_a_variable_and_a_type() -> None:
    """`ConfigOptions` has the names and the types of the fields of `Config`, none required."""
    types = get_type_hints(Config)
    assert set(GIVEN) == {option.name for option in fields(Config)}
    assert get_type_hints(ConfigOptions) == {name: types[name] for name in GIVEN}
    assert not ConfigOptions.__required_keys__


@pytest.mark.parametrize("option", GIVEN)
def test_an_option_is_read_from_its_variable_or_from_code(option: str) -> None:
    """Code takes precedence, and as everywhere in OpenTelemetry an empty text is the default."""
    text, value = GIVEN[option]
    environ = {variable(option): text} | (
        {"RAG_EVAL_BUDGET": "5 requests/day"} if option == "redis" else {}
    )
    read = getattr(Config.from_env(environ), option)
    assert (read, type(read)) == (value, type(value))
    default = getattr(Config(), option)
    assert getattr(Config.from_env(environ, **{option: default}), option) == default
    assert Config.from_env({variable(option): ""}) == Config.from_env({}) == Config()


def test_tests_see_our_errors() -> None:
    """Under pytest our own failures are raised, unless it says otherwise."""
    pytest_runs = {"PYTEST_CURRENT_TEST": "tests/test_app.py::test_it (call)"}
    assert Config.from_env(pytest_runs).raise_errors
    assert not Config.from_env({**pytest_runs, "RAG_EVAL_RAISE_ERRORS": "off"}).raise_errors
    assert not Config.from_env(pytest_runs, raise_errors=False).raise_errors


@pytest.mark.parametrize("option", REFUSED)
def test_a_wrong_value_is_answered_by_the_right_ones(option: str) -> None:
    """The message names the option, its variable, the value, and the values allowed."""
    value, allowed = REFUSED[option]
    with pytest.raises(ConfigError) as refusal:
        Config.from_env({variable(option): value})
    assert str(refusal.value).startswith(f"{option} ({variable(option)}) must be {allowed}, not ")


@pytest.mark.parametrize("option", [*NUMBERS, *SWITCHES])
@pytest.mark.parametrize("value", ["many", "1e", "1,5"])
def test_a_text_that_cannot_be_read_is_refused(option: str, value: str) -> None:
    """A variable that is no number, or no switch, names itself, its value and what is allowed."""
    allowed = REFUSED.get(option, ("", "on or off"))[1]
    with pytest.raises(ConfigError, match=rf"{variable(option)}\)? must be {allowed}.* '{value}'"):
        Config.from_env({variable(option): value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((option, value) for option in NUMBERS for value in (True, "x", float("nan"), None)),
        *((option, value) for option in SWITCHES for value in ("on", 1, None)),
        *((option, 2.5) for option in ("max_held", "concurrency", "max_text_chars")),
    ],
)
def test_a_value_of_another_type_is_refused(option: str, value: Any) -> None:
    """A switch or a text is no number, NaN and half a span neither, also in code."""
    with pytest.raises(ConfigError, match=rf"{option} .* must be"):
        Config(**{option: value})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cascade": "lexical"}, "must differ"),
        ({"cascade": "lexcal", "judge": "openai/x"}, r"cascade \(RAG_EVAL_CASCADE\) .*'lexical'\?"),
        ({"cascade": FakeJudge(lambda _: None), "sample_rate": 0.0}, "above 0"),
        ({"cascade": FakeJudge(lambda _: None), "sample_rate": [{"rate": 0}]}, "above 0"),
        (
            {
                "cascade": FakeJudge(lambda _: None),
                "sample_rate": [{"match": {"route": "/"}, "rate": 0}],
            },
            "above 0",
        ),
        ({"metrics": "default"}, "metrics must be a sequence of names, not 'default'"),
        ({"budget": "5 dollars"}, r"^budget \(RAG_EVAL_BUDGET\) must be limits such as '5 USD/day"),
        ({"redis": "redis://there"}, r"^redis \(RAG_EVAL_REDIS\) has no effect without a budget"),
        *(
            ({"prices": prices}, r"^prices \(RAG_EVAL_PRICES\): the price table .*must be")
            for prices in ("nofile", 5, {"models": {"m": {"in": 1}}}, {})
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], told: str) -> None:
    """The error has the option, its variable and the allowed form."""
    with pytest.raises(ConfigError, match=told):
        Config(**options)


def test_a_rate_or_rules() -> None:
    """A rule without a match is the rate of all other turns; without it, all are evaluated."""
    rule = SamplingRule(match={"route": "/chat"}, rate=0.5)
    assert (Config(sample_rate=0.1).base_rate, Config(sample_rate=0.1).sampling_rules) == (0.1, ())
    alone = Config(sample_rate=[rule])
    assert (alone.base_rate, alone.sampling_rules) == (1.0, (rule,))
    both = Config(sample_rate=[rule, {"rate": 0.2}])
    assert (both.base_rate, both.sampling_rules) == (0.2, (rule,))
    assert replace(both, concurrency=1).base_rate == 0.2


@pytest.mark.parametrize("option", ["judge", "embedder"])
@pytest.mark.parametrize("value", ["gpt-x", "openai/", "nobody/m", "", None, 3, FakeJudge])
def test_an_unknown_model_is_answered_by_the_known_ways(option: str, value: object) -> None:
    """The message names the offline model, the spelling of hosted ones, and the method to have."""
    offline = {"judge": "lexical", "embedder": "hashing"}[option]
    with pytest.raises(
        ConfigError, match=rf"{option} \(RAG_EVAL_.*'{offline}', 'openai/<model>', "
    ):
        Config(**{option: value})


@pytest.mark.parametrize(
    ("value", "exported"),
    [
        *((value, "all") for value in ("true", "TRUE", "SPAN_ONLY", "span_and_event")),
        *((value, "foreign") for value in ("", "false", "EVENT_ONLY", "NO_CONTENT")),
    ],
)
def test_the_standard_variable_turns_content_on(value: str, exported: str) -> None:
    """The GenAI conventions' variable puts texts on our spans where it asks for that."""
    assert Config.from_env({CONTENT: value}).export_content == exported
    assert Config.from_env({CONTENT: value, "RAG_EVAL_EXPORT_CONTENT": "none"}).export_content == (
        "none"
    )


@pytest.mark.parametrize(("value", "off"), [("true", True), ("True", True), ("1", False)])
def test_the_sdk_can_be_disabled(value: str, *, off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SDK_DISABLED is read as the SDK reads it: only ``true`` disables."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", value)
    assert sdk_disabled() is off


@pytest.mark.parametrize(
    ("signal", "environ", "names"),
    [
        ("traces", {}, GRPC),
        ("traces", {"OTEL_TRACES_EXPORTER": "none"}, ()),
        ("logs", {"OTEL_TRACES_EXPORTER": "none"}, GRPC),
        ("metrics", {"OTEL_METRICS_EXPORTER": "console, otlp"}, ("console", *GRPC)),
        ("traces", {f"{OTLP}_PROTOCOL": "http/protobuf"}, HTTP),
        ("traces", {f"{OTLP}_PROTOCOL": "grpc", f"{OTLP}_ENDPOINT": "http://localhost:4318"}, GRPC),
        ("traces", {f"{OTLP}_ENDPOINT": "http://c:4318"}, HTTP),
        (
            "logs",
            {f"{OTLP}_ENDPOINT": "http://c:4317", f"{OTLP}_LOGS_ENDPOINT": "http://c:4318/v1/logs"},
            HTTP,
        ),
        (
            "metrics",
            {f"{OTLP}_PROTOCOL": "http/protobuf", f"{OTLP}_METRICS_PROTOCOL": "grpc"},
            GRPC,
        ),
    ],
)
def test_exporters_are_chosen_by_the_standard_variables(
    signal: Signal, environ: dict[str, str], names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of the signal takes precedence, then the protocol, then the port."""
    assert exporter_names(signal, environ) == names
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert exporter_names(signal) == names


def test_unknown_option_is_refused_with_what_was_meant() -> None:
    """A misspelt keyword is an error that names the right one."""
    with pytest.raises(ConfigError, match=r"no option 'jugde'; did you mean judge\?"):
        Config.from_env({}, jugde="lexical")


def test_misspelt_variable_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """A variable with a typo in our name is logged; other variables are not."""
    Config.from_env({"RAG_EVAL_JUGDE": "x", "RAG_EVAL_GOLDEN": "file", "OTHER_JUDGE": "x"})
    assert [record.getMessage() for record in caplog.records] == [
        "rag_eval_otel: RAG_EVAL_JUGDE is no variable of this library; did you mean RAG_EVAL_JUDGE?"
    ]


# --- the option `budget` --------------------------------------------------------------------------


def test_limits_are_read_from_a_text() -> None:
    """Amounts, units and periods of a budget may be written in several forms."""
    found = limits_of(
        "5 USD/day, 600 requests per minute, 2M tokens/h, 1_500.5 USD/hour", where="b"
    )
    assert found == (
        Limit(amount=5, unit="USD", seconds=86400),
        Limit(amount=600, unit="requests", seconds=60),
        Limit(amount=2_000_000, unit="tokens", seconds=3600),
        Limit(amount=1500.5, unit="USD", seconds=3600),
    )
    assert ", ".join(map(str, found[:3])) == "5 USD/day, 600 requests/minute, 2000000 tokens/hour"
    assert limits_of(None, where="budget") == ()
    assert len(limits_of("5 USD/day,600 requests/minute ,9 tokens/h", where="budget")) == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("5 dollars/day", r"budget must be limits such as '5 USD/day.*not '5 dollars/day'"),
        ("5 USD", "must be limits such as"),
        ("5 USD/week", "must be limits such as"),
        ("", "must be limits such as"),
        (5, "must be limits such as"),
        ("0 USD/day", "the limit of USD must be a number above 0"),
        ("1.5 requests/minute", "the limit of requests must be a whole number above 0"),
        ("1,000 tokens/day", "numbers without a comma, such as 1000 .*not '1,000 tokens/day'"),
        ("9 requests/day,1,000 tokens/day", "not '9 requests/day,1,000 tokens/day'"),
        ("1,5 USD/day", "not '1,5 USD/day'"),
    ],
)
def test_a_wrong_budget_is_refused(given: object, told: str) -> None:
    """The error names the part that cannot be read, and the form of a limit."""
    with pytest.raises(ConfigError, match=told):
        limits_of(given, where="budget")


# --- thresholds and the overall label -------------------------------------------------------------

SAMPLE = Sample(
    question="How many days of leave are there?",
    contexts=["There are 27 days of leave."],
    answer="There are 27 days of leave in summer.",
)


def scored(**options: Any) -> Evaluation:
    """Return the offline scores of a sample, as ``options`` of a pipeline have it."""
    return asyncio.run(build_measurement(Config(**options)).of(SAMPLE))


def write(folder: Path, text: str) -> Path:
    """Write a file of thresholds."""
    path = folder / "thresholds.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_threshold_decides_the_label_and_nothing_else() -> None:
    """The same value passes or fails; the version, which says what was measured, stays."""
    low, high = (scored(thresholds={"faithfulness": value}) for value in (0.1, 1.0))
    assert low["faithfulness"].value == high["faithfulness"].value
    assert [one["faithfulness"].label for one in (low, high)] == ["pass", "fail"]
    assert [one["faithfulness"].threshold for one in (low, high)] == [0.1, 1.0]
    assert low["faithfulness"].version == high["faithfulness"].version
    assert [low.label, high.label] == ["pass", "fail"]


@pytest.mark.parametrize(
    "given",
    [
        lambda _: {"faithfulness": 0.8, "mrr": 1},
        lambda _: "faithfulness = 0.8, mrr=1,",
        lambda folder: write(folder, "[thresholds]\nfaithfulness = 0.8\nmrr = 1\n"),
        lambda folder: str(write(folder, "[thresholds]\nfaithfulness = 0.8\nmrr = 1\n")),
    ],
    ids=["dict", "text", "path", "path as text"],
)
def test_thresholds_are_read_in_every_form(given: Callable[[Path], object], tmp_path: Path) -> None:
    """A mapping, pairs, and a file come to the same."""
    config = Config(thresholds=given(tmp_path))
    assert config.thresholds == {"faithfulness": 0.8, "mrr": 1.0}


@pytest.mark.parametrize(
    "given",
    [0.8, ["faithfulness"], {"mrr": "high"}, {"mrr": True}, {"mrr": float("nan")}, "mrr", "mrr=x",
     {"mrr": None}, "mrr=inf"],
)  # fmt: skip
def test_what_is_no_threshold_is_refused(given: object) -> None:
    """The error names the option and what it should be."""
    with pytest.raises(ConfigError, match=r"thresholds \(RAG_EVAL_THRESHOLDS\)"):
        Config(thresholds=given)


@pytest.mark.parametrize(
    "text",
    ["faithfulness = 0.8", "[thresholds", "[thresholds]\nmrr = 'x'", "[other]\nmrr = 1", "",
     "[thresholds]\nmrr = 1\n[more]\n", "thresholds = 3"],
)  # fmt: skip
def test_a_broken_file_is_refused_by_name(text: str, tmp_path: Path) -> None:
    """Whatever is wrong with it, the error says which file."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=r"thresholds\.toml"):
        Config(thresholds=str(path))
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read"):
        read_thresholds(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("thresholds", "told"),
    [
        ({"faithfulnes": 0.8}, "did you mean faithfulness"),
        ({"mrr": 0.8}, "not measured"),
        ({"faithfulness": 1.5}, "must be from 0 to 1, not 1.5"),
        ({"faithfulness": -0.1}, "must be from 0 to 1"),
    ],
)
def test_a_threshold_must_fit_a_metric(thresholds: dict[str, float], told: str) -> None:
    """Live, in a dataset run: before anything is asked."""
    with pytest.raises(ConfigError, match=told):
        build_measurement(Config(thresholds=thresholds))
    with pytest.raises(ConfigError, match=told):
        evaluate_dataset(
            [SAMPLE], judge=LexicalJudge(), embedder=HashingEmbedder(), thresholds=thresholds
        )


def test_the_range_of_a_threshold_is_that_of_the_metric() -> None:
    """Grades from 1 to 5 pass from one of these; a metric without a threshold takes none."""
    (graded,) = with_thresholds([Correctness()], {"correctness": 3})
    assert isinstance(graded, Correctness)
    assert graded.threshold == 3
    with pytest.raises(ConfigError, match="from 1 to 5"):
        with_thresholds([Correctness()], {"correctness": 0.8})

    class Own:
        name = "own"

    with pytest.raises(ConfigError, match="no threshold that could be set"):
        with_thresholds([Own()], {"own": 0.8})  # type: ignore[list-item]  # that is the point


def test_the_overall_label_goes_by_the_metrics_that_are_named() -> None:
    """Those alone; one that is not measured is refused."""
    thresholds = {"faithfulness": 1.0}
    assert scored(thresholds=thresholds, label_metrics=("context_relevance",)).label == "pass"
    with pytest.raises(ConfigError, match="overall label of 'mrr', which is not measured"):
        scored(label_metrics=("mrr",))
    with pytest.raises(ConfigError, match="label_metrics must be a sequence of names"):
        Config(label_metrics="faithfulness")  # type: ignore[arg-type]  # that is the point


def test_commands_read_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of thresholds, one more on the command line, and the metrics of the label."""
    found = write(tmp_path, "[thresholds]\nfaithfulness = 0.675\n")
    row = {"question": "Who?", "contexts": ["Ada."], "answer": "Ada sings."}
    samples, out = jsonl(tmp_path / "rows.jsonl", [row]), tmp_path / "out.jsonl"
    options = ["--metrics", "faithfulness,context_relevance", "--output", str(out)]
    options += ["--thresholds", str(found), "--threshold", "context_relevance=0"]
    assert main(["evaluate", str(samples), *options, "--label-metrics", "context_relevance"]) == 0
    row = json.loads(out.read_text("utf-8"))
    assert (row["scores"]["context_relevance"]["label"], row["label"]) == ("pass", "pass")
    capsys.readouterr()

    assert main(["rules", "--thresholds", str(found)]) == 0
    printed = capsys.readouterr().out
    assert 'le="0.6499",gen_ai_evaluation_name="faithfulness"' in printed
    assert 'rag_evaluation_score_count{gen_ai_evaluation_name="faithfulness"}) * 0.675' in printed


def test_rules_take_other_scales(capsys: pytest.CaptureFixture[str]) -> None:
    """A grade of 4 of 5 is .75 of the histogram; only the metrics named wake anybody."""
    options = ["--threshold", "correctness=4", "--threshold", "own=0.33"]
    assert main(["rules", *options, "--label-metrics", "own,faithfulness"]) == 0
    printed = capsys.readouterr().out
    assert 'le="0.7499",gen_ai_evaluation_name="correctness"' in printed
    assert 'le="0.3499",gen_ai_evaluation_name="own"' in printed
    assert 'gen_ai_evaluation_name!~"own|faithfulness"' in printed
    assert "rules --slo 0.9 --tau 0.5 --every 100000 --threshold correctness=0.75" in printed
    usual = render(Target())
    assert 'rag_evaluation_judge="lexical",gen_ai_evaluation_name=~"' in usual
    assert "answer_relevancy" in usual
    assert "context_relevance|" not in usual

"""The options: where they are read, values that are refused, and keys that stay hidden."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rag_eval_otel.config import Config, ConfigOptions
from rag_eval_otel.environment import Signal, exporter_names, otlp_endpoint, sdk_disabled
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.sampling import SamplingRule
from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge

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
    "redact": (" textwrap:dedent ", "textwrap:dedent"),
    "metadata_keys": ("tenant, tier", ("tenant", "tier")),
    "raise_errors": ("yes", True),
}
"""For each option a value of its variable, and the parsed value."""

REFUSED = {
    "spans": ("some", "one of essential, all, none"),
    "export_content": ("keep", "one of foreign, all, none"),
    "score_events": ("some", "one of log, span, both"),
    "hold_seconds": ("3601", "a number between 0 and 3,600"),
    "max_held": ("0", "a whole number between 1 and 1,000,000"),
    "max_text_chars": ("0", "a whole number at least 100"),
    "evaluation_timeout": ("nan", "a number at least 0.001"),
    "concurrency": ("0", "a whole number between 1 and 10,000"),
    "shutdown_seconds": ("-0.1", "a number between 0 and 3,600"),
    "sample_rate": ("1.5", "a number between 0 and 1"),
}
NUMBERS = [name for name, (_, allowed) in REFUSED.items() if "number" in allowed]
SWITCHES = ("explanations", "drift", "host_hooks", "contexts_from_prompt", "raise_errors")
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


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping of its own, from_env reads the environment of the process."""
    monkeypatch.setenv("RAG_EVAL_CONCURRENCY", "3")
    assert Config.from_env().concurrency == 3


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
    assert (Config(sample_rate=[rule]).base_rate, Config(sample_rate=[rule]).sampling_rules) == (
        1.0,
        (rule,),
    )
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


def test_models_may_be_objects() -> None:
    """Anything with the protocol's method will do as a judge or an embedder."""
    config = Config(judge=FakeJudge(lambda _: None), embedder=FakeEmbedder({}))
    assert isinstance(config.judge, FakeJudge)


@pytest.mark.parametrize(
    ("environ", "options", "embedder"),
    [
        ({}, {}, "hashing"),
        ({"RAG_EVAL_JUDGE": "openai/gpt-x"}, {}, "openai/text-embedding-3-small"),
        ({}, {"judge": "openai/gpt-x"}, "openai/text-embedding-3-small"),
        ({"RAG_EVAL_JUDGE": "openai/gpt-x"}, {"judge": "lexical"}, "hashing"),
        ({"RAG_EVAL_JUDGE": "openai/gpt-x", "RAG_EVAL_EMBEDDER": "hashing"}, {}, "hashing"),
        ({}, {"judge": LexicalJudge()}, "hashing"),
        ({"OPENAI_BASE_URL": "http://gpu:8000/v1"}, {"judge": "openai/qwen"}, "hashing"),
        (
            {"OPENAI_BASE_URL": "https://api.openai.com/v1"},
            {"judge": "openai/gpt-x"},
            "openai/text-embedding-3-small",
        ),
    ],
)
def test_the_embedder_follows_the_judge(
    environ: dict[str, str], options: dict[str, Any], embedder: str
) -> None:
    """Where the judge is hosted, so are embeddings, unless it says otherwise."""
    assert Config.from_env(environ, **options).embedder == embedder


def test_a_key_is_never_shown() -> None:
    """Neither a configuration nor a copy of it shows the key when printed."""
    config = Config(judge=OpenAIJudge("m", api_key="sk-secret"))
    assert "sk-secret" not in repr(replace(config, concurrency=1)) + str(config)


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
        ("traces", {"OTEL_TRACES_EXPORTER": ""}, GRPC),
        ("logs", {"OTEL_TRACES_EXPORTER": "none"}, GRPC),
        ("metrics", {"OTEL_METRICS_EXPORTER": "console, otlp"}, ("console", *GRPC)),
        ("traces", {f"{OTLP}_PROTOCOL": "http/protobuf"}, HTTP),
        ("traces", {f"{OTLP}_PROTOCOL": "grpc", f"{OTLP}_ENDPOINT": "http://localhost:4318"}, GRPC),
        ("traces", {f"{OTLP}_ENDPOINT": "http://c:4318"}, HTTP),
        ("traces", {f"{OTLP}_ENDPOINT": "http://c:4317"}, GRPC),
        (
            "logs",
            {f"{OTLP}_ENDPOINT": "http://c:4317", f"{OTLP}_LOGS_ENDPOINT": "http://c:4318/v1/logs"},
            HTTP,
        ),
        ("logs", {f"{OTLP}_PROTOCOL": "http/json", f"{OTLP}_LOGS_PROTOCOL": ""}, HTTP),
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


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, None),
        ({f"{OTLP}_TRACES_ENDPOINT": "", f"{OTLP}_ENDPOINT": ""}, None),
        ({f"{OTLP}_ENDPOINT": "http://all"}, "http://all"),
        ({f"{OTLP}_TRACES_ENDPOINT": "", f"{OTLP}_ENDPOINT": "http://all"}, "http://all"),
        ({f"{OTLP}_TRACES_ENDPOINT": "http://t", f"{OTLP}_ENDPOINT": "http://all"}, "http://t"),
    ],
)
def test_the_endpoint_of_spans_is_the_most_special(
    environ: dict[str, str], endpoint: str | None
) -> None:
    """An empty variable counts as none, so that the general one holds."""
    assert otlp_endpoint(environ) == endpoint


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

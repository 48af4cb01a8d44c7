"""The options: their sources, rejected values, and hidden keys."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from rag_eval_otel.config import Config, ConfigOptions
from rag_eval_otel.environment import Signal, exporter_names, otlp_endpoint
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
    "redis": (" redis://there/0 ", "redis://there/0"),
    "prices": (f" {PRICES} ", PRICES),
    "fusion": ("off", "off"),
    "thresholds": ("faithfulness=0.8, mrr = .5", {"faithfulness": 0.8, "mrr": 0.5}),
    "label_metrics": ("faithfulness, mrr", ("faithfulness", "mrr")),
    "drift": ("off", "off"),
    "backends": ("phoenix, acme", ("phoenix", "acme")),
    "sample_rate": ("0.25", 0.25),
    "sampling_rules": (
        ' [{"match": {"route": "/chat"}, "rate": 0.5}] ',
        (SamplingRule(match={"route": "/chat"}, rate=0.5),),
    ),
    "cascade": (" local/nli ", "local/nli"),
    "budget": (" 5 USD/day ", "5 USD/day"),
    "at_budget": ("offline", "offline"),
    "hold_seconds": ("0", 0.0),
    "max_held": ("7", 7),
    "max_text_chars": ("1000", 1000),
    "max_held_bytes": ("1000", 1000),
    "evaluation_timeout": ("5", 5.0),
    "concurrency": ("2", 2),
    "shutdown_seconds": ("1", 1.0),
    "on_sigterm": ("off", "off"),
    "spans": ("all", "all"),
    "content": ("strip", "strip"),
    "capture_content": ("span", "span"),
    "span_conventions": ("genai", ("genai",)),
    "score_events": ("span", "span"),
    "redact": (" textwrap:dedent ", "textwrap:dedent"),
    "explanations": ("on", "on"),
    "vector_stores": ("off", "off"),
    "contexts_from_prompt": ("on", "on"),
    "question_key": ("frage", "frage"),
    "answer_key": ("antwort", "antwort"),
    "metadata_keys": ("tenant, tier", ("tenant", "tier")),
    "errors": ("raise", "raise"),
}
"""For each option a value of its variable, and the parsed value."""

NEEDED = {
    "at_budget": {"RAG_EVAL_BUDGET": "5 requests/day"},
    "redis": {"RAG_EVAL_BUDGET": "5 requests/day"},
}
"""The variables without which an option has no effect and is refused."""

CHOICES = {
    "fusion": "on, off",
    "spans": "essential, all, none",
    "content": "keep, strip",
    "capture_content": "off, span",
    "explanations": "off, on",
    "score_events": "log, span, both",
    "contexts_from_prompt": "off, on",
    "vector_stores": "on, off",
    "drift": "on, off",
    "errors": "swallow, raise",
}

RANGES = {
    "sample_rate": ("1.5", "a number between 0 and 1"),
    "hold_seconds": ("3601", "a number between 0 and 3,600"),
    "max_held": ("0", "a whole number between 1 and 1,000,000"),
    "max_text_chars": ("0", "a whole number at least 100"),
    "max_held_bytes": ("0", "a whole number at least 1"),
    "evaluation_timeout": ("nan", "a number at least 0.001"),
    "concurrency": ("0", "a whole number between 1 and 10,000"),
    "shutdown_seconds": ("-0.1", "a number between 0 and 3,600"),
}


def variable(option: str) -> str:
    """Return the name of the variable of an option."""
    return f"RAG_EVAL_{option.upper()}"


@pytest.mark.parametrize("given", ["openinference", "genai, traceloop", ","])
def test_the_conventions_of_our_spans_include_genai(given: str) -> None:
    """Dashboards and readers need the GenAI names; another convention is written beside them."""
    told = (
        r"span_conventions \(RAG_EVAL_SPAN_CONVENTIONS\) must be genai, or genai and openinference"
    )
    with pytest.raises(ConfigError, match=told):
        Config.from_env({"RAG_EVAL_SPAN_CONVENTIONS": given})


def test_every_option_has_a_variable() -> None:
    """No option can be set in code alone; the SDK's own switch is the one standard variable."""
    options = {field.name for field in fields(Config)}
    assert options - {"sdk_disabled"} == set(GIVEN)


@pytest.mark.parametrize("option", GIVEN)
def test_an_option_is_read_from_its_variable(option: str) -> None:
    """The variable is the option's name in capitals, after RAG_EVAL_."""
    text, value = GIVEN[option]
    environ = {variable(option): text, **NEEDED.get(option, {})}
    found = getattr(Config.from_env(environ), option)
    assert (found, type(found)) == (value, type(value))


def test_an_empty_environment_gives_the_defaults() -> None:
    """Without any variable the configuration is the one that is documented on the fields."""
    assert Config.from_env({}) == Config()


@pytest.mark.parametrize("option", GIVEN)
def test_an_empty_variable_is_not_set(option: str) -> None:
    """As everywhere in OpenTelemetry, the empty string means the default."""
    assert Config.from_env({variable(option): ""}) == Config()


@pytest.mark.parametrize("option", GIVEN)
def test_what_is_given_in_code_wins(option: str) -> None:
    """An option in code takes precedence over its variable."""
    default = getattr(Config(), option)
    config = Config.from_env({variable(option): GIVEN[option][0]}, **{option: default})
    assert getattr(config, option) == default


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping of its own, from_env reads the environment of the process."""
    monkeypatch.setenv("RAG_EVAL_CONCURRENCY", "3")
    assert Config.from_env().concurrency == 3


def test_tests_see_our_errors() -> None:
    """Under pytest our own failures are raised, unless it says otherwise."""
    pytest_runs = {"PYTEST_CURRENT_TEST": "tests/test_app.py::test_it (call)"}
    assert Config.from_env(pytest_runs).errors == "raise"
    assert Config.from_env({**pytest_runs, "RAG_EVAL_ERRORS": "swallow"}).errors == "swallow"
    assert Config.from_env(pytest_runs, errors="swallow").errors == "swallow"


@pytest.mark.parametrize("option", CHOICES)
def test_a_wrong_choice_is_answered_by_the_right_ones(option: str) -> None:
    """The message names the option, its variable, the value, and every value allowed."""
    with pytest.raises(ConfigError) as refusal:
        Config.from_env({variable(option): "maybe"})
    told = f"{option} ({variable(option)}) must be one of {CHOICES[option]}, not 'maybe'"
    assert str(refusal.value) == told


@pytest.mark.parametrize("option", RANGES)
def test_a_number_out_of_range_is_answered_by_the_range(option: str) -> None:
    """The message names the option, its variable, the value, and the range."""
    value, allowed = RANGES[option]
    with pytest.raises(ConfigError) as refusal:
        Config.from_env({variable(option): value})
    assert str(refusal.value).startswith(f"{option} ({variable(option)}) must be {allowed}, not ")


@pytest.mark.parametrize("option", RANGES)
@pytest.mark.parametrize("value", ["many", "1e", "1,5"])
def test_what_is_no_number_is_answered_by_the_range(option: str, value: str) -> None:
    """A variable that is no number names itself, its value and the numbers allowed."""
    with pytest.raises(ConfigError) as refusal:
        Config.from_env({variable(option): value})
    assert str(refusal.value) == f"{variable(option)} must be {RANGES[option][1]}, not {value!r}"


@pytest.mark.parametrize("option", RANGES)
@pytest.mark.parametrize("value", [True, "1", float("nan")])
def test_a_number_in_code_must_be_one(option: str, value: object) -> None:
    """A switch, a string or NaN is no number, also where it is given in code."""
    with pytest.raises(ConfigError, match=rf"{option} .* must be"):
        Config(**{option: value})


@pytest.mark.parametrize("option", ["max_held", "max_held_bytes", "concurrency"])
@pytest.mark.parametrize("value", [2.5, "2.5"])
def test_a_count_is_whole(option: str, value: Any) -> None:
    """Half a request or half a span is refused, in code and in the environment."""
    given = {"environ": {variable(option): value}} if isinstance(value, str) else {option: value}
    with pytest.raises(ConfigError, match="a whole number"):
        Config.from_env(**{"environ": {}, **given})


def test_no_ceiling_is_the_default() -> None:
    """Only the ceiling on turns may be absent."""
    with pytest.raises(ConfigError, match="sample_rate"):
        Config(sample_rate=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"cascade": "lexical"}, "must differ"),
        ({"cascade": "lexcal", "judge": "openai/x"}, r"cascade \(RAG_EVAL_CASCADE\) .*'lexical'\?"),
        ({"cascade": FakeJudge(lambda _: None), "sample_rate": 0.0}, "above 0"),
        (
            {
                "cascade": FakeJudge(lambda _: None),
                "sampling_rules": [{"match": {"route": "/"}, "rate": 0}],
            },
            "above 0",
        ),
    ],
)
def test_in_a_cascade_every_turn_can_be_chosen(options: Any, told: str) -> None:
    """A cascade needs a second judge, and rates above 0: else the sample leaves out a part."""
    with pytest.raises(ConfigError, match=told):
        Config(**options)


def test_metrics_are_a_sequence() -> None:
    """A single name is refused, since it would be read letter by letter."""
    with pytest.raises(ConfigError, match=r"metrics must be a sequence .* not 'default'"):
        Config(metrics="default")  # type: ignore[arg-type]


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


@pytest.mark.parametrize("value", ["true", "TRUE", "SPAN_ONLY", "span_and_event"])
def test_the_standard_variable_turns_content_on(value: str) -> None:
    """The GenAI conventions' variable puts texts on our spans where it asks for that."""
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert Config.from_env({name: value}).capture_content == "span"
    found = Config.from_env({name: value, "RAG_EVAL_CAPTURE_CONTENT": "off"})
    assert found.capture_content == "off"


@pytest.mark.parametrize("value", ["", "false", "EVENT_ONLY", "NO_CONTENT"])
def test_other_values_leave_content_off(value: str) -> None:
    """Content is on spans only where that was asked for."""
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    assert Config.from_env({name: value}).capture_content == "off"


@pytest.mark.parametrize(("value", "off"), [("true", True), ("True", True), ("1", False)])
def test_the_sdk_can_be_disabled(value: str, *, off: bool) -> None:
    """OTEL_SDK_DISABLED is read as the SDK reads it: only ``true`` disables."""
    assert Config.from_env({"OTEL_SDK_DISABLED": value}).sdk_disabled is off


@pytest.mark.parametrize(
    ("signal", "environ", "names"),
    [
        ("traces", {}, ("otlp_proto_grpc",)),
        ("traces", {"OTEL_TRACES_EXPORTER": "none"}, ()),
        ("traces", {"OTEL_TRACES_EXPORTER": ""}, ("otlp_proto_grpc",)),
        ("logs", {"OTEL_TRACES_EXPORTER": "none"}, ("otlp_proto_grpc",)),
        ("metrics", {"OTEL_METRICS_EXPORTER": "console, otlp"}, ("console", "otlp_proto_grpc")),
        ("traces", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ("otlp_proto_http",)),
        (
            "traces",
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318",
            },
            ("otlp_proto_grpc",),
        ),
        ("traces", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ("otlp_proto_http",)),
        ("traces", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, ("otlp_proto_grpc",)),
        (
            "logs",
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
                "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c:4318/v1/logs",
            },
            ("otlp_proto_http",),
        ),
        (
            "logs",
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": ""},
            ("otlp_proto_http",),
        ),
        (
            "metrics",
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc",
            },
            ("otlp_proto_grpc",),
        ),
    ],
)
def test_exporters_are_chosen_by_the_standard_variables(
    signal: Signal, environ: dict[str, str], names: tuple[str, ...]
) -> None:
    """A variable of the signal takes precedence, then the protocol, then the port."""
    assert exporter_names(signal, environ) == names


def test_exporters_are_read_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping of its own, exporter_names reads the environment of the process."""
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "console")
    assert exporter_names("logs") == ("console",)


@pytest.mark.parametrize(
    ("special", "general", "endpoint"),
    [
        (None, None, None),
        ("", "", None),
        (None, "http://all", "http://all"),
        ("", "http://all", "http://all"),
        ("http://traces", "http://all", "http://traces"),
    ],
)
def test_the_endpoint_of_spans_is_the_most_special(
    special: str | None, general: str | None, endpoint: str | None
) -> None:
    """An empty variable counts as none, so that the general one holds."""
    given = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": special,
        "OTEL_EXPORTER_OTLP_ENDPOINT": general,
    }
    environ = {name: value for name, value in given.items() if value is not None}
    assert otlp_endpoint(environ) == endpoint


def test_the_endpoint_is_read_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping of its own, otlp_endpoint reads the environment of the process."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://here")
    assert otlp_endpoint() == "http://here"


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


def test_options_are_the_fields_of_config() -> None:
    """`ConfigOptions` has the names and the types of the fields of `Config`, none required."""
    types = get_type_hints(Config)
    assert get_type_hints(ConfigOptions) == {one.name: types[one.name] for one in fields(Config)}
    assert not ConfigOptions.__required_keys__


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"budget": "5 dollars"}, r"^budget \(RAG_EVAL_BUDGET\) must be limits such as '5 USD/day"),
        ({"at_budget": "stop"}, r"must be drop, offline or local/<name>, not 'stop'"),
    ],
)
def test_a_wrong_budget_names_the_option(options: dict[str, Any], told: str) -> None:
    """The error has the option, its variable and the allowed form."""
    with pytest.raises(ConfigError, match=told):
        Config(**options)
    assert Config(budget="5 USD/day", at_budget="local/nli").at_budget == "local/nli"


@pytest.mark.parametrize("option", NEEDED)
def test_an_option_without_effect_is_refused(option: str) -> None:
    """An option of the budget needs a budget, and one of the cascade a cascade."""
    text, _ = GIVEN[option]
    told = rf"^{option} \({variable(option)}\) has no effect without a (budget|cascade), such as"
    with pytest.raises(ConfigError, match=told):
        Config.from_env({variable(option): text})


@pytest.mark.parametrize("prices", ["nofile", 5, {"models": {"m": {"in": 1}}}, {}])
def test_wrong_prices_are_refused(prices: Any) -> None:
    """A table that cannot be read is an error at once, as every other option is."""
    with pytest.raises(
        ConfigError, match=r"^prices \(RAG_EVAL_PRICES\): the price table .*must be"
    ):
        Config(prices=prices)

"""`Config`: read every option from keyword arguments or from environment variables.

Each option is a field of `Config`. The variable
of an option is ``RAG_EVAL_`` and the field's name in capitals. Standard ``OTEL_*`` variables have
their standard meaning. A *turn* is one question of a user and its answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args
from urllib.parse import urlsplit

from rag_eval_otel.environment import DOCTOR, PREFIX, first_set, names_in, variable
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.limits import (
    MAX_TEXT_CHARS,
    NUMBERS,
    WHOLE,
    AtBudget,
    Limit,
    allowed_number,
    check_at_budget,
    check_number,
    limits_of,
)
from rag_eval_otel.log import log
from rag_eval_otel.prices import load_prices
from rag_eval_otel.providers import check_model, parts_of
from rag_eval_otel.redaction import Redaction, redactor
from rag_eval_otel.sampling import SamplingRule, rules_of
from rag_eval_otel.thresholds import thresholds_of
from rag_eval_otel.types import (
    ChatModel,
    ContextsFromPrompt,
    DriftSettings,
    Embedder,
    Fusion,
    JudgeLike,
    MetricLike,
    Reasons,
    TextEmbeddings,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

Spans = Literal["essential", "all", "none"]
Content = Literal["keep", "strip"]
ContentCapture = Literal["off", "span"]
Convention = Literal["genai", "openinference"]
ScoreEvents = Literal["log", "span", "both"]
VectorStores = Literal["on", "off"]
ErrorMode = Literal["swallow", "raise"]
OnSigterm = Literal["drain", "off"]

_CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_ON_SPANS = frozenset({"true", "span_only", "span_and_event"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options: metrics, judge, limits, and which texts are captured and exported.

    If an option cannot be used, `ConfigError` names the option, its value and the allowed values.
    """

    # Metrics and judge
    metrics: Sequence[str | MetricLike] = ("default",)
    """Metrics, their names, or names of sets: ``default`` (2 requests a turn) or ``dual`` (4)."""
    judge: str | JudgeLike | ChatModel = "lexical"
    """What scores: ``lexical`` (offline), ``<provider>/<model>``, a `Judge`, or a chat model."""
    embedder: str | Embedder | TextEmbeddings = "hashing"
    """``hashing`` (offline), ``<provider>/<model>``, an `Embedder`, or LangChain ``Embeddings``.

    The default in `from_env` is ``openai/text-embedding-3-small`` if the judge is an ``openai/``
    model at OpenAI's own address, and ``hashing`` otherwise.
    """
    prompts: str | None = None
    """A folder of files. Each file replaces the built-in prompt that has the name of the file."""
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None
    """Prices of tokens: a table or a file. By default list prices, with the extra ``prices``."""
    fusion: Fusion = "on"
    """Whether questions of several metrics about one turn may share a judge request."""

    thresholds: str | os.PathLike[str] | Mapping[str, float] = field(default_factory=dict)
    """The lowest passing score of each metric, or the path of a ``.toml`` file with the scores."""
    label_metrics: Sequence[str] = ()
    """The metrics that decide the overall label. If empty, the judge names them, or all decide."""

    drift: Literal["on", "off"] | DriftSettings = "on"
    """Whether drift of scores is detected: ``on``, ``off``, or a `drift.DriftOptions`."""

    backends: Sequence[str] = ()
    """Backends that get each score as their own object, for example ``phoenix`` or ``mlflow``."""

    # Sampling
    sample_rate: float = 1.0
    """The fraction of turns that are evaluated, 0 to 1. The trace id decides for each turn."""
    sampling_rules: str | os.PathLike[str] | Sequence[SamplingRule | Mapping[str, Any]] = ()
    """Rates for turns by route, model, metadata or attributes: rules, or a ``.json`` file."""
    cascade: str | JudgeLike | None = None
    """The judge that scores all turns before ``judge`` scores a sample, such as ``lexical``."""
    budget: str | None = None
    """What scoring may take: ``5 USD/day, 600 requests/minute, 2M tokens/hour, 60 turns/minute``.

    What is beyond it is not sent, and the turns are skipped with the reason ``budget``.
    """
    at_budget: AtBudget | str = "drop"
    """What happens to turns at the budget's end: ``drop``, ``offline`` or ``local/<name>``."""
    redis: str | None = field(default=None, repr=False)
    """The URL of a Redis or Valkey server in which several processes share the budget.

    Each process counts its own turns.
    """

    # Limits
    hold_seconds: float = 10.0
    """Seconds that a span waits for its scores. Later scores go to events and metrics only."""
    max_held: int = 1024
    """The most spans that wait for scores. Further spans are exported with status ``overload``."""
    max_text_chars: int = MAX_TEXT_CHARS
    """The most characters of a text; a turn has four times as many. A longer text is cut."""
    max_held_bytes: int = 64 * 1024 * 1024
    """The most bytes of text in spans that wait for scores."""
    evaluation_timeout: float = 30.0
    """Seconds after which an evaluation is cancelled."""
    concurrency: int = 16
    """The most turns that are evaluated at the same time."""
    shutdown_seconds: float = 5.0
    """About how many seconds a shutdown takes at most, for running evaluations and the export."""
    on_sigterm: OnSigterm = "drain"
    """Whether SIGTERM first waits for scores and exports the spans (``drain``) or not (``off``)."""

    # Capture
    spans: Spans = "essential"
    """Which LangChain runs get a span: the ``essential`` kinds of runs, ``all`` or ``none``."""
    content: Content = "keep"
    """Whether texts on spans of other instrumentations are exported or removed (``strip``)."""
    capture_content: ContentCapture = "off"
    """Whether spans of this library get prompts, documents and answers; not needed for scores."""
    span_conventions: Sequence[Convention] = ("genai", "openinference")
    """The attribute conventions of this library's spans: ``genai``, and perhaps another."""
    score_events: ScoreEvents = "log"
    """Whether the events of scores are log records, events on the span of the turn, or both.

    Without a logger provider, they are on the span in any case.
    """
    redact: Redaction | str | None = None
    """A function that takes private parts out of a text, or ``package.module:function``."""
    explanations: Reasons = "off"
    """Whether the judge gives reasons to export. Reasons quote user data and cost tokens."""
    vector_stores: VectorStores = "on"
    """Whether direct searches of LangChain vector stores (``similarity_search``) are recorded."""
    contexts_from_prompt: ContextsFromPrompt = "off"
    """Whether contexts are read from the prompt, below a heading, if there is no retrieval."""
    question_key: str | None = None
    """The key of the question in a chain's input, if it is not a usual one."""
    answer_key: str | None = None
    """The key of the answer in a chain's output, if it is not a usual one."""

    metadata_keys: Sequence[str] = ()
    """Keys of metadata to export with the scores, beside session, user and conversation."""
    errors: ErrorMode = "swallow"
    """Whether errors of this library are logged (``swallow``) or raised (``raise``, for tests)."""
    sdk_disabled: bool = False
    """Whether the library does nothing. The variable is ``OTEL_SDK_DISABLED``."""

    def __post_init__(self) -> None:
        """Check every option."""
        _check_choices(self)
        for name in NUMBERS:
            check_number(name, getattr(self, name))
        for name in _ITEMS:
            _check_sequence(name, getattr(self, name))
        _check_conventions(self.span_conventions)
        redactor(self.redact)
        thresholds = thresholds_of(self.thresholds, where=f"thresholds ({variable('thresholds')})")
        object.__setattr__(self, "thresholds", thresholds)
        check_model("judge", self.judge, shown=_shown("judge"))
        rules = rules_of(
            self.sampling_rules, where=f"sampling_rules ({variable('sampling_rules')})"
        )
        object.__setattr__(self, "sampling_rules", rules)
        _check_cascade(self)
        check_model("embedder", self.embedder, shown=_shown("embedder"))
        check_at_budget(self.at_budget, limits=self.limits, redis=self.redis)
        if self.prices is not None:
            load_prices(self.prices)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits in ``budget``."""
        return limits_of(self.budget, where=_shown("budget"))

    @property
    def passing_scores(self) -> Mapping[str, float]:
        """The lowest score that passes, for each metric, after ``thresholds`` has been read."""
        return cast("Mapping[str, float]", self.thresholds)

    @property
    def chosen_rules(self) -> tuple[SamplingRule, ...]:
        """The sampling rules in order, after ``sampling_rules`` has been read."""
        return cast("tuple[SamplingRule, ...]", self.sampling_rules)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **options: Unpack[ConfigOptions]
    ) -> Config:
        """Return a `Config` with the options of the environment; ``options`` take precedence."""
        environ = os.environ if environ is None else environ
        given = {name: environ.get(variable(name)) for name in _PARSERS}
        found = {name: _parse(name, value) for name, value in given.items() if value}
        found.setdefault("capture_content", _standard_content(environ))
        found.setdefault("sdk_disabled", environ.get("OTEL_SDK_DISABLED", "").lower() == "true")
        found.setdefault("errors", error_mode(environ))
        chosen: dict[str, Any] = {**found, **options}
        if "embedder" not in chosen:
            chosen["embedder"] = _embedder_for(chosen, environ)
        _refuse_unknown(chosen)
        _warn_of_unknown(environ)
        return cls(**chosen)


class ConfigOptions(TypedDict, total=False):
    """The fields of `Config` as keyword arguments."""

    metrics: Sequence[str | MetricLike]
    judge: str | JudgeLike | ChatModel
    embedder: str | Embedder | TextEmbeddings
    prompts: str | None
    prices: str | os.PathLike[str] | Mapping[str, Any] | None
    fusion: Fusion
    thresholds: str | os.PathLike[str] | Mapping[str, float]
    label_metrics: Sequence[str]
    drift: Literal["on", "off"] | DriftSettings
    backends: Sequence[str]
    sample_rate: float
    sampling_rules: str | os.PathLike[str] | Sequence[SamplingRule | Mapping[str, Any]]
    cascade: str | JudgeLike | None
    budget: str | None
    at_budget: AtBudget | str
    redis: str | None
    hold_seconds: float
    max_held: int
    max_text_chars: int
    max_held_bytes: int
    evaluation_timeout: float
    concurrency: int
    shutdown_seconds: float
    on_sigterm: OnSigterm
    spans: Spans
    content: Content
    capture_content: ContentCapture
    span_conventions: Sequence[Convention]
    score_events: ScoreEvents
    redact: Redaction | str | None
    explanations: Reasons
    vector_stores: VectorStores
    contexts_from_prompt: ContextsFromPrompt
    question_key: str | None
    answer_key: str | None
    metadata_keys: Sequence[str]
    errors: ErrorMode
    sdk_disabled: bool


def error_mode(environ: Mapping[str, str] | None = None) -> ErrorMode:
    """Return the value of the option ``errors`` in the environment: ``swallow`` or ``raise``.

    The default is ``raise`` under pytest, and ``swallow`` otherwise.
    """
    environ = os.environ if environ is None else environ
    default = "raise" if "PYTEST_CURRENT_TEST" in environ else "swallow"
    given = environ.get(variable("errors"), "").strip() or default
    return "raise" if given == "raise" else "swallow"


def _refuse_unknown(options: Mapping[str, object]) -> None:
    known = [field.name for field in fields(Config)]
    for name in options:
        if name not in known:
            msg = f"there is no option {name!r}{_meant(name, known)}"
            raise ConfigError(msg)


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    """Log a warning for each ``RAG_EVAL_`` variable whose name looks like a typo."""
    known = [DOCTOR, *(variable(name) for name in _PARSERS)]
    for name in environ:
        if name.startswith(PREFIX) and name not in known and (meant := _meant(name, known)):
            log.warning("%s is no variable of this library%s", name, meant)


def _meant(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


_OPENAI = "https://api.openai.com/v1"


def _embedder_for(options: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the default embedder: OpenAI's small model if the judge is OpenAI's, or hashing."""
    judge = options.get("judge", "lexical")
    found = parts_of(judge) if isinstance(judge, str) else None
    if found is None or found[0].name == "local":
        return "hashing"
    address = first_set(found[0].addresses, environ) or _OPENAI
    is_there = urlsplit(address).hostname == urlsplit(_OPENAI).hostname
    if found[0].name == "openai" and is_there:
        return "openai/text-embedding-3-small"
    _warn_of_hashing(judge)
    return "hashing"


@lru_cache(maxsize=64)
def _warn_of_hashing(judge: str) -> None:
    """Log once for each judge that the offline embedder is used, because no embedder is named."""
    log.warning(
        "no embedder is named beside the judge %s: the offline one (hashing) is used; name another"
        " with embedder=... or %s",
        judge,
        variable("embedder"),
    )


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "fusion": get_args(Fusion),
    "spans": get_args(Spans),
    "content": get_args(Content),
    "capture_content": get_args(ContentCapture),
    "explanations": get_args(Reasons),
    "score_events": get_args(ScoreEvents),
    "vector_stores": get_args(VectorStores),
    "contexts_from_prompt": get_args(ContextsFromPrompt),
    "drift": ("on", "off"),
    "errors": get_args(ErrorMode),
    "on_sigterm": get_args(OnSigterm),
}
_ITEMS = {
    "metrics": "metrics or names",
    **dict.fromkeys(("backends", "label_metrics", "metadata_keys", "span_conventions"), "names"),
}
_TEXTS = (
    *("budget", "at_budget", "prices", "redis"),
    *("prompts", "judge", "embedder"),
)


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(_ITEMS, names_in),
    **dict.fromkeys(("thresholds", "sampling_rules", "cascade"), str.strip),
    "redact": str.strip,
    **dict.fromkeys(NUMBERS, float),
    **dict.fromkeys(WHOLE, int),
    **dict.fromkeys((*_CHOICES, *_TEXTS), str.strip),
    **dict.fromkeys(("question_key", "answer_key"), str),
}


def _parse(name: str, value: str) -> Any:
    try:
        return _PARSERS[name](value)
    except ValueError as error:
        allowed = allowed_number(name) if name in NUMBERS else "JSON"
        msg = f"{variable(name)} must be {allowed}, not {value!r}"
        raise ConfigError(msg) from error


def _standard_content(environ: Mapping[str, str]) -> ContentCapture:
    return "span" if environ.get(_CONTENT_VARIABLE, "").lower() in _CONTENT_ON_SPANS else "off"


def _shown(name: str) -> str:
    return f"{name} ({variable(name)})"


def _check_choices(config: Config) -> None:
    for name, allowed in _CHOICES.items():
        value = getattr(config, name)
        if value not in allowed and not (name == "drift" and hasattr(value, "make_detector")):
            msg = f"{name} ({variable(name)}) must be one of {', '.join(allowed)}, not {value!r}"
            raise ConfigError(msg)


def _check_sequence(name: str, value: object) -> None:
    if isinstance(value, str):
        msg = f"{name} must be a sequence of {_ITEMS[name]}, not {value!r}"
        raise ConfigError(msg)


def _check_conventions(names: Sequence[str]) -> None:
    known = get_args(Convention)
    if "genai" not in names or not set(names) <= set(known):
        msg = (
            f"{_shown('span_conventions')} must be genai, or genai and openinference,"
            f" not {', '.join(map(str, names)) or 'empty'}"
        )
        raise ConfigError(msg)


def _check_cascade(config: Config) -> None:
    """Check that every turn has a chance to be chosen, so that the sample represents all turns."""
    if config.cascade is None:
        return
    check_model("judge", config.cascade, shown=_shown("cascade"))
    if config.cascade == config.judge:
        msg = f"cascade ({variable('cascade')}) and judge must differ, not both {config.judge!r}"
        raise ConfigError(msg)
    rates = (config.sample_rate, *(rule.rate for rule in config.chosen_rules))
    if min(rates) <= 0:
        msg = "with a cascade, sample_rate and the rates of rules must be above 0"
        raise ConfigError(msg)

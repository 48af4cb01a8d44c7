"""`Config`: every option, from keyword arguments or from the environment (``RAG_EVAL_<NAME>``)."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypedDict,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import urlsplit

from rag_eval_otel.environment import DOCTOR, PREFIX, first_set, names_in, switch, variable
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.log import log
from rag_eval_otel.prices import load_prices
from rag_eval_otel.providers import check_model, parts_of
from rag_eval_otel.sampling import SamplingRule, rates_of
from rag_eval_otel.types import (
    ChatModel,
    DriftSettings,
    Embedder,
    JudgeFunction,
    JudgeLike,
    MetricLike,
    Sample,
    TextEmbeddings,
)
from rag_eval_otel.untrusted import Redaction, function_of, redactor

if TYPE_CHECKING:
    from typing_extensions import Unpack

Spans = Literal["essential", "all", "none"]
ExportContent = Literal["foreign", "all", "none"]
ScoreEvents = Literal["log", "span", "both"]
ScoreAttributes = Literal["both", "openinference", "rag"]
Thresholds = str | os.PathLike[str] | Mapping[str, float]

_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OPENAI: Final = "https://api.openai.com/v1"

MAX_TEXT_CHARS: Final = 100_000  # the default of ``max_text_chars``: about fifty pages
_HELD_BYTES: Final = 64 * 1024  # of text, for each span of ``max_held``
_LEAST_HELD: Final = 64  # spans whose bytes are allowed in any case: enough for one long turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All options: metrics, judge, limits, and which texts are captured and exported.

    If an option cannot be used, `ConfigError` names the option, its value and the allowed values.
    """

    # Metrics and judge
    metrics: Sequence[str | MetricLike] = ("default",)
    """Metrics, their names, or names of sets: ``default`` (2 requests a turn) or ``dual`` (4)."""
    judge: str | JudgeLike | ChatModel | JudgeFunction = "lexical"
    """What scores: ``lexical`` (offline), ``<provider>/<model>``, a `Judge`, or a chat model."""
    embedder: str | Embedder | TextEmbeddings = "hashing"
    """``hashing`` (offline), ``<provider>/<model>``, an `Embedder`, or LangChain ``Embeddings``.

    The default in `from_env` is ``openai/text-embedding-3-small`` if the judge is an ``openai/``
    model at OpenAI's own address, and ``hashing`` otherwise.
    """
    prompts: str | None = None
    """A folder with prompts of your own, in files named like the built-in ones."""
    prices: str | os.PathLike[str] | Mapping[str, Any] | None = None
    """Prices of tokens: a table or a file. By default list prices, with the extra ``prices``."""
    explanations: bool = False
    """Whether the judge gives reasons to export. Reasons quote user data and cost tokens."""
    thresholds: Thresholds = field(default_factory=dict)
    """The lowest passing score of each metric, or the path of a ``.toml`` file with the scores."""
    label_metrics: Sequence[str] = ()
    """The metrics that decide the overall label. If empty, the judge names them, or all decide."""
    drift: bool | DriftSettings = True
    """Whether drift of scores is detected; a `drift.DriftOptions` says how."""
    backends: Sequence[str] = ()
    """Backends that get each score as their own object, for example ``phoenix`` or ``mlflow``."""

    # Sampling
    sample_rate: float | str | os.PathLike[str] | Sequence[SamplingRule | Mapping[str, Any]] = 1.0
    """The fraction of turns that are evaluated, 0 to 1, or rules for it, or their ``.json`` file.

    A rule gives the rate of turns by route, model, metadata or attributes. A last rule without
    ``match`` gives that of all other turns; otherwise all of them are evaluated.
    """
    cascade: str | JudgeLike | None = None
    """The judge that scores all turns before ``judge`` scores a sample, such as ``lexical``."""
    budget: str | None = None
    """What scoring may take: ``5 USD/day, 600 requests/minute, 2M tokens/hour, 60 turns/minute``.

    What is beyond it is not sent. The turns are skipped with the reason ``budget``, or have the
    scores of ``cascade`` alone.
    """
    redis: str | None = field(default=None, repr=False)
    """The URL of a Redis or Valkey server for a budget of several processes, except for turns."""

    # Limits
    hold_seconds: Annotated[float, (0, 3600)] = 10.0
    """Seconds that a span waits for its scores. Later scores go to a span of their own."""
    max_held: Annotated[int, (1, 1_000_000)] = 1024
    """The most spans that wait for scores, and 64 KiB of text for each of them on average.

    Further spans are exported with status ``overload``.
    """
    max_text_chars: Annotated[int, (100, math.inf)] = MAX_TEXT_CHARS
    """The most characters of a text; a turn has four times as many. A longer text is cut."""
    evaluation_timeout: Annotated[float, (0.001, math.inf)] = 30.0
    """Seconds after which an evaluation is cancelled."""
    concurrency: Annotated[int, (1, 10_000)] = 16
    """The most turns that are evaluated at the same time."""
    shutdown_seconds: Annotated[float, (0, 3600)] = 5.0
    """About how many seconds a shutdown takes at most, for running evaluations and the export."""
    host_hooks: bool = True
    """Whether a SIGTERM handler is set, and the searches of vector stores are wrapped.

    The handler is set where the default one stands, and exports the spans that wait. The wrapped
    methods (``similarity_search`` and its variants) are those of LangChain's vector stores.
    """

    # Capture and export
    spans: Spans = "essential"
    """Which LangChain runs get a span: the ``essential`` kinds of runs, ``all`` or ``none``."""
    export_content: ExportContent = "foreign"
    """Whose texts are exported: those on spans of other instrumentations, ``all``, or ``none``.

    Scores need no exported texts. ``none`` removes the texts from spans of other instrumentations.
    """
    contexts_from_prompt: bool = False
    """Whether contexts are read from the prompt, below a heading, if there is no retrieval."""
    score_events: ScoreEvents = "log"
    """Whether the events of scores are log records, events on the span of the turn, or both.

    Without a logger provider, they are on the span in any case.
    """
    judge_spans: bool = False
    """Whether each request to the judge is a span below the span of its turn."""
    on_sample: Callable[[Sample], object] | str | None = None
    """A function that gets each captured sample before scoring, or ``package.module:function``."""
    score_attributes: ScoreAttributes = "both"
    """Names of the scores on spans: ``rag.evaluation.*``, those of ``openinference``, or both."""
    redact: Redaction | str | None = None
    """A function that takes private parts out of a text, or ``package.module:function``."""
    metadata_keys: Sequence[str] = ()
    """Keys of metadata to export with the scores, beside session, user and conversation."""
    raise_errors: bool = False
    """Whether errors of this library are raised instead of logged, for tests."""

    def __post_init__(self) -> None:
        for name in _HINTS:
            _check(name, getattr(self, name))
        for name, read in (("thresholds", thresholds_of), ("sample_rate", rates_of)):
            value: object = read(getattr(self, name), where=_shown(name))
            object.__setattr__(self, name, value)
        redactor(self.redact)
        function_of("a Sample", self.on_sample, option="on_sample")
        check_model("judge", self.judge, shown=_shown("judge"))
        check_model("embedder", self.embedder, shown=_shown("embedder"))
        if self.cascade is not None:
            check_model("judge", self.cascade, shown=_shown("cascade"))
            if self.cascade == self.judge:
                cause = f"and judge must differ, not both {self.judge!r}"
                raise ConfigError(f"{_shown('cascade')} {cause}")
            if min(self.base_rate, *(rule.rate for rule in self.sampling_rules), 1) <= 0:
                msg = "with a cascade, sample_rate and the rates of its rules must be above 0"
                raise ConfigError(msg)
        if not self.limits and self.redis is not None:
            msg = f"{_shown('redis')} has no effect without a budget, such as budget='5 USD/day'"
            raise ConfigError(msg)
        if self.prices is not None:
            load_prices(self.prices)

    @property
    def limits(self) -> tuple[Limit, ...]:
        return limits_of(self.budget, where=_shown("budget"))

    @property
    def sampling_rules(self) -> tuple[SamplingRule, ...]:
        rules = () if isinstance(self.sample_rate, float) else self.sample_rate
        return tuple(rule for rule in cast("Sequence[SamplingRule]", rules) if rule.match)

    @property
    def base_rate(self) -> float:
        if isinstance(self.sample_rate, float):
            return self.sample_rate
        rules = cast("Sequence[SamplingRule]", self.sample_rate)
        return next((rule.rate for rule in rules if not rule.match), 1.0)

    @property
    def max_held_bytes(self) -> int:
        """The most bytes of text in held spans: 64 KiB for each of ``max_held``, at least 4 MiB."""
        return max(self.max_held, _LEAST_HELD) * _HELD_BYTES

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **options: Unpack[ConfigOptions]
    ) -> Config:
        """Return a `Config` from ``environ`` (``os.environ``); ``options`` take precedence.

        Raises `ConfigError` for an unknown option, and for a value that cannot be used.
        """
        environ = os.environ if environ is None else environ
        texts = {name: environ.get(variable(name)) for name in _HINTS}
        chosen: dict[str, Any] = {name: _parse(name, text) for name, text in texts.items() if text}
        if environ.get(_CONTENT, "").lower() in {"true", "span_only", "span_and_event"}:
            chosen.setdefault("export_content", "all")
        chosen |= {"raise_errors": raises_errors(environ), **options}
        if "embedder" not in chosen:
            chosen["embedder"] = _embedder_for(chosen.get("judge"), environ)
        for name in chosen.keys() - _HINTS.keys():
            raise ConfigError(f"there is no option {name!r}{_meant(name, list(_HINTS))}")
        known = [DOCTOR, *map(variable, _HINTS)]
        for name in environ:
            if name.startswith(PREFIX) and name not in known and (meant := _meant(name, known)):
                log.warning("%s is no variable of this library%s", name, meant)
        return cls(**chosen)


class ConfigOptions(TypedDict, total=False):
    """The fields of `Config` as keyword arguments."""

    metrics: Sequence[str | MetricLike]
    judge: str | JudgeLike | ChatModel | JudgeFunction
    embedder: str | Embedder | TextEmbeddings
    prompts: str | None
    prices: str | os.PathLike[str] | Mapping[str, Any] | None
    explanations: bool
    thresholds: Thresholds
    label_metrics: Sequence[str]
    drift: bool | DriftSettings
    backends: Sequence[str]
    sample_rate: float | str | os.PathLike[str] | Sequence[SamplingRule | Mapping[str, Any]]
    cascade: str | JudgeLike | None
    budget: str | None
    redis: str | None
    hold_seconds: float
    max_held: int
    max_text_chars: int
    evaluation_timeout: float
    concurrency: int
    shutdown_seconds: float
    host_hooks: bool
    spans: Spans
    export_content: ExportContent
    contexts_from_prompt: bool
    score_events: ScoreEvents
    judge_spans: bool
    on_sample: Callable[[Sample], object] | str | None
    score_attributes: ScoreAttributes
    redact: Redaction | str | None
    metadata_keys: Sequence[str]
    raise_errors: bool


_HINTS: Final[Mapping[str, Any]] = get_type_hints(Config, include_extras=True)


def allowed_values(name: str) -> str:
    """Return in words what an option may be; empty unless it is a number, choice or switch."""
    hint = _HINTS[name]
    if get_origin(hint) is Annotated:
        kind, (low, high) = get_args(hint)
        limits = f"between {low:,} and {high:,}" if math.isfinite(high) else f"at least {low:,}"
        return f"{'a whole number' if kind is int else 'a number'} {limits}"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return "True or False" if _is_switch(hint) else ""


def _is_switch(hint: Any) -> bool:
    return bool in (hint, *get_args(hint))


def _check(name: str, value: object) -> None:
    hint, is_allowed = _HINTS[name], True
    if get_origin(hint) is Annotated:
        kind, (low, high) = get_args(hint)
        is_number = isinstance(value, kind | int) and not isinstance(value, bool)
        is_allowed = is_number and low <= cast("float", value) <= high
    elif get_origin(hint) is Literal:
        is_allowed = value in get_args(hint)
    elif _is_switch(hint):
        is_drift = name == "drift" and hasattr(value, "make_detector")
        is_allowed = isinstance(value, bool) or is_drift
    elif get_origin(hint) is Sequence and isinstance(value, str):
        raise ConfigError(f"{name} must be a sequence of names, not {value!r}")
    if not is_allowed:
        raise ConfigError(f"{_shown(name)} must be {allowed_values(name)}, not {value!r}")


def _parse(name: str, text: str) -> Any:
    hint = _HINTS[name]
    try:
        if get_origin(hint) is Annotated:
            return get_args(hint)[0](text)
        if _is_switch(hint):
            return switch(text)
    except ValueError as error:
        allowed = allowed_values(name).replace("True or False", "on or off")
        raise ConfigError(f"{variable(name)} must be {allowed}, not {text!r}") from error
    return names_in(text) if get_origin(hint) is Sequence else text.strip()


def _shown(name: str) -> str:
    return f"{name} ({variable(name)})"


def raises_errors(environ: Mapping[str, str] = os.environ) -> bool:
    """Return the switch ``RAG_EVAL_RAISE_ERRORS``; if it is not set, True only under pytest."""
    text = environ.get(variable("raise_errors"))
    return _parse("raise_errors", text) is True if text else "PYTEST_CURRENT_TEST" in environ


def _meant(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


def _embedder_for(judge: object, environ: Mapping[str, str]) -> str:
    provider, _ = (isinstance(judge, str) and parts_of(judge)) or (None, "")
    if provider is None or provider.name == "local":
        return "hashing"
    address = first_set(provider.addresses, environ) or _OPENAI
    if provider.name == "openai" and urlsplit(address).hostname == urlsplit(_OPENAI).hostname:
        return "openai/text-embedding-3-small"
    _warn_of_hashing(str(judge))
    return "hashing"


@lru_cache(maxsize=64)
def _warn_of_hashing(judge: str) -> None:
    text = "no embedder is named beside the judge %s: the offline one (hashing) is used; see %s"
    log.warning(text, judge, variable("embedder"))


# The option `budget`
PERIODS: Final[Mapping[str, float]] = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
_SHORT: Final = {"min": "minute", "m": "minute", "h": "hour", "d": "day"}
_SCALE: Final = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000}
TURNS: Final = "turns"
_COUNTED: Final = ("requests", "tokens", TURNS)
_LIMIT: Final = re.compile(
    r"\s*(?P<amount>\d[\d_]*(?:\.\d+)?|\.\d+)(?:\s*(?P<scale>[kKM]))?\s+(?P<unit>[A-Za-z]+)"
    r"\s*(?:/|\bper\b)\s*(?P<period>[a-z]+)\s*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most ``amount`` of ``unit`` (such as ``tokens`` or ``USD``) in any ``seconds`` seconds."""

    amount: float
    unit: str
    seconds: float  # infinite for a whole run

    @property
    def is_money(self) -> bool:
        return self.unit not in {*_COUNTED, "judge requests"}

    @property
    def period(self) -> str:
        """The length of the window in words, such as ``day`` or ``90 s``; ``run`` if infinite."""
        names = {math.inf: "run", **{seconds: name for name, seconds in PERIODS.items()}}
        return names.get(self.seconds, f"{self.seconds:g} s")

    def __str__(self) -> str:
        amount = f"{self.amount:g}" if self.is_money else f"{self.amount:.0f}"
        return f"{amount} {self.unit}/{self.period}"


def limits_of(text: object, *, where: str) -> tuple[Limit, ...]:
    if text is None:
        return ()
    return tuple(_limit(part, where, text) for part in str(text).split(","))


def _limit(part: str, where: str, text: object) -> Limit:
    match = _LIMIT.fullmatch(part)
    period = match and PERIODS.get(_SHORT.get(match["period"], match["period"]))
    unit = match["unit"] if match else ""
    counted = next((name for name in _COUNTED if unit.lower() in {name, name[:-1]}), None)
    if match is None or period is None or not (counted or re.fullmatch("[A-Z]{3}", unit)):
        raise ConfigError(
            f"{where} must be limits such as '5 USD/day, 600 requests/minute, 60 turns/minute'"
            " (units: turns, requests, tokens, a currency of three capitals; periods: minute, hour,"
            f" day; numbers without a comma, such as 1000 or 1_000), not {text!r}"
        )
    amount = float(match["amount"].replace("_", "")) * _SCALE[match["scale"] or ""]
    if amount <= 0 or (counted and amount != int(amount)):
        kind = "a whole number" if counted else "a number"
        msg = f"{where}: the limit of {counted or unit} must be {kind} above 0, not {part!r}"
        raise ConfigError(msg)
    return Limit(amount=amount, unit=counted or unit, seconds=period)


# The option `thresholds`
_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def thresholds_of(thresholds: object, *, where: str) -> dict[str, float]:
    """Return the threshold of each metric; whether these metrics exist is not checked.

    ``thresholds``: a mapping, a TOML file or ``name=0.8,other=1``. `ConfigError` says ``where``.
    """
    if isinstance(thresholds, os.PathLike) or str(thresholds).endswith(".toml"):
        return read_thresholds(Path(cast("str", thresholds)))
    table = thresholds
    if isinstance(thresholds, str):
        pairs = [pair.partition("=") for pair in thresholds.split(",") if pair.strip()]
        numbers: dict[str, Any] = {name.strip(): text.strip() for name, _, text in pairs}
        for name, text in numbers.items():
            with suppress(ValueError):
                numbers[name] = float(text)
        table = numbers
        if "" in table or len(table) < len(pairs):
            msg = f"{where}: name each metric once, as in faithfulness=0.8, not {thresholds!r}"
            raise ConfigError(msg)
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{where} must map names of metrics to numbers, or be a .toml file, not {thresholds!r}"
        )
    for name, value in table.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            msg = f"{where}: a threshold must be a number, as in {name}=0.8, not {value!r}"
            raise ConfigError(msg)
    return {str(name): float(value) for name, value in table.items()}


def read_thresholds(path: Path) -> dict[str, float]:
    try:
        tables: Mapping[str, Any] = _toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the thresholds of {path} cannot be read: {error}") from error
    table = tables.get("thresholds")
    if not isinstance(table, Mapping) or set(tables) != {"thresholds"}:
        msg = f"{path} must have one table, [thresholds], of lines such as faithfulness = 0.8"
        raise ConfigError(msg)
    return thresholds_of(table, where=str(path))

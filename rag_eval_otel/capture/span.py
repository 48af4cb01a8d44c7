"""`SpanView`: the one shape in which dialects see a span, and whose turn a span tells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from opentelemetry.trace import INVALID_SPAN_CONTEXT

from rag_eval_otel import semconv
from rag_eval_otel.capture.text import USUAL, Keys, exact, exportable, json_in

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext


_NOTHING: Mapping[str, Any] = {}
_AS_IT_IS: Final = frozenset({str, bool, int, float, type(None)})
_DEPTH: Final = 50  # of containers within containers
_ITEMS: Final = 1_000_000  # of one value
_ARRAYS: Final = frozenset({"numpy", "pandas"})


class SpanView(Protocol):
    """A span as dialects read it. Times are nanoseconds since the epoch, None where unknown."""

    @property
    def name(self) -> str:
        """What the span is called."""

    @property
    def scope(self) -> str:
        """The name of the instrumentation scope: who recorded it."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Its attributes."""

    @property
    def events(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """The names and attributes of its events, in order."""

    @property
    def logs(self) -> Sequence[LogView]:
        """The log records written within it, in order."""

    @property
    def trace_id(self) -> int:
        """Its trace."""

    @property
    def span_id(self) -> int:
        """Its id within the trace."""

    @property
    def parent_id(self) -> int | None:
        """The id of its parent."""

    @property
    def parent_is_remote(self) -> bool:
        """Whether the parent is in another process."""

    @property
    def start(self) -> int:
        """When it started."""

    @property
    def end(self) -> int | None:
        """When it ended."""

    @property
    def error(self) -> str | None:
        """How it failed, or None."""

    @property
    def dropped(self) -> int:
        """How many attributes were dropped over the limit."""

    @property
    def dropped_events(self) -> int:
        """How many events were dropped over the limit."""

    @property
    def value_limit(self) -> int | None:
        """The length at which its values are cut, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """One log record."""

    event: str
    body: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def simple(value: Any) -> Any:
    """Return ``value`` as plain data: strings, numbers, lists and dicts of exactly these types.

    Members of Enums become their values, bytes text, arrays and frames lists. What is none of
    these becomes None: its ``str()`` would be no text of the application's. So does what holds
    itself, or more than anybody reads.
    """
    if type(value) in _AS_IT_IS:
        return value
    copy = _Copy()
    found = copy.of(value)
    return found if copy.left > 0 else None


class _Copy:
    """A copy of one value in the making."""

    __slots__ = ("_within", "left")

    def __init__(self) -> None:
        """Begin at the top."""
        self.left = _ITEMS
        self._within: set[int] = set()

    def of(self, value: Any) -> Any:
        """Return ``value`` as plain data."""
        self.left -= 1
        if type(value) in _AS_IT_IS:
            return value
        if isinstance(value, Enum):
            return self.of(value.value)
        if isinstance(value, str | bytes | bytearray | memoryview):
            return exact(value) if isinstance(value, str) else bytes(value).decode(errors="replace")
        if isinstance(value, int | float):
            return int(value) if isinstance(value, int) else float(value)
        if type(value).__module__.partition(".")[0] in _ARRAYS:
            return self._of_array(value)
        return self._of_container(value)

    def _of_array(self, value: Any) -> Any:
        """Return the rows of a frame as dicts, the items of an array, or one number or text."""
        if hasattr(value, "columns"):
            return self.of(value.to_dict("records"))
        items = value.tolist() if hasattr(value, "tolist") else None
        return None if type(items) is type(value) else self.of(items)

    def _of_container(self, value: Any) -> Any:
        is_circle = id(value) in self._within
        if is_circle or self.left <= 0 or len(self._within) >= _DEPTH:
            return None
        self._within.add(id(value))
        found: Any = None
        if isinstance(value, Mapping):
            found = {str(self.of(key)): self.of(item) for key, item in value.items()}
        elif isinstance(value, Sequence | AbstractSet):
            found = [self.of(item) for item in value]
        self._within.discard(id(value))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSpan:
    """A `SpanView` of plain data, and the keys under which to look for questions and answers."""

    name: str
    scope: str
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]]
    logs: Sequence[LogView]
    trace_id: int
    span_id: int
    parent_id: int | None
    parent_is_remote: bool
    start: int
    end: int | None
    error: str | None
    dropped: int
    dropped_events: int
    value_limit: int | None
    keys: Keys

    @classmethod
    def of(cls, view: SpanView, keys: Keys = USUAL) -> PlainSpan:
        """Return ``view`` with its values as plain data."""
        return cls(
            name=view.name,
            scope=view.scope,
            attributes=_values(view.attributes),
            events=[(name, _values(attributes)) for name, attributes in view.events],
            logs=[
                LogView(
                    event=exact(log.event),
                    body=simple(log.body),
                    attributes=_values(log.attributes),
                )
                for log in view.logs
            ],
            trace_id=view.trace_id,
            span_id=view.span_id,
            parent_id=view.parent_id,
            parent_is_remote=view.parent_is_remote,
            start=view.start,
            end=view.end,
            error=view.error,
            dropped=view.dropped,
            dropped_events=view.dropped_events,
            value_limit=view.value_limit,
            keys=keys,
        )


def _values(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    return {exact(name): simple(value) for name, value in attributes.items()}


def word(view: SpanView, name: str) -> str | None:
    """Return one short attribute as text, as `PlainSpan` has it: kinds, names."""
    found = view.attributes.get(name)
    if type(found) is str or found is None:
        return found
    found = simple(found)
    return None if found is None else str(found)


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    """Return the attributes of ``span``; to be looked at only.

    Where the SDK keeps them as it does today, this does without the two wrappers around them, which
    cost more than all else that is done on the application's thread.
    """
    try:
        return span._attributes._dict  # type: ignore[no-any-return,union-attr]  # noqa: SLF001
    except AttributeError:
        return span.attributes or _NOTHING


def bears_none(names: frozenset[str], span: ReadableSpan) -> bool:
    """Tell whether the ended ``span`` has none of these attributes, and none was dropped.

    Every span is asked, in one frame for the same reason.
    """
    try:
        attributes: Any = span._attributes  # noqa: SLF001
        return names.isdisjoint(attributes._dict) and not attributes.dropped  # noqa: SLF001
    except AttributeError:
        return names.isdisjoint(span.attributes or ()) and not span.dropped_attributes


class SdkSpan:
    """A span of the SDK as a `SpanView`.

    Identity and attributes are looked up once: the application's thread asks for them many times.
    """

    __slots__ = (
        "_logs",
        "_span",
        "attributes",
        "context",
        "name",
        "parent_id",
        "parent_is_remote",
        "scope",
        "span_id",
        "trace_id",
    )

    def __init__(self, span: ReadableSpan, logs: Sequence[LogView] = ()) -> None:
        """View ``span``, within which ``logs`` were written."""
        self._span = span
        self._logs = logs
        self.name = span.name
        scope = span.instrumentation_scope
        self.scope = scope.name if scope is not None else ""
        self.attributes: Mapping[str, Any] = attributes_of(span)
        self.context: SpanContext = span.context or INVALID_SPAN_CONTEXT
        self.trace_id = self.context.trace_id
        self.span_id = self.context.span_id
        parent = span.parent
        self.parent_id = parent.span_id if parent is not None else None
        self.parent_is_remote = parent is not None and parent.is_remote

    def is_of(self, other: SdkSpan) -> bool:
        """Tell whether both are views of one span, which the SDK hands out in copies."""
        return (self.name, self.start, self.end) == (other.name, other.start, other.end)

    @property
    def events(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """The names and attributes of its events."""
        return [(event.name, event.attributes or _NOTHING) for event in self._span.events]

    @property
    def logs(self) -> Sequence[LogView]:
        """The log records written within it."""
        return self._logs

    @property
    def start(self) -> int:
        """When it started."""
        return self._span.start_time or 0

    @property
    def end(self) -> int | None:
        """When it ended."""
        return self._span.end_time

    @property
    def error(self) -> str | None:
        """How it failed."""
        if self._span.status.is_ok or self._span.status.is_unset:
            return None
        kind = self.attributes.get("error.type")
        return str(kind or self._span.status.description or "error")

    @property
    def dropped(self) -> int:
        """How many attributes were dropped."""
        return self._span.dropped_attributes

    @property
    def dropped_events(self) -> int:
        """How many events were dropped."""
        return self._span.dropped_events

    @property
    def value_limit(self) -> int | None:
        """The length at which values are cut: the provider's, where the SDK tells."""
        found = getattr(getattr(self._span, "_attributes", None), "max_value_len", None)
        return found if isinstance(found, int) else None


Scalar: TypeAlias = "str | bool | int | float"

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    semconv.SESSION_ID: ("session.id", "session_id", "langfuse_session_id", "mlflow.trace.session"),
    semconv.USER_ID: ("user.id", "user_id", "langfuse_user_id", "mlflow.trace.user", "enduser.id"),
    semconv.GEN_AI_CONVERSATION_ID: ("gen_ai.conversation.id", "conversation_id", "thread_id"),
}
"""Standard names, and what is called so in metadata of LangChain and of tracing libraries."""

_KNOWN: Final = frozenset(name for names in _NAMES.values() for name in names)


def metadata_in(attributes: Mapping[str, Any], prefixes: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return the metadata of the application in ``attributes``, by names without a prefix.

    Metadata is in the attribute ``metadata`` as JSON, in attributes with one of ``prefixes`` or
    with ``metadata.``, and in attributes of a standard name, such as ``session.id``.
    """
    prefixes = (*prefixes, "metadata.")
    metadata = json_in(attributes.get("metadata"))
    found: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
    for name, value in attributes.items():
        prefix = next((one for one in prefixes if name.startswith(one)), None)
        if prefix is not None:
            text = json_in(value, opening='"')  # Langfuse writes texts as JSON
            found.setdefault(name.removeprefix(prefix), value if text is None else text)
        elif name in _KNOWN:
            found[name] = value
    return found


def about(metadata: Iterable[Mapping[str, Any]], keys: Iterable[str] = ()) -> dict[str, Scalar]:
    """Return who a turn was for, by the standard names, and what the user wants kept by ``keys``.

    What comes first counts. A session that is nobody's conversation is one.
    """
    merged: dict[str, Any] = {}
    for one in metadata:
        for name, value in one.items():
            if value is not None and value != "":
                merged.setdefault(name, value)
    found: dict[str, Scalar] = {}
    for standard, names in _NAMES.items():
        known = next((merged[name] for name in names if name in merged), None)
        if known and isinstance(known, str | int) and known is not True:
            found[standard] = exportable(str(known))
    if semconv.SESSION_ID in found:
        found.setdefault(semconv.GEN_AI_CONVERSATION_ID, found[semconv.SESSION_ID])
    for key in keys:
        value = merged.get(key)
        if isinstance(value, str | bool | int | float):
            found[semconv.METADATA_PREFIX + key] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Bystander:
    """A span that is no step of RAG, as a `SpanView`: its place in the trace, and no content."""

    context: SpanContext
    name: str
    scope: str
    parent_id: int | None
    parent_is_remote: bool
    start: int
    end: int | None
    error: str | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    logs: Sequence[LogView] = ()
    dropped: int = 0
    dropped_events: int = 0
    value_limit: int | None = None

    @classmethod
    def of(cls, view: SdkSpan) -> Bystander:
        """Return ``view`` as it is now."""
        return cls(
            context=view.context,
            name=view.name,
            scope=view.scope,
            parent_id=view.parent_id,
            parent_is_remote=view.parent_is_remote,
            start=view.start,
            end=view.end,
            error=view.error,
        )

    @property
    def trace_id(self) -> int:
        """Its trace."""
        return self.context.trace_id

    @property
    def span_id(self) -> int:
        """Its id."""
        return self.context.span_id

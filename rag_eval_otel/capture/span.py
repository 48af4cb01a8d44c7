"""Define `SpanView`, the form in which this library reads spans.

A *convention* is a module that reads the attribute names of one instrumentation. Its functions get
each span as a `SpanView`, whether the span comes from the OpenTelemetry SDK or from an exported
file. This module also finds the session, the user and other metadata in the attributes of a span.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from opentelemetry.trace import INVALID_SPAN_CONTEXT

from rag_eval_otel import semconv
from rag_eval_otel.capture.values import USUAL, Keys, exact, exportable, json_in
from rag_eval_otel.config import MAX_TEXT_CHARS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext


_NOTHING: Mapping[str, Any] = {}
_AS_IT_IS: Final = frozenset({bool, int, float, type(None)})
_DEPTH: Final = 50  # levels of containers within containers that are copied
_ITEMS: Final = 1_000_000  # the most items of one value that are copied
_SEVERAL: Final = 4  # JSON has several texts: it may be so many times as long as one text
_ARRAYS: Final = frozenset({"numpy", "pandas"})


class SpanView(Protocol):
    """A span in the form in which its attributes are read. Times are nanoseconds since the epoch.

    ``scope`` is the name of the instrumentation scope. ``events`` are pairs of an event name and
    the attributes of the event. ``logs`` are the log records that were written within the span.
    ``error`` is the type or message of the error with which the span failed, or None. ``dropped``
    is the number of attributes, and ``dropped_events`` the number of events, that the SDK dropped
    because of its limits. ``value_limit`` is the length to which the SDK cuts attribute values. It
    is None if there is no limit or if the limit is not known. ``end`` is None while the span is
    open.
    """

    @property
    def name(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    @property
    def events(self) -> Sequence[tuple[str, Mapping[str, Any]]]: ...
    @property
    def logs(self) -> Sequence[LogView]: ...
    @property
    def trace_id(self) -> int: ...
    @property
    def span_id(self) -> int: ...
    @property
    def parent_id(self) -> int | None: ...
    @property
    def parent_is_remote(self) -> bool: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def dropped(self) -> int: ...
    @property
    def dropped_events(self) -> int: ...
    @property
    def value_limit(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """One log record that was written within a span."""

    event: str
    body: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def simple(value: Any) -> Any:
    """Return ``value`` as plain data: strings, numbers, lists and dicts of exactly these types.

    A member of an Enum becomes its value. Bytes become text. Arrays and data frames become lists.
    An object of any other type becomes None, because its ``str()`` is not a text of the
    application. If a container contains itself, the inner reference becomes None. If ``value`` has
    more than a million items, return None.
    """
    return Copier().value(value)


class Copier:
    """Copies values into plain data, with texts of at most ``most`` characters.

    A longer text is cut after ``most`` + 1 characters: then its length shows that it is not whole.
    ``is_cut`` says whether a text was cut. JSON is parsed if it is longer than one text, so that
    each of its texts is cut by itself, but cut if it is more than four times as long.
    """

    __slots__ = ("_left", "_within", "is_cut", "most")

    def __init__(self, most: int = MAX_TEXT_CHARS) -> None:
        self.most = most
        self.is_cut = False
        self._left = _ITEMS
        self._within: set[int] = set()

    def value(self, value: Any) -> Any:
        """Return a copy of ``value``; see `simple`."""
        if type(value) is str:
            return value if len(value) <= self.most else self._of_long(value)
        if type(value) in _AS_IT_IS:
            return value
        self._left = _ITEMS
        found = self._of(value)
        return found if self._left > 0 else None

    def _of_long(self, text: str) -> Any:
        data = json_in(text, opening="{[") if len(text) <= _SEVERAL * self.most else None
        return self._text(text) if data is None else self.value(data)

    def _text(self, text: str) -> str:
        self.is_cut |= len(text) > self.most
        return text[: self.most + 1]

    def _of(self, value: Any) -> Any:
        self._left -= 1
        if type(value) in _AS_IT_IS:
            return value
        if isinstance(value, Enum):
            return self._of(value.value)
        if isinstance(value, bytes | bytearray | memoryview):
            value = bytes(value).decode(errors="replace")
        if isinstance(value, str):
            return self._text(exact(value))
        if isinstance(value, int | float):
            return int(value) if isinstance(value, int) else float(value)
        if type(value).__module__.partition(".")[0] in _ARRAYS:
            return self._of_array(value)
        return self._of_container(value)

    def _of_array(self, value: Any) -> Any:
        """Return a numpy or pandas value as plain data.

        A data frame becomes a list of dicts, one for each row. An array becomes a list, and a numpy
        scalar becomes a number or a text.
        """
        if hasattr(value, "columns"):
            return self._of(value.to_dict("records"))
        items = value.tolist() if hasattr(value, "tolist") else None
        return None if type(items) is type(value) else self._of(items)

    def _of_container(self, value: Any) -> Any:
        is_circle = id(value) in self._within
        if is_circle or self._left <= 0 or len(self._within) >= _DEPTH:
            return None
        self._within.add(id(value))
        found: Any = None
        if isinstance(value, Mapping):
            found = {str(self._of(key)): self._of(item) for key, item in value.items()}
        elif isinstance(value, Sequence | AbstractSet):
            found = [self._of(item) for item in value]
        self._within.discard(id(value))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSpan:
    """A `SpanView` whose attributes, events and log records are plain data.

    Plain data are strings, numbers, lists and dicts. ``keys`` are the dict keys under which the
    application keeps questions and answers.
    """

    name: str
    scope: str
    span_id: int
    parent_id: int | None
    start: int
    end: int | None
    error: str | None
    keys: Keys
    trace_id: int = 0
    parent_is_remote: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    logs: Sequence[LogView] = ()
    dropped: int = 0
    dropped_events: int = 0
    value_limit: int | None = None
    is_cut: bool = False
    """Whether a text of the span was longer than the limit of texts."""

    @classmethod
    def of(cls, view: SpanView, keys: Keys = USUAL, *, most: int = MAX_TEXT_CHARS) -> PlainSpan:
        """Copy ``view``, with texts of at most ``most`` characters: see `Copier`."""
        copier = Copier(most)
        return cls(
            name=view.name[:most],
            scope=view.scope[:most],
            attributes=_values(view.attributes, copier),
            events=[(name[:most], _values(values, copier)) for name, values in view.events],
            logs=[
                LogView(
                    event=exact(log.event)[:most],
                    body=copier.value(log.body),
                    attributes=_values(log.attributes, copier),
                )
                for log in view.logs
            ],
            is_cut=copier.is_cut,
            trace_id=view.trace_id,
            span_id=view.span_id,
            parent_id=view.parent_id,
            parent_is_remote=view.parent_is_remote,
            start=view.start,
            end=view.end,
            error=view.error,
            dropped=view.dropped,
            dropped_events=view.dropped_events,
            value_limit=min(most + 1, view.value_limit or most + 1),
            keys=keys,
        )


def _values(attributes: Mapping[str, Any], copier: Copier) -> Mapping[str, Any]:
    return {exact(name): copier.value(value) for name, value in attributes.items()}


def word(view: SpanView, name: str) -> str | None:
    """Return the value of the attribute ``name`` of a span as text, or None if it is missing.

    The value is short, such as a kind or a name.
    """
    found = view.attributes.get(name)
    if type(found) is str or found is None:
        return found
    found = simple(found)
    return None if found is None else str(found)


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    """Return the attributes of ``span`` as the SDK stores them. The caller must not change them.

    If the SDK has a private dict of the attributes, this dict is read. The two wrappers around the
    dict cost more time than everything else that this library does on the application's thread.
    """
    try:
        return span._attributes._dict  # type: ignore[no-any-return,union-attr]  # noqa: SLF001
    except AttributeError:
        return span.attributes or _NOTHING


def has_none(names: frozenset[str], span: ReadableSpan) -> bool:
    """Return True if ``span`` has no attribute of ``names`` and the SDK dropped no attribute.

    This is called for every span of the application when the span has ended. So it reads the SDK's
    private dict of attributes, which is faster than the public property.
    """
    try:
        attributes: Any = span._attributes  # noqa: SLF001
        return names.isdisjoint(attributes._dict) and not attributes.dropped  # noqa: SLF001
    except AttributeError:
        return names.isdisjoint(span.attributes or ()) and not span.dropped_attributes


class SdkSpan:
    """Presents a span of the OpenTelemetry SDK as a `SpanView`.

    The ids, the name and the attributes of the span are looked up once, because the application's
    thread reads them often.
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

    def is_of(self, other: SpanView) -> bool:
        """Return True if this view and ``other`` show the same span.

        The SDK makes copies of a span, so the names and the times of the two spans are compared.
        """
        return (self.name, self.start, self.end) == (other.name, other.start, other.end)

    def add_log(self, record: LogView) -> None:
        """Add a log record that was written within the span, and is known after the span only."""
        self._logs = (*self._logs, record)

    @property
    def events(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return [(event.name, event.attributes or _NOTHING) for event in self._span.events]

    @property
    def logs(self) -> Sequence[LogView]:
        return self._logs

    @property
    def start(self) -> int:
        return self._span.start_time or 0

    @property
    def end(self) -> int | None:
        return self._span.end_time

    @property
    def error(self) -> str | None:
        if self._span.status.is_ok or self._span.status.is_unset:
            return None
        kind = self.attributes.get("error.type")
        return str(kind or self._span.status.description or "error")

    @property
    def dropped(self) -> int:
        return self._span.dropped_attributes

    @property
    def dropped_events(self) -> int:
        return self._span.dropped_events

    @property
    def value_limit(self) -> int | None:
        """The length to which the SDK cuts attribute values, or None if no limit is known."""
        found = getattr(getattr(self._span, "_attributes", None), "max_value_len", None)
        return found if isinstance(found, int) else None


Scalar: TypeAlias = "str | bool | int | float"

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    semconv.SESSION_ID: ("session.id", "session_id", "langfuse_session_id", "mlflow.trace.session"),
    semconv.USER_ID: ("user.id", "user_id", "langfuse_user_id", "mlflow.trace.user", "enduser.id"),
    semconv.GEN_AI_CONVERSATION_ID: ("gen_ai.conversation.id", "conversation_id", "thread_id"),
}
"""The standard name of an attribute, and the names under which applications may write its value.

The names are used by LangChain applications and by tracing libraries.
"""

_KNOWN: Final = frozenset(name for names in _NAMES.values() for name in names)


def metadata_in(attributes: Mapping[str, Any], prefixes: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return the metadata that the application wrote into the span ``attributes``, by name.

    Metadata may be in three kinds of attributes: in the attribute ``metadata`` as a JSON object, in
    attributes whose name begins with ``metadata.`` or with one of ``prefixes``, and in attributes
    with a known name such as ``session.id``. The prefix is removed from the returned names.
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
    """Return the session, user and conversation of a trace by their standard attribute names.

    ``metadata`` contains the metadata of each step of the trace. If several steps have the same
    name, the first value counts. ``keys`` are the names of further metadata to return. If there is
    no conversation id, the session id is returned as conversation id, too.
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


ROUTES: Final = ("http.route", "url.path", "http.target")
"""The attributes with the route of a web request, the most general first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bystander:
    """A span that is no part of RAG, as a `SpanView` without events and log records.

    The span is kept because its parent id connects other spans of the trace. Of its attributes,
    only the route of a web request is kept, for sampling rules.
    """

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
        return cls(
            context=view.context,
            name=view.name,
            scope=view.scope,
            parent_id=view.parent_id,
            parent_is_remote=view.parent_is_remote,
            start=view.start,
            end=view.end,
            error=view.error,
            attributes={name: view.attributes[name] for name in ROUTES if name in view.attributes},
        )

    @property
    def trace_id(self) -> int:
        return self.context.trace_id

    @property
    def span_id(self) -> int:
        return self.context.span_id

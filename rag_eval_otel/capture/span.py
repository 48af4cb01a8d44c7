"""Define `Span`, the one form of spans and LangChain runs, and read the metadata on spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext

from rag_eval_otel import semconv
from rag_eval_otel.capture.values import CUT, SCALARS, TEXT_OR_JSON, exportable, json_in, read
from rag_eval_otel.config import MAX_TEXT_CHARS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_NOTHING: Mapping[str, Any] = {}
MOST_ATTRIBUTES: Final = 128  # of a span, if it has no limit of its own
_DEPTH: Final = 50  # levels of containers within containers that are copied
_EXACT: Final = SCALARS | {dict, list, tuple}
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200  # flags of a span in OTLP
ROUTES: Final = ("http.route", "url.path", "http.target")  # the most general first


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """A log record that was written within a span."""

    event: str
    body: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_otlp(cls, record: Any) -> LogView:
        attributes = attributes_of_otlp(record)
        event = record.event_name or str(attributes.get("event.name") or "")
        return cls(event=event, body=_value_of_otlp(record.body), attributes=attributes)


@dataclass(slots=True, kw_only=True)  # not frozen: that costs the application microseconds
class Span:
    """A span or a LangChain run. Times are nanoseconds since the epoch."""

    name: str
    span_id: int
    start: int
    end: int | None = None
    scope: str = ""
    trace_id: int = 0
    parent_id: int | None = None
    parent_is_remote: bool = False
    context: SpanContext = INVALID_SPAN_CONTEXT
    error: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    logs: Sequence[LogView] = ()
    links: Sequence[Any] = ()
    dropped: int = 0
    dropped_events: int = 0
    value_limit: int | None = None  # the length at which the SDK cuts texts
    service: str = ""
    is_cut: bool = False  # whether `plain` has cut a text

    @classmethod
    def from_sdk(cls, span: ReadableSpan) -> Span:
        """Return ``span`` as a `Span` that refers to its attribute values without copying them."""
        context, parent, scope = span.context, span.parent, span.instrumentation_scope
        context = context or INVALID_SPAN_CONTEXT
        attributes, status = attributes_of(span), span.status
        error = None
        if not (status.is_unset or status.is_ok):
            error = str(attributes.get("error.type") or status.description or "error")
        events = () if span.end_time is None else span.events  # an open span is not read yet
        return cls(
            name=span.name,
            span_id=context.span_id,
            start=span.start_time or 0,
            end=span.end_time,
            scope=scope.name if scope is not None else "",
            trace_id=context.trace_id,
            parent_id=parent.span_id if parent is not None else None,
            parent_is_remote=parent is not None and parent.is_remote,
            context=context,
            error=error,
            attributes=attributes,
            events=[(event.name, event.attributes or _NOTHING) for event in events],
            links=getattr(span, "_links", ()),  # not copied
            dropped=span.dropped_attributes,
            dropped_events=span.dropped_events,
            value_limit=limits_of(span)[1],
        )

    @classmethod
    def from_otlp(cls, span: Any, **more: Any) -> Span:
        """Return the protobuf message ``span`` as a `Span`; ``more`` are fields that it lacks."""
        attributes = attributes_of_otlp(span)
        parent_id = int.from_bytes(span.parent_span_id, "big") or None
        says_remote = bool(span.flags & _HAS_REMOTE)
        is_entry = span.kind in {span.SPAN_KIND_SERVER, span.SPAN_KIND_CONSUMER}
        is_remote = bool(span.flags & _IS_REMOTE) if says_remote else is_entry
        has_failed = span.status.code == span.status.STATUS_CODE_ERROR
        error = str(attributes.get("error.type") or span.status.message or "error")
        return cls(
            name=span.name,
            span_id=int.from_bytes(span.span_id, "big"),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano or None,
            trace_id=int.from_bytes(span.trace_id, "big"),
            parent_id=parent_id,
            parent_is_remote=parent_id is not None and is_remote,
            error=error if has_failed else None,
            attributes=attributes,
            events=[(event.name, attributes_of_otlp(event)) for event in span.events],
            links=span.links,
            dropped=span.dropped_attributes_count,
            dropped_events=span.dropped_events_count,
            **more,
        )

    def plain(self, most: int = MAX_TEXT_CHARS) -> Span:
        """Return a copy of plain data; `read` will see that texts over ``most`` were cut."""
        copier = Copier(most)
        logs = [
            LogView(
                event=str.__str__(log.event)[:most],
                body=copier.value(log.body),
                attributes=copier.values(log.attributes),
            )
            for log in self.logs
        ]
        return replace(
            self,
            name=self.name[:most],
            scope=self.scope[:most],
            attributes=copier.values(self.attributes),
            events=[(name[:most], copier.values(values)) for name, values in self.events],
            logs=logs,
            value_limit=min(most + 1, self.value_limit or most + 1),
            is_cut=copier.is_cut,
        )

    def bystander(self) -> Span:
        """Return a copy that has only the web route as attributes, for a span outside of RAG."""
        routes = {name: self.attributes[name] for name in ROUTES if name in self.attributes}
        return replace(self, attributes=routes, events=(), logs=())


def attributes_of_otlp(message: Any) -> dict[str, Any]:
    return {item.key: _value_of_otlp(item.value) for item in message.attributes}


def _value_of_otlp(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value_of_otlp(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _value_of_otlp(item.value) for item in value.kvlist_value.values}
    return None if kind is None else getattr(value, kind)


@dataclass(slots=True, eq=False, repr=False)
class Copier:
    """Copies values into built-in scalars, lists and dicts; cuts texts over ``most`` characters."""

    most: int = MAX_TEXT_CHARS
    is_cut: bool = False

    def values(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {str.__str__(name): self.value(value) for name, value in attributes.items()}

    def value(self, value: Any, within: tuple[int, ...] = ()) -> Any:
        if type(value) not in _EXACT:  # slow, and rare
            value = _exact_value(value)
        kind = type(value)
        if kind in SCALARS:
            is_long = kind is str and len(value) > self.most
            return self._part(value, may_be_json=not within) if is_long else value
        if len(within) == _DEPTH or id(value) in within:
            return None
        within = (*within, id(value))
        if kind is not dict and not isinstance(value, Mapping):
            return self._all(value, within)
        parts = self._all(chain.from_iterable(value.items()), within)
        return dict(zip(map(str, parts[::2]), parts[1::2], strict=True))

    def _all(self, values: Iterable[Any], within: tuple[int, ...]) -> list[Any]:
        copies = []
        for value in values:
            is_short = type(value) is str and len(value) <= self.most  # most values are
            copies.append(value if is_short else self.value(value, within))
        return copies

    def _part(self, text: str, *, may_be_json: bool) -> Any:
        if may_be_json and len(text) <= 4 * self.most:  # JSON has several texts
            data = json_in(text, opening="{[")
            if data is not None:
                return self.value(data, (id(text),))
        self.is_cut = True
        return text[: self.most + 1]


def _exact_value(value: Any) -> Any:
    """Return a scalar as one of a built-in type, a container as it is, and None for the others."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode(errors="replace")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    return value if isinstance(value, Mapping | Sequence | AbstractSet) else None


def word(view: Span, name: str) -> str | None:
    """Return a short attribute, such as a kind or a name, as text without parsing it, or None."""
    value = view.attributes.get(name)
    if value is None or type(value) is str:
        return value
    value = Copier().value(value)
    return None if value is None else str(value)


def value(view: Span, *keys: str, opening: str = TEXT_OR_JSON) -> Any:
    """Read the first of the attributes ``keys``; `CUT` if none is there and some were dropped."""
    for key in keys:
        found = view.attributes.get(key)
        if found is not None:
            return read(found, limit=view.value_limit, opening=opening)
    return CUT if view.dropped else None


def attributes_of(span: Any) -> Mapping[str, Any]:
    """Return the attributes of ``span`` as the SDK stores them, without its slow wrappers."""
    try:
        return span._attributes._dict  # type: ignore[no-any-return]  # noqa: SLF001
    except AttributeError:
        return getattr(span, "attributes", None) or _NOTHING


def limits_of(span: Any) -> tuple[int | None, int | None]:
    """Return the SDK's limits for ``span``: attributes, characters of a value; None: no limit."""
    attributes = getattr(span, "_attributes", None)
    most = getattr(attributes, "maxlen", MOST_ATTRIBUTES)
    length = getattr(attributes, "max_value_len", None)
    return most, length if isinstance(length, int) else None


def has_none(names: frozenset[str], span: ReadableSpan) -> bool:
    """Return True if ``span`` has no attribute of ``names``, and none was dropped."""
    try:  # for every span of the application, without the SDK's slow wrappers
        attributes: Any = span._attributes  # noqa: SLF001
        return names.isdisjoint(attributes._dict) and not attributes.dropped  # noqa: SLF001
    except AttributeError:
        return names.isdisjoint(span.attributes or ()) and not span.dropped_attributes


Scalar: TypeAlias = "str | bool | int | float"

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {  # under which applications write these values
    semconv.SESSION_ID: ("session.id", "session_id", "langfuse_session_id", "mlflow.trace.session"),
    semconv.USER_ID: ("user.id", "user_id", "langfuse_user_id", "mlflow.trace.user", "enduser.id"),
    semconv.GEN_AI_CONVERSATION_ID: ("gen_ai.conversation.id", "conversation_id", "thread_id"),
}
_KNOWN: Final = frozenset(chain.from_iterable(_NAMES.values()))


def metadata_in(attributes: Mapping[str, Any], prefixes: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return the metadata that the application wrote into ``attributes``, by name."""
    prefixes = (*prefixes, "metadata.")
    data = json_in(attributes.get("metadata"))
    metadata: dict[str, Any] = data if isinstance(data, dict) else {}
    for name, value in attributes.items():
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if prefix is not None:
            text = json_in(value, opening='"')  # Langfuse writes texts as JSON
            metadata.setdefault(name.removeprefix(prefix), value if text is None else text)
        elif name in _KNOWN:
            metadata[name] = value
    return metadata


def about(metadata: Iterable[Mapping[str, Any]], keys: Iterable[str] = ()) -> dict[str, Scalar]:
    """Return attributes for scored spans: session, user, conversation, and metadata ``keys``."""
    merged: dict[str, Any] = {}
    for name, value in chain.from_iterable([values.items() for values in metadata]):
        if value is not None and value != "":
            merged.setdefault(name, value)
    known: dict[str, Scalar] = {}
    for standard, names in _NAMES.items():
        value = next((merged[name] for name in names if name in merged), None)
        if value and isinstance(value, str | int) and value is not True:
            known[standard] = exportable(str(value))
    if semconv.SESSION_ID in known:
        known.setdefault(semconv.GEN_AI_CONVERSATION_ID, known[semconv.SESSION_ID])
    for key in keys:
        if isinstance(merged.get(key), str | bool | int | float):
            known[semconv.METADATA_PREFIX + key] = merged[key]
    return known

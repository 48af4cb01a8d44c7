"""Check what this library exports against the facts of both conventions, `conventions.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, Span
from opentelemetry.trace import SpanKind

from rag_eval_otel import semconv
from rag_eval_otel.export.attributes import EventLog, SpanScores

PATH = Path(__file__).parents[2] / "shared" / "spec" / "conventions.json"
FACTS: Mapping[str, Any] = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
EVENT = "gen_ai.evaluation.result"
OURS = re.compile(r"rag\.|((trace|session)\.)?(evaluations|annotations)\.")
CONVENTIONS = re.compile(r"gen_ai\.|openinference\.|llm\.|tool\.|retrieval\.|(in|out)put\.")
OBJECT = re.compile(r"((?:trace\.|session\.)?(evaluation|annotation)s)\.(\d{1,9})\.\2\.(\w+)")


def _is_object(value: Any) -> bool:
    return isinstance(value, str) and isinstance(json.loads(value), dict)


def _many(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Sequence) and {*map(type, value)} <= {kind}


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: type(value) is str,
    "double": lambda value: type(value) is float,
    "int": lambda value: type(value) is int,
    "boolean": lambda value: type(value) is bool,
    "string[]": _many(str),
    "int[]": _many(int),
    "any": lambda _: True,
    "string:json_object": _is_object,
}


@cache
def fact(name: str) -> Mapping[str, Any] | None:
    for one in FACTS["attributes"]:
        pattern = one["name"] if one.get("regex") else re.escape(one["name"])
        if re.match(pattern, name) if one.get("regex") else re.fullmatch(pattern, name):
            return dict(one)
    return None


def of_attribute(name: str, value: Any, places: set[str]) -> Iterator[str]:
    known = fact(name)
    never = {one["name"] for one in FACTS["never_write"]}
    if known is None or name in never or known["use"] == "write_if_proposals":
        if known is not None or name in never or name.startswith("gen_ai."):
            yield f"{name} is not to be written"
        return
    if not any(TYPES[one](value) for one in known["type"].split("|")):
        yield f"{name} = {value!r} is no {known['type']}"
    allowed = {*known.get("values", ()), *known.get("new_values", ())}
    if allowed and not known.get("open") and value not in allowed:
        yield f"{name} = {value!r} is none of {sorted(map(str, allowed))}"
    if value in known.get("not_values", ()) or (value == "" and OBJECT.fullmatch(name)):
        yield f"{name} = {value!r} is not allowed"
    if any(str(value).startswith(one) for one in known.get("not_prefix", ())):
        yield f"{name} = {value!r} is no id of a provider"
    also = {place for place in places if place in known.get("also", "")}
    if places and places.isdisjoint(known["where"]) and not also:
        yield f"{name} is not for {sorted(places)}"
    yield from (f"{name}: {told}" for told in of_payload(known.get("schema"), value))


def of_payload(schema: str | None, value: Any) -> Iterator[str]:
    found = json.loads(value) if isinstance(value, str) and schema else value
    if schema == "object" and not isinstance(found, dict):
        yield "is no object"
    if schema == "documents" and any(None in one.values() for one in found):
        yield "has a null"
    for message in found if schema == "messages" else ():
        parts = FACTS["payloads"]["messages"]["parts"]
        if not isinstance(message["role"], str) or "finish_reason" in message:
            yield "has a wrong message"
        for part in message["parts"]:
            if not set(parts[part["type"]]) <= part.keys():
                yield f"has an incomplete part {part['type']}"


def of_objects(found: Mapping[str, Any]) -> Iterator[str]:
    """Check the feedback of OpenInference: complete, contiguous, and equal to that in our names."""
    objects: dict[tuple[str, int], dict[str, Any]] = {}
    for name, value in found.items():
        if match := OBJECT.fullmatch(name):
            objects.setdefault((match[1], int(match[3])), {})[match[4]] = value
    for (prefix, number), each in objects.items():
        if each.get("identifier") != semconv.SCOPE:
            continue
        if "name" not in each or each.keys().isdisjoint({"score", "label", "explanation"}):
            yield f"{prefix}.{number} is not complete: {each}"
        if number and (prefix, number - 1) not in objects:
            yield f"{prefix}.{number} comes after a gap"
        for leaf in ("score", "label"):
            same = found.get(f"rag.evaluation.{each['name']}.{leaf}", each.get(leaf))
            if same != each.get(leaf):
                yield f"{prefix}.{number} has another {leaf} than rag.evaluation.*"


def of_span(span: ReadableSpan) -> Iterator[str]:
    """Yield how ``span`` differs from the conventions; of a foreign span, only in what is ours."""
    scope, found = span.instrumentation_scope, dict(span.attributes or {})
    is_own = scope is not None and scope.name == semconv.SCOPE
    operation, kind = found.get("gen_ai.operation.name"), found.get("openinference.span.kind")
    places = {"span:*", "oi:*", f"oi:{kind}", f"span:{operation}", "judged_span", "carrier"}
    for name, value in found.items():
        if OURS.match(name) or (is_own and CONVENTIONS.match(name)):
            yield from of_attribute(name, value, places if is_own else set())
        if name.startswith("gen_ai.evaluation."):
            yield f"{name} is only for events"
        if OURS.match(name) and any(other.startswith(f"{name}.") for other in found):
            yield f"{name} is a prefix of another name"
    yield from of_objects(found)
    for event in span.events:
        if event.name == EVENT:
            yield from of_event(event.attributes or {})
    if is_own:
        yield from of_own(span, found, operation, kind)


def of_own(
    span: ReadableSpan, found: Mapping[str, Any], operation: Any, kind: Any
) -> Iterator[str]:
    required = {f"span:{operation}", f"oi:{kind}", "oi:*"} | ({"span:*"} if operation else set())
    for one in FACTS["attributes"]:
        is_required = one["req"] == "required" and not one.get("regex")
        if is_required and required & {*one["where"]} and one["name"] not in found:
            yield f"{one['name']} is missing"
    if kind == "EVALUATOR" and (len(span.links) != 1 or span.parent is not None):
        yield "a span for late scores has one link and no parent"
    for names, operations in FACTS["span_kinds"].items():
        is_kind = names != "src" and operation in operations
        if is_kind and span.kind not in [SpanKind[n] for n in names.split(" or ")]:
            yield f"{operation} has the kind {span.kind.name}"
    if operation in FACTS["span_names"]:
        told = FACTS["span_names"][operation].replace("{op}", operation)
        target = re.search(r"\{(.+)\}", told)
        named = found.get(target[1]) if target else None
        expected = f"{operation} {named}" if named else operation
        if span.name != expected:
            yield f"the span is called {span.name!r}, not {expected!r}"


def of_event(attributes: Mapping[str, Any]) -> Iterator[str]:
    known = {name: value for name, value in attributes.items() if value is not None}
    if "gen_ai.evaluation.name" not in known:
        yield "an event has no gen_ai.evaluation.name"
    for name, value in known.items():
        if not name.startswith("rag.metadata."):
            yield from of_attribute(name, value, {f"event:{EVENT}"})


@contextmanager
def checked_exports() -> Iterator[list[str]]:
    """Note what the conventions do not allow, of all spans and events that are made meanwhile."""
    found: list[str] = []
    if not FACTS:
        yield found
        return
    copy, end, emit = SpanScores.copy, Span.end, EventLog.emit

    def note(violations: Iterator[str]) -> None:
        try:
            found.extend(violations)
        except Exception as error:  # noqa: BLE001  # what cannot be read is wrong
            found.append(repr(error))

    @wraps(copy)
    def checked_copy(scores: SpanScores, *arguments: Any) -> ReadableSpan:
        span = copy(scores, *arguments)
        note(of_span(span))
        return span

    @wraps(end)
    def checked_end(span: Span, *arguments: Any, **options: Any) -> None:
        end(span, *arguments, **options)
        if span.instrumentation_scope.name == semconv.SCOPE:
            note(of_span(span))

    @wraps(emit)
    def checked_emit(log: EventLog, name: str, attributes: Any, **options: Any) -> None:
        emit(log, name, attributes, **options)
        if name == EVENT:
            note(of_event(attributes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpanScores, "copy", checked_copy)
        patch.setattr(Span, "end", checked_end)
        patch.setattr(EventLog, "emit", checked_emit)
        yield found

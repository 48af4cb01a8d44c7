"""Read the values of span attributes as plain data.

Plain data are strings, numbers, lists and dicts. A value may be JSON, a Python repr or a chat
message of some framework.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal

from rag_eval_otel.capture.span import Span
from rag_eval_otel.capture.text import is_reasoning
from rag_eval_otel.untrusted import accents_apart


class Lost(Enum):
    """A value that cannot be read, because it was redacted (``HIDDEN``) or shortened (``CUT``)."""

    HIDDEN = "hidden"
    CUT = "cut"


HIDDEN: Final = Lost.HIDDEN
CUT: Final = Lost.CUT

TEXT_OR_JSON: Final = "{["
"""The first characters of JSON objects and lists, for attributes that may contain plain text."""

JSON: Final = '{["'
"""The first characters of JSON, for attributes in which texts are JSON strings, too."""

_MARKER = re.compile(
    r"[\W_]*(redacted|masked|hidden|removed|filtered|scrubbed|omitted|censored|anonymi[sz]ed)[\W_]*",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"[\[<({*_#].*[\])>}*_#]", re.DOTALL)
_STARS = re.compile(r"[*•█#x]{3,}")
_REPR = re.compile(r"[A-Za-z_][\w.]*\((\w+=.*|.*\))", re.DOTALL)
_OBJECT = re.compile(r"<[\w.]*(generator|iterator|stream|object)\b", re.IGNORECASE)
_STREAMS = re.compile(r"<?(async_)?generator\b|\w*(Iterator|Generator)\(", re.IGNORECASE)
_STREAM = re.compile(r"generator|stream|iterator", re.IGNORECASE)
_SAYS_CUT = re.compile(
    r"(\.\.\.|\u2026)\s{0,9}[\[(<]\W{0,9}truncated\b[^\])>]{0,60}[\])>]\W{0,9}$", re.IGNORECASE
)
_TAIL = 80  # characters at the end of a value that may say that the value was truncated
_BEGINS_JSON = re.compile(r'\{\s*"[^"]*"\s*:|\[\s*(?:"|\{\s*"|\[\s*["\[{\d])|"[^"]*$')
_EMPTY = frozenset({"", "null", "None", "{}", "[]", '""'})


def is_marker(text: str) -> bool:
    """Return True if ``text`` says that a text was redacted, such as ``[REDACTED]`` or ``***``."""
    text = text.strip()
    if _STARS.fullmatch(text):
        return True
    stands_out = text.isupper() or _BRACKETED.fullmatch(text)
    return bool(stands_out and _MARKER.fullmatch(text))


def is_stream(text: str) -> bool:
    """Return True if ``text`` is the Python repr of a stream or generator."""
    bare = text.strip()
    line = bare.partition("\n")[0] if bare[:1] == "<" else ""
    return bool(_STREAMS.match(bare) or _STREAM.search(line, 0, max(0, line.rfind(">"))))


def usable(text: str | None) -> str | None:
    """Return ``text``, or None if it is empty, ``null`` or the Python repr of an object."""
    if text is None or text.strip() in _EMPTY:
        return None
    bare = text.strip()
    is_object = _OBJECT.match(bare) and bare[-1] == ">" and "\n" not in bare
    return None if _REPR.fullmatch(bare) or is_object or is_stream(bare) else text


def value(view: Span, *keys: str, opening: str = TEXT_OR_JSON) -> Any:
    """Return the first of the attributes ``keys`` that the span ``view`` has, as plain data.

    If the span has none of these attributes, return None, or `CUT` if the SDK dropped attributes of
    the span. A string is parsed as JSON if it begins with a character of ``opening``.
    """
    for key in keys:
        found = view.attributes.get(key)
        if found is not None:
            return read(found, limit=view.value_limit, opening=opening)
    return CUT if view.dropped else None


def read(raw: Any, *, limit: int | None = None, opening: str = TEXT_OR_JSON) -> Any:
    """Return the attribute value ``raw`` as plain data.

    A string is parsed as JSON if it begins with a character of ``opening``. If the string was
    redacted, return `HIDDEN`. If the string was shortened, return `CUT`. ``limit`` is the length
    limit of the SDK for attribute values.
    """
    if not isinstance(raw, str):
        return plain(raw)
    text = raw.strip()
    if is_marker(text):
        return HIDDEN
    cut = (limit is not None and len(raw) >= limit) or _SAYS_CUT.search(text[-_TAIL:]) is not None
    if not text or text[0] not in opening:
        return CUT if cut else raw
    try:
        return plain(json.loads(text))
    except (ValueError, RecursionError):
        return CUT if cut or _BEGINS_JSON.match(text) else raw


def plain(data: Any) -> Any:
    """Return ``data`` with each chat message as a dict of role and content.

    The dicts in which frameworks wrap their messages are removed. Lists of numbers, such as
    embeddings, become empty.
    """
    if isinstance(data, Mapping):
        return _plain_dict(data)
    if isinstance(data, str | bytes) or not isinstance(data, Sequence):
        return data
    if data and isinstance(data[0], int | float):
        return []  # an embedding
    return _pair(data) or [plain(item) for item in data]


def _plain_dict(data: Mapping[Any, Any]) -> dict[str, Any]:
    inner = data.get("data")
    if "lc" in data and isinstance(data.get("kwargs"), Mapping):
        return _plain_dict({"type": _class_of(data), **data["kwargs"]})
    if isinstance(inner, Mapping) and "content" in inner:
        return _plain_dict({"type": data.get("type"), **inner})
    return _message(data) or {str(key): plain(item) for key, item in data.items()}


_ROLES: Mapping[str, str] = {
    "ai": "assistant",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "assistant": "assistant",
    "developer": "system",
    "function": "tool",
    "human": "user",
    "humanmessage": "user",
    "humanmessagechunk": "user",
    "model": "assistant",
    "system": "system",
    "systemmessage": "system",
    "tool": "tool",
    "tool-call": "assistant",
    "tool-response": "tool",
    "toolmessage": "tool",
    "user": "user",
}


def role_named(name: object) -> str | None:
    """Return the role (``user``, ``assistant``, ...) that a framework calls ``name``, or None."""
    return _ROLES.get(name.lower()) if isinstance(name, str) else None


_CALL_IDS = ("tool_call_id", "tool_use_id", "toolUseId", "id")


def _pair(data: Sequence[Any]) -> dict[str, Any] | None:
    """Return ``data`` as a chat message if it is a pair of a role and a text, else None."""
    if len(data) == 2 and all(isinstance(item, str) for item in data):  # noqa: PLR2004  # a pair
        role = role_named(data[0])
        return None if role is None else {"role": role, "content": data[1], "tool_calls": False}
    return None


def _class_of(data: Mapping[str, Any]) -> str | None:
    path = data.get("id")
    return str(path[-1]) if isinstance(path, Sequence) and path else None


def _message(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``data`` as a message with role, content and tool calls, or None if it is none."""
    role = role_named(data.get("role") or data.get("_role") or data.get("type"))
    keys = ("content", "parts", "blocks", "_content")
    content = next((data[key] for key in keys if data.get(key) is not None), None)
    calls = data.get("tool_calls") or _of(data, "additional_kwargs", "tool_calls")
    is_there = content is not None or calls or "content" in data
    if role is None or isinstance(content, Mapping) or not is_there:
        return None
    blocks = content if isinstance(content, list | tuple) else ()
    if any(_is_result(block) for block in blocks):
        role = "tool"
    text = content if isinstance(content, str) else "".join(texts_of(blocks))
    message: dict[str, Any] = {
        "role": role,
        "content": text,
        "tool_calls": bool(calls) or any(_is_call(block) for block in blocks),
    }
    if message["tool_calls"]:
        message["called"] = dict(_called(calls, blocks))
    if role == "tool":
        message["results"] = list(_results(data, blocks)) or [_whole_result(data, text)]
        message["texts"] = list(texts_of(blocks))
    return message


def _called(calls: Any, blocks: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the id and the tool name of each tool call in a chat message."""
    for call in (*(calls if isinstance(calls, list | tuple) else ()), *filter(_is_call, blocks)):
        if isinstance(call, Mapping):
            inner = call.get("tool_call", call.get("toolUse", call))
            name = _of(inner, "name") or _of(inner, "tool_name") or _of(inner, "function", "name")
            yield (
                str(_of(inner, "id") or _of(inner, "toolUseId")),
                name if isinstance(name, str) else "",
            )


def _results(data: Mapping[str, Any], blocks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the tool results that are content blocks of one chat message."""
    for block in filter(_is_result, blocks):
        inner = block.get("tool_call_result", block.get("toolResult", block))
        name = _of(inner, "name") or _of(inner, "origin", "tool_name") or data.get("name")
        known = next((inner[key] for key in _CALL_IDS if _of(inner, key)), None)
        yield {"id": known, "name": name, "text": _result(block) or ""}


def _whole_result(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    known = next((data[key] for key in _CALL_IDS if data.get(key)), None)
    artifact = plain(data.get("artifact"))
    return {"id": known, "name": data.get("name"), "text": text, "artifact": artifact}


def _of(data: Mapping[str, Any], *path: str) -> Any:
    found: Any = data
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


# In the next functions types are looked up in tuples: a type may be a list, which has no hash.


def _is_result(block: object) -> bool:
    return isinstance(block, Mapping) and (
        block.get("type") in ("tool_call_response", "tool_result")
        or "tool_call_result" in block
        or "toolResult" in block
        or {"result", "origin"} <= block.keys()  # Haystack's, as its repr has it
    )


def _is_call(block: object) -> bool:
    return isinstance(block, Mapping) and (
        block.get("type") in ("tool_call", "tool_use", "function_call")
        or "tool_call" in block
        or "toolUse" in block
        or {"tool_name", "arguments"} <= block.keys()
    )


def texts_of(blocks: Sequence[Any]) -> Iterator[str]:
    """Yield the texts in the content ``blocks`` of one chat message, without its reasoning."""
    for block in blocks:
        if isinstance(block, str):
            yield block
        elif isinstance(block, Mapping) and not is_reasoning(block):
            said = block.get("text")
            if said is None and block.get("type") in ("text", "output_text", "input_text", None):
                said = block.get("content")
            if said is None and _is_result(block):
                said = _result(block)
            if isinstance(said, str):
                yield said


def _result(block: Mapping[str, Any]) -> str | None:
    found = block.get("response", block.get("result", block.get("content")))
    found = _of(block, "tool_call_result", "result") if found is None else found
    found = _of(block, "toolResult", "content") if found is None else found
    if isinstance(found, list | tuple) and all(isinstance(part, Mapping) for part in found):
        texts = [part.get("text") for part in found]
        if texts and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    return found if isinstance(found, str) or found is None else json.dumps(found)


def messages_in(data: Any) -> list[dict[str, Any]]:
    """Return the chat messages in the plain ``data``.

    ``data`` may be one message, a list of messages, or a dict that contains such a list.
    """
    if isinstance(data, Mapping):
        if role_named(data.get("role")):
            return [dict(data)]
        inner = data.get("messages", data.get("prompt", data.get("input")))
        return messages_in(inner) if isinstance(inner, list) else []
    if not isinstance(data, list):
        return []
    if len(data) == 1 and isinstance(data[0], list):
        return messages_in(data[0])
    items = (item for item in data if isinstance(item, Mapping) and role_named(item.get("role")))
    return [dict(item) for item in items if not isinstance(item.get("content"), Mapping)]


def numbered(attributes: Mapping[str, Any], prefix: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the attributes ``<prefix>.<number>.<member>`` as pairs of the number and its members.

    The members of a number are a dict. The pairs are ordered by number.
    """
    found: dict[int, dict[str, Any]] = {}
    for key, item in attributes.items():
        if not key.startswith(prefix):
            continue
        number, _, member = key[len(prefix) + 1 :].partition(".")
        if number.isdecimal() and member:
            found.setdefault(int(number), {})[member] = item
    yield from sorted(found.items())


def has_gaps(numbers: Iterable[int]) -> bool:
    """Return True if ``numbers`` are not 0, 1, 2, ..., which shows that items were dropped."""
    found = list(numbers)
    return found != list(range(len(found)))


STRING: Final = r"""'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)"""
"""A string of a Python repr; one without an end goes to the end of the text."""

_STRINGS = re.compile(STRING, re.DOTALL)
_ENUM = r"""<[\w.]+:\s*(?P<enum>'[^']*'|"[^"]*"|-?\d+)>"""
_TOKENS = re.compile(rf"(?P<string>{STRING})|{_ENUM}|<[^<>]*(?:<[^<>]*>[^<>]*)*>", re.DOTALL)


_PARTS = ",([<"  # of a repr
_ITEMS = 10_000  # the most such parts: parsing needs many times the memory, and the GIL


def data_in(text: str) -> Any:
    """Parse ``text`` as a Python repr and return its data, or None if it cannot be parsed.

    An object in the repr becomes a dict of its keyword arguments.
    """
    source = _TOKENS.sub(_as_literal, text.strip())
    nodes = nodes_of(source, "eval")
    try:
        return _data(nodes[0].body) if _is_apart(nodes, source) else None
    except RecursionError:
        return None


def nodes_of(source: str, mode: Literal["eval", "exec"]) -> list[Any]:
    """Return the parts of the Python ``source``, the whole first; none if it cannot be parsed."""
    if sum(map(source.count, _PARTS)) > _ITEMS:
        return []
    try:
        return list(ast.walk(ast.parse(accents_apart(source), mode=mode)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []


def _is_apart(nodes: Sequence[Any], source: str) -> bool:
    """Return False if two strings in a repr are adjacent, because Python would join them.

    NumPy writes the strings of an array in this way.
    """
    parsed = sum(
        isinstance(one, ast.Constant) and isinstance(one.value, str | bytes) for one in nodes
    )
    return bool(nodes) and parsed == len(_STRINGS.findall(source))


def _as_literal(found: re.Match[str]) -> str:
    """Return a string unchanged, an Enum member as its value, and another object as ``None``."""
    return found["string"] or found["enum"] or "None"


def _data(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float) else None
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_data(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_data(key)): _data(item) for key, item in pairs if key is not None}
    if isinstance(node, ast.Call):
        return {word.arg: _data(word.value) for word in node.keywords if word.arg is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _data(node.operand)
        return -number if isinstance(number, int | float) else None
    return None  # a sum, a name: no repr of data

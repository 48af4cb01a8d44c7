"""Find chat messages (dicts of role and content), questions and answers in plain data."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cached_property
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final, Literal, TypeAlias

from rag_eval_otel.untrusted import accents_apart, normal_form


def normalised(text: str) -> str:
    """Return ``text`` without white space at its ends, and with single spaces between its words."""
    return " ".join(text.split())


def is_same(one: str | None, other: str | None) -> bool:
    """Return True if two texts are equal, regardless of case and white space, and not empty."""
    if not one or not other:
        return False
    return normalised(one).casefold() == normalised(other).casefold()


def is_in(part: str | None, whole: str | None) -> bool:
    """Return True if ``whole`` contains ``part``, regardless of case and white space."""
    own = normalised(part or "").casefold()
    return bool(own) and own in normalised(whole or "").casefold()


def json_in(text: object, *, opening: str = "") -> Any:
    """Parse ``text`` as JSON if it begins with a character of ``opening``, or return None."""
    if not isinstance(text, str) or not text.lstrip().startswith(tuple(opening) or ""):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def exportable(text: str) -> str:
    """Replace lone surrogates in ``text``, which would make the export of a batch of spans fail."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- attribute values -----------------------------------------------------------------------------


class Lost(Enum):
    """A value that cannot be read, because it was redacted (``HIDDEN``) or shortened (``CUT``)."""

    HIDDEN = "hidden"
    CUT = "cut"


HIDDEN: Final = Lost.HIDDEN
CUT: Final = Lost.CUT

TEXT_OR_JSON: Final = "{["  # how JSON begins in attributes that may contain plain text
JSON: Final = '{["'  # how it begins in attributes in which texts are JSON strings, too

_MARKER = re.compile(
    r"[\W_]*(redacted|masked|hidden|removed|filtered|scrubbed|omitted|censored|anonymi[sz]ed)[\W_]*",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"[\[<({*_#].*[\])>}*_#]", re.DOTALL)
_STARS = re.compile(r"[*•█#x]{3,}")
_REPR = re.compile(r"[A-Za-z_][\w.]*\((\w+=.*|.*\))", re.DOTALL)
_OBJECT = re.compile(r"<[\w.]*(generator|iterator|stream|object)\b", re.IGNORECASE)
_SAYS_CUT = re.compile(
    r"(\.\.\.|\u2026)\s{0,9}[\[(<]\W{0,9}truncated\b[^\])>]{0,60}[\])>]\W{0,9}$", re.IGNORECASE
)
_TAIL = 80  # characters at the end of a value that may say that the value was truncated
_BEGINS_JSON = re.compile(r'\{\s*"[^"]*"\s*:|\[\s*(?:"|\{\s*"|\[\s*["\[{\d])|"[^"]*$')
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_EMPTY = frozenset({"", "null", "None", "{}", "[]", '""'})


def is_marker(text: str) -> bool:
    """Return True if ``text`` says that a text was redacted, such as ``[REDACTED]`` or ``***``."""
    text = text.strip()
    stands_out = text.isupper() or _BRACKETED.fullmatch(text)
    return bool(_STARS.fullmatch(text) or (stands_out and _MARKER.fullmatch(text)))


def usable(text: str | None) -> str | None:
    """Return ``text``, or None if it is empty, ``null`` or the Python repr of an object."""
    bare = (text or "").strip()
    is_object = _OBJECT.match(bare) and bare[-1] == ">" and "\n" not in bare
    return None if bare in _EMPTY or _REPR.fullmatch(bare) or is_object else text


def read(raw: Any, *, limit: int | None = None, opening: str = TEXT_OR_JSON) -> Any:
    """Return ``raw``, parsed if it is JSON, as plain data; `HIDDEN` if redacted, `CUT` if cut."""
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


def numbered(attributes: Mapping[str, Any], prefix: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the attributes ``<prefix>.<number>.<member>`` as pairs of number and members."""
    found: dict[int, dict[str, Any]] = {}
    for key, item in attributes.items():
        if key.startswith(f"{prefix}."):
            number, _, member = key[len(prefix) + 1 :].partition(".")
            if member and _INDEX.fullmatch(number):
                found.setdefault(int(number), {})[member] = item
    yield from sorted(found.items())


def has_gaps(numbers: Iterable[int]) -> bool:
    """Return True if ``numbers`` are not 0, 1, 2, ..., which shows that items were dropped."""
    return any(number != place for place, number in enumerate(numbers))


# --- chat messages --------------------------------------------------------------------------------

SCALARS: Final = frozenset({bool, float, int, str, type(None)})  # the types of leaves
_ROLES: Mapping[str, str] = {
    **dict.fromkeys(("ai", "assistant", "model", "tool-call"), "assistant"),
    **dict.fromkeys(("developer", "system"), "system"),
    **dict.fromkeys(("function", "tool", "tool-response"), "tool"),
    **dict.fromkeys(("human", "user"), "user"),
}
_CALL_IDS = ("tool_call_id", "tool_use_id", "toolUseId", "id")


def role_named(name: object) -> str | None:
    """Return the role (user, assistant, system, tool) that a framework calls ``name``, or None."""
    if not isinstance(name, str):
        return None
    return _ROLES.get(name.lower().removesuffix("chunk").removesuffix("message"))


def plain(data: Any) -> Any:
    """Return ``data`` with each chat message as a dict of role and content, without embeddings."""
    if isinstance(data, dict):
        return _plain_dict(data)
    if not isinstance(data, list | tuple):
        return data
    if data and isinstance(data[0], int | float):
        return []  # an embedding
    is_pair = len(data) == 2 and isinstance(data[1], str)  # noqa: PLR2004
    role = role_named(data[0]) if is_pair else None
    if role is not None:
        return {"role": role, "content": data[1], "tool_calls": False}
    return [item if type(item) in SCALARS else plain(item) for item in data]


def _plain_dict(data: Mapping[Any, Any]) -> dict[str, Any]:
    inner = data.get("data")
    if "lc" in data and isinstance(data.get("kwargs"), dict):
        path = data.get("id")
        name = str(path[-1]) if isinstance(path, Sequence) and path else None
        return _plain_dict({"type": name, **data["kwargs"]})
    if isinstance(inner, dict) and "content" in inner:
        return _plain_dict({"type": data.get("type"), **inner})
    author = data.get("role") or data.get("_role") or data.get("type")
    message = _message(data, author) if author else None
    return message or {str(k): v if type(v) in SCALARS else plain(v) for k, v in data.items()}


def _message(data: Mapping[str, Any], author: object) -> dict[str, Any] | None:
    role = role_named(author)
    keys = ("content", "parts", "blocks", "_content")
    content = next((data[key] for key in keys if data.get(key) is not None), None)
    calls = data.get("tool_calls") or at(data, "additional_kwargs", "tool_calls")
    is_there = content is not None or calls or "content" in data
    if role is None or isinstance(content, dict) or not is_there:
        return None
    blocks = content if isinstance(content, list | tuple) else ()
    if any(_is_result(block) for block in blocks):
        role = "tool"
    hosted = list(_hosted(blocks))
    text = content if isinstance(content, str) else "".join(texts_of(blocks))
    called = dict(_called(calls, blocks))
    message: dict[str, Any] = {"role": role, "content": text, "tool_calls": bool(calls or called)}
    if called:
        message["called"] = called
    if hosted:
        message["hosted"] = hosted
    if role == "tool":
        whole = {"id": _call_id(data), "name": data.get("name"), "text": text}
        whole["artifact"] = plain(data.get("artifact"))
        message["results"] = list(_results(data, blocks)) or [whole]
        message["texts"] = list(texts_of(blocks))
    return message


def _called(calls: Any, blocks: Sequence[Any]) -> Iterator[tuple[str, str]]:
    for call in (*(calls if isinstance(calls, list | tuple) else ()), *filter(_is_call, blocks)):
        if isinstance(call, dict):
            inner = call.get("tool_call", call.get("toolUse", call))
            name = at(inner, "name") or at(inner, "tool_name") or at(inner, "function", "name")
            key = str(at(inner, "id") or at(inner, "toolUseId"))
            yield key, name if isinstance(name, str) else ""


def _results(data: Mapping[str, Any], blocks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for block in filter(_is_result, blocks):
        inner = _inner_result(block)
        name = at(inner, "name") or at(inner, "origin", "tool_name") or data.get("name")
        yield {"id": _call_id(inner), "name": name, "text": _result(block) or ""}


def _hosted(blocks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and data of each search in ``blocks`` by the model's provider: it has no span."""
    names = {str(at(block, "id")): block["name"] for block in blocks if at(block, "name")}
    for block in filter(_is_hosted, blocks):
        data = read(block.get("server_tool_call_response", block))
        kinds = (at(block, "generic_type"), at(block, "type"), at(data, "type"))
        name = " ".join(map(str, filter(None, (*kinds, names.get(str(_call_id(block)))))))
        if "search" in name or "retriev" in name:
            yield name, data if at(data, "response") is None else data["response"]


def _call_id(data: Any) -> Any:
    return next((data[key] for key in _CALL_IDS if at(data, key)), None)


def at(data: Any, *path: str) -> Any:
    """Return the value of nested dicts ``data`` under the keys of ``path``, or None."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _is_result(block: object) -> bool:
    return isinstance(block, dict) and (
        block.get("type") in ("tool_call_response", "tool_result")  # no set: it may be a list
        or "tool_call_result" in block
        or "toolResult" in block
        or {"result", "origin"} <= block.keys()  # Haystack's, as its repr has it
    )


def _is_hosted(block: object) -> bool:
    """Return True if ``block`` is the result of a tool of the model's provider, or of a search."""
    kind = f"{at(block, 'generic_type')} {at(block, 'type')}"
    has_data = any(at(block, key) for key in ("content", "results", "response", "text"))
    return "server_tool_call_response" in kind or ("search" in kind and has_data)


def _is_call(block: object) -> bool:
    return isinstance(block, dict) and (
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
        elif isinstance(block, dict) and not (_is_reasoning(block) or _is_hosted(block)):
            said = block.get("text")
            if said is None and block.get("type") in ("text", "output_text", "input_text", None):
                said = block.get("content")
            if said is None and _is_result(block):
                said = _result(block)
            if isinstance(said, str):
                yield said


def _is_reasoning(block: Mapping[Any, Any]) -> bool:
    """Return True if the text of ``block`` is the model's thoughts, which no user is shown."""
    kinds = " ".join(str(block.get(key)) for key in ("type", "block_type", "part_kind")).lower()
    is_named = any(mark in kinds for mark in ("reason", "think", "thought"))
    return is_named or block.get("thought") is True  # Gemini marks a part that has another type


def _inner_result(block: Mapping[str, Any]) -> Any:
    return block.get("tool_call_result", block.get("toolResult", block))


def _result(block: Mapping[str, Any]) -> str | None:
    inner = _inner_result(block)
    values = (at(inner, key) for key in ("response", "result", "content"))
    found = next((value for value in values if value is not None), None)
    if isinstance(found, list | tuple):
        texts = [at(part, "text") for part in found]
        if texts and all(isinstance(text, str) for text in texts):
            return "".join(texts)
    return found if isinstance(found, str) or found is None else json.dumps(found)


def messages_in(data: Any) -> list[dict[str, Any]]:
    """Return the chat messages in plain ``data``: a message, a list, or a dict with such a list."""
    if isinstance(data, dict):
        if role_named(data.get("role")):
            return [dict(data)]
        inner = data.get("messages", data.get("prompt", data.get("input")))
        return messages_in(inner) if isinstance(inner, list) else []
    if not isinstance(data, list):
        return []
    if len(data) == 1 and isinstance(data[0], list):
        return messages_in(data[0])
    messages = (item for item in data if role_named(at(item, "role")))
    return [dict(one) for one in messages if not isinstance(one.get("content"), dict)]


# --- questions and answers ------------------------------------------------------------------------

QUESTIONS = (  # keys under which applications keep questions, the first one first
    *("question", "input", "query", "user_input", "user_question", "prompt", "text"),
    *("str_or_query_bundle", "query_bundle", "query_str", "user_msg", "message"),
    *("user_prompt", "q"),
)
ANSWERS = (
    *("structured_response", "answer", "result", "output", "output_text", "response"),
    *("generation", "final_answer", "text", "message", "final_result", "completion"),
    *("reply", "value"),
)
_NESTED = 20  # levels of dicts within dicts that are searched for a text


def question_in(data: Any) -> str | None:
    """Return the question in ``data``: the text under a usual key, or the last user message."""
    return _text_in(data, QUESTIONS, "user")


def answer_in(data: Any) -> str | None:
    """Return the answer in ``data``: the text under a usual key, or the last message of the LLM."""
    return _text_in(data, ANSWERS, "assistant")


def _text_in(data: Any, names: Sequence[str], role: str, depth: int = _NESTED) -> str | None:
    if isinstance(data, dict):
        if isinstance(data.get("role"), str) and "content" in data:
            data = [data]
        else:
            for name in names if depth else ():
                inner = data.get(name)
                text = None if inner is None else _text_in(inner, names, role, depth - 1)
                if text is not None:
                    return text
            data = data.get("messages")
            data = data if isinstance(data, list) else None
    text = _last_message(data, role) if isinstance(data, list) else data
    if isinstance(text, str) and text.lstrip()[:1] == "{":
        inner = read(text)
        inner = inner if isinstance(inner, dict) else data_in(text)
        if isinstance(inner, dict):
            return _text_in(plain(inner), names, role, depth)
    return text if isinstance(text, str) else None


def _last_message(messages: Sequence[Any], role: str) -> str | None:
    for message in reversed(messages):
        author = at(message, "role")
        if author == role:
            content = message.get("content")
            return content if isinstance(content, str) else ""
        if author == "user":
            return None
    return None


# --- Python reprs ---------------------------------------------------------------------------------

# A string of a Python repr; one without an end goes to the end of the text.
STRING: Final = r"""'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)"""
_STRINGS = re.compile(STRING, re.DOTALL)
_ENUM = r"""<[\w.]+:\s*(?P<enum>'[^']*'|"[^"]*"|-?\d+)>"""
_TOKENS = re.compile(rf"(?P<string>{STRING})|{_ENUM}|<[^<>]*(?:<[^<>]*>[^<>]*)*>", re.DOTALL)
_PARTS = ",([<"  # of a repr
_ITEMS = 10_000  # the most such parts: parsing needs many times the memory, and the GIL


def data_in(text: str) -> Any:
    """Return the data of which ``text`` is a Python repr, or None. An object becomes a dict."""
    source = _TOKENS.sub(lambda it: it["string"] or it["enum"] or "None", text.strip())
    nodes = nodes_of(source, "eval")
    # NumPy writes the strings of an array beside each other, and Python would join them.
    strings = [one for one in nodes if isinstance(getattr(one, "value", None), str | bytes)]
    if not nodes or len(strings) != len(_STRINGS.findall(source)):
        return None
    try:
        return _data(nodes[0].body)
    except RecursionError:
        return None


def nodes_of(source: str, mode: Literal["eval", "exec"]) -> list[Any]:
    """Return the syntax nodes of ``source``, root first; none if it is no Python or too large."""
    if sum(map(source.count, _PARTS)) > _ITEMS:
        return []
    try:
        return list(ast.walk(ast.parse(accents_apart(source), mode=mode)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []


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


# --- texts in prompts -----------------------------------------------------------------------------

Place: TypeAlias = "tuple[int, int]"  # the index of a message, letters and digits before a text

_CHUNK = 24  # letters and digits in a row that two texts do not share by chance
_NEITHER = re.compile(r"[\W_]+")
_ESCAPED = re.compile(r"\\[nrt]")  # white space, as in JSON or in a repr


def bare(text: str) -> str:
    """Return only the letters and digits of ``text``, in lower case."""
    return _NEITHER.sub("", normal_form(_ESCAPED.sub(" ", text)).casefold())


def forms_of(text: str) -> tuple[str, str, str]:
    """Return ``text``, and ``text`` as in JSON, with and without escapes for non-ASCII."""
    return text, encode_basestring_ascii(text)[1:-1], encode_basestring(text)[1:-1]


def place(text: str, messages: Sequence[str]) -> tuple[int, int] | None:
    """Return the index of the first message with ``text``, and the offset there, or None."""
    return Messages(messages).find(text)


class Messages:
    """The texts of messages, and searches in them, which begin at the message ``first``."""

    def __init__(self, texts: Iterable[str], *, first: int = 0) -> None:
        self.texts = tuple(texts)
        numbers = range(len(self.texts))
        self._order = (*numbers[first:], *numbers[:first])  # a text is searched for in this order

    @cached_property
    def _normal(self) -> tuple[str, ...]:
        return tuple(map(normalised, self.texts))

    @cached_property
    def _bare(self) -> tuple[str, ...]:
        return tuple(map(bare, self.texts))

    @property
    def size(self) -> int:
        return sum(map(len, self._bare))

    def find(self, text: str) -> tuple[int, int] | None:
        """Return the index of a message that contains ``text``, and the offset there, or None."""
        if not text.strip():  # an empty text is in every message
            return None
        # With other white space: in messages with single spaces.
        found = self._find(forms_of(text), self.texts)
        return found or self._find([normalised(text)], self._normal)

    def _find(self, forms: Sequence[str], messages: Sequence[str]) -> Place | None:
        places = ((n, at) for n in self._order for f in forms if (at := messages[n].find(f)) >= 0)
        return next(places, None)

    def place(self, text: str) -> Place | None:
        """Return the message's index, and how many letters and digits are before ``text`` in it."""
        found = self.find(text)
        return found and (found[0], len(bare(self.texts[found[0]][: found[1]])))

    def places_apart(self, texts: Iterable[str]) -> dict[str, Place]:
        """Return message and offset of each text; one inside another must be a line of its own."""
        left, found = [*self.texts], dict[str, Place]()
        for text in sorted(texts, key=len, reverse=True):
            is_part = any(text in longer for longer in found)
            words = re.escape(re.sub(r"\A\W+", "", text.strip())) or "(?!)"
            line = rf"(?m)^[^\w\n\0]*{words}[^\w\n\0]*$" if is_part else re.escape(text)
            places = ((n, at) for n in self._order if (at := re.search(line, left[n])))
            for number, at in places:
                found.setdefault(text, (number, at.start()))
            left = [one.replace(text, "\0" * len(text)) for one in left]
        return found

    def places_of_parts(self, texts: Sequence[str], others: Sequence[str]) -> dict[str, Place]:
        """Return the position of a part (24 letters) of each text that ``others`` do not have."""
        parts = {text: _parts_of(bare(text)) for text in texts}
        known = {part for several in parts.values() for part in several}
        if not known:  # mostly
            return {}
        for other in others:
            known -= _parts_in(bare(other), known).keys()
        places: dict[str, Place] = {}
        for number, message in enumerate(self._bare):
            for part, at in _parts_in(message, known).items():
                places.setdefault(part, (number, at))
        found = {text: [places[p] for p in some if p in places] for text, some in parts.items()}
        return {text: several[0] for text, several in found.items() if several}


def _parts_of(text: str) -> list[str]:
    starts = range(0, len(text) - _CHUNK + 1, _CHUNK // 2)
    return [text[start : start + _CHUNK] for start in starts]


def _parts_in(text: str, parts: AbstractSet[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for at in range(len(text) - _CHUNK + 1):
        part = text[at : at + _CHUNK]
        if part in parts:
            places.setdefault(part, at)
    return places


def provider_id(response_id: str | None) -> str | None:
    """Return ``response_id``, or None if LangChain has made it from the id of a run."""
    return None if (response_id or "").startswith(("lc_run-", "run-")) else response_id

"""Find documents in data and in texts, in the forms that retrievers and tools write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from rag_eval_otel.capture.text import json_in
from rag_eval_otel.capture.values import data_in
from rag_eval_otel.types import Passage

_TEXT_KEYS = ("page_content", "content", "text", "document", "chunk", "passage", "body", "snippet")
_LIST_KEYS = (
    "documents",
    "nodes",
    "source_nodes",
    "results",
    "context",
    "chunks",
    "passages",
    "docs",
    "hits",
    "matches",
    "items",
    "sources",
    "result",
)
_ID_KEYS = ("id", "id_", "document_id", "doc_id", "node_id")
_BESIDE_TEXT = ("metadata", "meta", "embedding")
_NODE = re.compile(r"<NodeWithScore\(node=\w+\(id_=")  # of LlamaIndex
_SCORE_KEYS = ("score", "relevance_score", "similarity")


def passages_in(data: Any, *, strings: bool = True) -> tuple[Passage, ...] | None:
    """Return the documents in ``data``, or None if ``data`` lists no documents with texts.

    ``strings`` says whether a list of plain strings counts as a list of documents.
    """
    items = _items(data)
    if items is None:
        return None
    found = [passage_of(item, strings=strings) for item in items]
    texts = [passage for passage in found if passage is not None]
    return tuple(texts) if len(texts) == len(items) else None


def passages_with_text(data: Any) -> tuple[Passage, ...] | None:
    """Return the documents in ``data`` that have a text, or None if none has.

    Unlike in `passages_in`, other documents may have only an id or a score.
    """
    found = (passage_of(item) for item in _items(data) or ())
    return tuple(passage for passage in found if passage is not None) or None


def count_in(data: Any) -> int | None:
    """Return the number of documents in ``data``, or None if ``data`` contains no list.

    The documents may have no texts.
    """
    items = _items(data)
    return None if items is None else len(items)


def _items(data: Any) -> list[Any] | None:
    if isinstance(data, Mapping):
        data = next((data[key] for key in _LIST_KEYS if isinstance(data.get(key), list)), None)
    return data if isinstance(data, list) else None


def passage_of(item: Any, *, strings: bool = True) -> Passage | None:
    """Return the document ``item`` as a `Passage`, or None if ``item`` is no document.

    ``item`` may be a text, a dict, a LlamaIndex node as a dict, or a JSON object in a text. A plain
    text counts as a document only if ``strings`` is true.
    """
    if isinstance(item, str):
        return _of_string(item) if strings else None
    if not isinstance(item, Mapping) or "role" in item:  # a message is no document
        return None
    inner = passage_of(item["node"]) if isinstance(item.get("node"), Mapping) else _of_dict(item)
    if inner is None:
        return None
    score = _number(item)
    return Passage(text=inner.text, id=inner.id, score=inner.score if score is None else score)


def _of_dict(item: Mapping[str, Any]) -> Passage | None:
    text = next((item[key] for key in _TEXT_KEYS if isinstance(item.get(key), str)), None)
    if text is None:
        nested = next((item[key] for key in _TEXT_KEYS if isinstance(item.get(key), Mapping)), None)
        return None if nested is None else passage_of(nested)
    name = next((item[key] for key in _ID_KEYS if item.get(key) is not None), None)
    return Passage(text=text, id=None if name is None else str(name))


def _of_string(text: str) -> Passage | None:
    return passage_of(json_in(text)) if text.lstrip()[:1] == "{" else Passage(text=text)


def _number(item: Mapping[str, Any]) -> float | None:
    found = next((item[key] for key in _SCORE_KEYS if item.get(key) is not None), None)
    return float(found) if isinstance(found, int | float) else None


def documents_within(data: Any) -> Iterator[Passage]:
    """Yield every document at any depth in ``data``, the input or output of a chain.

    If ``data`` contains a list of messages, only documents from the last user message on are
    returned. The earlier messages belong to earlier questions.
    """
    if isinstance(data, list):
        inputs = (n for n, one in enumerate(data) if _of_user(one))
        for item in data[max(inputs, default=0) :]:
            yield from documents_within(item)
    elif isinstance(data, Mapping):
        text = data.get("page_content", data.get("content"))
        if isinstance(text, str) and any(key in data for key in _BESIDE_TEXT):
            yield Passage(text=text)
            return
        for item in data.values():
            if isinstance(item, list | Mapping):
                yield from documents_within(item)


def _of_user(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("role") == "user"


def ids_in(data: Any) -> Iterator[str]:
    """Yield the ids of LlamaIndex nodes of which ``data`` contains only the id and the score.

    The nodes may be at any depth in lists and dicts.
    """
    if isinstance(data, str):
        found = _NODE.match(data)
        if found is not None and data.endswith(")>") and "\n" not in data:
            name, scored, _ = data[found.end() : -2].partition("), score=")
            if scored or name.endswith(")"):
                yield name if scored else name[:-1]
    elif isinstance(data, list | Mapping):
        for item in data.values() if isinstance(data, Mapping) else data:
            yield from ids_in(item)


def passages_of(items: Iterable[Mapping[str, Any]]) -> tuple[Passage, ...]:
    """Return a `Passage` for each dict in ``items``, with its ``content``, ``id`` and ``score``."""
    return tuple(
        Passage(
            text=str(item.get("content") or ""),
            id=None if item.get("id") is None else str(item["id"]),
            score=item["score"] if isinstance(item.get("score"), float) else None,
        )
        for item in items
    )


def window_of(text: object, metadata: object) -> dict[str, str]:
    """Find a longer text around the document ``text`` in the ``metadata`` of the document.

    Return a dict from ``text`` to the longer text. The dict is empty if there is no longer text.
    """
    metadata = json_in(metadata, opening="{") or metadata
    if not isinstance(text, str) or not text.strip() or not isinstance(metadata, Mapping):
        return {}
    held = (one for one in metadata.values() if isinstance(one, str) and len(one) > len(text))
    around = next((one for one in held if text.strip() in one), None)
    return {} if around is None else {text: around}


# --- documents within one text --------------------------------------------------------------------

_WITHIN: Final = 4  # levels of nested texts that are read
_OPENING: Final = frozenset("[{(")
_RULE = r"[-=*_#~]{3,}"
_KINDS = r"doc(?:ument)?|passage|context|result|chunk|source|snippet|excerpt|hit"
_CONTENT = r"(?:[a-z]+[ _])?(?:content|text|passage|snippet|body|excerpt)"

_STR_OF_DOCUMENT = "page_content='"  # quotes in the text of the document are not escaped
_TAG = re.compile(rf"<(/?)({_KINDS})\b[^<>]*>", re.IGNORECASE)
_INNER_TAG = re.compile(rf"<(/?)({_CONTENT})\b[^<>]*>", re.IGNORECASE)
_AROUND_TAGS = re.compile(rf"(?:\s|{_RULE}(?![-=*_#~])|</?\w+>)*")
_ABOUT = (
    r"sources?|title|file(?:[ _]?name)?|path|ur[li]|link|(?:doc(?:ument)?[ _]?)?id|page"
    r"|meta(?:data)?|score|relevance|similarity|name|author|date|section|chapter|category|tags?|published"
)
_FIELDS: Final = tuple(
    re.compile(rf"(?P<names>(?:{name}:[^\n]*\n\n?){times}){content}", re.IGNORECASE)
    for name, times, content in (
        (r"[A-Za-z][\w -]{0,30}", "{0,8}?", rf"(?P<text>{_CONTENT}):"),
        (rf"(?:{_ABOUT})", "{1,8}", "(?P<text>)"),
    )
)
_COUNTED = rf"(?:[\[(<*#]{{1,9}}[ \t]{{0,9}})?(?:{_KINDS})[ \t]{{0,9}}[#№]?[ \t]{{0,9}}(\d{{1,9}})"
_NUMBERED: Final = tuple(
    re.compile(rf"^[ \t]*{pattern}", re.MULTILINE | re.IGNORECASE)
    for pattern in (
        rf"(?:{_RULE}[ \t]*)?{_COUNTED}[ \t]*(?:{_RULE}[ \t]*$|[\])>*:.\u2013\u2014-]+|$)",
        r"\[(\d{1,9})\]:?",
    )
)
_APART = re.compile(rf"\n[ \t]*\n[ \t]*{_RULE}[ \t]*\n[ \t]*\n")
_TIGHT = re.compile(rf"(?<=[.!?)\"'])[ \t]*\n{_RULE}[ \t]*\n(?=\S)")
_NAME = re.compile(r"^([^:\n]+):", re.MULTILINE)
_LEAD = re.compile(r"[^\n]{0,80}:\s*")  # a line that may introduce the documents
_RULE_AT_END = re.compile(rf"\n[ \t]*{_RULE}\Z")


def passages_in_text(text: str) -> tuple[Passage, ...] | None:
    """Return the documents in ``text``, or None if nothing in ``text`` separates documents.

    The documents may be JSON, Python reprs, in tags, numbered, below names such as ``Source:`` and
    ``Content:``, or separated by horizontal rules. Blank lines do not separate documents, because a
    document may have paragraphs.
    """
    return _in_text(text, _WITHIN)


def documents_in(data: Any) -> tuple[Passage, ...] | None:
    """Return the documents that a tool returned as plain ``data``, as JSON, or as a Python repr.

    Tags, numbers and other delimiters between texts are ignored, because they may have another
    meaning. If there are no documents, return None.
    """
    if isinstance(data, str):
        return _of_data(_parsed(data), _WITHIN) if data.lstrip()[:1] in _OPENING else None
    if isinstance(data, Mapping) and isinstance(data.get("content"), str) and _is_message(data):
        texts = data.get("texts") or ()
        several = passages_in(list(texts)) if len(texts) > 1 else None
        return several or documents_in(data["content"])
    return _of_data(data, _WITHIN)


def _in_text(text: str, depth: int) -> tuple[Passage, ...] | None:
    if not depth:
        return None
    if text.lstrip()[:1] in _OPENING:
        found = _of_data(_parsed(text), depth) or _of_lines(text)
        if found is not None:
            return found
    for split in (_of_strings, _of_tags, _of_numbers, _of_fields, _of_rules):
        parts = split(text)
        if parts:
            return tuple(p for part in parts for p in _within(part, depth))
    return None


def _within(part: str, depth: int) -> tuple[Passage, ...]:
    part = _RULE_AT_END.sub("", part.rstrip()).strip()
    return _in_text(part, depth - 1) or ((Passage(text=part),) if part else ())


def _parsed(text: str) -> Any:
    data = json_in(text)
    return data_in(text) if data is None else data


def _of_data(data: Any, depth: int) -> tuple[Passage, ...] | None:
    if isinstance(data, str):
        return _in_text(data, depth - 1)
    if isinstance(data, list) and len(data) == 1 and _is_block(data[0]):
        data = data[0]
    if isinstance(data, Mapping):
        return _of_data(data["text"], depth) if _is_block(data) else _of_mapping(data, depth)
    if not isinstance(data, list) or not data:
        return None
    found = passages_in(data)
    return None if found is None else tuple(_unwrapped(p, depth) for p in found)


def _of_mapping(data: Mapping[str, Any], depth: int) -> tuple[Passage, ...] | None:
    listed = _items(data) or data.get("content")
    if isinstance(listed, list):
        return _of_data(listed, depth)
    found = None if _is_message(data) else passage_of(data)
    if found is not None and len(data) > 1:
        return (_unwrapped(found, depth),)
    if len(data) == 1 and depth:
        return _of_data(next(iter(data.values())), depth - 1)
    return None


def _is_message(data: Mapping[str, Any]) -> bool:
    # No set: the type may be a list, which has no hash.
    return "role" in data or data.get("type") in ("ai", "human", "tool")


def _is_block(item: Any) -> bool:
    """Return True if ``item`` is a text block of a chat message."""
    return (
        isinstance(item, Mapping)
        and item.get("type") == "text"
        and isinstance(item.get("text"), str)
    )


def _unwrapped(passage: Passage, depth: int) -> Passage:
    """Return the document in the text of ``passage`` if the text is JSON, else ``passage``."""
    if passage.text.lstrip()[:1] != "{" or not depth:
        return passage
    inner = _of_data(_parsed(passage.text), depth - 1)
    return inner[0] if inner is not None and len(inner) == 1 else passage


def _of_lines(text: str) -> tuple[Passage, ...] | None:
    """Return the documents in ``text`` if each line is a document in JSON, else None."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or not all(line.lstrip()[:1] == "{" for line in lines):  # noqa: PLR2004
        return None
    found = takewhile(lambda passage: passage is not None, (passage_of(_parsed(x)) for x in lines))
    texts = [passage for passage in found if passage is not None]
    return tuple(texts) if len(texts) == len(lines) else None


def _of_strings(text: str) -> list[str] | None:
    """Return the texts of LangChain documents that ``str()`` converted to ``text``, else None."""
    before, *parts = text.split(_STR_OF_DOCUMENT)
    if before.strip() or not parts:
        return None
    found, begun = [], list[str]()
    for part in parts:
        begun.append(part.rstrip(", \t\n\r\f\v"))
        if _ends_document(begun[-1]):
            found.append(_text_of_document(_STR_OF_DOCUMENT.join(begun)))
            begun = []
        else:
            begun[-1] = part
    return found


def _ends_document(text: str) -> bool:
    line = text[text.rfind("\n") + 1 :]
    return text.endswith("'") or (text.endswith("}") and "' metadata={" in line)


def _text_of_document(text: str) -> str:
    """Return ``text``, which ends with a quote or with metadata, up to the quote that ends it."""
    at = text.find("' metadata={", text.rfind("\n") + 1) if text.endswith("}") else -1
    return text[:at]


def _of_tags(text: str) -> list[str] | None:
    found, outside = _tagged(text, _TAG)
    if not found or not _AROUND_TAGS.fullmatch(outside):
        return None
    return [next(iter(_tagged(one, _INNER_TAG)[0]), one) for one in found]


def _tagged(text: str, tag: re.Pattern[str]) -> tuple[list[str], str]:
    """Return the texts between opening and closing tags, and the text outside of the tags."""
    found, outside, name, begin = [], [], "", 0
    for mark in tag.finditer(text):
        if not name and not mark[1]:
            outside.append(text[begin : mark.start()])
            name, begin = mark[2], mark.end()
        elif name and mark[1] and mark[2] == name:
            found.append(text[begin : mark.start()])
            name, begin = "", mark.end()
    return found, "".join((*outside, text[begin:]))


def _of_numbers(text: str) -> list[str] | None:
    """Return the texts below numbered headings. Return None if the numbers are not 1, 2, 3, ...

    The numbers may also begin with 0.
    """
    for pattern in _NUMBERED:
        found = list(pattern.finditer(text))
        numbers = [int(one[1]) for one in found]
        if numbers and numbers[0] <= 1 and _is_lead(text[: found[0].start()].strip()):
            counted = range(numbers[0], numbers[0] + len(numbers))
            return _between(text, found) if numbers == list(counted) else None
    return None


def _is_lead(text: str) -> bool:
    """Return True if ``text`` is empty or one line that may introduce documents."""
    found = _LEAD.match(text)
    return not text or (found is not None and found.end() == len(text))


def _of_fields(text: str) -> list[str] | None:
    """Return the texts below ``Content:``, or below repeated lines such as ``Source:``.

    If there are no such lines, return None.
    """
    start = len(text) - len(text.lstrip())
    lead = _LEAD.match(text, start)
    begin = start if lead is None else lead.end()
    begin = begin if "\n" in text[:begin].strip(" ") else start
    for pattern in _FIELDS:
        first = pattern.match(text, begin) or pattern.match(text, start)
        names = [] if first is None else _NAME.findall(first["names"])
        if first is None or not (names or first["text"]):
            continue
        lines = "".join(rf"{re.escape(name)}:[^\n]*\n\n?" for name in names)
        content = rf"{first['text']}:[ \t]*\n?" if first["text"] else ""
        found = list(re.compile(rf"^[ \t]*{lines}{content}", re.MULTILINE).finditer(text))
        return _between(text, found) if names or len(found) > 1 else None
    return None


def _of_rules(text: str) -> list[str] | None:
    for pattern in (_APART, _TIGHT):
        parts = [part for part in pattern.split(text) if part.strip()]
        if len(parts) > 1:
            return parts
    return None


def _between(text: str, marks: Sequence[re.Match[str]]) -> list[str]:
    """Return the texts between the ``marks``, which are matches of a delimiter in ``text``.

    Each returned text begins after a match and ends before the next match.
    """
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return [text[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]

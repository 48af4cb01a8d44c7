"""Reading documents, as retrievers of every framework write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rag_eval_otel.types import Passage

_TEXT_KEYS = ("page_content", "content", "text", "document", "chunk", "passage", "body")
_LIST_KEYS = ("documents", "nodes", "source_nodes", "results", "context", "chunks", "passages")
_ID_KEYS = ("id", "id_", "document_id", "doc_id", "node_id")
_BESIDE_TEXT = ("metadata", "meta", "embedding")
_NODE = re.compile(r"<NodeWithScore\(node=\w+\(id_=(.*?)\)(?:, score=.*)?\)>")  # of LlamaIndex
_SCORE_KEYS = ("score", "relevance_score", "similarity")


def passages_in(data: Any, *, strings: bool = True) -> tuple[Passage, ...] | None:
    """Return the documents in plain ``data``, or None if it is no list of documents with text.

    ``strings``: whether a list of plain strings is one.
    """
    items = _items(data)
    if items is None:
        return None
    found = [passage_of(item, strings=strings) for item in items]
    texts = [passage for passage in found if passage is not None]
    return tuple(texts) if len(texts) == len(items) else None


def count_in(data: Any) -> int | None:
    """Return how many documents ``data`` lists, with or without their texts."""
    items = _items(data)
    return None if items is None else len(items)


def _items(data: Any) -> list[Any] | None:
    if isinstance(data, Mapping):
        data = next((data[key] for key in _LIST_KEYS if isinstance(data.get(key), list)), None)
    return data if isinstance(data, list) else None


def passage_of(item: Any, *, strings: bool = True) -> Passage | None:
    """Return the document ``item``: a string, a dict, a node, or the JSON of one."""
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
    if text.lstrip()[:1] == "{":
        try:
            return passage_of(json.loads(text))
        except (ValueError, RecursionError):
            return None
    return Passage(text=text)


def _number(item: Mapping[str, Any]) -> float | None:
    found = next((item[key] for key in _SCORE_KEYS if item.get(key) is not None), None)
    return float(found) if isinstance(found, int | float) else None


def shown_in(data: Any) -> Iterator[Passage]:
    """Yield every document anywhere in ``data``: what a chain was handed or handed on."""
    if isinstance(data, list):
        for item in data:
            yield from shown_in(item)
    elif isinstance(data, Mapping):
        text = data.get("page_content", data.get("content"))
        if isinstance(text, str) and any(key in data for key in _BESIDE_TEXT):
            yield Passage(text=text)
            return
        for item in data.values():
            if isinstance(item, list | Mapping):
                yield from shown_in(item)


def ids_in(data: Any) -> Iterator[str]:
    """Yield the id of every node anywhere in ``data`` that is written as its id and score only."""
    if isinstance(data, str):
        found = _NODE.fullmatch(data)
        if found is not None:
            yield found[1]
    elif isinstance(data, list | Mapping):
        for item in data.values() if isinstance(data, Mapping) else data:
            yield from ids_in(item)


def passages_of(items: Iterable[Mapping[str, Any]]) -> tuple[Passage, ...]:
    """Return passages from dicts of ``content``, ``id`` and ``score``."""
    return tuple(
        Passage(
            text=str(item.get("content") or ""),
            id=None if item.get("id") is None else str(item["id"]),
            score=item["score"] if isinstance(item.get("score"), float) else None,
        )
        for item in items
    )


def wider_of(text: object, metadata: object) -> dict[str, str]:
    """Return the text around a document that its ``metadata`` holds, by the text, if there is."""
    if isinstance(metadata, str) and metadata.lstrip()[:1] == "{":
        with suppress(ValueError, RecursionError):
            metadata = json.loads(metadata)
    if not isinstance(text, str) or not text.strip() or not isinstance(metadata, Mapping):
        return {}
    held = (one for one in metadata.values() if isinstance(one, str) and len(one) > len(text))
    around = next((one for one in held if text.strip() in one), None)
    return {} if around is None else {text: around}

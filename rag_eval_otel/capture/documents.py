"""Find documents in data and in texts, in the forms that retrievers, tools and prompts write."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rag_eval_otel.capture.values import at, data_in, forms_of, json_in, normalised, texts_of
from rag_eval_otel.types import Passage

_TEXT_KEYS = (
    *("page_content", "content", "text", "document", "chunk", "passage", "body", "snippet"),
    "summary",
)
_LIST_KEYS = (
    *("documents", "nodes", "source_nodes", "results", "context", "chunks", "passages"),
    *("docs", "hits", "matches", "items", "sources", "result"),
)
_ID_KEYS = ("id", "id_", "document_id", "doc_id", "node_id")
_SCORE_KEYS = ("score", "relevance_score", "similarity")
_BESIDE_TEXT = ("metadata", "meta", "embedding")
_KEPT: Final = (  # names under which applications keep the texts that a search has found
    r"(?:\w+_)?(?:contexts?|docs?|documents?|passages?|chunks?|snippets?|excerpts?|facts?|evidence"
    r"|knowledge|search_results?)(?:_(?:str|strs|text|texts|content|list))?"
)
_KEPT_NAME = re.compile(_KEPT, re.IGNORECASE)
_MAY_BE_MEMORY = re.compile("context|fact|knowledge|evidence", re.IGNORECASE)
_WORDS = re.compile(r"\w\W?\s\W?\w|[^\W\d_a-z]{4}", re.IGNORECASE)  # some scripts have no spaces
DOCUMENTS_IN_JSON: Final = re.compile(rf'"page_content"|"{_KEPT}": ?(?:"|\[["{{])', re.IGNORECASE)
_SENTENCE: Final = 40  # a shorter text without a full stop may be a title
_NODE = re.compile(r"<NodeWithScore\(node=\w+\(id_=(.+)\), score=[^()\n]*\)>")  # of LlamaIndex


# --- documents in plain data ----------------------------------------------------------------------


def passages_in(data: Any) -> tuple[Passage, ...] | None:
    """Return the documents of the list in ``data``; None without a list, or if one has no text."""
    items = items_in(data)
    if items is None:
        return None
    found = [passage_of(item) for item in items]
    texts = tuple(passage for passage in found if passage is not None)
    return texts if len(texts) == len(items) else None


def items_in(data: Any) -> list[Any] | None:
    """Return ``data`` if it is a list, or the list under a key such as ``documents``, or None."""
    if isinstance(data, dict):
        data = next((data[key] for key in _LIST_KEYS if isinstance(data.get(key), list)), None)
    return data if isinstance(data, list) else None


def passage_of(item: Any) -> Passage | None:
    """Return the document that ``item`` (a text, a dict, or JSON of a dict) stands for, or None."""
    if isinstance(item, str):
        return passage_of(json_in(item)) if item.lstrip()[:1] == "{" else Passage(text=item)
    if not isinstance(item, Mapping) or "role" in item:  # a message is no document
        return None
    name = _first(item, _ID_KEYS)
    text = next((item[key] for key in _TEXT_KEYS if isinstance(item.get(key), str)), None)
    blocks = item.get("content")
    if text is None and isinstance(blocks, list) and all(at(b, "type") == "text" for b in blocks):
        text = "".join(texts_of(blocks)) or None
    inner = None if text is None else Passage(text=text, id=None if name is None else str(name))
    held = [item[key] for key in ("node", *_TEXT_KEYS) if isinstance(item.get(key), dict)]
    if held and (inner is None or held[0] is item.get("node")):
        inner = passage_of(held[0])
    score = _first(item, _SCORE_KEYS)
    if inner is None or not isinstance(score, int | float):
        return inner
    return Passage(text=inner.text, id=inner.id, score=float(score))


def results_of(data: Any) -> tuple[Passage, ...] | None:
    """Return the documents in the result of a search, or None if their texts cannot be read."""
    if isinstance(data, str):
        return documents_in(data) or parts_of(data)
    if items_in(data) is not None:
        return passages_in(data)
    whole = passage_of(data)
    return (whole,) if whole else documents_in(data)


def _first(item: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((item[key] for key in keys if item.get(key) is not None), None)


def documents_within(data: Any) -> list[Passage]:
    """Return every document at any depth in ``data``, the input or output of a chain."""
    if isinstance(data, dict):
        text = data.get("page_content", data.get("content"))
        if isinstance(text, str) and not data.keys().isdisjoint(_BESIDE_TEXT):
            return [Passage(text=text)]
        data = list(data.values())
    found: list[Passage] = []
    for item in data if isinstance(data, list) else ():
        found += documents_within(item)
    return found


def texts_within(data: Any) -> Iterator[Passage]:
    """Yield the texts under keys such as ``docs`` at the top level of a chain's input or output."""
    for name, value in data.items() if isinstance(data, dict) else ():
        texts = value if isinstance(value, list) else [value]
        is_kept = _KEPT_NAME.fullmatch(str(name))
        if is_kept and all(isinstance(text, str) and _WORDS.search(text) for text in texts):
            whole = None if isinstance(value, list) else passages_in_text(value)
            # What divides lines that were joined is not known, and a single text may be a memory.
            is_one = isinstance(value, str) and ("\n" in value or _MAY_BE_MEMORY.search(str(name)))
            apart = (Passage(text=text) for text in texts if not is_one)
            yield from apart if whole is None else whole


def ids_in(data: Any) -> Iterator[str]:
    """Yield the ids of LlamaIndex nodes whose ``repr`` is a text in ``data``, at any depth."""
    if isinstance(data, str) and (found := _NODE.fullmatch(data)):
        yield found[1]
    elif isinstance(data, list | dict):
        for item in data.values() if isinstance(data, dict) else data:
            yield from ids_in(item)


def distinct(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """Return the first passage with each text; white space makes no difference."""
    by_text: dict[str, Passage] = {}
    for passage in passages:
        by_text.setdefault(normalised(passage.text), passage)
    return tuple(by_text.values())


def is_title(text: str) -> bool:
    return len(text) < _SENTENCE and text.strip()[-1:].isalnum()


def window_of(text: object, metadata: object) -> dict[str, str]:
    """Map a document's ``text`` to a longer text in its ``metadata`` that contains it, if any."""
    metadata = json_in(metadata, opening="{")
    if not isinstance(text, str) or not text.strip() or not isinstance(metadata, dict):
        return {}
    if is_title(text):  # it may be in the name of a file
        return {}
    held = (one for one in metadata.values() if isinstance(one, str) and len(one) > len(text))
    around = next((one for one in held if text.strip() in one), None)
    return {} if around is None else {text: around}


def documents_in(data: Any) -> tuple[Passage, ...] | None:
    """Return the documents in a tool's result (objects, JSON or a repr); None if it is prose."""
    if isinstance(data, str):
        return _of_data(_parsed(data), _WITHIN) if data.lstrip()[:1] in _OPENING else None
    if isinstance(data, dict) and isinstance(data.get("content"), str) and _is_message(data):
        texts = data.get("texts") or ()
        several = passages_in(list(texts)) if len(texts) > 1 else None
        return several or documents_in(data["content"])
    return _of_data(data, _WITHIN)


def _parsed(text: str) -> Any:
    data = json_in(text)
    return data_in(text) if data is None else data


def _of_data(data: Any, depth: int) -> tuple[Passage, ...] | None:
    if isinstance(data, str):
        return passages_in_text(data, depth)
    if isinstance(data, list) and len(data) == 1 and _is_block(data[0]):
        data = data[0]
    if isinstance(data, dict):
        return _of_data(data["text"], depth) if _is_block(data) else _of_mapping(data, depth)
    if not isinstance(data, list) or not data:
        return None
    found = passages_in(data)
    return None if found is None else tuple(_unwrapped(p, depth) for p in found)


def _of_mapping(data: Mapping[str, Any], depth: int) -> tuple[Passage, ...] | None:
    listed = items_in(data) or data.get("content")
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
    return at(item, "type") == "text" and isinstance(item.get("text"), str)


def _unwrapped(passage: Passage, depth: int) -> Passage:
    """Return the document whose JSON is the text of ``passage``, or else ``passage`` itself."""
    if passage.text.lstrip()[:1] != "{" or not depth:
        return passage
    inner = _of_data(_parsed(passage.text), depth - 1)
    return inner[0] if inner is not None and len(inner) == 1 else passage


# --- documents in one text ------------------------------------------------------------------------

_WITHIN: Final = 4  # levels of nested texts that are read
_OPENING: Final = frozenset("[{(")
_RULE = r"[-=*_#~]{3,}"
_KINDS = r"doc(?:ument)?|passage|context|result|chunk|source|snippet|excerpt|hit"
_CONTENT = r"(?:[a-z]+[ _])?(?:content|text|passage|snippet|body|excerpt)"

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
    re.compile(pattern, re.MULTILINE | re.IGNORECASE)
    for pattern in (
        rf"(?<![-=*_#~]){_RULE}[ \t]*{_COUNTED}[ \t]*{_RULE}",  # also after the last word before
        rf"^[ \t]*(?:{_RULE}[ \t]*)?{_COUNTED}[ \t]*(?:{_RULE}[ \t]*$|[\])>*:.\u2013\u2014-]+|$)",
        r"^[ \t]*\[(\d{1,9})\]:?",
    )
)
_APART = re.compile(rf"\n[ \t]*\n[ \t]*{_RULE}[ \t]*\n[ \t]*\n")
_RULED = re.compile(rf"^[ \t]*{_RULE}[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"^([^:\n]+):", re.MULTILINE)
_QUOTES: Final = '"""'
_QUOTED = re.compile(
    r'^[^\n]{0,60}\b(?:article section|passage):\s{0,3}"""', re.MULTILINE | re.IGNORECASE
)
_TITLED = re.compile(r"^#{1,6} [^\n]{1,200}\n(?:URL: )?https?://\S+$", re.MULTILINE | re.IGNORECASE)
_ITEM = re.compile(r"\(?(\d{1,3})[.)][ \t]")  # of a numbered list
_LEAD = re.compile(r"[^\n]{0,80}:\s*")  # a line that may introduce the documents
_RULE_AT_END = re.compile(rf"\n[ \t]*{_RULE}\Z")
_STOP = re.compile("[.!?\N{HORIZONTAL ELLIPSIS}\N{IDEOGRAPHIC FULL STOP}]\\W{0,3}\\Z")
_FULL_STOP = re.compile("[.\N{HORIZONTAL ELLIPSIS}\N{IDEOGRAPHIC FULL STOP}]\\W{0,3}\\Z")
_LETTER, _BLANK_LINE = re.compile(r"\w"), re.compile(r"\n[ \t]*\n")


_LABEL = re.compile(  # a line such as "Title: Bees" or "Source 1:"
    rf"\W{{0,9}}(?:(?:{_ABOUT})\W{{0,3}}:.*"
    r"|(?:[^\W_]{1,20}[ _]){0,2}[^\W_]{1,20}\W{0,3}[\])>:]\W{0,3})",
    re.IGNORECASE,
)
_LABEL_LENGTH = 80


def is_prose(part: str) -> bool:
    """Return True if ``part``, a text beside documents, has more than labels and layout."""
    if part.count("Document(") == 1 and part.rstrip("'\"").endswith("page_content="):
        return False
    part = part.replace("\\n", "\n")  # some programs join documents by escaped line breaks
    lines = (line for line in part.splitlines() if any(map(str.isalpha, line)))
    return any(len(line) > _LABEL_LENGTH or not _LABEL.fullmatch(line.strip()) for line in lines)


def parts_around(text: str, documents: Iterable[str]) -> list[str]:
    """Return the parts of ``text`` before, between and after the ``documents``."""
    may_be_json = "\\" in text  # without escapes, a document can only be there verbatim
    for document in sorted(filter(None, map(str.strip, documents)), key=len, reverse=True):
        for form in forms_of(document) if may_be_json else (document,):
            text = text.replace(form, "\0")
    return text.split("\0")


def consists_of(text: str, documents: Collection[str], *, beside: Iterable[str] = ()) -> bool:
    """Return True if ``text`` has all ``documents``, and otherwise only ``beside`` and layout."""
    parts = parts_around(text, [*documents, *beside])
    is_all = len(parts_around(text, documents)) > len(documents)
    return is_all and not any(map(is_prose, parts))


def passages_in_text(text: str, depth: int = _WITHIN) -> tuple[Passage, ...] | None:
    """Return the documents in ``text`` that JSON, tags, numbers, labels or rules mark, or None."""
    if not depth:
        return None
    data = _of_data(_parsed(text), depth) if text.lstrip()[:1] in _OPENING else None
    if data is not None:
        return data
    for form in _FORMS:
        if parts := form(text):
            texts = filter(None, [_RULE_AT_END.sub("", part.rstrip()).strip() for part in parts])
            found = [p for t in texts for p in passages_in_text(t, depth - 1) or [Passage(text=t)]]
            return tuple(found) or None
    return None


def _of_strings(text: str) -> Sequence[str]:
    before, *parts = text.split("page_content='")
    texts = [part.partition("' metadata={")[0].rstrip().removesuffix("'") for part in parts]
    return () if before.strip() else texts


def _of_tags(text: str) -> Sequence[str]:
    found, outside = _tagged(text, _TAG)
    if not _AROUND_TAGS.fullmatch(outside):
        return ()
    return [next(iter(_tagged(one, _INNER_TAG)[0]), one) for one in found]


def _tagged(text: str, tag: re.Pattern[str]) -> tuple[list[str], str]:
    found, outside, name, begin = [], [], "", 0
    for mark in tag.finditer(text):
        if not name and not mark[1]:
            outside.append(text[begin : mark.start()])
            name, begin = mark[2], mark.end()
        elif name and mark[1] and mark[2] == name:
            found.append(text[begin : mark.start()])
            name, begin = "", mark.end()
    return found, "".join((*outside, text[begin:]))


def _of_numbers(text: str) -> Sequence[str]:
    """Return the texts below headings with the numbers 0, 1, 2, ... or 1, 2, 3, ..."""
    for pattern in _NUMBERED:
        found = list(pattern.finditer(text))
        numbers = [int(one[1]) for one in found]
        before = text[: found[0].start()].strip() if found else ""
        if numbers and numbers[0] <= 1 and (not before or _LEAD.fullmatch(f"{before}\n")):
            counted = range(numbers[0], numbers[0] + len(numbers))
            return _between(text, found) if numbers == list(counted) else ()
    return ()


def _of_fields(text: str) -> Sequence[str]:
    """Return the texts below ``Content:``, or below repeated lines such as ``Source:``."""
    text = text.lstrip()
    lead = _LEAD.match(text)
    begin = 0 if lead is None else lead.end()
    begin = begin if "\n" in text[:begin].strip(" ") else 0
    for pattern in _FIELDS:
        first = pattern.match(text, begin) or pattern.match(text)
        names = [] if first is None else _NAME.findall(first["names"])
        if first is None or not (names or first["text"]):
            continue
        lines = "".join(rf"{re.escape(name)}:[^\n]*\n\n?" for name in names)
        content = rf"{first['text']}:[ \t]*\n?" if first["text"] else ""
        found = list(re.compile(rf"^[ \t]*{lines}{content}", re.MULTILINE).finditer(text))
        return _between(text, found) if names or len(found) > 1 else ()
    return ()


def _between(text: str, marks: Sequence[re.Match[str]]) -> Sequence[str]:
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return [text[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]


def _of_blocks(text: str) -> Sequence[str]:
    """Return the texts between quotation marks, or below titles with an address."""
    for pattern in (_QUOTED, _TITLED):
        found = list(pattern.finditer(text))
        if found and not text[: found[0].start()].strip():
            parts = [part.strip().removesuffix(_QUOTES) for part in _between(text, found)]
            return () if any(_QUOTES in part for part in parts) else parts
    return ()


def _of_rules(text: str) -> Sequence[str]:
    parts = [part for part in _APART.split(text) if part.strip()]
    if len(parts) > 1:
        return parts
    # A rule without blank lines may also underline a heading, which may be a question.
    first, *others = parts = [part.strip() for part in _RULED.split(text)]
    named = {_NAME.match(part) is not None for part in parts if part}
    is_apart = len(named) == 1 and (True in named or all(map(_FULL_STOP.search, parts[:-1])))
    return parts if first and any(others) and is_apart else ()


# The forms of a text that contains documents; each returns their texts, or nothing.
_FORMS: Final[tuple[Callable[[str], Sequence[str]], ...]] = (
    _of_strings,  # page_content='...' metadata={...}
    _of_tags,  # <document>...</document>
    _of_numbers,  # Document 1: ... or [1] ...
    _of_fields,  # Source: ... and Content: ...
    _of_blocks,  # Article section: """...""" or # Title, https://... and a text
    _of_rules,  # ... --- ...
)


def parts_of(text: str) -> tuple[Passage, ...] | None:
    """Return marked documents (`passages_in_text`), else clear paragraphs, else None."""
    marked, parts = passages_in_text(text), paragraphs(text)
    if marked is not None:
        return marked
    # One paragraph is one document, but records, or what a rule divides, may be several.
    is_one = len(parts) <= 1 and text.lstrip()[:2] != "[{" and not _RULED.search(text)
    are_lines = len(parts) > 1 and all(_is_sentence(part.text.strip()) for part in parts)
    return parts if is_one or are_lines else None


def _is_sentence(text: str) -> bool:
    is_ended = _STOP.search(text, max(0, len(text) - 4)) is not None
    return is_ended and "\n" not in text and _LETTER.search(text) is not None


def paragraphs(text: str) -> tuple[Passage, ...]:
    """Return the paragraphs of ``text`` as passages. Blank lines separate paragraphs."""
    parts = _BLANK_LINE.split(text)
    return tuple(Passage(text=part.strip("\n")) for part in parts if part.strip())


def joined_lines(text: str) -> tuple[Passage, ...] | None:
    """Return the lines of ``text`` if each ends a sentence, else `parts_of` the text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    items = [*map(_ITEM.match, lines)]
    if [int(item[1]) for item in items if item] == [*range(1, len(lines) + 1)]:
        lines = [line[item.end() :] for line, item in zip(lines, items, strict=True) if item]
    if len(lines) > 1 and all(map(_is_sentence, lines)) and passages_in_text(text) is None:
        return tuple(Passage(text=line) for line in lines)
    return parts_of(text)


# --- documents in prompts -------------------------------------------------------------------------

_NAMES = (
    r"contexts?|documents|passages|sources|excerpts|snippets|background|references|papers|articles"
    r"|knowledge(?: base)?|(?:search |retrieval )?results|(?:context |background )?information"
)
_ASKED = r"(?:user(?:'s)? |customer |original )?(?:question|query|request|message|input)"
_BLOCK_TAG = re.compile(rf"<(/?)({_NAMES})>", re.IGNORECASE)
_NAMED = re.compile(rf"\b(?:{_NAMES})\b", re.IGNORECASE)
_ADJECTIVES = r"(?:(?:the|retrieved|relevant|given|provided|following|supporting|additional) )*"
_HEADING = re.compile(  # the name alone, perhaps with a number or letter
    rf"[#*\[(]* ?{_ADJECTIVES}(?P<name>{_NAMES}) ?[#№]?(?P<number>\d{{1,3}}|[a-z])?[\])*]* ?"
    r"(?P<colon>:?)",
    re.IGNORECASE,
)
_INSTRUCTS = re.compile(  # a sentence that is no part of a passage
    r"\b(?:answer|based|below|following|given|here|provided|relevant|retrieved|us(?:e|ing))\b",
    re.IGNORECASE,
)
_HEADING_LENGTH = 240  # characters; a longer line is no heading
_ORDER = re.compile(  # an instruction below the documents
    r"\s*(?:answer|based|given|if|note|now|please|today|use|using|with)[,:]*(?:\s|$)", re.IGNORECASE
)
_IS_RULE = re.compile(r"^[ \t]*([-=*_#`~])\1{2,}[ \t]*$", re.MULTILINE)
_INDENT = r"^[ \t]{0,20}[#*\[]{0,6}[ \t]?"
_NEXT = re.compile(
    rf"{_INDENT}(?:{_ASKED}|(?:helpful |final |your )?answer|response|assistant|human|user"
    r"|customer|(?:chat |conversation )?history|instructions?|rules?|task|output|format)\b"
    r"[^\n:]{0,20}:",
    re.IGNORECASE | re.MULTILINE,
)
_QUESTION = re.compile(
    rf"{_INDENT}(?:{_ASKED}|user|human|customer)[\]*]{{0,6}}[ \t]?:[*]*\s*([^\n]+)",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The text below a heading such as "Context:" in a prompt, and the question in that prompt."""

    text: str
    question: str | None = None

    def passages(self, count: int | None = None) -> tuple[Passage, ...] | None:
        """Split the text into documents, ``count`` if it is given; None if that is not possible."""
        if count is None:
            found = joined_lines(self.text)
            if found and len(found) > 1 and _ORDER.match(found[-1].text):
                return None
        else:
            ways = (parts_of(self.text), joined_lines(self.text), paragraphs(self.text))
            found = next((one for one in ways if one is not None and len(one) == count), None)
        # A rule that is left may divide two documents.
        return None if any(_IS_RULE.search(one.text) for one in found or ()) else found


def block_in(prompt: Sequence[str]) -> Block | None:
    """Return the block of contexts in the last message of ``prompt`` that has one, or None."""
    for message in reversed(prompt):
        text = _block_of(message)
        if text:
            asked = [one[1] for one in _QUESTION.finditer(message.replace(text, "\n"))]
            return Block(text=text, question=asked[-1].strip() if asked else None)
    return None


def _block_of(message: str) -> str | None:
    """Return the documents in ``message``, in its only tag or below its only heading, or None."""
    tagged, _ = _tagged(message, _BLOCK_TAG)
    if tagged:
        return tagged[0].strip() if len(tagged) == 1 and not _BLOCK_TAG.search(tagged[0]) else None
    quoted = _QUOTED.search(message)
    if quoted is not None:
        return message[quoted.start() : message.rindex(_QUOTES)].strip()
    lines = message.splitlines(keepends=True)
    at = _first_heading(lines)
    if at is None:
        return None
    first = _HEADING.match(_squeezed(lines[at]))
    alike = [
        found["number"]
        for line in lines[at:]
        if first is not None
        and ":" in line
        and (found := _HEADING.match(_squeezed(line)))
        and found["colon"]
        and found["name"].lower() == first["name"].lower()
    ]
    is_counted = alike == [str(number) for number in range(1, len(alike) + 1)]
    if (len(alike) > 1 or (alike and alike[0])) and not is_counted:
        return None
    rest = lines[at].partition(":")[2].lstrip("*") if alike else ""
    below = "".join(lines[at:]) if alike and is_counted else rest + "".join(lines[at + 1 :])
    end = _NEXT.search(below)  # a heading such as "Question:"
    return below[: end.start() if end else None].strip()


def _first_heading(lines: Sequence[str]) -> int | None:
    """Return the index of the first line that is a heading such as "Context:", or None."""
    is_below = False
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        squeezed = _squeezed(line)
        found = _HEADING.match(squeezed)
        # An instruction is a heading unless a line above has a colon at its end, too.
        if (found and found["colon"]) or (not is_below and _is_instruction(squeezed)):
            return number
        ends = line.rstrip().rstrip("*").endswith(":")
        is_below = is_below or (ends and not _NEXT.match(line))
    return None


def _is_instruction(line: str) -> bool:
    named = [*_NAMED.finditer(line)]
    if not named or not line.rstrip("*").endswith(":") or line.count(":") > 1:
        return False
    return "." not in line[named[-1].end() :] and _INSTRUCTS.search(line) is not None


def _squeezed(line: str) -> str:
    """Return ``line`` with single spaces; if it is long, only a heading at its beginning."""
    if len(line) > _HEADING_LENGTH:
        name, colon, _ = line[:_HEADING_LENGTH].partition(":")
        found = _HEADING.fullmatch(" ".join(name.split()) + colon)
        return found[0] if found else ""
    return " ".join(line.split())

"""Write tasks into the text of a request, and read the replies from a judge's text.

Instructions come first, because providers cache a constant beginning; then the texts of the sample,
each after a random mark, which no text can imitate. To save tokens, entries of lists in replies
have no numbers, and an object with one member is replaced by the member.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError
from pydantic_core import from_json

from rag_eval_otel.errors import ConfigError, UnparsableReplyError
from rag_eval_otel.judge.tasks import Example, Kind, Reply, Task
from rag_eval_otel.judge.usage import current_scope
from rag_eval_otel.types import Sample
from rag_eval_otel.untrusted import harmless

Schema: TypeAlias = "dict[str, Any]"
Tasks: TypeAlias = "Sequence[Task[Any]]"

_QUOTED = 300  # characters of a rejected reply that an error message quotes
_DIGITS = 6  # the most digits in the number of an entry
_FIRST = ("contexts", "context", "reference", "history", "query", "question")  # texts in order
_SKETCHES: Mapping[str, str] = {"string": '"..."', "boolean": "true|false"}
_BUILT_IN = files("rag_eval_otel.judge") / "prompts"


@cache
def _built_in(name: str) -> str:
    return (_BUILT_IN / f"{name}.md").read_text(encoding="utf-8").strip()


def prompt_text(name: str) -> str:
    """Return the text of the prompt ``name`` in the option ``prompts``, else the built-in text."""
    text = (current_scope().prompts or {}).get(name)
    return _built_in(name) if text is None else text


def prompt_hash(names: Sequence[str], kinds: Sequence[Kind[Any]] = ()) -> str:
    texts = [*map(prompt_text, names), *map(instructions_of, kinds)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def instructions_of(kind: Kind[Any]) -> str:
    return kind.instructions or prompt_text(kind.prompt)


def load_prompts(folder: str | PathLike[str]) -> dict[str, str]:
    """Return the texts of the ``.md`` files in ``folder`` by prompt, or raise `ConfigError`."""
    place, texts = Path(folder), dict[str, str]()
    names = {path.name for path in _BUILT_IN.iterdir()}
    try:
        for path in place.iterdir():
            if path.suffix == ".md" and path.name != "README.md":
                texts[path.name] = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts: {place} cannot be read: {error}") from error
    if not texts:
        raise ConfigError(f"prompts: {place} has no .md file")
    for name, text in sorted(texts.items()):
        if name not in names:
            close = "".join(f"; did you mean {n}?" for n in get_close_matches(name, names, n=1))
            raise ConfigError(f"prompts: {place} has {name}, but no prompt has that name{close}")
        if not text:
            raise ConfigError(f"prompts: {place / name} has no text; delete it to use the built-in")
    return {name.removesuffix(".md"): text for name, text in texts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The system and the user message to the judge, and the JSON Schema of the reply."""

    system: str
    user: str
    schema: Mapping[str, Any]

    @property
    def user_with_schema(self) -> str:
        schema = json.dumps(self.schema, separators=(",", ":"))
        return f"{self.user}\n\n{prompt_text('schema')}\n{schema}"


def compose(tasks: Tasks, *, code: Callable[[], str] = lambda: secrets.token_hex(3)) -> Request:
    groups = _groups(tasks)
    parts = {name: _part_schema(group) for name, group in groups.items()}
    first = next(iter(parts.values()))
    schema = first if len(parts) == 1 and "properties" in first else _object(parts)
    has_history = any(name == "history" for task in tasks for name, _ in task.inputs)
    names = ["frame", *(["history"] if has_history else [])]
    names += ["reasons"] if any(task.reasons for task in tasks) else []
    fixed = [_section(group, tasks) for group in groups.values()]
    user = "\n\n".join([*fixed, f"Reply: {_form(schema)}", _materials(tasks, code)])
    return Request(
        system=" ".join(map(prompt_text, names)),
        user=user.encode("utf-8", "replace").decode(),  # a lone surrogate cannot be sent
        schema=schema,
    )


def _groups(tasks: Tasks) -> dict[str, list[Task[Any]]]:
    groups: dict[str, list[Task[Any]]] = {}
    for task in tasks:
        groups.setdefault(task.prompt, []).append(task)
    return groups


def _section(group: Tasks, tasks: Tasks) -> str:
    first = group[0]
    lines = [f"# {first.prompt}", instructions_of(first.kind)]
    lines += [_example(example, first) for example in first.examples]
    if len({tuple(name for name, _ in task.inputs) for task in tasks}) > 1:
        lines.append(f"Consider only: {', '.join(name for name, _ in first.inputs)}.")
    if _are_drawings(group):
        lines.append(prompt_text("repeated").replace("{n}", str(len(group))))
    return "\n".join(lines)


def _are_drawings(group: Tasks) -> bool:  # one question, which is answered several times
    return len(group) > 1 and len({task.inputs for task in group}) == 1


def _example(example: Example, task: Task[Any]) -> str:
    shown = []
    for name, value in example.inputs:
        listed = (
            [value] if isinstance(value, str) else [f"[{i}] {t}" for i, t in enumerate(value, 1)]
        )
        shown += [f"<{name}>", *listed, f"</{name}>"]
    outputs = json.loads(example.outputs)
    short = _shortened(outputs, reply_schema(task.reply, reasons=task.reasons))
    named = short if isinstance(short, dict) else {task.prompt: short}
    reply = json.dumps(named, ensure_ascii=False)
    return "\n".join(["<example>", *shown, f"Reply: {reply}", "</example>"])


def _materials(tasks: Tasks, code: Callable[[], str]) -> str:
    shown = _shown(tasks)
    complaints = {task.complaint: task.prompt for task in tasks if task.complaint}
    texts = [text for _, value in shown for text in ([value] if isinstance(value, str) else value)]
    drawn = code()
    while any(drawn in text for text in (*texts, *complaints)):
        drawn = code()
    lines = [f"CODE is {drawn}.", *_counted(tasks, dict(shown))]
    for name, value in shown:
        for i, text in enumerate([value] if isinstance(value, str) else value, start=1):
            number = "" if isinstance(value, str) else f" {i}"
            cut = f"\n[... {text.lost:,} characters cut]" if isinstance(text, CutText) else ""
            lines += [f"[{drawn} {name}{number}]", harmless(text) + cut]
    for complaint, name in complaints.items():
        lines += [f"[{drawn} {prompt_text('complaint')} {name}]", harmless(complaint)]
    return "\n".join([*lines, f"[{drawn} end]", prompt_text("closing")])


def _counted(tasks: Tasks, shown: Mapping[str, str | tuple[str, ...]]) -> Iterator[str]:
    for name, group in _groups(tasks).items():
        kind = group[0].kind
        if kind.each:
            yield f"{name}: {len(group[0].texts(kind.each))} entries"
        elif len(group) > 1 and not _are_drawings(group) and "contexts" in shown:
            order = {text: i for i, text in enumerate(shown["contexts"], start=1)}
            numbers = ", ".join(str(order[task.text("context")]) for task in group)
            yield f"{name}: an entry each for contexts {numbers}, in this order"
        elif "contexts" in shown and "context" in dict(group[0].inputs):
            number = shown["contexts"].index(group[0].text("context")) + 1
            yield f"{name}: context is contexts {number}"


def _shown(tasks: Tasks) -> list[tuple[str, str | tuple[str, ...]]]:
    shown: dict[str, str | tuple[str, ...]] = {}
    for task in tasks:
        shown.update(task.inputs)
    if "context" in shown and len(tasks) > 1:
        del shown["context"]
        inputs = [dict(task.inputs) for task in tasks]
        listed = [text for each in inputs for text in each.get("contexts", ())]
        single = [str(each["context"]) for each in inputs if "context" in each]
        shown["contexts"] = tuple(dict.fromkeys([*listed, *single]))
    rank = {name: i for i, name in enumerate(_FIRST)}
    return sorted(shown.items(), key=lambda item: rank.get(item[0], len(rank)))


def reply_schema(reply: type[Reply], *, reasons: bool) -> Schema:
    return _short(_full_schema(reply), reasons=reasons)


def _short(schema: Schema, *, reasons: bool) -> Schema:
    if "items" in schema:
        return {"type": "array", "items": _short(schema["items"], reasons=reasons)}
    if "properties" not in schema:
        return {k: v for k, v in schema.items() if k not in {"title", "default", "description"}}
    known, kept = schema["properties"], _essential(schema)
    if reasons:
        kept = [name for name, member in known.items() if "position" not in member]
    members = {name: _short(known[name], reasons=reasons) for name in kept}
    return _object(members) if len(members) > 1 else next(iter(members.values()))


def _essential(schema: Schema) -> list[str]:
    required = schema.get("required", ())
    return [n for n, m in schema["properties"].items() if n in required and "position" not in m]


def _object(members: Mapping[str, Schema]) -> Schema:
    properties = {"properties": dict(members), "required": list(members)}
    return {"type": "object", **properties, "additionalProperties": False}


def _part_schema(group: Tasks) -> Schema:
    one = reply_schema(group[0].reply, reasons=group[0].reasons)
    if len(group) == 1:
        return one
    if not _are_drawings(group) or "properties" not in one:
        return {"type": "array", "items": one}
    columns = one["properties"].items()
    texts = {n: {"type": "array", "items": c} for n, c in columns if c.get("type") == "string"}
    return _object({**dict(columns), **texts})


def _form(schema: Mapping[str, Any]) -> str:
    if "properties" in schema:
        members = (f'"{name}": {_form(member)}' for name, member in schema["properties"].items())
        return f"{{{', '.join(members)}}}"
    if "items" in schema:
        return f"[{_form(schema['items'])}, ...]"
    if "enum" in schema:
        return "|".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    return _SKETCHES.get(str(schema.get("type")), str(schema.get("type")))


def _shortened(value: Any, schema: Mapping[str, Any]) -> Any:
    if "properties" in schema:
        members = schema["properties"].items()
        return {name: _shortened(value.get(name, ""), member) for name, member in members}
    if isinstance(value, dict):  # only one member is left
        kept = [member for name, member in value.items() if name not in {"index", "reason"}]
        return _shortened([*kept, *value.values()][0], schema)
    if "items" in schema:
        return [_shortened(one, schema["items"]) for one in value]
    return value


def read_parts(text: str, tasks: Tasks) -> tuple[object, ...]:
    """Return the reply in ``text``, or an `UnparsableReplyError`, for each of ``tasks``."""
    groups = _groups(tasks)
    found = _find_object(text, groups)
    read: dict[int, object] = {}
    for name, group in groups.items():
        values = _values(found, name, group, text=text)
        read |= {id(task): _validated(one, task) for task, one in zip(group, values, strict=True)}
    return tuple(read[id(task)] for task in tasks)


def _values(found: Mapping[str, Any], name: str, group: Tasks, *, text: str) -> list[Any]:
    value = found.get(name)
    if value is None or value == {}:
        quoted = text.strip()[:_QUOTED]
        return [UnparsableReplyError(f"no usable member {name!r} in: {quoted!r}")] * len(group)
    if len(group) == 1:
        return [value]
    if isinstance(value, Mapping) and _are_drawings(group):
        return [_drawing(value, i) for i in range(len(group))]
    if isinstance(value, list) and (len(value) == len(group) or _are_drawings(group)):
        missing = UnparsableReplyError(f"{name}: {len(value)} entries for {len(group)}")
        return [*value, *[missing] * len(group)][: len(group)]
    told = f"{name} must be a list of {len(group)} entries, not {repr(value)[:_QUOTED]}"
    return [UnparsableReplyError(told)] * len(group)


def _drawing(columns: Mapping[str, Any], i: int) -> Any:
    lists = {n: [c] if isinstance(c, str) else c for n, c in columns.items()}
    if any(isinstance(column, list) and i >= len(column) for column in lists.values()):
        return UnparsableReplyError(f"there is no entry number {i + 1}")
    return {n: column[i] if isinstance(column, list) else column for n, column in lists.items()}


def _validated(value: Any, task: Task[Any]) -> object:
    if isinstance(value, UnparsableReplyError):
        return value
    reply: type[Reply] = task.reply
    count = len(task.texts(task.kind.each)) if task.kind.each else None
    try:
        return reply.model_validate(_expanded(value, _full_schema(reply), count=count))
    except ValidationError as error:
        wrong = error.errors()[:3]
        told = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong)
        return UnparsableReplyError("; ".join(told))
    except UnparsableReplyError as error:
        return error


@lru_cache(maxsize=1024)
def _full_schema(reply: type[Reply]) -> Schema:
    schema = reply.model_json_schema()
    defs = schema.pop("$defs", {})

    def resolved(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        target = defs[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        return {name: resolved(member) for name, member in target.items()}

    full: Schema = resolved(schema)
    return full


def _expanded(value: Any, schema: Schema, *, count: int | None) -> Any:
    """Add the names of fields and the numbers of entries, which judges leave out, to ``value``."""
    if "items" in schema:
        return _expanded_list(value, schema["items"], count=count)
    if "properties" not in schema:
        return value
    known, essential = schema["properties"], _essential(schema)
    if isinstance(value, Mapping) and value.keys() & known.keys():
        full = {n: _expanded(value[n], known[n], count=count) for n in value.keys() & known.keys()}
        return {**value, **full}
    if len(essential) != 1:
        return value
    return {essential[0]: _expanded(value, known[essential[0]], count=count)}


def _expanded_list(value: Any, items: Schema, *, count: int | None) -> Any:
    named = isinstance(value, Mapping) and bool(value)
    named = named and all(name.isdecimal() and len(name) <= _DIGITS for name in value)
    given = list(value.values()) if named else value
    if not isinstance(given, list):
        return value
    entries = [_expanded(one, items, count=None) for one in given]
    if count is None or not all(isinstance(one, dict) for one in entries):
        return entries
    if not named and any("index" in one for one in entries):
        return entries
    if not named and len(entries) != count:
        raise UnparsableReplyError(f"{len(entries)} entries for {count} texts; give one for each")
    numbers = map(int, value) if named else range(1, count + 1)
    return [{"index": i, **one} for i, one in zip(numbers, entries, strict=True)]


def _find_object(text: str, groups: Mapping[str, Tasks]) -> dict[str, Any]:
    decoder = json.JSONDecoder()
    first = start = text.find("{")
    while start != -1:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            if start != first:
                return {}
            with suppress(ValueError):  # of an object whose end is missing, all but the last member
                cut = from_json(text[first:].encode("utf-8", "replace"), allow_partial=True)
                if isinstance(cut, dict) and (named := _named(dict([*cut.items()][:-1]), groups)):
                    return named
            start = text.find("{", start + 1)
            continue
        if named := _named(value, groups):
            return named
        start = text.find("{", end)
    return {}


def _named(value: dict[str, Any], groups: Mapping[str, Tasks]) -> dict[str, Any]:
    found = {name: value[name] for name in groups if name in value}
    name, group = next(iter(groups.items()))
    is_reply = len(groups) == 1 and value.keys() & group[0].reply.model_fields.keys()
    return {name: value} if is_reply and not found else found


_LONG_TURN = 4  # times as long as the longest text


class CutText(str):
    """The beginning of a text; ``lost`` is the number of characters that were cut at its end."""

    __slots__ = ("lost",)
    lost: int


def clipped(sample: Sample, most: int | None) -> tuple[Sample, dict[str, int]]:
    """Cut each text to ``most`` characters, all to 4 times that; return also the cuts by field."""
    if most is None:
        return sample, {}
    cut: Counter[str] = Counter()
    left = most * _LONG_TURN

    def shorter(name: str, text: str) -> str:
        nonlocal left
        kept = text[: min(most, left)]
        left -= len(kept)
        lost = len(text) - len(kept)
        if not lost:
            return text
        cut[name] += lost
        found = CutText(kept)
        found.lost = lost
        return found if kept else ""

    given = {name: getattr(sample, name) for name in ("question", "answer", "reference", "query")}
    texts: dict[str, Any] = {name: shorter(name, text) for name, text in given.items() if text}
    shown = [(passage, shorter("contexts", passage.text)) for passage in sample.contexts]
    if cut:
        texts["contexts"] = [replace(passage, text=text) for passage, text in shown]
    return (replace(sample, **texts) if cut else sample), cut

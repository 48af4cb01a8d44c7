"""The questions that metrics put to a judge, and how they are written and read on the wire."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import from_json

from rag_eval_otel.errors import ConfigError, UnparsableReplyError
from rag_eval_otel.judge.prompting import prompt_text
from rag_eval_otel.judge.replies import Reply

R = TypeVar("R", bound=Reply)
Input: TypeAlias = "tuple[str, str | tuple[str, ...]]"
Rated: TypeAlias = Literal["integer", "logprobs"]
"""How a rating is read: as the number replied, or as the mean under the judge's probabilities."""

_SHOWN: Mapping[str, str] = {
    "context": "contexts",
    "statements": "answer",
    "questions": "answer",
    "sub_questions": "question",
    "intent": "question",
}
"""The field of the sample that can be read off an input of another name."""

_OPEN: frozenset[str] = frozenset({"question", "contexts", "answer"})
"""What a question may see without showing it. All else might give the right answer away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A worked example: what was shown, and the reply as JSON."""

    inputs: tuple[Input, ...]
    outputs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[R]):
    """A sort of question: ``prompt`` names its file, ``inputs`` what may be shown with it.

    ``blind_to`` are those of question, contexts and answer that must not be in sight of it; what
    else there is, as a reference or a rubric, no question sees that does not show it. Kinds that
    differ in ``voice`` alone are two independent judges. ``instructions`` take the place of the
    prompt file.
    """

    prompt: str
    reply: type[R]
    inputs: tuple[str, ...]
    blind_to: frozenset[str] = frozenset()
    voice: int = 0
    instructions: str = ""

    @property
    def family(self) -> str:
        """The prompt without its voice: two voices of a dual judge are one family."""
        return self.prompt.removesuffix(f"_{self.voice}")

    def task(
        self,
        shown: Mapping[str, str | Sequence[str]],
        *,
        draw: int = 0,
        rated: Rated = "integer",
        examples: Iterable[Mapping[str, Any]] = (),
    ) -> Task[R]:
        """Return the question about the texts ``shown``, with those ``examples`` that fit it."""
        inputs = ((name, shown[name]) for name in self.inputs if name in shown)
        fitting = (example_of(self, example) for example in examples)
        return Task(
            kind=self,
            inputs=tuple((name, t if isinstance(t, str) else tuple(t)) for name, t in inputs),
            draw=draw,
            rated=rated,
            examples=tuple(example for example in fitting if example),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[R]):
    """One typed question to a judge; equal tasks are the same question.

    ``inputs`` are the texts shown, by name. Tasks that differ in ``draw`` alone are repeated
    drawings from one judge. ``complaint`` tells the judge what was wrong with its last reply.
    """

    kind: Kind[R]
    inputs: tuple[Input, ...]
    draw: int = 0
    rated: Rated = "integer"
    examples: tuple[Example, ...] = ()
    complaint: str = ""

    def text(self, name: str) -> str:
        """Return the single text shown as ``name``."""
        value = dict(self.inputs)[name]
        return value if isinstance(value, str) else "\n".join(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list of texts shown as ``name``."""
        value = dict(self.inputs)[name]
        return (value,) if isinstance(value, str) else value

    @property
    def prompt(self) -> str:
        """The name of its prompt."""
        return self.kind.prompt

    @property
    def reply(self) -> type[R]:
        """The model of its reply."""
        return self.kind.reply

    @property
    def shows(self) -> frozenset[str]:
        """The fields of the sample that can be read off its inputs."""
        fields = {} if self.kind.instructions else _SHOWN  # a user's own names say nothing
        return frozenset(fields.get(name, name) for name, _ in self.inputs)


def may_share(one: Task[Reply], other: Task[Reply]) -> bool:
    """Tell whether two tasks may travel in one request.

    Not where one is blind to what the other shows, not where one alone shows more than question,
    contexts and answer, not two voices of one dual judge, not with differing examples of one kind,
    and not where a name would stand for two different texts.
    """
    if one.kind.blind_to & other.shows or other.kind.blind_to & one.shows:
        return False
    if (one.shows ^ other.shows) - _OPEN:
        return False
    if one.kind.family == other.kind.family and (
        one.kind != other.kind or one.examples != other.examples
    ):
        return False
    mine, theirs = dict(one.inputs), dict(other.inputs)
    shared = (mine.keys() & theirs.keys()) - {"context"}  # each is one of a list
    return all(mine[name] == theirs[name] for name in shared)


def example_of(kind: Kind[Any], example: Mapping[str, Any]) -> Example | None:
    """Return ``example`` as ``kind`` shows it; None where it is none of that kind."""
    try:
        shown, outputs = example["inputs"], example["outputs"]
        kind.reply.model_validate(outputs)
        reply = json.dumps(outputs, ensure_ascii=False)
    except (KeyError, TypeError, ValidationError):
        return None
    if not isinstance(shown, Mapping) or not shown or not all(map(_is_shown, shown.values())):
        return None
    if not (set(shown) <= set(kind.inputs) and set(outputs) <= set(kind.reply.model_fields)):
        return None
    inputs = ((name, shown[name]) for name in kind.inputs if name in shown)
    return Example(
        inputs=tuple((name, t if isinstance(t, str) else tuple(t)) for name, t in inputs),
        outputs=reply,
    )


def _is_shown(value: object) -> bool:
    """Tell whether ``value`` is a text or a list of texts."""
    texts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(text, str) for text in texts)


def fitting(
    examples: Iterable[Mapping[str, Any]], kinds: Sequence[Kind[Any]]
) -> list[Mapping[str, Any]]:
    """Return those of ``examples`` that are examples of one of ``kinds``."""
    return [example for example in examples if any(example_of(kind, example) for kind in kinds)]


def check_examples(
    name: str, examples: Iterable[Mapping[str, Any]], kinds: Sequence[Kind[Any]]
) -> None:
    """Raise `ConfigError` unless each of ``examples`` of metric ``name`` fits one of ``kinds``."""
    for i, example in enumerate(examples):
        if fitting([example], kinds):
            continue
        forms = "; or ".join(
            f"inputs {list(kind.inputs)} with outputs {list(kind.reply.model_fields)}"
            for kind in kinds
        )
        msg = f"examples[{i}] of {name} must be {{'inputs': ..., 'outputs': ...}} with {forms}"
        raise ConfigError(msg)


_QUOTED = 300  # characters of a rejected reply that are shown to the judge again


def prompt_hash(names: Sequence[str], kinds: Sequence[Kind[Any]] = ()) -> str:
    """Return 8 hex digits that change when a text of any of the prompts and kinds does."""
    texts = [*map(prompt_text, names), *map(_instructions, kinds)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def _instructions(kind: Kind[Any]) -> str:
    return kind.instructions or prompt_text(kind.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One judge request: ``system`` and ``user`` text, the reply's JSON Schema, the part names."""

    system: str
    user: str
    schema: Mapping[str, Any]
    names: tuple[str, ...]

    @property
    def user_with_schema(self) -> str:
        """The user text for servers that cannot be given a schema."""
        schema = json.dumps(self.schema, separators=(",", ":"))
        return f"{self.user}\n\n{prompt_text('schema')}\n{schema}"


def compose(tasks: Sequence[Task[Any]]) -> Request:
    """Return the request that puts ``tasks``, which must be allowed to share one."""
    names = part_names(tasks)
    sections = [_section(group, tasks) for group in _by_prompt(names, tasks)]
    # What is the same in every request comes first: servers charge less for a prefix they know.
    user = "\n\n".join([*sections, *_materials(tasks)])
    return Request(
        system=prompt_text("frame"),
        user=user.encode("utf-8", "replace").decode(),  # no client can send a lone surrogate
        schema=_schema(tuple(zip(names, (task.reply for task in tasks), strict=True))),
        names=names,
    )


def part_names(tasks: Sequence[Task[Any]]) -> tuple[str, ...]:
    """Name each task by its prompt, numbered where one prompt is put several times."""
    prompts = [task.prompt for task in tasks]
    return tuple(
        name if prompts.count(name) == 1 else f"{name}_{prompts[: i + 1].count(name)}"
        for i, name in enumerate(prompts)
    )


def _by_prompt(
    names: Sequence[str], tasks: Sequence[Task[Any]]
) -> Iterator[list[tuple[str, Task[Any]]]]:
    groups: dict[str, list[tuple[str, Task[Any]]]] = {}
    for name, task in zip(names, tasks, strict=True):
        groups.setdefault(task.prompt, []).append((name, task))
    yield from groups.values()


def _section(group: Sequence[tuple[str, Task[Any]]], tasks: Sequence[Task[Any]]) -> str:
    first = group[0][1]
    lines = [f"# {', '.join(name for name, _ in group)}", _instructions(first.kind)]
    lines += map(_example, first.examples)
    if len({tuple(name for name, _ in task.inputs) for task in tasks}) > 1:
        lines.append(f"Consider only: {', '.join(name for name, _ in first.inputs)}.")
    if len(tasks) > 1:
        listed = list(_listed(tasks))
        lines += [
            f"{name}: context is [{i}] of contexts" for name, i in _each_context(group, listed)
        ]
    if len({task.draw for _, task in group}) > 1:
        lines.append(prompt_text("repeated"))
    lines += [f"{prompt_text('complaint')} {task.complaint}" for _, task in group if task.complaint]
    return "\n".join(lines)


def _example(example: Example) -> str:
    shown = "\n".join(_tagged(name, value) for name, value in example.inputs)
    return f"<example>\n{shown}\nReply: {example.outputs}\n</example>"


def _each_context(
    group: Sequence[tuple[str, Task[Any]]], listed: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Yield which of the contexts each part is about, where it is about a single one."""
    for name, task in group:
        context = dict(task.inputs).get("context")
        if isinstance(context, str):
            yield name, listed.index(context) + 1


def _listed(tasks: Sequence[Task[Any]]) -> dict[str, None]:
    """Return all contexts shown, those of a list first and in its order."""
    shown = [dict(task.inputs) for task in tasks]
    lists = (texts for inputs in shown for texts in inputs.get("contexts", ()))
    return dict.fromkeys([*lists, *(str(i["context"]) for i in shown if "context" in i)])


def _materials(tasks: Sequence[Task[Any]]) -> list[str]:
    """Return what is shown, each text once; single contexts of several tasks become a list."""
    shown: dict[str, str | tuple[str, ...]] = {}
    for task in tasks:
        shown.update(task.inputs)
    if "context" in shown and len(tasks) > 1:
        del shown["context"]
        shown["contexts"] = tuple(_listed(tasks))
    return [_tagged(name, value) for name, value in shown.items()]


def _tagged(name: str, value: str | tuple[str, ...]) -> str:
    """Wrap texts in a tag that none of them can close, several with numbers none can feign."""
    texts = (value,) if isinstance(value, str) else value
    tag = name
    while any(f"</{tag}>" in text for text in texts):
        tag += "_"
    if isinstance(value, str):
        return f"<{tag}>\n{value}\n</{tag}>"
    left, right = _brackets(texts)
    numbered = "\n".join(f"{left}{i}{right} {text}" for i, text in enumerate(texts, start=1))
    return f"<{tag}>\n{numbered}\n</{tag}>"


def _brackets(texts: Sequence[str]) -> tuple[str, str]:
    """Return brackets for numbers such that no line of ``texts`` begins with one in them."""
    depth = 1
    while any(re.search(rf"^\s*\[{{{depth}}}\d", text, flags=re.MULTILINE) for text in texts):
        depth += 1
    return "[" * depth, "]" * depth


@lru_cache(maxsize=256)
def _schema(parts: tuple[tuple[str, type[BaseModel]], ...]) -> dict[str, Any]:
    """Return a JSON Schema that strict structured output accepts: all required, none extra."""
    members: dict[str, Any] = {name: (model, ...) for name, model in parts}
    replies = create_model("Replies", __base__=Reply, **members)
    return _strict(replies.model_json_schema())


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    dropped = {"title", "default", "description"}
    kept = {key: _strict_value(v) for key, v in schema.items() if key not in dropped}
    if isinstance(kept.get("properties"), dict):
        kept["required"] = list(kept["properties"])
    return kept


def _strict_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_strict_value(item) for item in value]
    return _strict(value) if isinstance(value, dict) else value


def read_parts(text: str, tasks: Sequence[Task[Any]]) -> tuple[object, ...]:
    """Return for each task its validated reply, or the `UnparsableReplyError` that says why not.

    Code fences and prose around the object are passed over. Of a reply that was cut off, the
    members before the cut are kept; the one it hit is not trusted.
    """
    names = part_names(tasks)
    found = _find_object(text, names)
    if len(tasks) == 1 and names[0] not in found:
        found = {names[0]: found}  # a judge that left out the only task's name
    return tuple(
        _read_part(found, name, task=task, text=text)
        for name, task in zip(names, tasks, strict=True)
    )


def _read_part(
    found: Mapping[str, Any], name: str, *, task: Task[Any], text: str
) -> Reply | UnparsableReplyError:
    value = found.get(name)
    if name in task.reply.model_fields and name in found and not isinstance(value, dict):
        value = {name: value}  # a judge that took task and member of one name for one
    if not value:
        quoted = text.strip()[:_QUOTED]
        return UnparsableReplyError(f"no usable member {name!r} in: {quoted!r}")
    try:
        reply: Reply = task.reply.model_validate(value)
    except ValidationError as error:
        return UnparsableReplyError(_complaint(error))
    return reply


def _complaint(error: ValidationError) -> str:
    wrong = error.errors(include_url=False, include_context=False)[:3]
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong)


def _find_object(text: str, names: Sequence[str]) -> dict[str, Any]:
    decoder = json.JSONDecoder()
    fallback: dict[str, Any] = {}
    value: dict[str, Any]
    start = text.find("{")
    first = start
    while start != -1:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1) if start == first else -1
            continue
        if any(name in value if start == first else _is_part(value, name) for name in names):
            return value
        fallback = fallback or value
        start = text.find("{", end)
    return fallback if first == -1 else _cut_off(text[first:], names) or fallback


def _is_part(value: Mapping[str, Any], name: str) -> bool:
    """Tell whether ``value`` holds part ``name``, and is not itself a part with such a member."""
    return isinstance(value.get(name), dict)


def _cut_off(text: str, names: Sequence[str]) -> dict[str, Any]:
    try:
        value = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    whole = list(value)[:-1] if isinstance(value, dict) else []
    return {name: value[name] for name in whole if name in names}

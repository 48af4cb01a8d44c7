"""`Step`: what one run or span tells about a RAG turn, whoever recorded it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rag_eval_otel.types import ContextsSource, Passage

Kind = Literal["agent", "chain", "embedding", "llm", "other", "reranker", "retriever", "tool"]
Part = Literal["documents", "input", "output", "prompt"]

RETRIEVALS = frozenset({"retriever", "reranker"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a tool answered, as an LLM was shown it; ``documents`` are those of its artifact."""

    text: str
    tool: str = ""
    documents: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a turn. Times are nanoseconds since the epoch; ``end`` is None while it runs.

    ``input`` is what was asked: the question of a chain or agent, the query of a retriever, the
    last user message of an LLM, the arguments of a tool. ``output`` is what came out: the answer
    of a chain or agent, the text of an LLM or a tool. None means that it could not be told.
    ``documents`` belong to retrievers (None: not captured; ``()``: none found), ``prompt`` (the
    messages shown, oldest first) to LLMs.

    ``hidden`` names the parts that somebody redacted: they must not be recovered from elsewhere.
    ``cut`` names those that a limit of attributes shortened or dropped. ``found`` counts documents
    of which only ids are known, ``variables`` fill the template of the prompt. ``source`` is who
    recorded it; two of them may have recorded one call. ``flat``: what is below it stands side by
    side, whether or not it belongs together. ``deferred``: its output is a stream, read later.
    ``explicit`` names the parts that the application itself has set: they win.
    """

    id: Hashable
    parent: Hashable | None
    kind: Kind
    name: str
    start: int
    end: int | None = None
    input: str | None = None
    output: str | None = None
    prompt: tuple[str, ...] = ()
    documents: tuple[Passage, ...] | None = None
    error: str | None = None
    hidden: frozenset[Part] = frozenset()
    cut: frozenset[Part] = frozenset()
    recorded: frozenset[Part] = frozenset()
    document_count: int | None = None
    query: str | None = None
    """What was searched for, where a step other than a retriever holds documents."""
    variables: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    """What a tool says of itself."""
    tool_results: tuple[Result, ...] = ()
    """What tools had answered since the user's last message, as an LLM was shown it."""
    windows: Mapping[str, str] = field(default_factory=dict)
    """By the text of a document, one that holds it, which may be shown in its place."""
    own_messages: tuple[str, ...] = ()
    """What an LLM was shown as its own earlier words."""
    input_texts: tuple[str, ...] = ()
    """The texts that it was handed, where none is known to be the question."""
    output_texts: tuple[str, ...] = ()
    """The texts that it handed on, where none is known to be the answer."""
    documents_seen: tuple[Passage, ...] = ()
    """Documents that a chain was handed or handed on."""
    documents_given: tuple[Passage, ...] = ()
    """Those of them that it was handed."""
    kept_ids: tuple[str, ...] = ()
    """The ids of those that it handed on, where that is all it tells of them."""
    calls_tools: bool = False
    is_remote: bool = False
    """Whether its parent is not to be expected: it is in another process, or made up."""
    flat: bool = False
    deferred: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the session, the user, and what else the application has attached."""
    contexts_source: ContextsSource = "retrieval"
    """Where the documents of a retrieval were read."""
    source: str = ""
    response_id: str | None = None

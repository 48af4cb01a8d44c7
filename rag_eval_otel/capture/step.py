"""`Step`: one call, retrieval, tool or chain of a trace, in one vocabulary for all sources."""

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
    """A tool result in the prompt of an LLM call; ``documents`` are those of its artifact."""

    text: str
    tool: str = ""
    documents: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call, retrieval, tool or chain of a trace. Times are nanoseconds since the epoch.

    ``input`` is the question of a chain or agent, the query of a retriever, the last user message
    of an LLM, or the arguments of a tool. ``output`` is the answer of a chain or agent, or the text
    of an LLM or a tool. A part that was not captured is None.

    Parts that the application recorded itself (``recorded``) take precedence over those of an
    instrumentation. Parts that were redacted (``hidden``) are not recovered from elsewhere.
    """

    id: Hashable
    parent: Hashable | None
    kind: Kind
    name: str
    start: int
    end: int | None = None
    """None while it runs."""
    input: str | None = None
    output: str | None = None
    prompt: tuple[str, ...] = ()
    """The messages that an LLM was shown, oldest first."""
    documents: tuple[Passage, ...] | None = None
    """The documents of a retrieval; None: not captured, ``()``: nothing was found."""
    error: str | None = None
    hidden: frozenset[Part] = frozenset()
    """The parts that were redacted."""
    cut: frozenset[Part] = frozenset()
    """The parts that a limit of the SDK shortened or dropped."""
    recorded: frozenset[Part] = frozenset()
    """The parts that the application recorded itself."""
    document_count: int | None = None
    """The number of documents, if only their ids are captured."""
    query: str | None = None
    """The query of recorded contexts, on a step that is no retriever."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables of the prompt's template."""
    description: str = ""
    """The description of a tool."""
    tool_results: tuple[Result, ...] = ()
    """The tool results in the prompt after the user's last message."""
    windows: Mapping[str, str] = field(default_factory=dict)
    """By the text of a document, a longer text around it that may be shown instead."""
    own_messages: tuple[str, ...] = ()
    """The messages in the prompt that the LLM itself wrote earlier."""
    input_texts: tuple[str, ...] = ()
    """The texts of its input, if none of them is known to be the question."""
    output_texts: tuple[str, ...] = ()
    """The texts of its output, if none of them is known to be the answer."""
    documents_seen: tuple[Passage, ...] = ()
    """The documents in the input and output of a chain."""
    documents_given: tuple[Passage, ...] = ()
    """The documents in its input."""
    kept_ids: tuple[str, ...] = ()
    """The ids of documents in its output that are written as ids only."""
    calls_tools: bool = False
    is_remote: bool = False
    """Whether its parent is in another process or does not exist, and so is not missing."""
    flat: bool = False
    """Whether it may hold several unrelated turns, as the span of a web request may."""
    deferred: bool = False
    """Whether its output is a stream that is read after its end."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Session, user and other metadata of the application."""
    contexts_source: ContextsSource = "retrieval"
    """Where the documents of a retrieval were read."""
    source: str = ""
    """The instrumentation that recorded it; two may record the same call."""
    response_id: str | None = None
    """The id that the model's provider gave to the response."""

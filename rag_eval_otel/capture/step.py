"""Define `Step`: one call in a trace (retrieval, chat model, tool, chain), whatever recorded it.

Spans of every instrumentation and LangChain runs are converted into steps, so that all later
modules need to know only this form.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from rag_eval_otel.types import ContextsSource, Passage

Kind = Literal["agent", "chain", "embedding", "llm", "other", "reranker", "retriever", "tool"]
Part = Literal["documents", "input", "output", "prompt"]

RETRIEVALS = frozenset({"retriever", "reranker"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A tool result that was a message in the prompt of an LLM call.

    ``tool`` is the name of the tool. ``documents`` are the documents in the artifact that LangChain
    keeps beside the text of a tool message.
    """

    text: str
    tool: str = ""
    documents: tuple[Passage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call in a trace: a retrieval, a call of a model or a tool, or a chain.

    Times are nanoseconds since the epoch.

    ``input`` is the question of a chain or agent, the query of a retriever, the last user message
    of an LLM, or the arguments of a tool. ``output`` is the answer of a chain or agent, or the text
    that an LLM or a tool returned. An attribute is None if the trace does not contain its value.

    ``recorded``, ``hidden`` and ``cut`` contain names of parts: documents, input, output or prompt.
    A part is in ``recorded`` if the application itself wrote it, with a function such as
    `record_answer`. A recorded part takes precedence over the text that an instrumentation
    captured. A part is in ``hidden`` if it was redacted. A hidden part is not restored from other
    steps.
    """

    id: Hashable
    parent: Hashable | None
    kind: Kind
    name: str
    start: int
    end: int | None = None
    """The time at which the call ended, or None while the call runs."""
    input: str | None = None
    output: str | None = None
    prompt: tuple[str, ...] = ()
    """The texts of the messages that an LLM was shown, oldest first."""
    documents: tuple[Passage, ...] | None = None
    """The documents of a retrieval: None if not captured, ``()`` if nothing was found."""
    error: str | None = None
    hidden: frozenset[Part] = frozenset()
    """The parts (documents, input, output or prompt) that were redacted."""
    cut: frozenset[Part] = frozenset()
    """The parts that a limit of the OpenTelemetry SDK shortened or dropped."""
    recorded: frozenset[Part] = frozenset()
    """The parts that the application itself wrote, with `record_answer` and similar functions."""
    document_count: int | None = None
    """The number of retrieved documents, also if not all of their texts are captured."""
    query: str | None = None
    """The query of a retrieval that the application recorded on a step of another kind."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The values of the variables in the prompt's template, by variable name."""
    description: str = ""
    """The description of a tool."""
    tool_results: tuple[Result, ...] = ()
    """The tool results in the prompt that come after the last message of the user."""
    windows: Mapping[str, str] = field(default_factory=dict)
    """Texts of documents, each with a longer text around the document that may be shown instead."""
    own_messages: tuple[str, ...] = ()
    """The messages in the prompt that the LLM wrote in earlier calls."""
    input_texts: tuple[str, ...] = ()
    """The texts in the input of a chain, if none of the texts is known to be the question."""
    output_texts: tuple[str, ...] = ()
    """The texts in the output of a chain, if none of the texts is known to be the answer."""
    documents_seen: tuple[Passage, ...] = ()
    """The documents in the input and in the output of a chain."""
    documents_given: tuple[Passage, ...] = ()
    """The documents in the input of a chain."""
    kept_ids: tuple[str, ...] = ()
    """The ids of documents that a chain returned as ids, without their texts."""
    calls_tools: bool = False
    is_remote: bool = False
    """Whether the call has no parent in this process.

    The parent is a span of another process, or there is no parent at all. Then no span of this
    process is missing above this call.
    """
    flat: bool = False
    """Whether the span may contain several unrelated questions with their answers.

    An example is the span of a web request.
    """
    deferred: bool = False
    """Whether the application reads the output as a stream, after the end of the call's span."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The session, the user and other metadata that the application attached to the call."""
    contexts_source: ContextsSource = "retrieval"
    """Where the documents of a retrieval were found: retriever, tool result or prompt."""
    source: str = ""
    """The instrumentation that recorded the call.

    If two instrumentations are active, the same call may be recorded twice.
    """
    is_cut: bool = False
    """Whether a text of the call was longer than the limit of texts, so that it is not whole."""
    response_id: str | None = None
    """The id that the provider of the model gave to its response to this call."""

    @property
    def lacks_texts(self) -> bool:
        """Whether the text of a retrieved document was not captured."""
        return self.documents is None or len(self.documents) < (self.document_count or 0)


def has_longer_text(step: Step, most: int) -> bool:
    """Return True if ``step`` has a text of more than ``most`` characters."""
    listed = (
        *(step.documents or ()),
        *step.documents_seen,
        *(passage for result in step.tool_results for passage in result.documents),
    )
    texts = chain(
        (step.input or "", step.output or "", step.query or "", step.description),
        step.prompt,
        () if step.input else step.input_texts,
        () if step.output else step.output_texts,
        *(step.variables.values(), step.windows.values()),
        (result.text for result in step.tool_results),
        (passage.text for passage in listed),
    )
    return any(len(text) > most for text in texts)

"""Check that recorded spans contain a truth, apart from a model's prompt.

A context that is only in a prompt can be guessed, not known. Texts are compared without the
escapes of JSON, Python and HTML, because each instrumentation encodes values differently.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence

from opentelemetry.sdk.trace import ReadableSpan

from corpus.kit import Truth

_MODEL_KINDS = {
    "openinference.span.kind": {"LLM"},
    "langfuse.observation.type": {"generation"},
    "llm.request.type": {"chat", "completion"},
    "gen_ai.operation.name": {"chat", "text_completion", "generate_content"},
}


def is_recorded(truth: Truth, spans: Sequence[ReadableSpan]) -> bool:
    anywhere = [_plain(text) for span in spans for _, text in _texts(span)]
    outside = [_plain(text) for span in spans for text in _outside_prompts(span)]
    return any(
        _stand(one.contexts, outside) and _stand([one.question, one.answer], anywhere)
        for one in truth.statements()
    )


def _stand(wanted: Iterable[str], texts: Sequence[str]) -> bool:
    return all(any(_plain(one) in text for text in texts) for one in wanted)


def _outside_prompts(span: ReadableSpan) -> Iterator[str]:
    is_model = any((span.attributes or {}).get(k) in kinds for k, kinds in _MODEL_KINDS.items())
    for key, text in _texts(span):
        if "prompt" not in key and not (is_model and "input" in key):
            yield text


def _texts(span: ReadableSpan) -> Iterator[tuple[str, str]]:
    for attributes in (span.attributes, *(event.attributes for event in span.events)):
        for key, value in (attributes or {}).items():
            for one in (
                value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            ):
                yield key, str(one)


def _plain(text: str) -> str:
    """Return ``text`` without escapes, quotation marks, backslashes and surplus whitespace."""
    text = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    text = re.sub(r"\\+[nrt]", " ", html.unescape(text))
    return " ".join(re.sub(r"[\\\"']", "", text).split())

"""Score hand-written RAG: record the question, the retrieved texts and the answer.

No framework is needed. With a backend: OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_ENDPOINT=...
"""

import os

from opentelemetry import trace

from rag_eval_otel import instrument, record_answer, record_question, record_retrieval

for signal in ("TRACES", "METRICS", "LOGS"):
    os.environ.setdefault(f"OTEL_{signal}_EXPORTER", "none")  # no backend here
handle = instrument(judge="lexical", sinks=["print"])  # judge="openai/<model>": an LLM
tracer = trace.get_tracer("museum")

PAGES = ["The museum opens at 9 on weekdays.", "A ticket costs 12 euros; children go free."]


@tracer.start_as_current_span("search")  # optional: a separate span
def search(question: str) -> list[str]:
    """Return the pages that share a word with the question. Use your own retriever here."""
    words = set(question.lower().strip("?").split()) - {"a", "at", "does", "the"}
    pages = [page for page in PAGES if words & set(page.lower().split())]
    record_retrieval(question, pages)
    return pages


@tracer.start_as_current_span("ask")  # one span for each turn: it carries the scores
def ask(question: str) -> str:
    """Answer from the retrieved pages. Use your own model here."""
    record_question(question)
    pages = search(question)
    answer = pages[0].split(";")[0] + "." if pages else "I don't know."
    record_answer(answer)
    return answer


print(ask("What does a ticket cost?"))
handle.flush()

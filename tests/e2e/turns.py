"""Turns about companies, as OpenInference shows them."""

from typing import Any


def texts(number: int) -> tuple[str, str, str]:
    question, answer = f"Who founded company {number} ?", f"Ada founded company {number} ."
    return question, f"The company {number} was founded by Ada.", answer


def turn(tracer: Any, number: int) -> None:
    """Make a turn as OpenInference shows it: a chain with a retrieval and a call of a model."""
    question, text, answer = texts(number)
    prompt = f"Answer from the context.\n\n{text}\n\nQuestion: {question}"
    start = tracer.start_as_current_span
    kind = "openinference.span.kind"
    with start("chain", attributes={kind: "CHAIN", "input.value": question}) as chain:
        with start("search", attributes={kind: "RETRIEVER", "input.value": question}) as search:
            search.set_attribute("retrieval.documents.0.document.content", text)
        with start("model", attributes={kind: "LLM"}) as model:
            model.set_attribute("llm.input_messages.0.message.role", "user")
            model.set_attribute("llm.input_messages.0.message.content", prompt)
            model.set_attribute("llm.output_messages.0.message.role", "assistant")
            model.set_attribute("llm.output_messages.0.message.content", answer)
        chain.set_attribute("output.value", answer)

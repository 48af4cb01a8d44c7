"""A Haystack application in whose spans it is hard to see the order of the passages."""

from haystack.components.joiners import DocumentJoiner
from haystack.components.retrievers import InMemoryBM25Retriever

from .haystack_kit import LocalChatGenerator, answered, generating, store
from .kit import Config, turn

ICE = "Glaciers move a few metres a year."
CHUNKS = (f"Foreword on ice. {ICE}", "Ice is lighter than water.", ICE)
PROMPT = "Answer from:\n{% for d in documents %}{{ d.content }}\n{% endfor %}\n{{ question }}"


@turn("How fast do glaciers move on ice?", CHUNKS, "A few metres a year.")
def overlapping_chunks(config: Config, question: str, answer: str) -> str:
    """Two retrievers find chunks that overlap, and the prompt shows each chunk."""
    pipe = generating(
        LocalChatGenerator(("", answer)),
        PROMPT,
        {
            "long": InMemoryBM25Retriever(store(*CHUNKS[:2])),
            "short": InMemoryBM25Retriever(store(CHUNKS[2])),
            "joiner": DocumentJoiner(sort_by_score=False),
        },
        "long.documents > joiner.documents, short.documents > joiner.documents",
        "joiner.documents > prompt_builder.documents",
    )
    query = {"query": question}
    return answered(pipe, long=query, short=query, prompt_builder={"question": question})

"""Pipelines that rewrite, multiply or split the question, or keep a chat's history."""

import json
from typing import Any

from haystack import Document, Pipeline, component
from haystack.components.builders import ChatPromptBuilder
from haystack.components.converters import OutputAdapter
from haystack.components.query import QueryExpander
from haystack.components.retrievers import InMemoryBM25Retriever, InMemoryEmbeddingRetriever
from haystack.dataclasses import ChatMessage

from .haystack_kit import OPENLLMETRY, prompted, served, store, wired
from .kit import Config, Truth, app, embed, turn

CLIMATE = (
    "Wind farms on land cost about 50 euros for each megawatt hour.",
    "Solar panels on roofs are the cheapest source of green energy in the south.",
    "Hydropower stores energy in lakes above the turbines.",
    "Air travel is one of the core contributors to climate change.",
)


@component
class MultiQueryInMemoryBM25Retriever:
    """Runs a retriever for each query and keeps each document once."""

    def __init__(self, retriever: InMemoryBM25Retriever) -> None:
        self.retriever = retriever

    @component.output_types(documents=list[Document])
    def run(self, queries: list[str], top_k: int = 1) -> dict[str, Any]:
        found = {}
        for query in queries:
            for document in self.retriever.run(query=query, top_k=top_k)["documents"]:
                found[document.id] = document
        return {"documents": list(found.values())}


@turn(
    "green energy sources",
    (CLIMATE[0], CLIMATE[2], CLIMATE[1]),
    "Solar panels, wind farms and hydropower.",
    not_on_spans=OPENLLMETRY,
)
def query_expansion(config: Config, question: str, answer: str) -> str:
    """Haystack cookbook, query expansion: documents put into the prompt as they are."""
    prompt = (
        "You answer a query using the textual content from the documents.\n###\n"
        'Original Query: "{{query}}"\nRetrieved Documents: {{documents}}\nSummary Answer:\n'
    )
    expanded = json.dumps({"queries": ["wind farms on land", "hydropower lakes"]})
    with served(("expand a given query", expanded), ("", answer)) as models:
        retriever = InMemoryBM25Retriever(store(*CLIMATE))
        pipe = wired(
            {
                "expander": QueryExpander(chat_generator=models.chat(), n_expansions=2),
                "keyword_retriever": MultiQueryInMemoryBM25Retriever(retriever),
                "chat_prompt_builder": prompted(prompt),
                "llm": models.chat(),
            },
            "expander.queries > keyword_retriever.queries",
            "keyword_retriever.documents > chat_prompt_builder.documents",
            "chat_prompt_builder.prompt > llm.messages",
        )
        result = pipe.run({"query": question}, include_outputs_from={"expander"})
        return result["llm"]["replies"][0].text


@component
class HypotheticalDocumentEmbedder:
    """Embeds a made-up answer."""

    def __init__(self, generator: Any) -> None:
        template = "Given a question, generate a paragraph that answers it.\nQuestion: {{question}}"
        self.pipeline = wired(
            {"builder": prompted(template), "generator": generator},
            "builder.prompt > generator.messages",
        )

    @component.output_types(hypothetical_embedding=list[float])
    def run(self, query: str) -> dict[str, Any]:
        result = self.pipeline.run({"builder": {"question": query}})
        return {"hypothetical_embedding": embed(result["generator"]["replies"][0].text)}


FEVER = (
    "Adults with a temperature above 38.5 degrees should rest and drink a lot.",
    "Paracetamol lowers the temperature; take no more than four grams a day.",
    "Sprains are cooled and kept high.",
)


@turn(
    "Que faire en cas de fièvre ?",
    (FEVER[0], FEVER[1]),
    "Se reposer, boire, et prendre du paracétamol.",
    not_on_spans=OPENLLMETRY,
)
def hyde(config: Config, question: str, answer: str) -> str:
    """Haystack cookbook, using hypothetical document embeddings (HyDE)."""
    made_up = "Paracetamol lowers the temperature of adults above 38.5 degrees."
    with served(("generate a paragraph", made_up), ("", answer)) as models:
        prompt = "Réponds en français.\n{% for d in documents %}« {{ d.content }} »\n{% endfor %}\n{{ q }}"
        pipe = wired(
            {
                "hyde": HypotheticalDocumentEmbedder(models.chat()),
                "retriever": InMemoryEmbeddingRetriever(store(*FEVER), top_k=2),
                "prompt_builder": prompted(prompt),
                "llm": models.chat(),
            },
            "hyde.hypothetical_embedding > retriever.query_embedding",
            "retriever.documents > prompt_builder.documents",
            "prompt_builder.prompt > llm.messages",
        )
        query = question
        result = pipe.run({"hyde": {"query": query}, "prompt_builder": {"q": query}})
        return result["llm"]["replies"][0].text


TOWER = (
    "The Pharos tower was finished around 280 BC and was over 100 metres high.",
    "Earthquakes between 956 and 1323 destroyed the Pharos tower.",
)


def _conversation(models: Any) -> Pipeline:
    """Return a pipeline that rephrases the question, retrieves, and generates."""
    rephrase = (
        "Rewrite the question for search while keeping its meaning.\nConversation history:\n"
        "{% for m in memories %}{{ m.text }}\n{% endfor %}\nUser Query: {{query}}\nRewritten Query:"
    )
    final = [
        ChatMessage.from_system("You are a helpful guide."),
        ChatMessage.from_user(
            "{% for m in memories %}{{ m.text }}\n{% endfor %}"
            "{% for d in documents %}{{ d.content }}\n{% endfor %}\nQuestion: {{query}}\nAnswer:"
        ),
    ]
    return wired(
        {
            "rephrase_prompt": ChatPromptBuilder(
                [ChatMessage.from_user(rephrase)], required_variables=["query"]
            ),
            "rephrase_llm": models.chat(),
            "to_query": OutputAdapter(template="{{ replies[0].text }}", output_type=str),
            "retriever": InMemoryBM25Retriever(store(*TOWER), top_k=1),
            "prompt_builder": ChatPromptBuilder(final, required_variables=["query"]),
            "llm": models.chat(),
        },
        "rephrase_prompt.prompt > rephrase_llm.messages",
        "rephrase_llm.replies > to_query.replies, to_query.output > retriever.query",
        "retriever.documents > prompt_builder.documents, prompt_builder.prompt > llm.messages",
    )


@app(
    Truth("How high was the Pharos tower?", (TOWER[0],), "It was over 100 metres high."),
    Truth("And what destroyed it?", (TOWER[1],), "Earthquakes destroyed it."),
    not_on_spans=OPENLLMETRY,
)
def conversation(config: Config) -> list[str]:
    """Haystack tutorial 48: conversational RAG, the question rephrased from the history."""
    said: list[str] = []
    memories: list[ChatMessage] = []
    with served(
        ("Rewritten Query: & what destroyed", "What destroyed the Pharos tower, earthquakes?"),
        ("Rewritten Query:", "How high was the Pharos tower in metres?"),
        ("what destroyed", "Earthquakes destroyed it."),
        ("", "It was over 100 metres high."),
    ) as models:
        pipe = _conversation(models)
        for query in ("How high was the Pharos tower?", "And what destroyed it?"):
            inputs = {"query": query, "memories": memories}
            result = pipe.run({"rephrase_prompt": inputs, "prompt_builder": inputs})
            said.append(result["llm"]["replies"][0].text)
            memories += [ChatMessage.from_user(query), ChatMessage.from_assistant(said[-1])]
    return said

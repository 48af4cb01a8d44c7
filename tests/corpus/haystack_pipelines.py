"""Pipelines that retrieve, fill a prompt and generate; pipelines and components that do not."""

from haystack import Document
from haystack.components.builders import ChatPromptBuilder, PromptBuilder
from haystack.components.preprocessors import DocumentSplitter
from haystack.components.rankers import LostInTheMiddleRanker
from haystack.components.retrievers import InMemoryBM25Retriever, InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore

from .haystack_kit import OPENLLMETRY, LocalGenerator, filled, prompted, served, store, wired
from .kit import NOWHERE, Config, app, turn

CAR = (
    "Press the release button below the wheel to open the fuel flap.",
    "The spare wheel is under the floor of the boot, together with the jack.",
    "Tyres need 2.3 bar in front and 2.5 bar at the rear; with a full boot 2.9 bar.",
)


DUNE = (
    "Paul fell asleep to dream of a cavern. It was solemn there and like a cathedral. He heard the"
    " drip of water. The dream faded. Paul awoke in the warmth of his bed."
)


WONDERS = (
    (
        "The Colossus of Rhodes was a statue of the sun god Helios. It stood about 33 metres high"
        " beside the harbour of Rhodes and fell in the earthquake of 226 BC."
    ),
    (
        "The Lighthouse of Alexandria was built on the island of Pharos under Ptolemy II. Sailors saw"
        " its fire from 50 km away."
    ),
    (
        "The Temple of Artemis stood in Ephesus. A man called Herostratus burned it down to become"
        " famous."
    ),
)


TEMPLATE = """
Given the following information, answer the question.

Context:
{% for document in documents %}
    {{ document.content }}
{% endfor %}

Question: {{question}}
Answer:
"""


@turn(
    "What does Rhodes Statue look like?",
    (WONDERS[0], WONDERS[1]),
    "It was a 33 metres high statue of the sun god Helios.",
    not_on_spans=OPENLLMETRY,
)
def first_pipeline(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 27: creating your first QA pipeline with retrieval augmentation."""
    with served(("", answer)) as models:
        template = [ChatMessage.from_user(TEMPLATE)]
        basic_rag_pipeline = wired(
            {
                "text_embedder": models.text_embedder(),
                "retriever": InMemoryEmbeddingRetriever(store(*WONDERS), top_k=2),
                "prompt_builder": ChatPromptBuilder(template=template, required_variables="*"),
                "llm": models.chat(),
            },
            "text_embedder.embedding > retriever.query_embedding, retriever > prompt_builder",
            "prompt_builder.prompt > llm.messages",
        )
        response = basic_rag_pipeline.run(
            {"text_embedder": {"text": question}, "prompt_builder": {"question": question}}
        )
        return response["llm"]["replies"][0].text


PEOPLE = (
    "My name is Jean and I live in Paris.",
    "My name is Mark and I live in Berlin.",
    "My name is Giorgio and I live in Rome.",
    "My name is Marta and I live in Madrid.",
)


PUBLICATIONS = {
    "New therapies for Parkinson's disease were compared in 240 patients.": 2022,
    "The genetics of Parkinson's disease: an overview of the latest research.": 2023,
    "Early signs of Parkinson's disease in handwriting.": 2019,
}


def _publications() -> InMemoryDocumentStore:
    return filled(
        *(Document(content=text, meta={"year": year}) for text, year in PUBLICATIONS.items())
    )


@turn("What was published in 1950?", (), "I found nothing about that.", not_on_spans=OPENLLMETRY)
def nothing_found(config: Config, question: str, answer: str) -> str:
    """Haystack, a filter that nothing fits: the prompt has no documents."""
    prompt = (
        "{% if documents %}{% for doc in documents %}{{ doc.content }}{% endfor %}"
        "{% else %}No relevant documents found.{% endif %}\n{{ query }}"
    )
    pipe = wired(
        {
            "retriever": InMemoryBM25Retriever(_publications()),
            "prompt_builder": PromptBuilder(prompt),
            "llm": LocalGenerator(("No relevant", answer)),
        },
        "retriever.documents > prompt_builder.documents, prompt_builder > llm",
    )
    query = question
    old = {"field": "meta.year", "operator": "==", "value": 1950}
    result = pipe.run(
        {"retriever": {"query": query, "filters": old}, "prompt_builder": {"query": query}}
    )
    return result["llm"]["replies"][0]


@turn("Where does Marta live?", (PEOPLE[3],), "Marta lives in Madrid.", not_on_spans=NOWHERE)
def without_a_pipeline(config: Config, question: str, answer: str) -> str:
    """Haystack, components run one by one, without a pipeline."""
    with served(("", answer)) as models:
        found = InMemoryBM25Retriever(store(*PEOPLE), top_k=1).run(query=question)
        builder = prompted(TEMPLATE)
        prompt = builder.run(documents=found["documents"], question=question)["prompt"]
        return models.chat().run(prompt)["replies"][0].text


@app()
def retrieves_only(config: Config) -> int:
    """Haystack tutorial 33: a hybrid retrieval pipeline, nothing generated."""
    pipe = wired(
        {"retriever": InMemoryBM25Retriever(store(*CAR)), "ranker": LostInTheMiddleRanker()},
        "retriever.documents > ranker.documents",
    )
    return len(pipe.run({"retriever": {"query": "spare wheel"}})["ranker"]["documents"])


@app()
def indexes_only(config: Config) -> int:
    """Haystack, indexing pipeline: split, then write."""
    pipe = wired(
        {
            "split": DocumentSplitter(split_by="word", split_length=10),
            "write": DocumentWriter(InMemoryDocumentStore()),
        },
        "split > write",
    )
    found = pipe.run({"split": {"documents": [Document(content=DUNE)]}})
    return found["write"]["documents_written"]


@app()
def summarises_given_documents(config: Config) -> str:
    """Haystack, summarising documents that the user hands in."""
    prompt = "Summarise:\n{% for d in documents %}{{ d.content }}\n{% endfor %}"
    pipe = wired(
        {
            "prompt_builder": PromptBuilder(prompt),
            "llm": LocalGenerator(("", "Four people and their cities.")),
        },
        "prompt_builder > llm",
    )
    documents = [Document(content=text) for text in PEOPLE]
    return pipe.run({"prompt_builder": {"documents": documents}})["llm"]["replies"][0]

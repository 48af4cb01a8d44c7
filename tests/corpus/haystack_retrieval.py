"""Pipelines with two retrievers, rankers, windows, merged chunks and custom components."""

import asyncio
import json
from typing import Any

from haystack import Document, component, super_component
from haystack.components.builders import ChatPromptBuilder
from haystack.components.joiners import DocumentJoiner
from haystack.components.preprocessors import DocumentSplitter, HierarchicalDocumentSplitter
from haystack.components.rankers import LLMRanker
from haystack.components.retrievers import (
    AutoMergingRetriever,
    InMemoryBM25Retriever,
    InMemoryEmbeddingRetriever,
    SentenceWindowRetriever,
)
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore

from .haystack_kit import (
    OPENLLMETRY,
    AwaitedPipeline,
    LocalChatGenerator,
    LocalTextEmbedder,
    filled,
    prompted,
    served,
    store,
    wired,
)
from .kit import Config, Truth, app, turn

TEMPLATE = """
Given the following information, answer the question.

Context:
{% for document in documents %}
    {{ document.content }}
{% endfor %}

Question: {{question}}
Answer:
"""


MEDICINE = (
    "Caffeine citrate shortens the time that preterm infants with apnea need a ventilator.",
    "Apnea of prematurity mostly ends by week 37; infants are watched for five days after it.",
    "In adults, sleep apnea is treated with continuous positive airway pressure.",
    "Kangaroo care steadies the heart rate of infants.",
)


HYBRID = [
    ChatMessage.from_system(
        "You answer from abstracts.\n"
        "{% for d in documents %}## {{ loop.index }}\n{{ d.content }}\n{% endfor %}"
    ),
    ChatMessage.from_user("{{ question }}"),
]


def _hybrid(llm: Any) -> Any:
    """Return a pipeline with two retrievers and a joiner."""
    pipeline, documents = AwaitedPipeline(), store(*MEDICINE)
    pipeline.add_component("text_embedder", LocalTextEmbedder())
    pipeline.add_component("embedding_retriever", InMemoryEmbeddingRetriever(documents, top_k=2))
    pipeline.add_component("bm25_retriever", InMemoryBM25Retriever(documents, top_k=2))
    pipeline.add_component("joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion"))
    pipeline.add_component("prompt_builder", ChatPromptBuilder(HYBRID, required_variables="*"))
    pipeline.add_component("llm", llm)
    pipeline.connect("text_embedder.embedding", "embedding_retriever.query_embedding")
    pipeline.connect("bm25_retriever.documents", "joiner.documents")
    pipeline.connect("embedding_retriever.documents", "joiner.documents")
    pipeline.connect("joiner.documents", "prompt_builder.documents")
    pipeline.connect("prompt_builder.prompt", "llm.messages")
    return pipeline


def _hybrid_inputs(question: str) -> dict[str, Any]:
    return {
        "text_embedder": {"text": question},
        "bm25_retriever": {"query": question},
        "prompt_builder": {"question": question},
    }


APNEA = Truth(
    "How is apnea treated in preterm infants?", (MEDICINE[2], MEDICINE[0]), "With caffeine citrate."
)


WATCHED = Truth(
    "How long are infants watched after apnea ends?", (MEDICINE[1], MEDICINE[0]), "For five days."
)


@app(APNEA, WATCHED, not_on_spans=OPENLLMETRY)
async def two_hybrids_at_once(config: Config) -> list[str]:
    """Haystack cookbook, async pipeline: concurrent executions gathered."""
    llm = LocalChatGenerator(("user: How is", "With caffeine citrate."), ("", "For five days."))
    pipeline = _hybrid(llm)
    asked = (
        "How is apnea treated in preterm infants?",
        "How long are infants watched after apnea ends?",
    )
    results = await asyncio.gather(*(pipeline.run_async(data=_hybrid_inputs(q)) for q in asked))
    return [result["llm"]["replies"][0].text for result in results]


@super_component
class HybridRetriever:
    """Both retrievers in one component."""

    def __init__(self, document_store: InMemoryDocumentStore) -> None:
        self.pipeline = wired(
            {
                "text_embedder": LocalTextEmbedder(),
                "embedding_retriever": InMemoryEmbeddingRetriever(document_store, top_k=1),
                "bm25_retriever": InMemoryBM25Retriever(document_store, top_k=2),
                "document_joiner": DocumentJoiner(),
            },
            "text_embedder > embedding_retriever, bm25_retriever > document_joiner",
            "embedding_retriever > document_joiner",
        )
        self.input_mapping = {"query": ["text_embedder.text", "bm25_retriever.query"]}


@turn("What steadies the heart rate of infants?", (MEDICINE[3], MEDICINE[0]), "Kangaroo care does.")
def super_component_retriever(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 44: creating custom SuperComponents, a hybrid retriever in RAG."""
    with served(("", answer)) as models:
        pipe = wired(
            {
                "hybrid": HybridRetriever(store(*MEDICINE)),
                "builder": prompted(TEMPLATE),
                "llm": models.chat(),
            },
            "hybrid.documents > builder.documents, builder.prompt > llm.messages",
        )
        result = pipe.run({"hybrid": {"query": question}, "builder": {"question": question}})
        return result["llm"]["replies"][0].text


CAR = (
    "Press the release button below the wheel to open the fuel flap.",
    "The spare wheel is under the floor of the boot, together with the jack.",
    "Tyres need 2.3 bar in front and 2.5 bar at the rear; with a full boot 2.9 bar.",
)


@turn(
    "What pressure do the tyres need?",
    (CAR[2],),
    "2.3 bar in front and 2.5 bar at the rear.",
    not_on_spans=OPENLLMETRY,
)
def llm_ranker(config: Config, question: str, answer: str) -> str:
    """Haystack, LLMRanker: a chat generator ranks what BM25 has found."""
    chosen = json.dumps({"documents": [{"index": 1}]})
    with served(("You are ranking", chosen), ("", answer)) as models:
        pipe = wired(
            {
                "retriever": InMemoryBM25Retriever(store(*CAR), top_k=3),
                "ranker": LLMRanker(chat_generator=models.chat(), top_k=2),
                "prompt_builder": prompted(TEMPLATE),
                "llm": models.chat(),
            },
            "retriever.documents > ranker.documents",
            "ranker.documents > prompt_builder.documents, prompt_builder.prompt > llm.messages",
        )
        asked = {name: {"query": question} for name in ("retriever", "ranker")}
        result = pipe.run({**asked, "prompt_builder": {"question": question}})
        return result["llm"]["replies"][0].text


DUNE = (
    "Paul fell asleep to dream of a cavern. It was solemn there and like a cathedral. He heard the"
    " drip of water. The dream faded. Paul awoke in the warmth of his bed."
)


@turn(
    "What was like a cathedral?",
    (
        (
            "Paul fell asleep to dream of a cavern. It was solemn there and like a cathedral."
            " He heard the drip of water."
        ),
    ),
    "The cavern of Paul's dream.",
    not_on_spans=OPENLLMETRY,
)
def sentence_window(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 42: sentence window retriever, its windows in the prompt."""
    splitter = DocumentSplitter(split_length=1, split_overlap=0, split_by="period")
    documents = filled(*splitter.run([Document(content=DUNE)])["documents"])
    prompt = (
        "Text:\n{% for window in windows %}{{ window }}\n---\n{% endfor %}\nQuestion: {{ query }}"
    )
    with served(("", answer)) as models:
        pipe = wired(
            {
                "bm25_retriever": InMemoryBM25Retriever(documents, top_k=1),
                "window_retriever": SentenceWindowRetriever(documents, window_size=1),
                "prompt_builder": prompted(prompt),
                "llm": models.chat(),
            },
            "bm25_retriever.documents > window_retriever.retrieved_documents",
            "window_retriever.context_windows > prompt_builder.windows",
            "prompt_builder.prompt > llm.messages",
        )
        query = question
        result = pipe.run({"bm25_retriever": {"query": query}, "prompt_builder": {"query": query}})
        return result["llm"]["replies"][0].text


ARTICLE = (
    "Thieves send mails that look as if they came from a bank. Spoof websites then ask for"
    " passwords. Experts call such attacks phishing."
)


@turn(
    "What are phishing attacks with spoof websites and mails?",
    (ARTICLE,),
    "Mails and websites that look like a bank's and ask for passwords.",
    not_on_spans=OPENLLMETRY,
)
def auto_merging(config: Config, question: str, answer: str) -> str:
    """Haystack cookbook, auto-merging retriever in a RAG pipeline."""
    splitter = HierarchicalDocumentSplitter(block_sizes={60, 8}, split_overlap=0, split_by="word")
    pieces = splitter.run([Document(content=ARTICLE)])["documents"]
    leaves = filled(*(d for d in pieces if d.meta["__level"] == 1))
    parents = InMemoryDocumentStore()
    parents.write_documents([d for d in pieces if d.meta["__level"] == 0])
    with served(("", answer)) as models:
        pipe = wired(
            {
                "bm25": InMemoryBM25Retriever(leaves, top_k=3),
                "merge": AutoMergingRetriever(parents, threshold=0.5),
                "prompt_builder": prompted(TEMPLATE),
                "llm": models.chat(),
            },
            "bm25.documents > merge.documents, merge.documents > prompt_builder.documents",
            "prompt_builder.prompt > llm.messages",
        )
        result = pipe.run({"bm25": {"query": question}, "prompt_builder": {"question": question}})
        return result["llm"]["replies"][0].text


@component
class WordLimit:
    """A custom component between retriever and prompt: drops long documents."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document], words: int = 20) -> dict[str, Any]:
        return {"documents": [d for d in documents if len((d.content or "").split()) <= words]}


@turn(
    "How do I open the flap, and where is the jack?",
    (CAR[0], CAR[1]),
    "Press the button; the jack is in the boot.",
    not_on_spans=OPENLLMETRY,
)
def custom_component_streamed(config: Config, question: str, answer: str) -> str:
    """Haystack, custom components; streaming_callback given at run time."""
    chunks: list[str] = []
    with served(("", answer)) as models:
        pipe = wired(
            {
                "find": InMemoryBM25Retriever(store(*CAR), top_k=3),
                "limit": WordLimit(),
                "ask": prompted(TEMPLATE),
                "say": models.chat(),
            },
            "find.documents > limit.documents, limit.documents > ask.documents",
            "ask.prompt > say.messages",
        )
        pipe.run(
            {
                "find": {"query": question},
                "limit": {"words": 15},
                "ask": {"question": question},
                "say": {"streaming_callback": lambda chunk: chunks.append(chunk.content)},
            }
        )
    return "".join(chunks)

"""Pipelines of Haystack: plain, hybrid, with rewritten questions, routes and loops; and none."""

import asyncio
import json
from typing import Any

from haystack import Document, Pipeline, component, super_component
from haystack.components.builders import AnswerBuilder, ChatPromptBuilder, PromptBuilder
from haystack.components.converters import OutputAdapter
from haystack.components.evaluators import FaithfulnessEvaluator
from haystack.components.joiners import BranchJoiner, DocumentJoiner
from haystack.components.preprocessors import DocumentSplitter, HierarchicalDocumentSplitter
from haystack.components.query import QueryExpander
from haystack.components.rankers import LLMRanker, LostInTheMiddleRanker
from haystack.components.retrievers import (
    AutoMergingRetriever,
    InMemoryBM25Retriever,
    InMemoryEmbeddingRetriever,
    SentenceWindowRetriever,
)
from haystack.components.routers import ConditionalRouter
from haystack.components.validators import JsonSchemaValidator
from haystack.components.writers import DocumentWriter
from haystack.dataclasses import ChatMessage, GeneratedAnswer
from haystack.document_stores.in_memory import InMemoryDocumentStore

from .haystack_kit import (
    OPENLLMETRY,
    AwaitedPipeline,
    LocalChatGenerator,
    LocalGenerator,
    LocalTextEmbedder,
    answered,
    filled,
    generating,
    prompted,
    served,
    store,
    turn,
    wired,
)
from .kit import Config, Truth, app, embed

CAR = (
    "Press the release button below the wheel to open the fuel flap.",
    "The spare wheel is under the floor of the boot, together with the jack.",
    "Tyres need 2.3 bar in front and 2.5 bar at the rear; with a full boot 2.9 bar.",
)
DUNE = (
    "Paul fell asleep to dream of a cavern. It was like a cathedral. He heard the drip of water."
    " Paul awoke in the warmth of his bed."
)
WONDERS = (
    "The Colossus of Rhodes was a statue of Helios and stood about 33 metres high beside the harbour.",
    "The Lighthouse of Alexandria was built on Pharos. Sailors saw its fire from 50 km away.",
    "The Temple of Artemis stood in Ephesus. Herostratus burned it down to become famous.",
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


@turn("What does Rhodes Statue look like?", (WONDERS[0], WONDERS[1]), "It was 33 metres high.")
def first_pipeline(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 27: creating your first QA pipeline with retrieval augmentation."""
    with served(("", answer)) as models:
        pipe = generating(
            models.chat(),
            TEMPLATE,
            {
                "text_embedder": models.text_embedder(),
                "retriever": InMemoryEmbeddingRetriever(store(*WONDERS), top_k=2),
            },
            "text_embedder.embedding > retriever.query_embedding, retriever > prompt_builder",
        )
        asked = {"question": question}
        return answered(pipe, text_embedder={"text": question}, prompt_builder=asked)


PEOPLE = (
    "My name is Jean and I live in Paris.",
    "My name is Mark and I live in Berlin.",
    "My name is Giorgio and I live in Rome.",
    "My name is Marta and I live in Madrid.",
)


@turn("What was published in 1950?", (), "I found nothing about that.")
def nothing_found(config: Config, question: str, answer: str) -> str:
    """Haystack, a filter that nothing fits: the prompt has no documents."""
    prompt = (
        "{% if documents %}{% for doc in documents %}{{ doc.content }}{% endfor %}"
        "{% else %}No relevant documents found.{% endif %}\n{{ query }}"
    )
    published = filled(Document(content="Early signs of disease.", meta={"year": 2019}))
    pipe = wired(
        {
            "retriever": InMemoryBM25Retriever(published),
            "prompt_builder": PromptBuilder(prompt),
            "llm": LocalGenerator(("No relevant", answer)),
        },
        "retriever.documents > prompt_builder.documents, prompt_builder > llm",
    )
    old = {"field": "meta.year", "operator": "==", "value": 1950}
    asked = {"query": question}
    return answered(pipe, retriever={**asked, "filters": old}, prompt_builder=asked)


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
    split = DocumentSplitter(split_by="word", split_length=10)
    pipe = wired(
        {"split": split, "write": DocumentWriter(InMemoryDocumentStore())}, "split > write"
    )
    found = pipe.run({"split": {"documents": [Document(content=DUNE)]}})
    return found["write"]["documents_written"]


@app()
def summarises_given_documents(config: Config) -> str:
    """Haystack, summarising documents that the user hands in."""
    prompt = PromptBuilder("Summarise:\n{% for d in documents %}{{ d.content }}\n{% endfor %}")
    llm = LocalGenerator(("", "Four people and their cities."))
    pipe = wired({"prompt_builder": prompt, "llm": llm}, "prompt_builder > llm")
    documents = [Document(content=text) for text in PEOPLE]
    return answered(pipe, prompt_builder={"documents": documents})


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
        runs = [self.retriever.run(query=query, top_k=top_k)["documents"] for query in queries]
        return {"documents": list({found.id: found for run in runs for found in run}.values())}


@turn("green energy sources", (CLIMATE[0], CLIMATE[2], CLIMATE[1]), "Sun, wind and water.")
def query_expansion(config: Config, question: str, answer: str) -> str:
    """Haystack cookbook, query expansion: documents put into the prompt as they are."""
    prompt = (
        "You answer a query using the textual content from the documents.\n###\n"
        'Original Query: "{{query}}"\nRetrieved Documents: {{documents}}\nSummary Answer:\n'
    )
    expanded = json.dumps({"queries": ["wind farms on land", "hydropower lakes"]})
    with served(("expand a given query", expanded), ("", answer)) as models:
        retriever = InMemoryBM25Retriever(store(*CLIMATE))
        pipe = generating(
            models.chat(),
            prompt,
            {
                "expander": QueryExpander(chat_generator=models.chat(), n_expansions=2),
                "keyword_retriever": MultiQueryInMemoryBM25Retriever(retriever),
            },
            "expander.queries > keyword_retriever.queries",
            "keyword_retriever.documents > prompt_builder.documents",
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


@turn("Que faire en cas de fièvre ?", (FEVER[0], FEVER[1]), "Se reposer, et du paracétamol.")
def hyde(config: Config, question: str, answer: str) -> str:
    """Haystack cookbook, using hypothetical document embeddings (HyDE)."""
    made_up = "Paracetamol lowers the temperature of adults above 38.5 degrees."
    prompt = (
        "Réponds en français.\n{% for d in documents %}« {{ d.content }} »\n{% endfor %}\n{{ q }}"
    )
    with served(("generate a paragraph", made_up), ("", answer)) as models:
        pipe = generating(
            models.chat(),
            prompt,
            {
                "hyde": HypotheticalDocumentEmbedder(models.chat()),
                "retriever": InMemoryEmbeddingRetriever(store(*FEVER), top_k=2),
            },
            "hyde.hypothetical_embedding > retriever.query_embedding",
            "retriever.documents > prompt_builder.documents",
        )
        return answered(pipe, hyde={"query": question}, prompt_builder={"q": question})


TOWER = (
    "The Pharos tower was finished around 280 BC and was over 100 metres high.",
    "Earthquakes between 956 and 1323 destroyed the Pharos tower.",
)


def _conversation(models: Any) -> Pipeline:
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


TALK = (
    Truth("How high was the Pharos tower?", (TOWER[0],), "It was over 100 metres high."),
    Truth("And what destroyed it?", (TOWER[1],), "Earthquakes destroyed it."),
)


@app(*TALK, not_on_spans=OPENLLMETRY)
def conversation(config: Config) -> None:
    """Haystack tutorial 48: conversational RAG, the question rephrased from the history."""
    memories: list[ChatMessage] = []
    with served(
        ("Rewritten Query: & what destroyed", "What destroyed the Pharos tower, earthquakes?"),
        ("Rewritten Query:", "How high was the Pharos tower in metres?"),
        ("what destroyed", TALK[1].answer),
        ("", TALK[0].answer),
    ) as models:
        pipe = _conversation(models)
        for query in (one.question for one in TALK):
            inputs = {"query": query, "memories": memories}
            said = answered(pipe, rephrase_prompt=inputs, prompt_builder=inputs)
            memories += [ChatMessage.from_user(query), ChatMessage.from_assistant(said)]


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
    documents = store(*MEDICINE)
    return wired(
        {
            "text_embedder": LocalTextEmbedder(),
            "embedding_retriever": InMemoryEmbeddingRetriever(documents, top_k=2),
            "bm25_retriever": InMemoryBM25Retriever(documents, top_k=2),
            "joiner": DocumentJoiner(join_mode="reciprocal_rank_fusion"),
            "prompt_builder": ChatPromptBuilder(HYBRID, required_variables="*"),
            "llm": llm,
        },
        "text_embedder.embedding > embedding_retriever.query_embedding",
        "bm25_retriever.documents > joiner.documents",
        "embedding_retriever.documents > joiner.documents",
        "joiner.documents > prompt_builder.documents, prompt_builder.prompt > llm.messages",
        kind=AwaitedPipeline,
    )


def _hybrid_inputs(question: str) -> dict[str, Any]:
    return {
        "text_embedder": {"text": question},
        "bm25_retriever": {"query": question},
        "prompt_builder": {"question": question},
    }


AT_ONCE = (
    Truth("How is apnea treated in preterm infants?", (MEDICINE[2], MEDICINE[0]), "With caffeine."),
    Truth(
        "How long are infants watched after apnea?", (MEDICINE[1], MEDICINE[0]), "For five days."
    ),
)


@app(*AT_ONCE, not_on_spans=OPENLLMETRY)
async def two_hybrids_at_once(config: Config) -> None:
    """Haystack cookbook, async pipeline: concurrent executions gathered."""
    treated, watched = AT_ONCE
    llm = LocalChatGenerator(("user: How is", treated.answer), ("", watched.answer))
    pipeline = _hybrid(llm)
    inputs = (_hybrid_inputs(one.question) for one in AT_ONCE)
    await asyncio.gather(*(pipeline.run_async(data=asked) for asked in inputs))


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


@turn(
    "What steadies the heart rate of infants?",
    (MEDICINE[3], MEDICINE[0]),
    "Kangaroo care does.",
    not_on_spans=(),
)
def super_component_retriever(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 44: creating custom SuperComponents, a hybrid retriever in RAG."""
    with served(("", answer)) as models:
        parts = {"hybrid": HybridRetriever(store(*MEDICINE))}
        flow = "hybrid.documents > prompt_builder.documents"
        pipe = generating(models.chat(), TEMPLATE, parts, flow)
        return answered(pipe, hybrid={"query": question}, prompt_builder={"question": question})


@turn("What pressure do the tyres need?", (CAR[2],), "2.3 bar in front and 2.5 bar at the rear.")
def llm_ranker(config: Config, question: str, answer: str) -> str:
    """Haystack, LLMRanker: a chat generator ranks what BM25 has found."""
    chosen = json.dumps({"documents": [{"index": 1}]})
    with served(("You are ranking", chosen), ("", answer)) as models:
        pipe = generating(
            models.chat(),
            TEMPLATE,
            {
                "retriever": InMemoryBM25Retriever(store(*CAR), top_k=3),
                "ranker": LLMRanker(chat_generator=models.chat(), top_k=2),
            },
            "retriever.documents > ranker.documents, ranker.documents > prompt_builder.documents",
        )
        asked = {name: {"query": question} for name in ("retriever", "ranker")}
        return answered(pipe, **asked, prompt_builder={"question": question})


@turn("What was like a cathedral?", (DUNE[:92],), "The cavern of Paul's dream.")
def sentence_window(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 42: sentence window retriever, its windows in the prompt."""
    splitter = DocumentSplitter(split_length=1, split_overlap=0, split_by="period")
    documents = filled(*splitter.run([Document(content=DUNE)])["documents"])
    prompt = (
        "Text:\n{% for window in windows %}{{ window }}\n---\n{% endfor %}\nQuestion: {{ query }}"
    )
    with served(("", answer)) as models:
        pipe = generating(
            models.chat(),
            prompt,
            {
                "bm25_retriever": InMemoryBM25Retriever(documents, top_k=1),
                "window_retriever": SentenceWindowRetriever(documents, window_size=1),
            },
            "bm25_retriever.documents > window_retriever.retrieved_documents",
            "window_retriever.context_windows > prompt_builder.windows",
        )
        asked = {"query": question}
        return answered(pipe, bm25_retriever=asked, prompt_builder=asked)


ARTICLE = (
    "Thieves send mails that look as if they came from a bank. Spoof websites then ask for"
    " passwords. Experts call such attacks phishing."
)


@turn("What are phishing attacks with spoof websites and mails?", (ARTICLE,), "Mails of thieves.")
def auto_merging(config: Config, question: str, answer: str) -> str:
    """Haystack cookbook, auto-merging retriever in a RAG pipeline."""
    splitter = HierarchicalDocumentSplitter(block_sizes={60, 8}, split_overlap=0, split_by="word")
    pieces = splitter.run([Document(content=ARTICLE)])["documents"]
    leaves = filled(*(d for d in pieces if d.meta["__level"] == 1))
    parents = InMemoryDocumentStore()
    parents.write_documents([d for d in pieces if d.meta["__level"] == 0])
    with served(("", answer)) as models:
        pipe = generating(
            models.chat(),
            TEMPLATE,
            {
                "bm25": InMemoryBM25Retriever(leaves, top_k=3),
                "merge": AutoMergingRetriever(parents, threshold=0.5),
            },
            "bm25.documents > merge.documents, merge.documents > prompt_builder.documents",
        )
        return answered(pipe, bm25={"query": question}, prompt_builder={"question": question})


@component
class WordLimit:
    """A custom component between retriever and prompt: drops long documents."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document], words: int = 20) -> dict[str, Any]:
        return {"documents": [d for d in documents if len((d.content or "").split()) <= words]}


@turn(
    "How do I open the flap, and where is the jack?",
    (CAR[0], CAR[1]),
    "By the button; in the boot.",
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
        asked = {"find": {"query": question}, "limit": {"words": 15}, "ask": {"question": question}}
        said = {"streaming_callback": lambda chunk: chunks.append(chunk.content)}
        pipe.run({**asked, "say": said})
    return "".join(chunks)


MUNICH = (
    "Munich is the capital of Bavaria in southern Germany, on the banks of the Isar.",
    "The Oktoberfest in Munich is the world's largest beer festival.",
)
WEB = (
    "As of 2024, about 1.6 million people live in Munich (example.org/munich).",
    "Munich is Germany's third largest city.",
)
ROUTES = [
    {"condition": f"{{{{{test} in replies[0].text}}}}", "output_name": name, "output": output}
    | {"output_type": str}
    for test, name, output in (
        ("'no_answer'", "go_to_websearch", "{{query}}"),
        ("'no_answer' not", "answer", "{{replies[0].text}}"),
    )
]


@component
class DuckSearch:
    """A web search: documents and their links."""

    @component.output_types(documents=list[Document], links=list[str])
    def run(self, query: str) -> dict[str, Any]:
        links = [f"https://example.org/{number}" for number in range(len(WEB))]
        found = zip(WEB, links, strict=True)
        documents = [Document(content=t, meta={"link": u, "title": query}) for t, u in found]
        return {"documents": documents, "links": links}


def _fallback(models: Any, query: str) -> dict[str, Any]:
    instruction = (
        "Answer the following query given the documents.\n"
        "If the answer is not contained within the documents reply with 'no_answer'\n"
    )
    listed = (
        "\nDocuments:\n{% for document in documents %}\n  {{document.content}}\n{% endfor %}"
        "\nQuery: {{query}}\n"
    )
    pipe = wired(
        {
            "retriever": InMemoryBM25Retriever(store(*MUNICH), top_k=1),
            "prompt_builder": prompted(instruction + listed),
            "llm": models.chat(),
            "router": ConditionalRouter(ROUTES),
            "websearch": DuckSearch(),
            "prompt_builder_for_websearch": prompted(f"Answer from websearch.{listed}"),
            "llm_for_websearch": models.chat(),
        },
        "retriever > prompt_builder.documents, prompt_builder.prompt > llm.messages",
        "llm.replies > router.replies, router.go_to_websearch > websearch.query",
        "router.go_to_websearch > prompt_builder_for_websearch.query",
        "websearch.documents > prompt_builder_for_websearch.documents",
        "prompt_builder_for_websearch.prompt > llm_for_websearch.messages",
    )
    return pipe.run({name: {"query": query} for name in ("retriever", "prompt_builder", "router")})


@turn("What is Munich the capital of?", (MUNICH[0],), "Munich is the capital of Bavaria.")
def fallback_not_needed(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 36: fallbacks with conditional routing, answered from the store."""
    with served(("", answer)) as models:
        return _fallback(models, question)["router"]["answer"]


@turn("How many people live in Munich?", WEB, "According to a web search, about 1.6 million.")
def fallback_to_the_web(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 36: fallbacks with conditional routing, answered from the web."""
    with served(("Answer from websearch", answer), ("", "no_answer")) as models:
        return _fallback(models, question)["llm_for_websearch"]["replies"][0].text


@turn("Which city has the largest beer festival?", (MUNICH[1],), '{"city": "Munich"}')
def validated_in_a_loop(config: Config, question: str, answer: str) -> str:
    """Haystack, JsonSchemaValidator in a loop: the error goes back to the generator."""
    template = "{% for d in documents %}{{ d.content }}\n{% endfor %}As JSON: {{ query }}"
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    with served(("not a valid JSON", answer), ("", "Munich, of course.")) as models:
        pipe = wired(
            {
                "retriever": InMemoryBM25Retriever(store(*MUNICH), top_k=1),
                "prompt_builder": prompted(template),
                "joiner": BranchJoiner(list[ChatMessage]),
                "llm": models.chat(),
                "schema_validator": JsonSchemaValidator(json_schema=schema),
            },
            "retriever.documents > prompt_builder.documents, prompt_builder.prompt > joiner",
            "joiner > llm.messages, llm.replies > schema_validator.messages",
            "schema_validator.validation_error > joiner",
            max_runs_per_component=3,
        )
        result = pipe.run({"retriever": {"query": question}, "prompt_builder": {"query": question}})
        return result["schema_validator"]["validated"][0].text


@turn("Which river is Munich on the banks of?", (MUNICH[0],), "It is on the Isar.", not_on_spans=())
def evaluated_in_the_pipeline(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 35: evaluating RAG, a faithfulness evaluator in the pipeline."""
    verdict = json.dumps({"statements": [answer], "statement_scores": [1]})
    columns = ("questions", "contexts", "predicted_answers")
    with served(("Instructions:", verdict), ("", answer)) as models:
        pipe = generating(
            models.chat(),
            "{% for d in documents %}{{ d.content }}\n{% endfor %}\nQ: {{ question }}",
            {
                "retriever": InMemoryBM25Retriever(store(*MUNICH), top_k=1),
                "answer_builder": AnswerBuilder(),
                "collect": EvaluationInputs(),
                "evaluate": FaithfulnessEvaluator(chat_generator=models.chat(), progress_bar=False),
            },
            "retriever > prompt_builder.documents, retriever > answer_builder.documents",
            "llm.replies > answer_builder.replies, answer_builder.answers > collect.answers",
            *(f"collect.{name} > evaluate.{name}" for name in columns),
        )
        asked = {"retriever": {"query": question}, "answer_builder": {"query": question}}
        asked["prompt_builder"] = {"question": question}
        result = pipe.run(asked, include_outputs_from={"answer_builder"})
        return result["answer_builder"]["answers"][0].data


@component
class EvaluationInputs:
    """Turns answers into the columns of an evaluator."""

    @component.output_types(
        questions=list[str], contexts=list[list[str]], predicted_answers=list[str]
    )
    def run(self, answers: list[GeneratedAnswer]) -> dict[str, Any]:
        return {
            "questions": [answer.query for answer in answers],
            "contexts": [[d.content or "" for d in answer.documents] for answer in answers],
            "predicted_answers": [answer.data for answer in answers],
        }

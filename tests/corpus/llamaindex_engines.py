"""Query engines over one index: response modes, streaming, async, prompts, structure."""

import asyncio
import json

from llama_index.core import (
    PromptTemplate,
    SummaryIndex,
    VectorStoreIndex,
    get_response_synthesizer,
)
from llama_index.core.query_engine import (
    CitationQueryEngine,
    CustomQueryEngine,
    RetrieverQueryEngine,
)
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.retrievers import BaseRetriever, VectorIndexRetriever
from pydantic import BaseModel

from .kit import Config, Truth, app, turn
from .llamaindex_kit import ChatModel, CompletionModel, Embedding, documents, headed, index, nodes
from .scripted import Call

ESSAY = (
    (
        "Before college the two main things I worked on, outside of school, were writing short stories"
        " and programming an IBM 1401 in the basement of our junior high school."
    ),
    (
        "In the summer of 1989 I went to Italy to study painting at the Accademia in Florence, where"
        " students and faculty had agreed not to require each other to teach or to learn anything."
    ),
    (
        "We started the company in a kitchen in Cambridge, and our first customers came to us because"
        " they could edit their online shop in a browser."
    ),
)


@turn(
    "What did the author do growing up?",
    (
        headed("college", "At college the author did philosophy, and switched to AI."),
        headed("growing_up", "The author grew up writing short stories and repairing radios."),
    ),
    "Growing up, the author wrote short stories and repaired radios.",
    also=(
        {
            "contexts": (
                "At college the author did philosophy, and switched to AI.",
                "The author grew up writing short stories and repairing radios.",
            )
        },
    ),
)
def starter(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, starter tutorial: VectorStoreIndex.from_documents and as_query_engine."""
    pages = documents(
        growing_up="The author grew up writing short stories and repairing radios.",
        college="At college the author did philosophy, and switched to AI.",
        startup="The startup sold software for online shops.",
    )
    story = VectorStoreIndex.from_documents(pages, embed_model=Embedding())
    llm = ChatModel(("", answer))
    query_engine = story.as_query_engine(llm=llm)
    return str(query_engine.query(question))


REFINED = "He wrote stories and programmed an IBM 1401; later he studied painting in Florence."


@turn("Which things did he study or work on, and where?", (ESSAY[1], ESSAY[0]), REFINED)
def refine_mode(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, response modes: refine."""
    llm = ChatModel(
        ("Original Answer:", answer), ("", "In the summer of 1989 he studied painting in Florence.")
    )
    retriever = VectorIndexRetriever(index=index(*ESSAY), similarity_top_k=2)
    synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode.REFINE)
    engine = RetrieverQueryEngine(retriever=retriever, response_synthesizer=synthesizer)
    return str(engine.query(question))


MINUTES = (
    "Council meeting of 4 March: the bridge over the Vrede canal is closed to lorries until its"
    " bearings are replaced. Costs are put at 1.4 million, of which the province pays half. Two"
    " councillors asked for a ferry in the meantime. " * 4,
    "Council meeting of 11 March: the canal bridge needs new bearings and new railings. The"
    " contractor offers a start in June and an end in November of the same year. " * 5,
    "Council meeting of 18 March: residents by the canal bridge complain of lorries on the quay at"
    " night. The council limits the quay to 20 kilometres an hour. " * 5,
)


@turn(
    "Summarise what was decided about the canal bridge.",
    MINUTES,
    "The bridge is closed to lorries and will get new bearings from June to November.",
)
def tree_summarize_mode(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, response modes: tree_summarize over a summary index."""
    llm = ChatModel(
        ("PART", answer),
        ("4 March", "PART 1: the bridge is closed to lorries; work is from June to November."),
        ("18 March", "PART 2: residents complain, so the quay is limited to 20 km/h."),
        window=900,
    )
    minutes = SummaryIndex(nodes(*MINUTES))
    engine = minutes.as_query_engine(llm=llm, response_mode="tree_summarize")
    return str(engine.query(question))


RECIPES = (
    "Für den Teig 500 g Mehl, 20 g Hefe und 300 ml lauwarmes Wasser verkneten.",
    "Den Teig eine Stunde gehen lassen, bis er doppelt so groß ist.",
    "Im Ofen bei 230 Grad etwa 35 Minuten backen.",
)


@turn("Wie lange muss der Teig gehen?", (RECIPES[1], RECIPES[0]), "Der Teig geht eine Stunde.")
def simple_summarize_in_german(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, response modes: simple_summarize, with a template of one's own."""
    template = PromptTemplate(
        "Beantworte die Frage nur mit diesen Auszügen:\n\n{context_str}\n\nFrage: {query_str}\n"
    )
    llm = CompletionModel(("eine Stunde gehen", answer))
    engine = index(*RECIPES).as_query_engine(
        llm=llm, response_mode="simple_summarize", text_qa_template=template, similarity_top_k=2
    )
    return str(engine.query(question))


REVIEWS = (
    "Battery: the vacuum cleaner runs for 40 minutes, then it needs four hours on the charger.",
    "Noise: at full power the vacuum cleaner is louder than my old one with a cable.",
)


@turn(
    "What do buyers say about the vacuum cleaner?",
    (REVIEWS[1], REVIEWS[0]),
    "Response 1: It is loud at full power.\n---------------------\n"
    "Response 2: It runs for 40 minutes.",
    also=({"contexts": REVIEWS},),
)
def accumulate_mode(config: Config, question: str) -> str:
    """LlamaIndex, response modes: accumulate."""
    llm = ChatModel(
        ("Noise:", "It is loud at full power."), ("Battery:", "It runs for 40 minutes.")
    )
    engine = index(*REVIEWS).as_query_engine(llm=llm, response_mode="accumulate")
    return str(engine.query(question))


HARBOUR = (
    "The lighthouse of Skarvø was lit in 1857. Its lamp burned rapeseed oil until 1880.",
    "Skarvø has a harbour for forty boats; visitors pay at the kiosk.",
    "The last keeper of Skarvø lighthouse, Ingrid Moe, left in 1984 when the lamp was automated.",
)


@turn(
    "Who was the last keeper of the lighthouse?",
    (HARBOUR[2], HARBOUR[0]),
    "The last keeper was Ingrid Moe, who left in 1984.",
    not_on_spans=("llamaindex_native",),
)
def streamed_tokens(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, streaming: as_query_engine(streaming=True), response_gen."""
    llm = ChatModel(("", answer))
    query_engine = index(*HARBOUR).as_query_engine(llm=llm, streaming=True, similarity_top_k=2)
    streaming_response = query_engine.query(question)
    return "".join(streaming_response.response_gen)


@app(
    Truth(
        "When was the lighthouse lit, and what did its lamp burn?",
        (HARBOUR[0], HARBOUR[2]),
        "It was lit in 1857 and burned rapeseed oil.",
    ),
    Truth("How many boats fit into the harbour?", (HARBOUR[1],), "Forty boats."),
)
async def two_awaited_at_once(config: Config) -> list[str]:
    """LlamaIndex, async queries: several aquery calls gathered."""
    llm = ChatModel(
        ("How many boats", "Forty boats."), ("", "It was lit in 1857 and burned rapeseed oil.")
    )
    town = index(*HARBOUR)
    lamp = town.as_query_engine(llm=llm, similarity_top_k=2)
    boats = town.as_query_engine(llm=llm, similarity_top_k=1)
    replies = await asyncio.gather(
        lamp.aquery("When was the lighthouse lit, and what did its lamp burn?"),
        boats.aquery("How many boats fit into the harbour?"),
    )
    return [str(reply) for reply in replies]


CITED = (
    "Toronto's islands can be reached by a ferry that leaves every half hour in summer.",
    "The ferry to the islands takes bicycles, but no cars; a ticket is 9 dollars.",
)


@turn(
    "What does a ticket for the ferry with a bicycle cost, and how often does it leave?",
    (CITED[1], CITED[0]),
    "A ticket is 9 dollars [1]; the ferry leaves every half hour in summer [2].",
    also=({"contexts": (f"Source 1:\n{CITED[1]}\n", f"Source 2:\n{CITED[0]}\n")},),
)
def citations(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, CitationQueryEngine."""
    llm = ChatModel(("", answer))
    engine = CitationQueryEngine.from_args(
        index(*CITED), llm=llm, similarity_top_k=2, citation_chunk_size=512
    )
    return str(engine.query(question))


class RAGStringQueryEngine(CustomQueryEngine):
    """The custom query engine that returns text."""

    retriever: BaseRetriever
    llm: CompletionModel
    qa_prompt: PromptTemplate

    def custom_query(self, query_str: str) -> str:
        found = self.retriever.retrieve(query_str)
        context_str = "\n\n".join(node.node.get_content() for node in found)
        response = self.llm.complete(
            self.qa_prompt.format(context_str=context_str, query_str=query_str)
        )
        return str(response)


CHEESE = (
    "Comté ripens for at least four months in cellars of the Jura.",
    "Roquefort is made of the milk of Lacaune ewes and ripens in the caves of Combalou.",
    "Beaufort has a concave rind and comes from Savoy.",
)


@turn("How long does Comté ripen in the cellars?", (CHEESE[0], CHEESE[1]), "At least four months.")
def custom_engine_with_a_string(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, defining a custom query engine, option 2."""
    prompt = PromptTemplate(
        "Context information is below.\n---\n{context_str}\n---\nGiven the context information"
        " and not prior knowledge, answer the query.\nQuery: {query_str}\nAnswer: "
    )
    engine = RAGStringQueryEngine(
        retriever=index(*CHEESE).as_retriever(similarity_top_k=2),
        llm=CompletionModel(("", answer)),
        qa_prompt=prompt,
    )
    return str(engine.query(question))


class Biography(BaseModel):
    """Data model for a biography."""

    name: str
    best_known_for: list[str]
    extra_info: str


LIVES = (
    "Maria Sibylla Merian travelled to Suriname in 1699 to draw insects and the plants they eat.",
    "Anna Atkins made the first book with photographs, of British algae, in 1843.",
)
MERIAN = {
    "name": "Maria Sibylla Merian",
    "best_known_for": ["drawings of insects"],
    "extra_info": "She went to Suriname in 1699.",
}


@turn(
    "Who is known for drawings of insects and plants?",
    (LIVES[0], LIVES[1]),
    json.dumps(MERIAN, separators=(",", ":")),
    also=({"answer": json.dumps(MERIAN)},),
)
def pydantic_output(config: Config, question: str) -> str:
    """LlamaIndex, query engine with Pydantic outputs: as_query_engine(output_cls=...)."""
    llm = ChatModel(("", Call("Biography", MERIAN)))
    engine = index(*LIVES).as_query_engine(
        output_cls=Biography, response_mode="compact", llm=llm, similarity_top_k=2
    )
    return str(engine.query(question))


@app()
def retrieves_only(config: Config) -> list[str]:
    """LlamaIndex, retriever modules: as_retriever().retrieve, nothing generated."""
    found = index(*CHEESE).as_retriever(similarity_top_k=3).retrieve("ewes' milk")
    return [node.get_content() for node in found]


@app()
def completes_and_chats(config: Config) -> str:
    """LlamaIndex, using LLMs: complete and chat without an index."""
    llm = ChatModel(("limerick", "There once was a lock on the Spree."), ("", "a painter."))
    ended = llm.complete("Paul Graham is ")
    return f"{ended} {llm.complete('Write a limerick about a lock.')}"

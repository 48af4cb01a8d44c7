"""Engines of engines: routers, sub-questions, steps, rewritten and multiplied queries."""

import json

from llama_index.core import SummaryIndex, VectorStoreIndex, get_response_synthesizer
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.query_engine import (
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import FilterCondition, MetadataFilter, MetadataFilters

from .kit import Config, Truth, app, turn
from .llamaindex_kit import ChatModel, CompletionModel, Embedding, index, nodes

NOVEL = (
    "In chapter one Ishbel finds a letter in the wall of the lighthouse.",
    "In chapter two she rows to Muckle Roe and is caught by fog.",
    "In chapter three the letter turns out to be her grandmother's.",
)


@app(
    Truth(
        "Summarise the novel about Ishbel.",
        NOVEL,
        "Ishbel finds a letter, rows into fog, and learns that her grandmother wrote it.",
    ),
    Truth(
        "What does Ishbel find in the wall of the lighthouse?", (NOVEL[0],), "She finds a letter."
    ),
)
def router(config: Config) -> list[str]:
    """LlamaIndex, router query engine: LLMSingleSelector over a summary and a vector index."""
    llm = ChatModel(
        ("Using only the choices above & Summarise", _choice(1, "asks for a summary")),
        ("Using only the choices above", _choice(2, "asks for a fact")),
        (
            "Summarise",
            "Ishbel finds a letter, rows into fog, and learns that her grandmother wrote it.",
        ),
        ("", "She finds a letter."),
    )
    summaries = SummaryIndex(nodes(*NOVEL)).as_query_engine(response_mode="tree_summarize", llm=llm)
    facts = index(*NOVEL).as_query_engine(similarity_top_k=1, llm=llm)
    query_engine = RouterQueryEngine(
        selector=LLMSingleSelector.from_defaults(llm=llm),
        query_engine_tools=[
            QueryEngineTool.from_defaults(summaries, description="Useful for summaries."),
            QueryEngineTool.from_defaults(facts, description="Useful for facts."),
        ],
        llm=llm,
    )
    asked = (
        "Summarise the novel about Ishbel.",
        "What does Ishbel find in the wall of the lighthouse?",
    )
    return [str(query_engine.query(question)) for question in asked]


def _choice(number: int, reason: str) -> str:
    return json.dumps([{"choice": number, "reason": reason}])


LISBON = ("Lisbon's trams carried 19 million passengers in 2022.", "Lisbon has six tram lines.")
PORTO = ("Porto's trams carried 1.1 million passengers in 2022.", "Porto has three tram lines.")
COMPARED = "Lisbon's trams carried 19 million passengers, Porto's 1.1 million."
SUB_ANSWERS = (
    "Sub question: How many passengers did the trams of Lisbon carry?\nResponse: 19 million.",
    "Sub question: How many passengers did the trams of Porto carry?\nResponse: 1.1 million.",
)


@turn(
    "Compare the passengers of the trams of Lisbon and Porto.",
    (LISBON[0], PORTO[0]),
    COMPARED,
    also=({"contexts": SUB_ANSWERS}, {"contexts": (LISBON[0], PORTO[0], *SUB_ANSWERS)}),
    optional=(
        Truth("How many passengers did the trams of Lisbon carry?", (LISBON[0],), "19 million."),
        Truth("How many passengers did the trams of Porto carry?", (PORTO[0],), "1.1 million."),
    ),
)
def sub_questions(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, sub question query engine."""
    parts = [
        {"sub_question": "How many passengers did the trams of Lisbon carry?", "tool_name": "lx"},
        {"sub_question": "How many passengers did the trams of Porto carry?", "tool_name": "op"},
    ]
    llm = ChatModel(
        (
            "output a list of relevant sub-questions",
            f"```json\n{json.dumps({'items': parts})}\n```",
        ),
        ("Sub question:", answer),
        ("Lisbon's trams", "19 million."),
        ("Porto's trams", "1.1 million."),
    )
    tools = [
        QueryEngineTool.from_defaults(
            index(*texts).as_query_engine(llm=llm, similarity_top_k=1), name=name, description=name
        )
        for name, texts in (("lx", LISBON), ("op", PORTO))
    ]
    query_engine = SubQuestionQueryEngine.from_defaults(
        query_engine_tools=tools,
        question_gen=LLMQuestionGenerator.from_defaults(llm=llm),
        llm=llm,
        use_async=False,
        verbose=False,
    )
    return str(query_engine.query(question))


ARCHIVE = (
    "The observatory of Vila Verde was founded by the astronomer Teresa Pinho.",
    "Teresa Pinho was born in Braga in 1871 and studied in Coimbra.",
    "The observatory's dome was repaired in 1954.",
)
BORN = "The founder of the observatory, Teresa Pinho, was born in Braga."


@turn(
    "Where was the founder of the observatory born?",
    (ARCHIVE[0], ARCHIVE[1]),
    BORN,
    also=(
        {
            "contexts": (
                "\nQuestion: Who founded the observatory of Vila Verde?\nAnswer: Teresa Pinho.",
                "\nQuestion: Where was Teresa Pinho born?\nAnswer: In Braga.",
            )
        },
    ),
    optional=(
        Truth("Who founded the observatory of Vila Verde?", (ARCHIVE[0],), "Teresa Pinho."),
        Truth("Where was Teresa Pinho born?", (ARCHIVE[1],), "In Braga."),
    ),
)
def multi_step(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, multi-step query engine."""
    llm = ChatModel(
        ("- Where was Teresa Pinho born?", "None"),
        ("return a question & - Who founded", "Where was Teresa Pinho born?"),
        ("return a question", "Who founded the observatory of Vila Verde?"),
        ("Question: Where was", answer),
        ("Query: Where was Teresa Pinho", "In Braga."),
        ("Query: Who founded", "Teresa Pinho."),
    )
    query_engine = MultiStepQueryEngine(
        query_engine=index(*ARCHIVE).as_query_engine(llm=llm, similarity_top_k=1),
        query_transform=StepDecomposeQueryTransform(llm=llm, verbose=False),
        index_summary="About an observatory",
        response_synthesizer=get_response_synthesizer(llm=llm),
        num_steps=2,
    )
    return str(query_engine.query(question))


VOLCANO = (
    "Etna erupts several times a year; the 2001 eruption destroyed the cable car station.",
    "Stromboli has erupted almost without a break for two thousand years.",
)


@turn("Was zerstörte der Ausbruch am Etna 2001?", (VOLCANO[0],), "Die Station der Seilbahn.")
def hyde(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, HyDE query transform."""
    llm = ChatModel(
        ("write a passage", "The eruption of Etna in 2001 destroyed roads and a cable car."),
        ("", answer),
    )
    transform = HyDEQueryTransform(llm=llm, include_original=True)
    engine = index(*VOLCANO).as_query_engine(llm=llm, similarity_top_k=1)
    return str(TransformQueryEngine(engine, transform).query(question))


MANUAL = (
    "To descale the machine, fill the tank with one part vinegar and two parts water.",
    "The red lamp blinks when the machine needs to be descaled, about every 200 cups.",
    "Never put the brewing unit into the dishwasher.",
    "Vinegar smells go away after two rinses with fresh water.",
)


@turn(
    "How do I descale the machine?",
    (MANUAL[0], MANUAL[1], MANUAL[3]),
    "Fill the tank with vinegar and water, then rinse twice.",
)
def fusion(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, query fusion retriever: generated queries and reciprocal rerank."""
    llm = ChatModel(
        ("generates multiple search queries", "red lamp blinks\nvinegar smells after rinses"),
        ("", answer),
    )
    retriever = QueryFusionRetriever(
        [index(*MANUAL).as_retriever(similarity_top_k=2)],
        llm=llm,
        similarity_top_k=3,
        num_queries=3,
        mode="reciprocal_rerank",
        use_async=False,
    )
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
    return str(engine.query(question))


def _clubs() -> VectorStoreIndex:
    about = {
        "Rowing club: novices meet on Tuesdays at the boathouse.": ("sport", 1921),
        "Chess club: novices meet on Mondays in the library.": ("games", 1987),
        "Bouldering club: the hall opens to novices on Tuesdays.": ("sport", 2014),
    }
    return VectorStoreIndex(
        [
            TextNode(
                text=text,
                id_=text[:5],
                metadata={"kind": kind, "year": year},
                excluded_llm_metadata_keys=["kind", "year"],
                excluded_embed_metadata_keys=["kind", "year"],
            )
            for text, (kind, year) in about.items()
        ],
        embed_model=Embedding(),
    )


@turn(
    "When do novices meet at the club?",
    ("Rowing club: novices meet on Tuesdays at the boathouse.",),
    "On Tuesdays.",
)
def metadata_filters(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, vector stores: metadata filters."""
    filters = MetadataFilters(
        filters=[
            MetadataFilter(key="kind", value="sport"),
            MetadataFilter(key="year", value=2000, operator="<"),
        ],
        condition=FilterCondition.AND,
    )
    llm = CompletionModel(("", answer))
    engine = _clubs().as_query_engine(llm=llm, filters=filters, similarity_top_k=2)
    return str(engine.query(question))

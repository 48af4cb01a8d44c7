"""Engines of engines: routers, sub-questions, steps, rewritten and multiplied queries."""

from __future__ import annotations

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
from llama_index.core.vector_stores import (
    FilterCondition,
    MetadataFilter,
    MetadataFilters,
)

from .kit import Config, Truth, app
from .llamaindex_kit import ChatModel, CompletionModel, Embedding, index, nodes

NOVEL = (
    "In chapter one Ishbel finds a letter in the wall of the lighthouse.",
    "In chapter two she rows to Muckle Roe and is caught by fog.",
    "In chapter three the letter turns out to be her grandmother's.",
)


@app(
    Truth(
        question="Summarise the novel about Ishbel.",
        contexts=NOVEL,
        answer="Ishbel finds a letter, rows into fog, and learns that her grandmother wrote it.",
    ),
    Truth(
        question="What does Ishbel find in the wall of the lighthouse?",
        contexts=(NOVEL[0],),
        answer="She finds a letter.",
    ),
    page="LlamaIndex, router query engine: LLMSingleSelector over a summary and a vector index",
)
def router(config: Config) -> list[str]:
    """Let a model choose the engine, for two questions."""
    llm = ChatModel(
        [
            ("Using only the choices above & Summarise", _choice(1, "asks for a summary")),
            ("Using only the choices above", _choice(2, "asks for a fact")),
            (
                "Summarise",
                "Ishbel finds a letter, rows into fog, and learns that her grandmother wrote it.",
            ),
            ("", "She finds a letter."),
        ]
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


@app(
    Truth(
        question="Compare the passengers of the trams of Lisbon and Porto.",
        contexts=(LISBON[0], PORTO[0]),
        answer=COMPARED,
        also=({"contexts": SUB_ANSWERS}, {"contexts": (LISBON[0], PORTO[0], *SUB_ANSWERS)}),
    ),
    optional=(
        Truth(
            question="How many passengers did the trams of Lisbon carry?",
            contexts=(LISBON[0],),
            answer="19 million.",
        ),
        Truth(
            question="How many passengers did the trams of Porto carry?",
            contexts=(PORTO[0],),
            answer="1.1 million.",
        ),
    ),
    page="LlamaIndex, sub question query engine",
)
def sub_questions(config: Config) -> str:
    """Ask two engines a part each, then answer from their answers."""
    parts = [
        {"sub_question": "How many passengers did the trams of Lisbon carry?", "tool_name": "lx"},
        {"sub_question": "How many passengers did the trams of Porto carry?", "tool_name": "op"},
    ]
    llm = ChatModel(
        [
            (
                "output a list of relevant sub-questions",
                f"```json\n{json.dumps({'items': parts})}\n```",
            ),
            ("Sub question:", COMPARED),
            ("Lisbon's trams", "19 million."),
            ("Porto's trams", "1.1 million."),
        ]
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
    return str(query_engine.query("Compare the passengers of the trams of Lisbon and Porto."))


ARCHIVE = (
    "The observatory of Vila Verde was founded by the astronomer Teresa Pinho.",
    "Teresa Pinho was born in Braga in 1871 and studied in Coimbra.",
    "The observatory's dome was repaired in 1954.",
)
BORN = "The founder of the observatory, Teresa Pinho, was born in Braga."


@app(
    Truth(
        question="Where was the founder of the observatory born?",
        contexts=(ARCHIVE[0], ARCHIVE[1]),
        answer=BORN,
        also=(
            {
                "contexts": (
                    "\nQuestion: Who founded the observatory of Vila Verde?\nAnswer: Teresa Pinho.",
                    "\nQuestion: Where was Teresa Pinho born?\nAnswer: In Braga.",
                )
            },
        ),
    ),
    optional=(
        Truth(
            question="Who founded the observatory of Vila Verde?",
            contexts=(ARCHIVE[0],),
            answer="Teresa Pinho.",
        ),
        Truth(question="Where was Teresa Pinho born?", contexts=(ARCHIVE[1],), answer="In Braga."),
    ),
    page="LlamaIndex, multi-step query engine",
)
def multi_step(config: Config) -> str:
    """Ask one thing after the other, each from what is known by then."""
    llm = ChatModel(
        [
            ("- Where was Teresa Pinho born?", "None"),
            ("return a question & - Who founded", "Where was Teresa Pinho born?"),
            ("return a question", "Who founded the observatory of Vila Verde?"),
            ("Question: Where was", BORN),
            ("Query: Where was Teresa Pinho", "In Braga."),
            ("Query: Who founded", "Teresa Pinho."),
        ]
    )
    query_engine = MultiStepQueryEngine(
        query_engine=index(*ARCHIVE).as_query_engine(llm=llm, similarity_top_k=1),
        query_transform=StepDecomposeQueryTransform(llm=llm, verbose=False),
        index_summary="About an observatory",
        response_synthesizer=get_response_synthesizer(llm=llm),
        num_steps=2,
    )
    return str(query_engine.query("Where was the founder of the observatory born?"))


VOLCANO = (
    "Etna erupts several times a year; the 2001 eruption destroyed the cable car station.",
    "Stromboli has erupted almost without a break for two thousand years.",
)


@app(
    Truth(
        question="Was zerstörte der Ausbruch am Etna 2001?",
        contexts=(VOLCANO[0],),
        answer="Die Station der Seilbahn.",
    ),
    page="LlamaIndex, HyDE query transform",
)
def hyde(config: Config) -> str:
    """Search with a made-up passage beside the question."""
    llm = ChatModel(
        [
            ("write a passage", "The eruption of Etna in 2001 destroyed roads and a cable car."),
            ("", "Die Station der Seilbahn."),
        ]
    )
    transform = HyDEQueryTransform(llm=llm, include_original=True)
    engine = index(*VOLCANO).as_query_engine(llm=llm, similarity_top_k=1)
    return str(
        TransformQueryEngine(engine, transform).query("Was zerstörte der Ausbruch am Etna 2001?")
    )


MANUAL = (
    "To descale the machine, fill the tank with one part vinegar and two parts water.",
    "The red lamp blinks when the machine needs to be descaled, about every 200 cups.",
    "Never put the brewing unit into the dishwasher.",
    "Vinegar smells go away after two rinses with fresh water.",
)


@app(
    Truth(
        question="How do I descale the machine?",
        contexts=(MANUAL[0], MANUAL[1], MANUAL[3]),
        answer="Fill the tank with vinegar and water, then rinse twice.",
    ),
    page="LlamaIndex, query fusion retriever: generated queries and reciprocal rerank",
)
def fusion(config: Config) -> str:
    """Search with three queries and merge what they find."""
    llm = ChatModel(
        [
            ("generates multiple search queries", "red lamp blinks\nvinegar smells after rinses"),
            ("", "Fill the tank with vinegar and water, then rinse twice."),
        ]
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
    return str(engine.query("How do I descale the machine?"))


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


@app(
    Truth(
        question="When do novices meet at the club?",
        contexts=("Rowing club: novices meet on Tuesdays at the boathouse.",),
        answer="On Tuesdays.",
    ),
    page="LlamaIndex, vector stores: metadata filters",
)
def metadata_filters(config: Config) -> str:
    """Search among the nodes whose metadata fit."""
    filters = MetadataFilters(
        filters=[
            MetadataFilter(key="kind", value="sport"),
            MetadataFilter(key="year", value=2000, operator="<"),
        ],
        condition=FilterCondition.AND,
    )
    llm = CompletionModel([("", "On Tuesdays.")])
    engine = _clubs().as_query_engine(llm=llm, filters=filters, similarity_top_k=2)
    return str(engine.query("When do novices meet at the club?"))

"""Query engines over one index and over several, what stands between, and workflows."""

import asyncio
import itertools
import json
import re

from llama_index.core import (
    Document,
    PromptTemplate,
    SummaryIndex,
    VectorStoreIndex,
    get_response_synthesizer,
)
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.evaluation import FaithfulnessEvaluator
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.node_parser import SentenceWindowNodeParser
from llama_index.core.postprocessor import (
    LLMRerank,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import (
    CitationQueryEngine,
    CustomQueryEngine,
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import CompactAndRefine, ResponseMode
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever, VectorIndexRetriever
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import QueryEngineTool
from llama_index.core.vector_stores import FilterCondition, MetadataFilter, MetadataFilters
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from pydantic import BaseModel

from .kit import Config, Truth, app, turn
from .llamaindex_kit import (
    ChatModel,
    CompletionModel,
    Embedding,
    ask,
    documents,
    headed,
    index,
    nodes,
)
from .scripted import Call

NOVEL = (
    "In chapter one Ishbel finds a letter in the wall of the lighthouse.",
    "In chapter two she rows to Muckle Roe and is caught by fog.",
    "In chapter three the letter turns out to be her grandmother's.",
)


SUMMARY = Truth(
    "Summarise the novel about Ishbel.",
    NOVEL,
    "Ishbel finds a letter, rows into fog, and learns that her grandmother wrote it.",
)
FACT = Truth("What does Ishbel find in the lighthouse?", (NOVEL[0],), "She finds a letter.")


@app(SUMMARY, FACT)
def router(config: Config) -> list[str]:
    """LlamaIndex, router query engine: LLMSingleSelector over a summary and a vector index."""

    def choice(number: int) -> str:
        return json.dumps([{"choice": number, "reason": "It is useful for that."}])

    llm = ChatModel(
        ("Using only the choices above & Summarise", choice(1)),
        ("Using only the choices above", choice(2)),
        ("Summarise", SUMMARY.answer),
        ("", FACT.answer),
    )
    summaries = SummaryIndex(nodes(*NOVEL)).as_query_engine(response_mode="tree_summarize", llm=llm)
    facts = index(*NOVEL).as_query_engine(similarity_top_k=1, llm=llm)
    tools = [
        QueryEngineTool.from_defaults(engine, description=f"Useful for {use}.")
        for engine, use in ((summaries, "summaries"), (facts, "facts"))
    ]
    selector = LLMSingleSelector.from_defaults(llm=llm)
    query_engine = RouterQueryEngine(selector=selector, query_engine_tools=tools, llm=llm)
    return [str(query_engine.query(one.question)) for one in (SUMMARY, FACT)]


TRAMS = {
    city: (f"{city}'s trams carried {number} passengers in 2022.", f"{city} has tram lines.")
    for city, number in (("Lisbon", "19 million"), ("Porto", "1.1 million"))
}
LISBON, PORTO = TRAMS.values()
SUB_TRUTHS = (
    Truth("How many passengers did the trams of Lisbon carry?", (LISBON[0],), "19 million."),
    Truth("How many passengers did the trams of Porto carry?", (PORTO[0],), "1.1 million."),
)
SUB_ANSWERS = tuple(f"Sub question: {one.question}\nResponse: {one.answer}" for one in SUB_TRUTHS)


@turn(
    "Compare the passengers of the trams of Lisbon and Porto.",
    (LISBON[0], PORTO[0]),
    "Lisbon's trams carried 19 million passengers, Porto's 1.1 million.",
    also=({"contexts": SUB_ANSWERS}, {"contexts": (LISBON[0], PORTO[0], *SUB_ANSWERS)}),
    optional=SUB_TRUTHS,
)
def sub_questions(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, sub question query engine."""
    asked = [
        {"sub_question": t.question, "tool_name": c} for t, c in zip(SUB_TRUTHS, TRAMS, strict=True)
    ]
    items = f"```json\n{json.dumps({'items': asked})}\n```"
    llm = ChatModel(
        ("output a list of relevant sub-questions", items),
        ("Sub question:", answer),
        *((f"{city}'s trams", one.answer) for city, one in zip(TRAMS, SUB_TRUTHS, strict=True)),
    )
    tools = [
        QueryEngineTool.from_defaults(
            index(*texts).as_query_engine(llm=llm, similarity_top_k=1), name=name, description=name
        )
        for name, texts in TRAMS.items()
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
FOUNDER = Truth("Who founded the observatory of Vila Verde?", (ARCHIVE[0],), "Teresa Pinho.")
BIRTH = Truth("Where was Teresa Pinho born?", (ARCHIVE[1],), "In Braga.")
STEPS_DONE = tuple(f"\nQuestion: {one.question}\nAnswer: {one.answer}" for one in (FOUNDER, BIRTH))


@turn(
    "Where was the founder of the observatory born?",
    (ARCHIVE[0], ARCHIVE[1]),
    "The founder of the observatory, Teresa Pinho, was born in Braga.",
    also=({"contexts": STEPS_DONE},),
    optional=(FOUNDER, BIRTH),
)
def multi_step(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, multi-step query engine."""
    llm = ChatModel(
        (f"- {BIRTH.question}", "None"),
        ("return a question & - Who founded", BIRTH.question),
        ("return a question", FOUNDER.question),
        ("Question: Where was", answer),
        ("Query: Where was Teresa Pinho", BIRTH.answer),
        ("Query: Who founded", FOUNDER.answer),
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
    made_up = "The eruption of Etna in 2001 destroyed roads and a cable car."
    llm = ChatModel(("write a passage", made_up), ("", answer))
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
    "How do I descale the machine?", (MANUAL[0], MANUAL[1], MANUAL[3]), "By vinegar; rinse twice."
)
def fusion(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, query fusion retriever: generated queries and reciprocal rerank."""
    queries = "red lamp blinks\nvinegar smells after rinses"
    llm = ChatModel(("generates multiple search queries", queries), ("", answer))
    retriever = QueryFusionRetriever(
        [index(*MANUAL).as_retriever(similarity_top_k=2)],
        llm=llm,
        similarity_top_k=3,
        num_queries=3,
        mode="reciprocal_rerank",
        use_async=False,
    )
    return str(RetrieverQueryEngine.from_args(retriever, llm=llm).query(question))


ROWING = "Rowing club: novices meet on Tuesdays at the boathouse."


def _clubs() -> VectorStoreIndex:
    about = {
        ROWING: ("sport", 1921),
        "Chess club: novices meet on Mondays in the library.": ("games", 1987),
        "Bouldering club: the hall opens to novices on Tuesdays.": ("sport", 2014),
    }
    no_text = ["kind", "year"]
    hidden = {f"excluded_{use}_metadata_keys": no_text for use in ("llm", "embed")}
    clubs = [
        TextNode(text=text, id_=text[:5], metadata={"kind": kind, "year": year}, **hidden)
        for text, (kind, year) in about.items()
    ]
    return VectorStoreIndex(clubs, embed_model=Embedding())


@turn("When do novices meet at the club?", (ROWING,), "On Tuesdays.")
def metadata_filters(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, vector stores: metadata filters."""
    old = MetadataFilter(key="year", value=2000, operator="<")
    sport = MetadataFilter(key="kind", value="sport")
    filters = MetadataFilters(filters=[sport, old], condition=FilterCondition.AND)
    llm = CompletionModel(("", answer))
    engine = _clubs().as_query_engine(llm=llm, filters=filters, similarity_top_k=2)
    return str(engine.query(question))


ESSAY = (
    "Before college the two main things I worked on were short stories and an IBM 1401.",
    "In the summer of 1989 I went to Italy to study painting at the Accademia in Florence.",
    "We started the company in a kitchen in Cambridge.",
)
PAGES = {
    "college": "At college the author did philosophy, and switched to AI.",
    "growing_up": "The author grew up writing short stories and repairing radios.",
}


@turn(
    "What did the author do growing up?",
    tuple(headed(name, text) for name, text in PAGES.items()),
    "Growing up, the author wrote short stories and repaired radios.",
    also=({"contexts": tuple(PAGES.values())},),
)
def starter(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, starter tutorial: VectorStoreIndex.from_documents and as_query_engine."""
    pages = documents(**PAGES, startup="The startup sold software for online shops.")
    story = VectorStoreIndex.from_documents(pages, embed_model=Embedding())
    return str(story.as_query_engine(llm=ChatModel(("", answer))).query(question))


@turn(
    "Which things did he study or work on, and where?",
    (ESSAY[1], ESSAY[0]),
    "He wrote stories and programmed an IBM 1401; later he studied painting in Florence.",
)
def refine_mode(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, response modes: refine."""
    first = "In the summer of 1989 he studied painting in Florence."
    llm = ChatModel(("Original Answer:", answer), ("", first))
    retriever = VectorIndexRetriever(index=index(*ESSAY), similarity_top_k=2)
    synthesizer = get_response_synthesizer(llm=llm, response_mode=ResponseMode.REFINE)
    engine = RetrieverQueryEngine(retriever=retriever, response_synthesizer=synthesizer)
    return str(engine.query(question))


MINUTES = (
    "Council meeting of 4 March: the bridge is closed to lorries until its bearings are new. " * 9,
    "Council meeting of 11 March: the work starts in June and ends in November. " * 10,
    "Council meeting of 18 March: residents complain of lorries on the quay at night. " * 9,
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
    options = {"response_mode": "simple_summarize", "text_qa_template": template}
    return ask(question, RECIPES, llm, similarity_top_k=2, **options)


REVIEWS = (
    "Battery: the vacuum cleaner runs for 40 minutes, then it needs four hours on the charger.",
    "Noise: at full power the vacuum cleaner is louder than my old one with a cable.",
)


@turn(
    "What do buyers say about the vacuum cleaner?",
    (REVIEWS[1], REVIEWS[0]),
    "Response 1: It is loud.\n---------------------\nResponse 2: It runs for 40 minutes.",
    also=({"contexts": REVIEWS},),
)
def accumulate_mode(config: Config, question: str) -> str:
    """LlamaIndex, response modes: accumulate."""
    llm = ChatModel(("Noise:", "It is loud."), ("Battery:", "It runs for 40 minutes."))
    return ask(question, REVIEWS, llm, response_mode="accumulate")


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


LIT = Truth(
    "When was the lighthouse lit, and what did its lamp burn?",
    (HARBOUR[0], HARBOUR[2]),
    "It was lit in 1857 and burned rapeseed oil.",
)
BOATS = Truth("How many boats fit into the harbour?", (HARBOUR[1],), "Forty boats.")


@app(LIT, BOATS)
async def two_awaited_at_once(config: Config) -> list[str]:
    """LlamaIndex, async queries: several aquery calls gathered."""
    llm = ChatModel(("How many boats", BOATS.answer), ("", LIT.answer))
    engines = [index(*HARBOUR).as_query_engine(llm=llm, similarity_top_k=k) for k in (2, 1)]
    asked = zip(engines, (LIT, BOATS), strict=True)
    return list(map(str, await asyncio.gather(*(one.aquery(t.question) for one, t in asked))))


CITED = (
    "Toronto's islands can be reached by a ferry that leaves every half hour in summer.",
    "The ferry takes bicycles; a ticket is 9 dollars.",
)


@turn(
    "What is a ticket for the ferry with a bicycle, and how often does it leave?",
    (CITED[1], CITED[0]),
    "A ticket is 9 dollars [1]; the ferry leaves every half hour in summer [2].",
    also=({"contexts": (f"Source 1:\n{CITED[1]}\n", f"Source 2:\n{CITED[0]}\n")},),
)
def citations(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, CitationQueryEngine."""
    options = {"similarity_top_k": 2, "citation_chunk_size": 512}
    make = CitationQueryEngine.from_args
    return str(make(index(*CITED), llm=ChatModel(("", answer)), **options).query(question))


class RAGStringQueryEngine(CustomQueryEngine):
    """The custom query engine that returns text."""

    retriever: BaseRetriever
    llm: CompletionModel
    qa_prompt: PromptTemplate

    def custom_query(self, query_str: str) -> str:
        found = self.retriever.retrieve(query_str)
        context_str = "\n\n".join(node.node.get_content() for node in found)
        prompt = self.qa_prompt.format(context_str=context_str, query_str=query_str)
        return str(self.llm.complete(prompt))


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
    retriever = index(*CHEESE).as_retriever(similarity_top_k=2)
    llm = CompletionModel(("", answer))
    engine = RAGStringQueryEngine(retriever=retriever, llm=llm, qa_prompt=prompt)
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
    options = {"output_cls": Biography, "response_mode": "compact", "similarity_top_k": 2}
    return ask(question, LIVES, llm, **options)


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


BAKERY = (
    "The bakery opens at six on weekdays and at seven on Saturdays.",
    "Sourdough bread is baked twice a day, at five and at noon.",
    "The bakery's owner, Mrs Okafor, learned the trade in Lagos.",
    "Dogs may wait outside, where there is a bowl of water.",
)


class WithoutWord(BaseNodePostprocessor):
    """Drops nodes with a word that is not wanted."""

    word: str

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [node for node in nodes if self.word not in node.node.get_content()]


@turn("Is there bread or water for dogs at the bakery?", (BAKERY[0], BAKERY[1]), "Bread, at five.")
def custom_postprocessor(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, node postprocessors: a custom postprocessor."""
    llm = CompletionModel(("Sourdough", answer))
    filters = [WithoutWord(word="bowl"), WithoutWord(word="Lagos")]
    return ask(question, BAKERY, llm, similarity_top_k=4, node_postprocessors=filters)


CLAUSES = (
    "§ 4 Notice. The tenant gives notice in writing, three months before the end of a quarter.",
    "§ 7 Pets. Small animals are allowed. Dogs and cats need the landlord's consent in writing.",
    "§ 9 Deposit. The deposit is paid back within six months of the end of the tenancy.",
    "§ 12 Keys. The tenant gets three keys and returns them in writing at the end.",
)


@turn(
    "When is the deposit paid back at the end of the tenancy?",
    (CLAUSES[2], CLAUSES[0]),
    "Within six months of the end of the tenancy.",
)
def llm_rerank(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, node postprocessors: LLMRerank."""
    ranks = "Doc: 1, Relevance: 9\nDoc: 3, Relevance: 4"
    llm = ChatModel(("Respond with the numbers of the documents", ranks), ("", answer))
    rerank = LLMRerank(llm=llm, choice_batch_size=5, top_n=2)
    return ask(question, CLAUSES, llm, similarity_top_k=4, node_postprocessors=[rerank])


DIARY = (
    "We left Tromsø at dawn. The wind was light. Two fin whales surfaced near Rebbenesøya. One"
    " dived under the keel. We drifted for an hour. In the evening we anchored. Supper was cod."
)
WINDOW = (
    "We left Tromsø at dawn.  The wind was light.  Two fin whales surfaced near Rebbenesøya.  One"
    " dived under the keel.  We drifted for an hour. "
)


@turn(
    "Where did the fin whales surface?",
    (WINDOW,),
    "Near Rebbenesøya, beside the boat.",
    also=({"contexts": (f"window: {WINDOW}",)},),
)
def sentence_window(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, metadata replacement and node sentence window."""
    parser = SentenceWindowNodeParser.from_defaults(
        window_size=2,
        window_metadata_key="window",
        original_text_metadata_key="original_text",
        sentence_splitter=lambda text: re.findall(r"[^.]+\.\s*", text),
    )
    sentences = parser.get_nodes_from_documents([Document(text=DIARY)])
    replacing = MetadataReplacementPostProcessor(target_metadata_key="window")
    engine = VectorStoreIndex(sentences, embed_model=Embedding()).as_query_engine(
        similarity_top_k=1, llm=ChatModel(("", answer)), node_postprocessors=[replacing]
    )
    return str(engine.query(question))


STEPS = (
    "Step 1: switch the boiler off and let it cool for half an hour.",
    "Step 2: open the bleed valve a quarter turn until water comes.",
    "Step 3: top up to 1.5 bar and switch on.",
)


def _in_a_row(*texts: str) -> list[TextNode]:
    steps = nodes(*texts)
    for before, after in itertools.pairwise(steps):
        before.relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id=after.node_id)
        after.relationships[NodeRelationship.PREVIOUS] = RelatedNodeInfo(node_id=before.node_id)
    return steps


@turn(
    "How far do I open the bleed valve until water comes, and then?",
    (STEPS[1], STEPS[2]),
    "A quarter turn; then top up to 1.5 bar and switch on.",
)
def next_node(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, PrevNextNodePostprocessor."""
    steps, docstore = _in_a_row(*STEPS), SimpleDocumentStore()
    docstore.add_documents(steps)
    engine = VectorStoreIndex(steps, embed_model=Embedding()).as_query_engine(
        llm=ChatModel(("", answer)),
        similarity_top_k=1,
        node_postprocessors=[
            PrevNextNodePostprocessor(docstore=docstore, num_nodes=1, mode="next")
        ],
        response_mode="tree_summarize",
    )
    return str(engine.query(question))


MUSEUM = (
    "Room 12 shows the astrolabe of Muhammad al-Sahli from Valencia, dated 1067.",
    "Room 14 shows clocks of the 17th century, among them a pendulum clock by Coster.",
    "The museum shop sells postcards and a small brass sundial.",
)


@turn("What does the museum shop sell?", (MUSEUM[2], MUSEUM[1]), "Postcards and a brass sundial.")
def evaluated_afterwards(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, evaluation: FaithfulnessEvaluator.evaluate_response after a query."""
    llm = ChatModel(("Information:", "YES"), ("", answer))
    response = index(*MUSEUM).as_query_engine(llm=llm, similarity_top_k=2).query(question)
    verdict = FaithfulnessEvaluator(llm=llm).evaluate_response(response=response)
    return f"{response} ({verdict.passing})"


dispatcher = get_dispatcher(__name__)
PAPERS = (
    "Table 4: the 70B model scores 68.9 on MMLU with five shots.",
    "The fine-tuned chat model was trained with 27,540 annotations of high quality.",
    "We share the carbon footprint of pretraining: 539 tCO2eq.",
    "Ghost attention keeps instructions in force over many turns of a chat.",
)


class RetrieverEvent(Event):
    """Result of running retrieval."""

    nodes: list[NodeWithScore]


class RerankEvent(Event):
    """Result of running reranking on retrieved nodes."""

    nodes: list[NodeWithScore]


class RAGWorkflow(Workflow):
    """Retrieval, reranking and synthesis, a step each."""

    def __init__(self, llm: ChatModel, texts: tuple[str, ...]) -> None:
        super().__init__(timeout=30)
        self.llm, self.index = llm, index(*texts)

    @step
    async def retrieve(self, ctx: Context, ev: StartEvent) -> RetrieverEvent | None:
        """Entry point for RAG, triggered by a StartEvent with `query`."""
        await ctx.store.set("query", ev.query)
        retriever = self.index.as_retriever(similarity_top_k=3)
        return RetrieverEvent(nodes=await retriever.aretrieve(ev.query))

    @step
    async def rerank(self, ctx: Context, ev: RetrieverEvent) -> RerankEvent:
        """Rerank the nodes."""
        ranker = LLMRerank(choice_batch_size=5, top_n=2, llm=self.llm)
        query = await ctx.store.get("query")
        return RerankEvent(nodes=ranker.postprocess_nodes(ev.nodes, query_str=query))

    @step
    async def synthesize(self, ctx: Context, ev: RerankEvent) -> StopEvent:
        """Return a response using reranked nodes."""
        query, summarizer = await ctx.store.get("query"), CompactAndRefine(llm=self.llm)
        return StopEvent(result=await summarizer.asynthesize(query, nodes=ev.nodes))


@turn("How was the chat model trained?", (PAPERS[1], PAPERS[3]), "With 27,540 annotations.")
async def rag_workflow(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, RAG workflow with reranking."""
    ranks = "Doc: 1, Relevance: 9\nDoc: 2, Relevance: 5"
    llm = ChatModel(("Respond with the numbers", ranks), ("", answer))
    return str(await RAGWorkflow(llm, PAPERS).run(query=question))


GARDEN = (
    "Prune apple trees in late winter, before the buds swell.",
    "Cherry trees are pruned in summer, after the harvest, or they bleed gum.",
    "Water young trees once a week with ten litres in their first summer.",
)


class FoundEvent(Event):
    """What was found for a question."""

    question: str
    passages: list[str]


class GardenFlow(Workflow):
    """Retrieves and fills a prompt of its own."""

    def __init__(self, llm: CompletionModel) -> None:
        super().__init__(timeout=30)
        self.llm = llm

    @step
    async def find(self, ev: StartEvent) -> FoundEvent:
        """Find passages."""
        found = index(*GARDEN).as_retriever(similarity_top_k=2).retrieve(ev.question)
        return FoundEvent(question=ev.question, passages=[node.text for node in found])

    @step
    async def say(self, ev: FoundEvent) -> StopEvent:
        """Generate from numbered passages."""
        numbered = "\n".join(f"[{i}] {text}" for i, text in enumerate(ev.passages, 1))
        prompt = f"Passages:\n{numbered}\n\nAnswer with numbers of passages: {ev.question}"
        return StopEvent(result=str(await self.llm.acomplete(prompt)))


@turn("When are cherry trees pruned?", (GARDEN[1], GARDEN[0]), "In summer, after the harvest [1].")
async def workflow_with_own_prompt(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, workflows: an f-string prompt over retrieved texts."""
    flow = GardenFlow(CompletionModel(("[1] Cherry", answer)))
    return str(await flow.run(question=question))


GRADE = PromptTemplate(
    "As a grader, assess the relevance of a document in relation to a user's question.\n"
    "Retrieved document:\n{context_str}\nUser question:\n{query_str}\n"
    "Answer 'yes' if it is relevant, 'no' if not."
)
REWRITE = PromptTemplate("Refine this search query for the web: {query_str}\nNew query:")


class GradedEvent(Event):
    """Texts that were found relevant, and whether a search is needed."""

    texts: list[str]
    search: bool


def search_web(query: str) -> str:
    """Search the web."""
    del query
    return "Ash dieback reached the county in 2016 and has killed a third of its ash trees."


class CorrectiveRAG(Workflow):
    """Grades what was retrieved and searches the web if something is irrelevant."""

    def __init__(self, llm: ChatModel) -> None:
        super().__init__(timeout=30)
        self.llm = llm

    @step
    async def retrieve(self, ctx: Context, ev: StartEvent) -> RetrieverEvent:
        """Retrieve the relevant nodes for the query."""
        await ctx.store.set("query_str", ev.query_str)
        retriever = index(*GARDEN).as_retriever(similarity_top_k=2)
        return RetrieverEvent(nodes=retriever.retrieve(ev.query_str))

    @step
    async def grade(self, ctx: Context, ev: RetrieverEvent) -> GradedEvent:
        """Let the model grade each node."""
        query = await ctx.store.get("query_str")
        texts = []
        for node in ev.nodes:
            verdict = await self.llm.apredict(GRADE, context_str=node.text, query_str=query)
            texts += [node.text] if verdict.lower().strip() == "yes" else []
        return GradedEvent(texts=texts, search=len(texts) < len(ev.nodes))

    @step
    async def answer(self, ctx: Context, ev: GradedEvent) -> StopEvent:
        """Search if needed, and query a summary index over all that is relevant."""
        query, texts = await ctx.store.get("query_str"), list(ev.texts)
        if ev.search:
            rewritten = await self.llm.apredict(REWRITE, query_str=query)
            texts.append(search_web(rewritten))
        found = SummaryIndex.from_documents([Document(text=text) for text in texts])
        return StopEvent(result=await found.as_query_engine(llm=self.llm).aquery(query))


@turn(
    "When do I water young trees, and what kills ash trees?",
    (GARDEN[2], search_web("")),
    "Once a week in the first summer; ash trees die of ash dieback.",
)
async def corrective_rag(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, corrective RAG workflow."""
    llm = ChatModel(
        ("As a grader & Water young", "yes"),
        ("As a grader", "no"),
        ("Refine this search query", "what kills ash trees"),
        ("", answer),
    )
    return str(await CorrectiveRAG(llm).run(query_str=question))


@turn(
    "Wann schneide ich apple trees in winter?",
    (GARDEN[0], GARDEN[2]),
    "Im späten Winter, bevor die Knospen schwellen.",
    not_on_spans=("traceloop",),
)
def function_with_a_span(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, instrumentation: a function with @dispatcher.span."""
    llm = ChatModel(("Prune apple", answer))

    @dispatcher.span
    def asked(text: str) -> str:
        found = index(*GARDEN).as_retriever(similarity_top_k=2).retrieve(text)
        told = "Antworte aus diesem Text:\n" + "\n".join(f"* {node.text}" for node in found)
        system = ChatMessage(role=MessageRole.SYSTEM, content=told)
        messages = [system, ChatMessage(role=MessageRole.USER, content=text)]
        return str(llm.chat(messages).message.content)

    return asked(question)

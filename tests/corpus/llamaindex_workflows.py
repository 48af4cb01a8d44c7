"""Hand-written workflows and functions: retrieve, rerank, grade, generate."""

from llama_index.core import PromptTemplate, SummaryIndex
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.response_synthesizers import CompactAndRefine
from llama_index.core.schema import Document, NodeWithScore
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from .kit import NOWHERE, Config, turn
from .llamaindex_kit import ChatModel, CompletionModel, index

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
        query = ev.get("query")
        if not query:
            return None
        await ctx.store.set("query", query)
        retriever = self.index.as_retriever(similarity_top_k=3)
        return RetrieverEvent(nodes=await retriever.aretrieve(query))

    @step
    async def rerank(self, ctx: Context, ev: RetrieverEvent) -> RerankEvent:
        """Rerank the nodes."""
        ranker = LLMRerank(choice_batch_size=5, top_n=2, llm=self.llm)
        query = await ctx.store.get("query")
        return RerankEvent(nodes=ranker.postprocess_nodes(ev.nodes, query_str=query))

    @step
    async def synthesize(self, ctx: Context, ev: RerankEvent) -> StopEvent:
        """Return a response using reranked nodes."""
        summarizer = CompactAndRefine(llm=self.llm, verbose=False)
        query = await ctx.store.get("query")
        response = await summarizer.asynthesize(query, nodes=ev.nodes)
        return StopEvent(result=response)


@turn(
    "With how many annotations was the chat model trained?",
    (PAPERS[1], PAPERS[3]),
    "With 27,540 annotations.",
)
async def rag_workflow(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, RAG workflow with reranking."""
    llm = ChatModel(
        ("Respond with the numbers", "Doc: 1, Relevance: 9\nDoc: 2, Relevance: 5"), ("", answer)
    )
    workflow = RAGWorkflow(llm, PAPERS)
    return str(await workflow.run(query=question))


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


class RetrieveEvent(Event):
    """Retrieved nodes."""

    nodes: list[NodeWithScore]


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
    async def retrieve(self, ctx: Context, ev: StartEvent) -> RetrieveEvent:
        """Retrieve the relevant nodes for the query."""
        await ctx.store.set("query_str", ev.query_str)
        return RetrieveEvent(
            nodes=index(*GARDEN).as_retriever(similarity_top_k=2).retrieve(ev.query_str)
        )

    @step
    async def grade(self, ctx: Context, ev: RetrieveEvent) -> GradedEvent:
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
    flow = CorrectiveRAG(llm)
    return str(await flow.run(query_str=question))


@turn(
    "Wann schneide ich apple trees in winter?",
    (GARDEN[0], GARDEN[2]),
    "Im späten Winter, bevor die Knospen schwellen.",
    not_on_spans=("traceloop",),
)
def function_with_a_span(config: Config, answer: str) -> str:
    """LlamaIndex, instrumentation: a function with @dispatcher.span."""

    @dispatcher.span
    def ask(question: str) -> str:
        found = index(*GARDEN).as_retriever(similarity_top_k=2).retrieve(question)
        context = "\n".join(f"* {node.text}" for node in found)
        messages = [
            ChatMessage(role=MessageRole.SYSTEM, content=f"Antworte aus diesem Text:\n{context}"),
            ChatMessage(role=MessageRole.USER, content=question),
        ]
        return str(llm.chat(messages).message.content)

    llm = ChatModel(("Prune apple", answer))
    return ask("Wann schneide ich apple trees in winter?")


@turn(
    "How much water do young trees need in their first summer?",
    (GARDEN[2],),
    "Ten litres, once a week.",
    not_on_spans=NOWHERE,
)
def plain_code(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, building RAG from scratch: retriever and model in plain code."""
    found = index(*GARDEN).as_retriever(similarity_top_k=1).retrieve(question)
    prompt = f"Context:\n{found[0].get_content()}\n\nQuestion: {question}\nAnswer:"
    return CompletionModel(("ten litres", answer)).complete(prompt).text

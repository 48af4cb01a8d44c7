"""Steps between retrieval and generation: filters, rerankers, windows, merged chunks."""

from __future__ import annotations

import itertools
import re

from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.evaluation import FaithfulnessEvaluator, RelevancyEvaluator
from llama_index.core.node_parser import SentenceWindowNodeParser
from llama_index.core.postprocessor import (
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine, RetryQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import AutoMergingRetriever, BaseRetriever, RecursiveRetriever
from llama_index.core.schema import (
    IndexNode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore

from .kit import Config, Truth, app
from .llamaindex_kit import ChatModel, CompletionModel, Embedding, index, nodes

BAKERY = (
    "The bakery opens at six on weekdays and at seven on Saturdays.",
    "Sourdough bread is baked twice a day, at five and at noon.",
    "The bakery's owner, Mrs Okafor, learned the trade in Lagos.",
    "Dogs may wait outside, where there is a bowl of water.",
)


@app(
    Truth(
        question="When does the bakery open on Saturdays and weekdays?",
        contexts=(BAKERY[0],),
        answer="At six on weekdays, at seven on Saturdays.",
    ),
    page="LlamaIndex, node postprocessors: SimilarityPostprocessor",
)
def similarity_cutoff(config: Config) -> str:
    """Drop the nodes that are not near enough."""
    llm = ChatModel([("", "At six on weekdays, at seven on Saturdays.")])
    engine = RetrieverQueryEngine.from_args(
        index(*BAKERY).as_retriever(similarity_top_k=4),
        llm=llm,
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.5)],
    )
    return str(engine.query("When does the bakery open on Saturdays and weekdays?"))


class WithoutWord(BaseNodePostprocessor):
    """Drops nodes with a word that is not wanted."""

    word: str

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [node for node in nodes if self.word not in node.node.get_content()]


@app(
    Truth(
        question="Is there bread or water for dogs at the bakery?",
        contexts=(BAKERY[0], BAKERY[1]),
        answer="There is bread at five and at noon.",
    ),
    page="LlamaIndex, node postprocessors: a custom postprocessor",
)
def custom_postprocessor(config: Config) -> str:
    """Retrieve four, drop by a word, cut by a score."""
    llm = CompletionModel([("Sourdough", "There is bread at five and at noon.")])
    filters = [WithoutWord(word="bowl"), WithoutWord(word="Lagos")]
    engine = index(*BAKERY).as_query_engine(
        llm=llm, similarity_top_k=4, node_postprocessors=filters
    )
    return str(engine.query("Is there bread or water for dogs at the bakery?"))


CLAUSES = (
    "§ 4 Notice. The tenant gives notice in writing, three months before the end of a quarter.",
    "§ 7 Pets. Small animals are allowed. Dogs and cats need the landlord's consent in writing.",
    (
        "§ 9 Deposit. The deposit is three months' rent, kept in an account of its own, and is paid"
        " back within six months of the end of the tenancy."
    ),
    "§ 12 Keys. The tenant gets three keys and returns them in writing at the end.",
)


@app(
    Truth(
        question="When is the deposit paid back at the end of the tenancy?",
        contexts=(CLAUSES[2], CLAUSES[0]),
        answer="Within six months of the end of the tenancy.",
    ),
    page="LlamaIndex, node postprocessors: LLMRerank",
)
def llm_rerank(config: Config) -> str:
    """Let a model choose and order the nodes."""
    llm = ChatModel(
        [
            (
                "Respond with the numbers of the documents",
                "Doc: 1, Relevance: 9\nDoc: 3, Relevance: 4",
            ),
            ("", "Within six months of the end of the tenancy."),
        ]
    )
    engine = index(*CLAUSES).as_query_engine(
        llm=llm,
        similarity_top_k=4,
        node_postprocessors=[LLMRerank(llm=llm, choice_batch_size=5, top_n=2)],
    )
    return str(engine.query("When is the deposit paid back at the end of the tenancy?"))


@app(
    Truth(
        question="Darf ich mit consent of the landlord dogs and cats halten?",
        contexts=(CLAUSES[3], CLAUSES[0], CLAUSES[2], CLAUSES[1]),
        answer="Ja, mit schriftlicher Zustimmung.",
    ),
    page="LlamaIndex, LongContextReorder",
)
def long_context_reorder(config: Config) -> str:
    """Put the best nodes at both ends of the prompt."""
    llm = ChatModel([("", "Ja, mit schriftlicher Zustimmung.")])
    engine = index(*CLAUSES).as_query_engine(
        llm=llm,
        similarity_top_k=4,
        node_postprocessors=[LongContextReorder()],
        response_mode="simple_summarize",
    )
    return str(engine.query("Darf ich mit consent of the landlord dogs and cats halten?"))


DIARY = (
    "We left Tromsø at dawn. The wind was light. Near Rebbenesøya two fin whales surfaced beside"
    " the boat. One dived under the keel. We drifted for an hour. In the evening we anchored off"
    " Karlsøya. Supper was cod."
)
WINDOW = (
    "We left Tromsø at dawn.  The wind was light.  Near Rebbenesøya two fin whales surfaced beside"
    " the boat.  One dived under the keel.  We drifted for an hour. "
)


@app(
    Truth(
        question="Where did the fin whales surface?",
        contexts=(WINDOW,),
        answer="Near Rebbenesøya, beside the boat.",
        also=({"contexts": (f"window: {WINDOW}",)},),
    ),
    page="LlamaIndex, metadata replacement and node sentence window",
)
def sentence_window(config: Config) -> str:
    """Retrieve a sentence and generate from the sentences around it."""
    parser = SentenceWindowNodeParser.from_defaults(
        window_size=2,
        window_metadata_key="window",
        original_text_metadata_key="original_text",
        sentence_splitter=lambda text: re.findall(r"[^.]+\.\s*", text),
    )
    sentences = parser.get_nodes_from_documents([Document(text=DIARY)])
    llm = ChatModel([("", "Near Rebbenesøya, beside the boat.")])
    engine = VectorStoreIndex(sentences, embed_model=Embedding()).as_query_engine(
        similarity_top_k=1,
        llm=llm,
        node_postprocessors=[MetadataReplacementPostProcessor(target_metadata_key="window")],
    )
    return str(engine.query("Where did the fin whales surface?"))


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


@app(
    Truth(
        question="How far do I open the bleed valve until water comes, and then?",
        contexts=(STEPS[1], STEPS[2]),
        answer="A quarter turn; then top up to 1.5 bar and switch on.",
    ),
    page="LlamaIndex, PrevNextNodePostprocessor",
)
def next_node(config: Config) -> str:
    """Add the node that follows the one that was found."""
    steps = _in_a_row(*STEPS)
    docstore = SimpleDocumentStore()
    docstore.add_documents(steps)
    llm = ChatModel([("", "A quarter turn; then top up to 1.5 bar and switch on.")])
    engine = VectorStoreIndex(steps, embed_model=Embedding()).as_query_engine(
        llm=llm,
        similarity_top_k=1,
        node_postprocessors=[
            PrevNextNodePostprocessor(docstore=docstore, num_nodes=1, mode="next")
        ],
        response_mode="tree_summarize",
    )
    return str(engine.query("How far do I open the bleed valve until water comes, and then?"))


CHAPTER = (
    "Bees dance to tell of flowers. A round dance says that they are near. A waggle dance says how"
    " far they are, and in which direction from the sun."
)
LEAVES = (
    "Bees dance to tell of flowers.",
    "A round dance says that they are near.",
    "A waggle dance says how far they are, and in which direction from the sun.",
)


def _family() -> tuple[list[TextNode], StorageContext]:
    """Return leaf nodes and a storage with their parent, as a hierarchical parser makes them."""
    parent, leaves = TextNode(text=CHAPTER, id_="chapter"), nodes(*LEAVES)
    for leaf in leaves:
        leaf.relationships[NodeRelationship.PARENT] = RelatedNodeInfo(node_id=parent.node_id)
    parent.relationships[NodeRelationship.CHILD] = [
        RelatedNodeInfo(node_id=leaf.node_id) for leaf in leaves
    ]
    docstore = SimpleDocumentStore()
    docstore.add_documents([parent, *leaves])
    return leaves, StorageContext.from_defaults(docstore=docstore)


@app(
    Truth(
        question="What do a round dance and a waggle dance of bees say?",
        contexts=(CHAPTER,),
        answer="The round dance says near, the waggle dance how far and where.",
    ),
    page="LlamaIndex, auto-merging retriever",
)
def auto_merging(config: Config) -> str:
    """Merge leaf nodes into their parent where most of them are found."""
    leaves, storage = _family()
    base = VectorStoreIndex(leaves, embed_model=Embedding()).as_retriever(similarity_top_k=3)
    retriever = AutoMergingRetriever(base, storage, verbose=False)
    llm = ChatModel([("", "The round dance says near, the waggle dance how far and where.")])
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
    return str(engine.query("What do a round dance and a waggle dance of bees say?"))


TABLE = "| year | turnover |\n|---|---|\n| 2023 | 4.1 M |\n| 2024 | 5.6 M |"


@app(
    Truth(
        question="What was the turnover of the cooperative in the year 2024?",
        contexts=(TABLE,),
        answer="It was 5.6 million.",
    ),
    page="LlamaIndex, recursive retriever: references from summaries to the full nodes",
)
def recursive_retriever(config: Config) -> str:
    """Find a summary and generate from the table that it stands for."""
    table = TextNode(text=TABLE, id_="table-1")
    summary = IndexNode(
        text="This table has the turnover of the cooperative, year by year.", index_id="table-1"
    )
    other = TextNode(text="The cooperative was founded by eleven growers.", id_="text-1")
    found = VectorStoreIndex([summary, other], embed_model=Embedding())
    retriever = RecursiveRetriever(
        "vector",
        retriever_dict={"vector": found.as_retriever(similarity_top_k=1)},
        node_dict={"table-1": table, "text-1": other},
    )
    llm = ChatModel([("5.6 M", "It was 5.6 million.")])
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
    return str(engine.query("What was the turnover of the cooperative in the year 2024?"))


class Keywords(BaseRetriever):
    """A lookup of rare words."""

    def __init__(self, found_in: list[TextNode]) -> None:
        super().__init__()
        self._nodes = found_in

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the nodes that share a long word with the query."""
        long = {word.strip("?,.") for word in query_bundle.query_str.split() if len(word) > 7}
        return [NodeWithScore(node=node) for node in self._nodes if long & set(node.text.split())]


class VectorAndKeywords(BaseRetriever):
    """Custom retriever that intersects or joins semantic search and keyword lookup."""

    def __init__(self, vector: BaseRetriever, keywords: BaseRetriever) -> None:
        super().__init__()
        self._vector, self._keywords = vector, keywords

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the nodes of both, the vector's first."""
        found = self._vector.retrieve(query_bundle)
        known = {one.node.node_id for one in found}
        more = self._keywords.retrieve(query_bundle)
        return [*found, *(one for one in more if one.node.node_id not in known)]


MUSEUM = (
    "Room 12 shows the astrolabe of Muhammad al-Sahli from Valencia, dated 1067.",
    "Room 14 shows clocks of the 17th century, among them a pendulum clock by Coster.",
    "The museum shop sells postcards and a small brass sundial.",
)


@app(
    Truth(
        question="Which room shows an astrolabe, and is there a pendulum?",
        contexts=(MUSEUM[1], MUSEUM[0]),
        answer="Room 12 shows the astrolabe, room 14 a pendulum clock.",
    ),
    page="LlamaIndex, retriever query engine with custom retrievers: hybrid search",
)
def custom_hybrid_retriever(config: Config) -> str:
    """Join what two retrievers find."""
    rooms = nodes(*MUSEUM)
    vector = VectorStoreIndex(rooms, embed_model=Embedding()).as_retriever(similarity_top_k=1)
    llm = ChatModel([("", "Room 12 shows the astrolabe, room 14 a pendulum clock.")])
    engine = RetrieverQueryEngine(
        retriever=VectorAndKeywords(vector, Keywords(rooms)),
        response_synthesizer=get_response_synthesizer(llm=llm),
    )
    return str(engine.query("Which room shows an astrolabe, and is there a pendulum?"))


@app(
    Truth(
        question="What does the museum shop sell?",
        contexts=(MUSEUM[2], MUSEUM[1]),
        answer="Postcards and a brass sundial.",
    ),
    page="LlamaIndex, evaluation: FaithfulnessEvaluator.evaluate_response after a query",
)
def evaluated_afterwards(config: Config) -> str:
    """Ask, then let a model say YES or NO to the answer."""
    llm = ChatModel([("Information:", "YES"), ("", "Postcards and a brass sundial.")])
    engine = index(*MUSEUM).as_query_engine(llm=llm, similarity_top_k=2)
    response = engine.query("What does the museum shop sell?")
    verdict = FaithfulnessEvaluator(llm=llm).evaluate_response(response=response)
    return f"{response} ({verdict.passing})"


@app(
    Truth(
        question="Who made the pendulum clock among the clocks?",
        contexts=(MUSEUM[1],),
        answer="It was made by Coster.",
    ),
    page="LlamaIndex, self-correcting query engines: RetryQueryEngine with RelevancyEvaluator",
)
def retried_until_relevant(config: Config) -> str:
    """Evaluate the answer inside the engine, which passes at once."""
    llm = ChatModel([("YES/ NO", "YES"), ("", "It was made by Coster.")])
    engine = index(*MUSEUM).as_query_engine(llm=llm, similarity_top_k=1)
    retrying = RetryQueryEngine(engine, RelevancyEvaluator(llm=llm))
    return str(retrying.query("Who made the pendulum clock among the clocks?"))

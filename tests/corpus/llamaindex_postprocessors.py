"""Steps between retrieval and generation: filters, rerankers, windows, merged chunks."""

import itertools
import re

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.evaluation import FaithfulnessEvaluator
from llama_index.core.node_parser import SentenceWindowNodeParser
from llama_index.core.postprocessor import (
    LLMRerank,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore

from .kit import Config, turn
from .llamaindex_kit import ChatModel, CompletionModel, Embedding, index, nodes

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


@turn(
    "Is there bread or water for dogs at the bakery?",
    (BAKERY[0], BAKERY[1]),
    "There is bread at five and at noon.",
)
def custom_postprocessor(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, node postprocessors: a custom postprocessor."""
    llm = CompletionModel(("Sourdough", answer))
    filters = [WithoutWord(word="bowl"), WithoutWord(word="Lagos")]
    engine = index(*BAKERY).as_query_engine(
        llm=llm, similarity_top_k=4, node_postprocessors=filters
    )
    return str(engine.query(question))


CLAUSES = (
    "§ 4 Notice. The tenant gives notice in writing, three months before the end of a quarter.",
    "§ 7 Pets. Small animals are allowed. Dogs and cats need the landlord's consent in writing.",
    (
        "§ 9 Deposit. The deposit is three months' rent, kept in an account of its own, and is paid"
        " back within six months of the end of the tenancy."
    ),
    "§ 12 Keys. The tenant gets three keys and returns them in writing at the end.",
)


@turn(
    "When is the deposit paid back at the end of the tenancy?",
    (CLAUSES[2], CLAUSES[0]),
    "Within six months of the end of the tenancy.",
)
def llm_rerank(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, node postprocessors: LLMRerank."""
    llm = ChatModel(
        ("Respond with the numbers of the documents", "Doc: 1, Relevance: 9\nDoc: 3, Relevance: 4"),
        ("", answer),
    )
    engine = index(*CLAUSES).as_query_engine(
        llm=llm,
        similarity_top_k=4,
        node_postprocessors=[LLMRerank(llm=llm, choice_batch_size=5, top_n=2)],
    )
    return str(engine.query(question))


DIARY = (
    "We left Tromsø at dawn. The wind was light. Near Rebbenesøya two fin whales surfaced beside"
    " the boat. One dived under the keel. We drifted for an hour. In the evening we anchored off"
    " Karlsøya. Supper was cod."
)
WINDOW = (
    "We left Tromsø at dawn.  The wind was light.  Near Rebbenesøya two fin whales surfaced beside"
    " the boat.  One dived under the keel.  We drifted for an hour. "
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
    llm = ChatModel(("", answer))
    engine = VectorStoreIndex(sentences, embed_model=Embedding()).as_query_engine(
        similarity_top_k=1,
        llm=llm,
        node_postprocessors=[MetadataReplacementPostProcessor(target_metadata_key="window")],
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
    steps = _in_a_row(*STEPS)
    docstore = SimpleDocumentStore()
    docstore.add_documents(steps)
    llm = ChatModel(("", answer))
    engine = VectorStoreIndex(steps, embed_model=Embedding()).as_query_engine(
        llm=llm,
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
    engine = index(*MUSEUM).as_query_engine(llm=llm, similarity_top_k=2)
    response = engine.query(question)
    verdict = FaithfulnessEvaluator(llm=llm).evaluate_response(response=response)
    return f"{response} ({verdict.passing})"

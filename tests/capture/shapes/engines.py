"""LlamaIndex: query and chat engines beyond the plainest."""

from collections.abc import Mapping
from typing import Any

from llama_index.core import QueryBundle
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine import CondenseQuestionChatEngine, SimpleChatEngine
from llama_index.core.evaluation import FaithfulnessEvaluator
from llama_index.core.indices.query.query_transform.base import StepDecomposeQueryTransform
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.postprocessor import (
    LLMRerank,
    MetadataReplacementPostProcessor,
    SimilarityPostprocessor,
)
from llama_index.core.query_engine import (
    CitationQueryEngine,
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    SubQuestionQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import QueryEngineTool
from registry import Truth, shape, span


class Writer(CustomLLM):
    """Replies by the first of ``rules`` whose key is in the prompt."""

    rules: Mapping[str, str]

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="writer")

    def _reply(self, prompt: str) -> str:
        return next(reply for key, reply in self.rules.items() if key in prompt)

    @llm_completion_callback()
    def complete(self, prompt: str, *_args: Any, **_options: Any) -> CompletionResponse:
        return CompletionResponse(text=self._reply(prompt))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, *_args: Any, **_options: Any) -> CompletionResponseGen:
        yield CompletionResponse(text=self._reply(prompt), delta=self._reply(prompt))


class ShelfRetriever(BaseRetriever):
    """Finds the texts of the first of ``found`` whose key is in the query."""

    def __init__(self, found: Mapping[str, list[str]], **metadata: Any) -> None:
        self._found = found
        self._metadata = metadata
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle.query_str.lower()
        texts = next((texts for key, texts in self._found.items() if key in query), [])
        return [
            NodeWithScore(
                node=TextNode(
                    text=text,
                    metadata=dict(self._metadata),
                    excluded_llm_metadata_keys=list(self._metadata),
                ),
                score=0.9 - number / 10,
            )
            for number, text in enumerate(texts)
        ]


OWL = ["Owls turn their heads by 270 degrees.", "Owls hunt at night."]
TURN, TURN_ANSWER = "How far can an owl turn its head?", "An owl can turn its head by 270 degrees."
FOX = ["Foxes live in dens.", "Foxes are shy."]
BOTH, BOTH_ANSWER = (
    "Compare where owls and foxes rest.",
    "Owls rest in trees while foxes rest in dens.",
)
OWLS = ShelfRetriever({"owl": OWL})
OWL_TRUTH = Truth(TURN, OWL, TURN_ANSWER)


def engine(retriever: BaseRetriever, model: Writer, **more: Any) -> BaseQueryEngine:
    """Return the plain query engine."""
    return RetrieverQueryEngine.from_args(retriever, llm=model, **more)


WINDOW = "Birds are curious. Owls turn their heads by 270 degrees. Other birds can't."


@shape(Truth(TURN, [WINDOW], TURN_ANSWER))
def window_engine() -> None:
    """Sentences are found, and replaced by the text around them."""
    shelf = ShelfRetriever({"owl": OWL[:1]}, window=WINDOW)
    replace = MetadataReplacementPostProcessor(target_metadata_key="window")
    engine(shelf, Writer(rules={"": TURN_ANSWER}), node_postprocessors=[replace]).query(TURN)


@shape(OWL_TRUTH)
def ranked_by_llm_engine() -> None:
    """An LLM ranks what was found."""
    model = Writer(
        rules={"relevance score": "Doc: 2, Relevance: 9\nDoc: 1, Relevance: 8\n", "": TURN_ANSWER}
    )
    rerank = LLMRerank(llm=model, top_n=2)
    shelf = ShelfRetriever({"owl": [*reversed(OWL), "Mice are small."]})
    engine(shelf, model, node_postprocessors=[rerank]).query(TURN)


@shape(Truth(TURN, OWL[:1], TURN_ANSWER))
def cut_off_engine() -> None:
    """What scores too low is left out."""
    drop = SimilarityPostprocessor(similarity_cutoff=0.85)
    engine(OWLS, Writer(rules={"": TURN_ANSWER}), node_postprocessors=[drop]).query(TURN)


@shape(Truth(TURN, OWL, f"{TURN_ANSWER} [1]"))
def citing_engine() -> None:
    """Passages are numbered as sources."""
    model = Writer(rules={"": f"{TURN_ANSWER} [1]"})
    CitationQueryEngine.from_args(None, llm=model, retriever=OWLS).query(TURN)  # type: ignore[arg-type]


@shape(Truth(BOTH, [*OWL, *FOX], BOTH_ANSWER))
def sub_question_engine() -> None:
    """Two sub-questions are answered, and their answers put together."""
    asked = (
        '```json\n{"items": [{"sub_question": "Where do owls rest?", "tool_name": "owls"},'
        ' {"sub_question": "Where do foxes rest?", "tool_name": "foxes"}]}\n```'
    )
    model = Writer(
        rules={
            "generate a list": asked,
            "You are a world": asked,
            "Sub question": BOTH_ANSWER,
            "Owls turn": "Owls rest in trees by day.",
            "Foxes live": "Foxes rest in their dens.",
            "": asked,
        }
    )
    tools = [
        QueryEngineTool.from_defaults(engine(OWLS, model), name="owls", description="About owls."),
        QueryEngineTool.from_defaults(
            engine(ShelfRetriever({"fox": FOX}), model), name="foxes", description="About foxes."
        ),
    ]
    SubQuestionQueryEngine.from_defaults(
        tools,
        llm=model,
        question_gen=LLMQuestionGenerator.from_defaults(llm=model),
        response_synthesizer=get_response_synthesizer(llm=model),
        use_async=False,
    ).query(BOTH)


@shape(Truth(BOTH, [*OWL, *FOX], BOTH_ANSWER))
def multi_step_engine() -> None:
    """Each step asks what the one before left open."""
    model = Writer(
        rules={
            "Owls rest in trees by day.\nQuestion: Where do foxes": "None",
            "Owls turn": "Owls rest in trees by day.",
            "Foxes live": "Foxes rest in their dens.",
            "Owls rest in trees": "Where do foxes rest?",
            "": "Where do owls rest?",
        }
    )
    shelf = ShelfRetriever({"fox": FOX, "owl": OWL})
    MultiStepQueryEngine(
        engine(shelf, model),
        StepDecomposeQueryTransform(llm=model, verbose=False),
        response_synthesizer=get_response_synthesizer(llm=Writer(rules={"": BOTH_ANSWER})),
        index_summary="Animals.",
        num_steps=2,
    ).query(BOTH)


@shape(OWL_TRUTH)
def evaluated_engine() -> None:
    """What was answered is graded by an LLM."""
    model = Writer(rules={"YES or NO": "YES", "": TURN_ANSWER})
    with span("request"):
        found = engine(OWLS, model).query(TURN)
        FaithfulnessEvaluator(llm=model).evaluate_response(response=found)


@shape(
    Truth("What do you know of owls?", OWL, "Owls hunt at night and turn their heads far."),
    Truth("How far?", OWL, TURN_ANSWER),
)
def condensing_chat() -> None:
    """Two turns of a chat, the second condensed into a question that stands alone."""
    model = Writer(
        rules={
            "rewrite the message": "How far do owls turn their heads?",
            "How far": TURN_ANSWER,
            "": "Owls hunt at night and turn their heads far.",
        }
    )
    chat = CondenseQuestionChatEngine.from_defaults(engine(OWLS, model), llm=model)
    with span("conversation"):
        chat.chat("What do you know of owls?")
        chat.chat("How far?")


@shape()
def chat_without_retrieval() -> None:
    """A chat that searches nothing."""
    SimpleChatEngine.from_defaults(llm=Writer(rules={"": "Hello, how are you?"})).chat("Hi!")


@shape(OWL_TRUTH, Truth("Where do foxes live?", FOX, "Foxes live in dens."))
def two_queries() -> None:
    """Two questions under one span."""
    model = Writer(rules={"foxes live?": "Foxes live in dens.", "": TURN_ANSWER})
    both = engine(ShelfRetriever({"fox": FOX, "owl": OWL}), model)
    with span("session"):
        both.query(TURN)
        both.query("Where do foxes live?")

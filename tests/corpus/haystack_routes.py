"""Pipelines with routes and loops: fallbacks, validators, an evaluator after the answer."""

import json
from typing import Any

from haystack import Document, Pipeline, component
from haystack.components.builders import AnswerBuilder, ChatPromptBuilder
from haystack.components.evaluators import FaithfulnessEvaluator
from haystack.components.joiners import BranchJoiner
from haystack.components.retrievers import InMemoryBM25Retriever
from haystack.components.routers import ConditionalRouter
from haystack.components.validators import JsonSchemaValidator
from haystack.dataclasses import ChatMessage, GeneratedAnswer

from .haystack_kit import OPENLLMETRY, prompted, served, store, wired
from .kit import Config, turn

MUNICH = (
    "Munich is the capital of Bavaria in southern Germany, on the banks of the Isar.",
    "The Oktoberfest in Munich is the world's largest beer festival.",
)


WEB = (
    "As of 2024, about 1.6 million people live in Munich (example.org/munich).",
    "Munich is Germany's third largest city.",
)


ROUTES = [
    {
        "condition": "{{'no_answer' in replies[0].text}}",
        "output": "{{query}}",
        "output_name": "go_to_websearch",
        "output_type": str,
    },
    {
        "condition": "{{'no_answer' not in replies[0].text}}",
        "output": "{{replies[0].text}}",
        "output_name": "answer",
        "output_type": str,
    },
]


@component
class DuckSearch:
    """A web search: documents and their links."""

    @component.output_types(documents=list[Document], links=list[str])
    def run(self, query: str) -> dict[str, Any]:
        links = [f"https://example.org/{number}" for number in range(len(WEB))]
        documents = [
            Document(content=text, meta={"link": link, "title": query})
            for text, link in zip(WEB, links, strict=True)
        ]
        return {"documents": documents, "links": links}


def _fallback(models: Any) -> Pipeline:
    instruction = (
        "Answer the following query given the documents.\n"
        "If the answer is not contained within the documents reply with 'no_answer'\n"
    )
    listed = "\nDocuments:\n{% for document in documents %}\n  {{document.content}}\n{% endfor %}\nQuery: {{query}}\n"
    web = "Answer from websearch." + listed
    pipe = Pipeline()
    pipe.add_component("retriever", InMemoryBM25Retriever(store(*MUNICH), top_k=1))
    for name, template in (("", instruction + listed), ("_for_websearch", web)):
        messages = [ChatMessage.from_user(template)]
        pipe.add_component(
            f"prompt_builder{name}", ChatPromptBuilder(messages, required_variables="*")
        )
        pipe.add_component(f"llm{name}", models.chat())
        pipe.connect(f"prompt_builder{name}.prompt", f"llm{name}.messages")
    pipe.add_component("router", ConditionalRouter(ROUTES))
    pipe.add_component("websearch", DuckSearch())
    pipe.connect("retriever", "prompt_builder.documents")
    pipe.connect("llm.replies", "router.replies")
    pipe.connect("router.go_to_websearch", "websearch.query")
    pipe.connect("router.go_to_websearch", "prompt_builder_for_websearch.query")
    pipe.connect("websearch.documents", "prompt_builder_for_websearch.documents")
    return pipe


def _fallback_inputs(query: str) -> dict[str, Any]:
    return {name: {"query": query} for name in ("retriever", "prompt_builder", "router")}


@turn(
    "What is Munich the capital of?",
    (MUNICH[0],),
    "Munich is the capital of Bavaria.",
    not_on_spans=OPENLLMETRY,
)
def fallback_not_needed(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 36: fallbacks with conditional routing, answered from the store."""
    with served(("", answer)) as models:
        result = _fallback(models).run(_fallback_inputs(question))
        return result["router"]["answer"]


@turn(
    "How many people live in Munich?",
    WEB,
    "According to a web search, about 1.6 million.",
    not_on_spans=OPENLLMETRY,
)
def fallback_to_the_web(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 36: fallbacks with conditional routing, answered from the web."""
    with served(("Answer from websearch", answer), ("", "no_answer")) as models:
        result = _fallback(models).run(_fallback_inputs(question))
        return result["llm_for_websearch"]["replies"][0].text


@turn(
    "Which city has the largest beer festival?",
    (MUNICH[1],),
    '{"city": "Munich"}',
    not_on_spans=OPENLLMETRY,
)
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
        query = question
        result = pipe.run({"retriever": {"query": query}, "prompt_builder": {"query": query}})
        return result["schema_validator"]["validated"][0].text


@turn("Which river is Munich on the banks of?", (MUNICH[0],), "It is on the Isar.")
def evaluated_in_the_pipeline(config: Config, question: str, answer: str) -> str:
    """Haystack tutorial 35: evaluating RAG, a faithfulness evaluator in the pipeline."""
    verdict = json.dumps({"statements": [answer], "statement_scores": [1]})
    with served(("Instructions:", verdict), ("", answer)) as models:
        prompt = "{% for d in documents %}{{ d.content }}\n{% endfor %}\nQ: {{ question }}"
        pipe = wired(
            {
                "retriever": InMemoryBM25Retriever(store(*MUNICH), top_k=1),
                "prompt_builder": prompted(prompt),
                "llm": models.chat(),
                "answer_builder": AnswerBuilder(),
                "collect": EvaluationInputs(),
                "evaluate": FaithfulnessEvaluator(chat_generator=models.chat(), progress_bar=False),
            },
            "retriever > prompt_builder.documents, prompt_builder.prompt > llm.messages",
            "llm.replies > answer_builder.replies, retriever > answer_builder.documents",
            "answer_builder.answers > collect.answers",
        )
        for name in ("questions", "contexts", "predicted_answers"):
            pipe.connect(f"collect.{name}", f"evaluate.{name}")
        result = pipe.run(
            {
                "retriever": {"query": question},
                "prompt_builder": {"question": question},
                "answer_builder": {"query": question},
            },
            include_outputs_from={"answer_builder"},
        )
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

"""Applications without a RAG turn: they must give no sample."""

from operator import itemgetter

from langchain_core.example_selectors import SemanticSimilarityExampleSelector
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, FewShotChatMessagePromptTemplate
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel

from .kit import V1, Config, app
from .langchain_kit import Words, calls, create_agent, model, store

REPORT = (
    "The first quarter was quiet. Sales of lamps rose by a tenth, those of shades fell.",
    "In the second quarter the shop in Ghent closed for repairs, and opened again in June.",
)


class Person(BaseModel):
    """A person in a text."""

    name: str
    height_in_metres: float


@app()
def extraction(config: Config) -> None:
    """LangChain tutorial: extraction with structured output."""
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Extract what is asked for."), ("human", "{text}")]
    )
    llm = model(Person(name="Alan", height_in_metres=1.83))
    (prompt | llm.with_structured_output(Person)).invoke({"text": "Alan is six feet tall."}, config)


@app()
def few_shot_examples_from_a_store(config: Config) -> None:
    """How to use few-shot examples, chosen from a vector store."""
    examples = [
        {"input": "happy", "output": "sad"},
        {"input": "tall", "output": "short"},
        {"input": "sunny", "output": "gloomy"},
    ]
    selector = SemanticSimilarityExampleSelector.from_examples(
        examples, Words(), InMemoryVectorStore, k=1
    )
    shots = FewShotChatMessagePromptTemplate(
        input_variables=["input"],
        example_selector=selector,
        example_prompt=ChatPromptTemplate.from_messages([("human", "{input}"), ("ai", "{output}")]),
    )
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Give the antonym."), shots, ("human", "{input}")]
    )
    (prompt | model("small") | StrOutputParser()).invoke({"input": "tall"}, config)


@app()
def related_articles_without_a_model(config: Config) -> None:
    """A retriever that feeds a list on a page, and no model."""
    chain = (
        itemgetter("article")
        | store(*REPORT).as_retriever(search_kwargs={"k": 1})
        | (lambda docs: [{"teaser": d.page_content[:20]} for d in docs])
    )
    chain.invoke({"article": "Sales of lamps"}, config)


@app(needs=V1)
def personal_assistant(config: Config) -> None:
    """create_agent with tools that act: a calendar and mail."""

    @tool
    def get_available_time_slots(attendees: list[str], date: str) -> list[str]:
        """Check the calendar for available times."""
        return ["09:00", "14:00", "16:00"]

    @tool
    def send_email(to: list[str], subject: str, body: str) -> str:
        """Send an email."""
        return f"Email sent to {', '.join(to)} - Subject: {subject}"

    llm = model(
        calls(("get_available_time_slots", {"attendees": ["team"], "date": "2026-03-02"})),
        calls(
            (
                "send_email",
                {"to": ["team@example.org"], "subject": "Review", "body": "Monday at 14:00?"},
            )
        ),
        "I have proposed Monday at 14:00.",
    )
    create_agent(llm, [get_available_time_slots, send_email]).invoke(
        {"messages": [("user", "Set up the design review for Monday, please.")]}, config
    )

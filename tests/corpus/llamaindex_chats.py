"""Chat engines over an index, streamed, awaited and with a history; chats without an index."""

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.chat_engine import CondenseQuestionChatEngine, ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer

from .kit import Config, Truth, app, turn
from .llamaindex_kit import ChatModel, index

TRAILS = (
    "The Juniper trail is 8 km long, easy, and starts at the old sawmill.",
    "The Raven trail is 14 km long and steep; ropes help on the last kilometre.",
    "The hut on the Raven trail serves soup from May to October.",
)


@app(
    Truth(
        "How long is the Raven trail?",
        (TRAILS[1], TRAILS[2]),
        "The Raven trail is 14 km long, and steep.",
    ),
    Truth(
        "Is there anything to eat on it?",
        (TRAILS[2], TRAILS[1]),
        "Yes, the hut serves soup from May to October.",
    ),
)
def condense_plus_context(config: Config) -> list[str]:
    """LlamaIndex, chat engine: condense plus context mode."""
    llm = ChatModel(
        ("Standalone question", "Does the hut on the Raven trail serve food like soup?"),
        ("anything to eat", "Yes, the hut serves soup from May to October."),
        ("", "The Raven trail is 14 km long, and steep."),
    )
    chat_engine = index(*TRAILS).as_chat_engine(
        chat_mode="condense_plus_context",
        memory=ChatMemoryBuffer.from_defaults(token_limit=3900),
        llm=llm,
        context_prompt=(
            "You are a chatbot, able to talk about hiking trails.\n"
            "Here are the relevant documents for the context:\n{context_str}"
            "\nInstruction: Use the previous chat history, or the context above, to help the user."
        ),
        similarity_top_k=2,
    )
    asked = ("How long is the Raven trail?", "Is there anything to eat on it?")
    return [str(chat_engine.chat(message)) for message in asked]


@app(
    Truth("Where does the Juniper trail start?", (TRAILS[0],), "At the old sawmill."),
    Truth(
        "And how long is it?",
        (TRAILS[0],),
        "It is 8 km long.",
        also=({"question": "How long is the Juniper trail?"},),
    ),
)
def condense_question(config: Config) -> list[str]:
    """LlamaIndex, chat engine: condense question mode."""
    llm = ChatModel(
        ("<Standalone question> & And how long", "How long is the Juniper trail?"),
        ("<Standalone question>", "Where does the Juniper trail start?"),
        ("How long", "It is 8 km long."),
        ("", "At the old sawmill."),
    )
    query_engine = index(*TRAILS).as_query_engine(llm=llm, similarity_top_k=1)
    chat_engine = CondenseQuestionChatEngine.from_defaults(query_engine=query_engine, llm=llm)
    return [
        str(chat_engine.chat("Where does the Juniper trail start?")),
        str(chat_engine.chat("And how long is it?")),
    ]


@turn(
    "Which trail is steep, and where do ropes help?",
    (TRAILS[1], TRAILS[2]),
    "The Raven trail is steep; ropes help on its last kilometre.",
)
def streamed_context_chat(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, chat engine: stream_chat and response_gen, after earlier messages."""
    llm = ChatModel(("", answer))
    history = [
        ChatMessage(role=MessageRole.USER, content="Hello, I want to go for a walk."),
        ChatMessage(role=MessageRole.ASSISTANT, content="With pleasure! What do you look for?"),
    ]
    chat_engine = ContextChatEngine.from_defaults(
        retriever=index(*TRAILS).as_retriever(similarity_top_k=2), llm=llm, chat_history=history
    )
    streaming = chat_engine.stream_chat(question)
    return "".join(streaming.response_gen)


@turn("What is served in the hut on the trail?", (TRAILS[2],), "Soup, from May to October.")
async def streamed_and_awaited_chat(config: Config, question: str, answer: str) -> str:
    """LlamaIndex, chat engine: astream_chat with async_response_gen."""
    llm = ChatModel(("", answer))
    chat_engine = index(*TRAILS).as_chat_engine(
        chat_mode="condense_plus_context", llm=llm, similarity_top_k=1
    )
    streaming = await chat_engine.astream_chat(question)
    return "".join([token async for token in streaming.async_response_gen()])

"""The chains of langchain-classic, which many applications of 2023 and 2024 still run."""

from __future__ import annotations

from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables.history import RunnableWithMessageHistory

from .kit import Config, Truth, app
from .langchain_kit import call, classic, completion_model, documents, model, store

WARRANTY = "The warranty is two years from the day of delivery, five years on the motor."
RETURNS = "Goods can be returned within 30 days if the box is undamaged."
SPARE = "Spare parts are sold for ten years after a mower has been discontinued."
MOTOR = "How long is the motor under warranty?"


@app(
    Truth(question=MOTOR, contexts=(WARRANTY, SPARE), answer="Five years."),
    page="RetrievalQA.from_chain_type, stuff, with source documents",
)
def retrieval_qa_stuff(config: Config) -> None:
    qa = classic("chains").RetrievalQA.from_chain_type(
        llm=model("Five years."),
        chain_type="stuff",
        retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(search_kwargs={"k": 2}),
        return_source_documents=True,
    )
    result = qa.invoke({"query": MOTOR}, config)
    assert len(result["source_documents"]) == 2


@app(
    Truth(question=MOTOR, contexts=(WARRANTY, SPARE), answer="The motor: five years."),
    page="RetrievalQA, map_reduce, with a completion model",
)
def retrieval_qa_map_reduce(config: Config) -> None:
    llm = completion_model(
        {
            "Content:": "The motor: five years.",
            "Use the following portion": "It says something about years.",
        }
    )
    qa = classic("chains").RetrievalQA.from_chain_type(
        llm=llm,
        chain_type="map_reduce",
        retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(search_kwargs={"k": 2}),
    )
    qa.invoke(MOTOR, config)


@app(
    Truth(question=MOTOR, contexts=(WARRANTY, SPARE), answer="Five years, all else two."),
    page="RetrievalQA, refine",
)
def retrieval_qa_refine(config: Config) -> None:
    qa = classic("chains").RetrievalQA.from_chain_type(
        llm=model("Five years.", "Five years, all else two."),
        chain_type="refine",
        retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(search_kwargs={"k": 2}),
    )
    qa.invoke({"query": MOTOR}, config)


OPEN_BOX = "I opened the box. Can I still send it back?"


@app(
    Truth(
        question=OPEN_BOX,
        contexts=(RETURNS, SPARE, WARRANTY),
        answer="Yes, for 30 days, as long as the box is undamaged.",
    ),
    Truth(
        question="And after that?",
        contexts=(WARRANTY, RETURNS, SPARE),
        answer="Then only the warranty of two years helps.",
    ),
    page="ConversationalRetrievalChain with a buffer memory",
)
def conversational_retrieval_chain(config: Config) -> None:
    llm = model(
        "Yes, for 30 days, as long as the box is undamaged.",
        "After 30 days, is there a warranty from delivery?",
        "Then only the warranty of two years helps.",
    )
    memory = classic("memory").ConversationBufferMemory(
        memory_key="chat_history", return_messages=True
    )
    qa = classic("chains").ConversationalRetrievalChain.from_llm(
        llm, retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(), memory=memory
    )
    qa.invoke({"question": OPEN_BOX}, config)
    qa.invoke({"question": "And after that?"}, config)


@app(
    Truth(
        question="How long are parts sold?",
        contexts=(SPARE,),
        answer="Ten years.",
        also=({"contexts": (f"[1] {SPARE}",)},),
    ),
    page="create_stuff_documents_chain with a document prompt of one's own, in create_retrieval_chain",
)
async def retrieval_chain_with_document_prompt(config: Config) -> None:
    combine = classic("chains.combine_documents")
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Excerpts:\n{context}"), ("user", "{input}")]
    )
    stuff = combine.create_stuff_documents_chain(
        model("Ten years."),
        prompt,
        document_prompt=PromptTemplate.from_template("[{no}] {page_content}"),
        document_separator="\n~~~\n",
    )
    parts = store(Document(SPARE, metadata={"no": 1}), Document(RETURNS, metadata={"no": 2}))
    chain = classic("chains").create_retrieval_chain(
        parts.as_retriever(search_kwargs={"k": 1}), stuff
    )
    async for _ in chain.astream({"input": "How long are parts sold?"}, config):
        pass


@app(
    Truth(
        question="Is the box important?",
        contexts=(RETURNS,),
        answer="Only if you return the mower.",
    ),
    page="load_qa_chain over documents that a retriever found before",
)
def load_qa_chain_by_hand(config: Config) -> None:
    from langchain_core.runnables import chain

    qa = classic("chains.question_answering").load_qa_chain(
        model("Only if you return the mower."), chain_type="stuff"
    )
    retriever = store(RETURNS, WARRANTY).as_retriever(search_kwargs={"k": 1})

    @chain
    def ask(question: str) -> str:
        docs = retriever.invoke(question)
        return qa.invoke({"input_documents": docs, "question": question})["output_text"]

    ask.invoke("Is the box important?", config)


ROOM = "The reading room is silent; phones stay in the lockers."
LOAN = "Books are lent for four weeks and can be renewed twice unless another reader waits."
FINE = "A late book costs 50 cents a day; after 30 days it counts as lost."


@app(
    Truth(
        question="Can I renew a book?",
        contexts=(FINE, LOAN),
        answer="Yes, twice.",
    ),
    Truth(
        question="What if I forget?",
        contexts=(FINE, LOAN),
        answer="Then it is 50 cents a day.",
    ),
    page="RunnableWithMessageHistory around a history-aware retrieval chain",
)
def message_history_around_a_chain(config: Config) -> None:
    chains, combine = classic("chains"), classic("chains.combine_documents")
    llm = model("Yes, twice.", "What does a late book cost?", "Then it is 50 cents a day.")
    placeholder = MessagesPlaceholder("history")
    aware = chains.create_history_aware_retriever(
        llm,
        store(ROOM, LOAN, FINE).as_retriever(search_kwargs={"k": 2}),
        ChatPromptTemplate.from_messages(
            [
                placeholder.model_copy(update={"variable_name": "chat_history"}),
                ("human", "{input}\nMake this a question that stands alone."),
            ]
        ),
    )
    answer = combine.create_stuff_documents_chain(
        llm,
        ChatPromptTemplate.from_messages(
            [
                ("system", "You are a librarian.\n{context}"),
                MessagesPlaceholder("chat_history"),
                ("human", "{input}"),
            ]
        ),
    )
    kept: dict[str, InMemoryChatMessageHistory] = {}

    def history_of(session_id: str) -> BaseChatMessageHistory:
        return kept.setdefault(session_id, InMemoryChatMessageHistory())

    bot = RunnableWithMessageHistory(
        chains.create_retrieval_chain(aware, answer),
        history_of,
        input_messages_key="input",
        history_messages_key="chat_history",
        output_messages_key="answer",
    )
    session = {**config, "configurable": {"session_id": "reader-7"}}
    bot.invoke({"input": "Can I renew a book?"}, session)
    bot.invoke({"input": "What if I forget?"}, session)


@app(
    Truth(
        question="May I phone in the reading room?",
        contexts=(ROOM,),
        answer="No, phones stay in the lockers.",
    ),
    page="AgentExecutor with create_tool_calling_agent and a retriever tool",
)
def agent_executor(config: Config) -> None:
    from langchain_core.tools import create_retriever_tool

    agents = classic("agents")
    rules = create_retriever_tool(
        store(ROOM, LOAN).as_retriever(search_kwargs={"k": 1}), "library_rules", "The rules."
    )
    prompt = ChatPromptTemplate.from_messages(
        [
            ("system", "You help readers."),
            MessagesPlaceholder("chat_history", optional=True),
            ("human", "{input}"),
            MessagesPlaceholder("agent_scratchpad"),
        ]
    )
    llm = model(
        call("library_rules", query="phones reading room"), "No, phones stay in the lockers."
    )
    executor = agents.AgentExecutor(
        agent=agents.create_tool_calling_agent(llm, [rules], prompt), tools=[rules]
    )
    history = [HumanMessage("Hello"), AIMessage("Hello, what can I do for you?")]
    executor.invoke({"input": "May I phone in the reading room?", "chat_history": history}, config)


@app(
    Truth(
        question="How much is a late book?",
        contexts=(FINE,),
        answer="It is 50 cents a day.",
    ),
    page="ReAct agent in text with AgentExecutor: Thought, Action, Observation",
)
def react_agent_in_text(config: Config) -> None:
    from langchain_core.tools import create_retriever_tool

    agents = classic("agents")
    search = create_retriever_tool(
        store(ROOM, LOAN, FINE).as_retriever(search_kwargs={"k": 1}), "Search", "Library rules."
    )
    prompt = PromptTemplate.from_template(
        "Tools:\n{tools}\nUse this format: Question, Thought, Action (one of [{tool_names}]), "
        "Action Input, Observation, Final Answer.\n\nQuestion: {input}\nThought:{agent_scratchpad}"
    )
    llm = completion_model(
        "I should look that up.\nAction: Search\nAction Input: late book costs",
        "I know it now.\nFinal Answer: It is 50 cents a day.",
    )
    executor = agents.AgentExecutor(
        agent=agents.create_react_agent(llm, [search], prompt), tools=[search]
    )
    executor.invoke({"input": "How much is a late book?"}, config)


@app(page="load_summarize_chain over given documents")
def summarize_documents(config: Config) -> None:
    chain = classic("chains.summarize").load_summarize_chain(
        model("Rules on silence, loans and fines."), chain_type="stuff"
    )
    chain.invoke({"input_documents": documents(ROOM, LOAN, FINE)}, config)


@app(page="LLMChain and ConversationChain without documents")
def conversation_without_documents(config: Config) -> None:
    chains = classic("chains")
    joke = chains.LLMChain(
        llm=model("Why did the book blush?"), prompt=PromptTemplate.from_template("Joke on {it}")
    )
    joke.invoke({"it": "books"}, config)
    chat = chains.ConversationChain(llm=model("Hello, Ada.", "Your name is Ada."))
    chat.invoke({"input": "Hi, I am Ada."}, config)
    chat.invoke({"input": "What is my name?"}, config)

"""The chains of langchain-classic, which many applications of 2023 and 2024 still run."""

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate

from .kit import Config, Truth, app, turn
from .langchain_kit import call, classic, completion_model, documents, model, store

WARRANTY = "The warranty is two years from the day of delivery, five years on the motor."
RETURNS = "Goods can be returned within 30 days if the box is undamaged."
SPARE = "Spare parts are sold for ten years after a mower has been discontinued."
MOTOR = "How long is the motor under warranty?"


@turn(MOTOR, (WARRANTY, SPARE), "The motor: five years.")
def retrieval_qa_map_reduce(config: Config, question: str, answer: str) -> None:
    """RetrievalQA, map_reduce, with a completion model."""
    llm = completion_model(
        {"Content:": answer, "Use the following portion": "It says something about years."}
    )
    qa = classic("chains").RetrievalQA.from_chain_type(
        llm=llm,
        chain_type="map_reduce",
        retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(search_kwargs={"k": 2}),
    )
    qa.invoke(question, config)


@turn(MOTOR, (WARRANTY, SPARE), "Five years, all else two.")
def retrieval_qa_refine(config: Config, question: str, answer: str) -> None:
    """RetrievalQA, refine."""
    qa = classic("chains").RetrievalQA.from_chain_type(
        llm=model("Five years.", answer),
        chain_type="refine",
        retriever=store(WARRANTY, RETURNS, SPARE).as_retriever(search_kwargs={"k": 2}),
    )
    qa.invoke({"query": question}, config)


OPEN_BOX = "I opened the box. Can I still send it back?"


@app(
    Truth(
        OPEN_BOX, (RETURNS, SPARE, WARRANTY), "Yes, for 30 days, as long as the box is undamaged."
    ),
    Truth(
        "And after that?", (WARRANTY, RETURNS, SPARE), "Then only the warranty of two years helps."
    ),
)
def conversational_retrieval_chain(config: Config) -> None:
    """ConversationalRetrievalChain with a buffer memory."""
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


ROOM = "The reading room is silent; phones stay in the lockers."
LOAN = "Books are lent for four weeks and can be renewed twice unless another reader waits."
FINE = "A late book costs 50 cents a day; after 30 days it counts as lost."


@turn("May I phone in the reading room?", (ROOM,), "No, phones stay in the lockers.")
def agent_executor(config: Config, question: str, answer: str) -> None:
    """AgentExecutor with create_tool_calling_agent and a retriever tool."""
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
    llm = model(call("library_rules", query="phones reading room"), answer)
    executor = agents.AgentExecutor(
        agent=agents.create_tool_calling_agent(llm, [rules], prompt), tools=[rules]
    )
    history = [HumanMessage("Hello"), AIMessage("Hello, what can I do for you?")]
    executor.invoke({"input": question, "chat_history": history}, config)


@turn("How much is a late book?", (FINE,), "It is 50 cents a day.")
def react_agent_in_text(config: Config, question: str) -> None:
    """ReAct agent in text with AgentExecutor: Thought, Action, Observation."""
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
    executor.invoke({"input": question}, config)


@app()
def summarize_documents(config: Config) -> None:
    """load_summarize_chain over given documents."""
    chain = classic("chains.summarize").load_summarize_chain(
        model("Rules on silence, loans and fines."), chain_type="stuff"
    )
    chain.invoke({"input_documents": documents(ROOM, LOAN, FINE)}, config)

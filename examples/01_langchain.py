"""Score the answers of a LangChain app with one callback.

Runs offline. To see the spans on the terminal, without a backend:
OTEL_TRACES_EXPORTER=console OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none python FILE
"""

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from rag_eval_otel import RagEvalCallbackHandler

PAGES = ["The museum opens at 9 on weekdays.", "Tickets cost 12 euros; children go free."]
store = InMemoryVectorStore.from_texts(PAGES, DeterministicFakeEmbedding(size=64))
prompt = ChatPromptTemplate.from_template("Answer from:\n{context}\n\nQuestion: {question}")
llm = FakeListChatModel(responses=["A ticket costs 12 euros."])  # your own model here
chain = (
    {
        "context": store.as_retriever() | (lambda found: "\n".join(d.page_content for d in found)),
        "question": RunnablePassthrough(),
    }
    | prompt
    | llm
    | StrOutputParser()
)

handler = RagEvalCallbackHandler(judge="lexical")  # judge="openai/<model>" for an LLM judge

print(chain.invoke("What does a ticket cost?", config={"callbacks": [handler]}))
handler.flush()  # optional: a script waits for its scores at exit, and a server needs no flush

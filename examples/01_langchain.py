"""Score the answers of a LangChain app with one callback.

Runs offline and prints the scores. OTEL_TRACES_EXPORTER=console python FILE prints the spans.
With a backend, set OTEL_TRACES_EXPORTER=otlp and OTEL_EXPORTER_OTLP_ENDPOINT.
"""

import os

from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from rag_eval_otel import RagEvalCallbackHandler

for signal in ("TRACES", "METRICS", "LOGS"):
    os.environ.setdefault(f"OTEL_{signal}_EXPORTER", "none")  # no backend here

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

# judge="openai/<model>" for an LLM judge
handler = RagEvalCallbackHandler(judge="lexical", sinks=["print"])

print(chain.invoke("What does a ticket cost?", config={"callbacks": [handler]}))
handler.flush()  # optional: a script waits for its scores at exit, and a server needs no flush

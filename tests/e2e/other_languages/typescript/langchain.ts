// LangChain.js: a chain with a retriever, under OpenInference's instrumentation.
import { LangChainInstrumentation } from "@arizeai/openinference-instrumentation-langchain";
import { MemoryVectorStore } from "@langchain/classic/vectorstores/memory";
import { awaitAllCallbacks } from "@langchain/core/callbacks/promises";
import * as CallbackManagerModule from "@langchain/core/callbacks/manager";
import type { Document } from "@langchain/core/documents";
import { StringOutputParser } from "@langchain/core/output_parsers";
import { ChatPromptTemplate } from "@langchain/core/prompts";
import { RunnablePassthrough, RunnableSequence } from "@langchain/core/runnables";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { BatchSpanProcessor } from "@opentelemetry/sdk-trace-node";
import { documents, exporter, questions, tracing } from "./tracing.js";

const provider = tracing(new BatchSpanProcessor(exporter));
new LangChainInstrumentation({ tracerProvider: provider }).manuallyInstrument(
  CallbackManagerModule,
);

const configuration = { baseURL: process.env.OPENAI_BASE_URL };
const embeddings = new OpenAIEmbeddings({ model: "scripted-embedding", configuration });
const store = await MemoryVectorStore.fromTexts(documents, {}, embeddings);
const joined = (found: Document[]) => found.map((each) => each.pageContent).join("\n\n");
const chain = RunnableSequence.from([
  { context: store.asRetriever(2).pipe(joined), question: new RunnablePassthrough() },
  ChatPromptTemplate.fromTemplate(
    "Answer the question by the context only.\n\nContext: {context}\n\nQuestion: {question}",
  ),
  new ChatOpenAI({ model: "scripted", configuration }),
  new StringOutputParser(),
]);
for (const question of questions) await chain.invoke(question);
await awaitAllCallbacks();
await provider.shutdown();

// The AI SDK: a model that calls a tool, with its own telemetry or with OpenInference's processor.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { isOpenInferenceSpan, OpenInferenceBatchSpanProcessor } from "@arizeai/openinference-vercel";
import { BatchSpanProcessor } from "@opentelemetry/sdk-trace-node";
import { cosineSimilarity, embed, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { documents, exporter, questions, tracing } from "./tracing.js";

const provider = tracing(
  process.env.INSTRUMENTATION === "openinference"
    ? new OpenInferenceBatchSpanProcessor({ exporter, spanFilter: isOpenInferenceSpan })
    : new BatchSpanProcessor(exporter),
);
const server = createOpenAICompatible({
  name: "scripted",
  baseURL: process.env.OPENAI_BASE_URL ?? "",
});
const embedding = server.textEmbeddingModel("scripted-embedding");
const { embeddings } = await embedMany({ model: embedding, values: documents });

const search = tool({
  description: "Search the documents.",
  inputSchema: z.object({ query: z.string() }),
  execute: async ({ query }) => {
    const wanted = (await embed({ model: embedding, value: query })).embedding;
    return documents
      .map((text, i) => ({ text, score: cosineSimilarity(wanted, embeddings[i]) }))
      .sort((a, b) => b.score - a.score)
      .slice(0, 2)
      .map(({ text }) => text);
  },
});
for (const [i, question] of questions.entries()) {
  const call = {
    model: server("scripted"),
    prompt: question,
    tools: { search },
    stopWhen: stepCountIs(3),
    experimental_telemetry: { isEnabled: true },
  };
  if (i > 0) await generateText(call);
  else for await (const _ of streamText(call).textStream); // read to its end
}
await provider.shutdown();

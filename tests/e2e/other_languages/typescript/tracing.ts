import { OTLPTraceExporter as JsonExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { OTLPTraceExporter as ProtobufExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { NodeTracerProvider, type SpanProcessor } from "@opentelemetry/sdk-trace-node";
import { readFileSync } from "node:fs";

/** The exporter that OTEL_EXPORTER_OTLP_PROTOCOL names; it reads the address from the variables. */
export const exporter =
  process.env.OTEL_EXPORTER_OTLP_PROTOCOL === "http/json"
    ? new JsonExporter()
    : new ProtobufExporter();

export function tracing(processor: SpanProcessor): NodeTracerProvider {
  const provider = new NodeTracerProvider({ spanProcessors: [processor] });
  provider.register();
  return provider;
}

const [file, ...rest] = process.argv.slice(2);
export const documents = readFileSync(file, "utf8").trim().split("\n");
export const questions = rest;

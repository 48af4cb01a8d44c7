"""Read the telemetry of a running RAG application into samples: question, contexts and answer."""

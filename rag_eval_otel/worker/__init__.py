"""Score the RAG turns in spans that other processes send: the command ``rag-eval-otel serve``.

A source (OTLP or Kafka) brings whole traces as serialized OTLP requests, the engine adds scores to
the messages of their spans, and the exporter sends the requests on.
"""

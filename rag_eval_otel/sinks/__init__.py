"""Sinks: where scores go. Span attributes, log events, metric instruments."""

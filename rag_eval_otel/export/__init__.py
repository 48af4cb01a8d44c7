"""Sinks, which are called with each `Evaluation`: span attributes, events, metrics, backends."""

"""Sinks: scores as span attributes, log events and metrics, and drift detection."""

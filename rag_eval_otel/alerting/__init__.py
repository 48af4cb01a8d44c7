"""Alerting: Prometheus rules on scores."""

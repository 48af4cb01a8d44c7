"""Prometheus rules for a target of the user's own: what is recorded of scores, and when to wake."""

"""Judges, which answer questions of metrics: models behind a server, local models, or rules."""

"""Judges answer the questions of the metrics: models behind a server, local models, or rules."""

"""Judges: who answers the typed questions of the metrics."""

"""Emit evaluation scores as span attributes, log events and metrics, and watch them for drift.

A *sink* is called with each evaluation.
"""

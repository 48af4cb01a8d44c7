"""Emit evaluation scores as span attributes, log events and metrics, and watch them for drift.

A *sink* is an object with a method ``emit`` that is called with each evaluation.
"""

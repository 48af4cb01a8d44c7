"""Threads, forks, exceptions and OpenTelemetry providers of the process in which we run."""

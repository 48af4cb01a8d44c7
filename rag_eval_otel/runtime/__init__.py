"""The process around the pipeline: background thread, fork, guard, suppression, providers."""

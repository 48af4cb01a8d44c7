"""Send each score to tracing backends as the backend's own object: annotation, feedback or score.

Each module named like a backend translates an `Annotation` for the client of that backend.
`delivery` has the sink of a live pipeline, which queues annotations and sends them on its threads.
"""

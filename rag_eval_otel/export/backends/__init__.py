"""Send each score to tracing backends as the backend's own object: annotation, feedback or score.

`clients` translates an `Annotation` for the client of each backend. `delivery` has the sink of a
live pipeline, which queues annotations and sends them on its threads.
"""

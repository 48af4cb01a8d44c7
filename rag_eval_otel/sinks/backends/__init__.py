"""Send each score to tracing backends as the backend's own object: annotation, feedback or score.

Each module named like a backend translates an `Annotation` for the client of that backend.
`delivery` queues annotations and sends them on a thread of its own. `sink` is the sink of a live
pipeline, and finds backends by name.
"""

"""Send each score to tracing backends as the backend's own object: annotation, feedback or score.

`annotation` makes an `Annotation` of each score, `clients` has a client for each backend, and
`delivery` the sink of a live pipeline, which queues annotations and sends them on its threads. The
registry of backends by name is `delivery.BACKENDS`; other packages add to it by entry points.
"""

"""Send each score to tracing backends as the backend's own object: annotation, feedback or score.

Other packages add to the registry `delivery.BACKENDS` by entry points.
"""

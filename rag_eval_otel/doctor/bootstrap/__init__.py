"""A folder for ``PYTHONPATH``: Python imports the ``sitecustomize`` that it finds there."""

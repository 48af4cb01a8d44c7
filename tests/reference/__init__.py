"""The pages in ``docs/reference``: ``PYTHONPATH=tests python -m reference`` writes them anew."""

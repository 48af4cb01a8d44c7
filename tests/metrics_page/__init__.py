"""``docs/metrics.md``: ``PYTHONPATH=tests python -m metrics_page`` writes it anew."""

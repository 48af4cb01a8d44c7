"""Generate Prometheus rules that alert on evaluation scores."""

"""Run a small RAG app over the handbook of an invented company, and score it offline."""

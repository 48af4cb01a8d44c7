"""The demo: a small RAG app over the handbook of an invented company, scored offline."""

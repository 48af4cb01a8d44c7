"""The demo: a small RAG app over an invented company's handbook, scored offline."""

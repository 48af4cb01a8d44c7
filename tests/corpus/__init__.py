"""Live RAG applications with stated truth, written the way the public tutorials are."""

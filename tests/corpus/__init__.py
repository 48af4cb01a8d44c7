"""Live RAG applications with stated truth, in the style of public tutorials."""

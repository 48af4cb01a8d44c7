"""Score RAG turns while the application runs, and put the scores on the spans of the turns."""

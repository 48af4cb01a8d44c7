"""Score RAG turns while the application runs, and put the scores on the spans of the turns.

A *turn* is one question of a user and its answer. The modules attach to a tracer provider, find
turns in its spans and in LangChain runs, keep the spans of turns back from the exporter until the
turns are scored, and then pass the spans to the exporter.
"""

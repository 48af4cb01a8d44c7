"""The doctor: checks a set-up, runs a program, and says what is wrong and what to do.

In the program each pipeline takes notes of itself (`rag_eval_otel.live.notes`).
"""

"""Check the settings, run a user's program, and say what is wrong and what to do.

This package is the code of ``rag-eval-otel doctor``. While the program runs, each pipeline in it
writes a report about itself (`rag_eval_otel.live.notes`), which this package reads.
"""

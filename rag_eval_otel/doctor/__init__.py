"""What is wrong, and what to do: installed versions, what answers, and what a program's run showed.

In the user's program each pipeline takes notes of itself (`rag_eval_otel.live.notes`).
"""

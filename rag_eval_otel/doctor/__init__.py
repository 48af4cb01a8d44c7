"""What is wrong, and what to do: installed versions, what answers, and what a program's run showed.

`doors` and what it opens run inside the user's program; everything else in the ``doctor`` command.
"""

"""`UncountedTurns`: the turns of a background job that have no outcome yet."""

from __future__ import annotations

import threading

from rag_eval_otel.runtime.background import GivenUp


class UncountedTurns:
    """The number of turns of a trace or of a LangChain run tree that have no outcome yet.

    An exporter or a log handler may block the thread that reads the turns. Another thread then
    gives the job up, and the first thread may go on later. Each turn is taken by one of them only,
    and so is counted once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: int | None = None
        self.given_up: GivenUp | None = None
        """Why the job was given up, or None."""

    def found(self, turns: int) -> bool:
        """Add ``turns``; return False if the job was given up before, so that all are lost."""
        with self._lock:
            self._left = (self._left or 0) + (turns if self.given_up is None else 0)
            return self.given_up is None

    def take(self) -> bool:
        """Take a turn, to give it an outcome; return False if no turn is left."""
        with self._lock:
            left = self._left or 0
            self._left = max(0, left - 1)
            return left > 0

    def put_back(self) -> None:
        """Put back a turn that got no outcome."""
        with self._lock:
            self._left = (self._left or 0) + 1

    def give_up(self, why: GivenUp) -> int | None:
        """Take all turns that are left, and all that are found later.

        Return the number of those that are left, or None if `found` has not been called.
        """
        with self._lock:
            self.given_up = self.given_up or why
            left = self._left
            self._left = None if left is None else 0
            return left

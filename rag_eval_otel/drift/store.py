"""`StateFile`: what was learned, kept for the next process."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

_log = logging.getLogger("rag_eval_otel")


class StateFile:
    """A JSON file, written whole or not at all; that it cannot be read or written is said once."""

    def __init__(self, path: str | Path) -> None:
        """Keep the state at ``path``."""
        self._path = Path(path)
        self._warned = False

    def load(self) -> Any:
        """Return what was saved; None where there is nothing, or nothing that can be read."""
        try:
            return json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:  # the last: nested without end
            _log.warning(
                "drift: %s cannot be read (%s); baselines are learned anew", self._path, error
            )
            return None

    def save(self, state: Any) -> None:
        """Write ``state``; where that fails, what was learned ends with the process."""
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            part.write_text(json.dumps(state), encoding="utf-8")
            part.replace(self._path)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("drift: %s cannot be written (%s); said once", self._path, error)

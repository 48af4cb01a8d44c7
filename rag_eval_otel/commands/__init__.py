"""The sub-commands of ``rag-eval-otel``, one module each: ``add`` describes it, ``run`` does it."""

from __future__ import annotations

import argparse
from typing import Any, Protocol


class Commands(Protocol):
    """What ``argparse.ArgumentParser.add_subparsers`` returns, which has no public name."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Return the parser of one more command."""

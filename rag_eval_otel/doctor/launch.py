"""Running the user's program; its input and output are its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from rag_eval_otel.doctor.environment import for_program, search_path
from rag_eval_otel.doctor.totals import read_notes
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.live.notes import Note

_PYTHONS: Final = frozenset({"python", "python3"})
_SHELL: Final = 128  # a shell's status of a command that ended by signal n is 128 + n


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How the program went, and the notes of its pipelines.

    ``status`` is its exit status, negative the number of the signal that ended it. It was
    ``interrupted`` by the signals that we were sent, too.
    """

    command: tuple[str, ...]
    status: int
    interrupted: tuple[int, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def failed(self) -> bool:
        """Tell whether the program failed by itself: to end as it is told to is no failure."""
        signals = set(self.interrupted)
        asked = {0, *(-n for n in signals), *(_SHELL + n for n in signals)}
        return self.status not in asked


def resolved(command: Sequence[str]) -> list[str]:
    """Return ``command`` as it can be started: a script by our Python, others by the path.

    Raises `ConfigError` for a command that is not there.
    """
    name, *arguments = command
    if name.endswith((".py", ".pyz")) and Path(name).is_file():
        return [sys.executable, name, *arguments]
    found = shutil.which(name, path=search_path())
    if found is None and name in _PYTHONS:
        found = sys.executable
    if found is None:
        msg = f"there is no command {name!r}; try: doctor -- python {' '.join(command)}"
        raise ConfigError(msg)
    return [found, *arguments]


def run_noted(command: Sequence[str]) -> Ran:
    """Run ``command`` to its end, whatever that is; raises `ConfigError` if it cannot be started.

    Signals that ask us to end are handed on to the program.
    """
    arguments = resolved(command)
    # What the program leaves running may still write there.
    with tempfile.TemporaryDirectory(prefix="rag-eval-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _handing_on() as hands:
            try:
                # The user's own command, as he has typed it.
                child = subprocess.Popen(arguments, env=for_program(folder))  # noqa: S603
            except OSError as error:
                msg = f"{command[0]!r} cannot be started: {error.strerror or error}"
                raise ConfigError(msg) from error
            status = hands.wait(child)
        notes = read_notes(folder)
    return Ran(
        command=tuple(command),
        status=status,
        interrupted=tuple(hands.received),
        notes=tuple(notes),
    )


@dataclass(slots=True, eq=False)
class _Hands:
    """What was received, and to whom it goes on."""

    received: list[int] = field(default_factory=list)
    child: subprocess.Popen[bytes] | None = None

    def wait(self, child: subprocess.Popen[bytes]) -> int:
        self.child = child
        for number in self.received:  # before there was somebody to have it
            self._send(number)
        return child.wait()

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        self._send(number)

    def _send(self, number: int) -> None:
        if self.child is None or (number == signal.SIGINT and is_from_terminal()):
            return
        if self.child.poll() is None:
            self.child.send_signal(number)


def is_from_terminal() -> bool:
    """Tell whether ^C comes from a terminal, which has sent it to the program as well."""
    if not hasattr(os, "tcgetpgrp"):  # Windows sends it to all who share the console
        return True
    terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]
    return any(os.tcgetpgrp(fd) == os.getpgrp() for fd in terminals)


@contextmanager
def _handing_on() -> Iterator[_Hands]:
    """Let signals that end us end the program instead, so that there is a report."""
    hands = _Hands()
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, hands) for number in numbers}
    try:
        yield hands
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Imported by every Python of the program that the doctor watches, before anything else.

Whatever ``sitecustomize`` this one stands in front of is imported after it. The Python may be one
that does not have this library: then a note is left that says so.
"""

import importlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib takes 10 ms


def _begin() -> None:
    folder = os.environ.get("RAG_DOCTOR_NOTES")
    if not folder:
        return
    try:
        begin = importlib.import_module("rag_eval_otel.doctor.doors").begin
    except (ImportError, SyntaxError) as error:  # not there, or the Python is too old for it
        note = os.path.join(folder, "%d.strange" % os.getpid())  # noqa: PTH118, UP031
        try:
            with open(note, "w") as file:  # noqa: PTH123
                file.write("%s\n%s: %s" % (sys.executable, type(error).__name__, error))  # noqa: UP031
        except OSError:  # the doctor has gone, or the folder is another user's
            return
        return
    begin(folder)


def _go_on() -> None:
    """Import the next ``sitecustomize`` on the path, as if this one were not there."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]  # noqa: PTH100
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize":
    try:
        _begin()
    finally:  # what the user has there must run in any case
        _go_on()

"""Record the spans of the corpus under an instrumentation, in the form of the shared recordings.

    PYTHONPATH=tests python -m corpus.keep_spans FOLDER VIA FRAMEWORK...

`benchmarks/ablate.py` reads the files. Their true samples are those that are captured today, which
the end-to-end tests compare with the truths of the applications, and the truths themselves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from corpus.kit import all_apps
from corpus.retold import Retold, spans_of
from corpus.run import quietly
from corpus.sources import SOURCES


def as_recording(retold: Retold, via: str) -> dict[str, Any]:
    """Return the spans of an application in the form that `replay.load` reads."""
    spans, calls = {}, []
    for note in retold.notes:
        span: Any = note.what
        name = f"{span.span_id:016x}"
        at = span.start if note.operation == "start" else span.end
        calls.append({"op": note.operation, "span_id": name, "t": at})
        if note.operation == "start":
            calls[-1]["attributes_at_start"] = dict(span.attributes)
            calls[-1]["name"] = span.name
            continue
        spans[name] = {
            "name": span.name,
            "scope": {"name": span.scope},
            "trace_id": f"{span.trace_id:032x}",
            "span_id": name,
            "parent_span_id": f"{span.parent_id:016x}" if span.parent_id else None,
            "parent_is_remote": span.parent_is_remote,
            "start_time_unix_nano": span.start,
            "end_time_unix_nano": span.end,
            "status": {"code": "ERROR" if span.error else "UNSET", "description": span.error},
            "attributes": dict(span.attributes),
            "events": [{"name": name, "attributes": dict(a)} for name, a in span.events],
        }
    app = retold.app
    stated = [one for truth in (*app.truths, *app.optional) for one in truth.statements()]
    samples = [*retold.whole, *((t.question, t.contexts, t.answer) for t in stated)]
    return {
        "instrumentation": f"{via} {app.framework}",
        "app": app.name,
        "env": {},
        "spans": list(spans.values()),
        "processor_sequence": calls,
        "never_ended": [],
        "expected": [{"question": q, "contexts": list(c), "answer": a} for q, c, a in samples],
    }


def main(folder: Path, via: str, *frameworks: str) -> None:
    """Write a file for each application."""
    folder.mkdir(parents=True, exist_ok=True)
    with quietly(), SOURCES[frameworks[0]][via]() as source:
        for app in all_apps(*frameworks):
            if app.missing():
                continue
            try:
                recording = as_recording(spans_of(app, source), via)
                text = json.dumps(recording, default=str)
            except Exception as error:  # noqa: BLE001
                sys.stderr.write(f"{app.name}: {type(error).__name__}\n")
                continue
            path = folder / f"{via}__{app.framework}__{app.name}.json"
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

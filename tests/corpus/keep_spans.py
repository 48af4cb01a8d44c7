"""Record the spans of the corpus under an instrumentation, in the form of the shared recordings.

    PYTHONPATH=tests python -m corpus.keep_spans FOLDER VIA FRAMEWORK...

`benchmarks/ablate.py` reads the files. Their true samples are those that are captured today, which
the end-to-end tests compare with the truths of the applications, and the truths themselves.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corpus.kit import App, all_apps
from corpus.retold import Note, Told, spans_of
from corpus.run import quietly
from corpus.sources import SOURCES


def as_recording(
    app: App, notes: Sequence[Note], instrumentation: str, samples: Iterable[Told] = ()
) -> dict[str, Any]:
    """Return noted spans in the form that `replay.load` reads, with ``samples`` and the truths."""
    spans, calls = {}, []
    for note in notes:
        span: Any = note.what
        name = f"{span.span_id:016x}"
        at = span.start if note.operation == "start" else span.end
        calls.append({"op": note.operation, "span_id": name, "t": at})
        if note.operation == "start":
            calls[-1]["attributes_at_start"] = _plain(span.attributes)
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
            "attributes": _plain(span.attributes),
            "events": [{"name": name, "attributes": _plain(a)} for name, a in span.events],
        }
    stated = [one for truth in (*app.truths, *app.optional) for one in truth.statements()]
    told = [*samples, *((t.question, t.contexts, t.answer) for t in stated)]
    return {
        "instrumentation": instrumentation,
        "app": app.name,
        "env": {},
        "spans": list(spans.values()),
        "processor_sequence": calls,
        "never_ended": [],
        "expected": [{"question": q, "contexts": list(c), "answer": a} for q, c, a in told],
    }


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``attributes`` without stack traces, which name places on the recording machine."""
    return {key: value for key, value in attributes.items() if key != "exception.stacktrace"}


def main(folder: Path, via: str, *frameworks: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with quietly(), SOURCES[frameworks[0]][via]() as source:
        for app in all_apps(*frameworks):
            if app.missing():
                continue
            try:
                retold = spans_of(app, source)
                recording = as_recording(app, retold.notes, f"{via} {app.framework}", retold.whole)
                text = json.dumps(recording, default=str)
            except Exception as error:  # noqa: BLE001
                sys.stderr.write(f"{app.name}: {type(error).__name__}\n")
                continue
            path = folder / f"{via}__{app.framework}__{app.name}.json"
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

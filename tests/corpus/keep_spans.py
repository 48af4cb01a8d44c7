"""Record the spans of the corpus under an instrumentation, in the form of the shared recordings.

    PYTHONPATH=tests python -m corpus.keep_spans FOLDER VIA FRAMEWORK...
    PYTHONPATH=tests python -m corpus.keep_spans --again tests/capture/recordings VIA FRAMEWORK...

With ``--again`` only applications are recorded of which the folder has a recording.
"""

import argparse
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from opentelemetry import trace

from corpus.kit import App, all_apps
from corpus.retold import Retold, Told, spans_of
from corpus.run import quietly
from corpus.sources import SOURCES, PassedOn, PassedOnSdk

_VECTOR = re.compile(r"((?:-?\d[\d.e-]*,\s*){3})(?:-?\d[\d.e-]*,\s*){20,}")


def as_recording(retold: Retold, instrumentation: str) -> dict[str, Any]:
    """Return recorded spans in the form that `replay.load` reads, with the application's truths."""
    spans, calls = {}, []
    for note in retold.notes:
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
    expected = list(_expected(retold.app, retold.whole.elements()))
    return {
        "instrumentation": instrumentation,
        "app": retold.app.name,
        "env": {},
        "spans": list(spans.values()),
        "processor_sequence": calls,
        "never_ended": [],
        "expected": list(map(_as_json, expected)),
        "also": [_as_json(one) for one in _statements(retold.app) if one not in expected],
    }


def _expected(app: App, samples: Iterator[Told]) -> Iterator[Told]:
    """Yield the texts of each truth, with the whitespace of the sample that equals them if any."""
    left = list(samples)
    for truth in (*app.truths, *app.optional):
        sample = next((one for one in left if truth.holds_for(*one)), None)
        if sample is not None:
            left.remove(sample)
            yield sample
        elif truth in app.truths:
            yield truth.question, tuple(truth.contexts), truth.answer


def _statements(app: App) -> list[Told]:
    stated = [one for truth in (*app.truths, *app.optional) for one in truth.statements()]
    return [(one.question, tuple(one.contexts), one.answer) for one in stated]


def _as_json(texts: Told) -> dict[str, Any]:
    question, contexts, answer = texts
    return {"question": question, "contexts": list(contexts), "answer": answer}


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``attributes`` with vectors cut to three numbers, and without stack traces.

    A stack trace names places on the recording machine.
    """
    return {k: _with_short_vectors(v) for k, v in attributes.items() if k != "exception.stacktrace"}


def _with_short_vectors(value: Any) -> Any:
    if isinstance(value, str):
        return _VECTOR.sub(r"\1", value)
    return (
        value[:3] if isinstance(value, tuple) and value and isinstance(value[0], float) else value
    )


def keep(folder: Path, via: str, frameworks: Collection[str], *, again: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with quietly(), SOURCES[next(iter(frameworks))][via]() as source:
        if isinstance(source, PassedOn):  # for spans of the applications' own
            trace.set_tracer_provider(PassedOnSdk(source))
        for app in all_apps(*frameworks):
            path = folder / f"{via}__{app.framework}__{app.name}.json"
            if app.missing() or (again and not path.exists()):
                continue
            try:
                recording = as_recording(spans_of(app, source), f"{via} {app.framework}")
                text = json.dumps(recording, default=str, ensure_ascii=False, separators=(",", ":"))
            except Exception as error:  # noqa: BLE001
                sys.stderr.write(f"{app.name}: {type(error).__name__}\n")
                continue
            path.write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("folder", type=Path)
    parser.add_argument("via")
    parser.add_argument("frameworks", nargs="+")
    options = parser.parse_args()
    keep(options.folder, options.via, options.frameworks, again=options.again)


if __name__ == "__main__":
    main()

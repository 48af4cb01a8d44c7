"""Write docs/reliability.md from the results of the fault matrix.

pytest tests/faults --faults-json build/faults.json
python tests/faults/reliability.py build/faults.json ... > docs/reliability.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

ROWS: Mapping[str, str] = {
    "1": "The judge refuses connections",
    "2": "The judge accepts requests and never answers",
    "3": "The judge sends one byte a second",
    "4": "The judge answers 429 with Retry-After: seconds, a date, an hour",
    "5": "The judge answers 429 without Retry-After",
    "6": "The judge answers 10 %, then 50 % of requests with 500 or 503",
    "7": "The judge answers 401, 403 or 404",
    "8": "The prompt is too long for the judge's model",
    "9": "The judge replies with prose, cut-off JSON, a refusal or nothing",
    "10": "The judge replies out of range, NaN, text, booleans, extra keys",
    "11": "A reply lacks one of several metrics",
    "12": "The server gives no probabilities of tokens",
    "13": "The judge is slow (20 s) under constant traffic",
    "14": "A burst of 100,000 spans",
    "15": "Contexts of 10 MB, lone surrogates, NUL characters",
    "16": "Root spans that never end",
    "17": "10,000 identical turns",
    "18": "A fork after the first turns, and while the judge's client is imported",
    "19": "200 forks under load",
    "20": "The event loop is blocked, closed, or new in each request",
    "21": "Celery prefork and multiprocessing children",
    "22": "The process is frozen and thawed; gunicorn with its signals",
    "23": "The process exits with turns pending",
    "24": "SIGTERM under load, os._exit, exit in a thread",
    "25": "Use after shutdown, double shutdown, shutdown beside ends of spans",
    "26": "A metric or sink raises, hangs, blocks, returns another type",
    "27": "The redaction function raises",
    "28": "Callbacks in the wrong order, nested chains, a second handler",
    "29": "The OTLP endpoint is down, slow, or refuses",
    "30": "The wall clock jumps by an hour",
    "31": "The disk is full or read-only",
    "32": "Prompt injections against an obedient judge",
    "33": "Feigned marks, control tokens, bidirectional and invisible characters",
    "34": "Answers without content that make judges say yes",
    "35": "Secrets in prompts, errors and headers",
    "36": "Content capture is off",
    "37": "The judge's client is instrumented",
    "38": "A budget of requests, tokens or money",
    "39": "Baggage of another service asks for evaluation",
    "40": "Unsampled spans, spans that do not record, remote parents",
    "41": "Failed evaluations and impossible scores in drift detection",
    "42": "The judge's model or the prompt changes",
    "43": "The saved state of drift detection is lost or broken",
    "44": "An alarm between two collections of metrics",
    "45": "Few turns, some of them bad by chance",
    "46": "High-cardinality values in attributes of metrics",
    "embedder": "The embedder is down",
    "flush": "`flush` with an exporter that hangs",
    "large reply": "A judge's reply of 50 MB",
    "max_tokens": "Requests without a limit of tokens",
    "logs": "A second outage after a first one; jobs that fail",
    "gevent": "gevent's monkey patching",
    "provider later": "`instrument()` before `set_tracer_provider()`",
    "csv": "Nested brackets, formulas and escape characters in CSV files and on terminals",
    "long trace": "A trace of 9,000 spans",
    "requests": "Broken, oversized and exploding requests to a worker",
    "backend": "The backend behind a worker is down",
    "broker": "The Kafka broker of a worker is away",
    "poison": "Kafka messages that cannot be processed",
    "redis": "The Redis that workers share is away",
}
"""The faults, by the number of their row. Faults without a number were found later."""

_HEAD = """# Reliability

Each row is a fault, with the tests that make it happen, the expected result and the figures of the
last run. Most tests also assert the invariants of all faults: each ended span leaves exactly once,
each turn is counted once (`captured = scored + unscored + errored + skipped + dropped + pending`),
a failed evaluation gives no score, and no log line has a text or a key.

`make faults` runs the tests in `tests/faults/` and writes this page.
`pytest tests/faults -k test_fault_07` runs the tests of row 7. Times, memory,
and what is scored under overload depend on the machine.

| # | fault | expected | measured |
|---|---|---|---|
"""


def page(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the Markdown page for ``results``; a row without a test says so."""
    order = {row: i for i, row in enumerate(ROWS)}
    ordered = sorted(results, key=lambda one: order[one["row"]])
    by_row = {row: list(tests) for row, tests in groupby(ordered, key=lambda one: one["row"])}
    lines = (_line(row, fault, by_row.get(row, [])) for row, fault in ROWS.items())
    return _HEAD + "".join(lines)


def _line(row: str, fault: str, tests: list[Mapping[str, Any]]) -> str:
    expected = "<br>".join(dict.fromkeys(one["expected"] for one in tests)) or "no test"
    passed = {one["test"] for one in tests if one["outcome"] == "passed"}
    cells = dict.fromkeys(_measured(one, passed) for one in tests)
    return f"| {row} | {fault} | {expected} | {'<br>'.join(filter(None, cells))} |\n"


def _measured(test: Mapping[str, Any], passed: Collection[str]) -> str:
    figures = "; ".join(f"{name}: {value}" for name, value in test["measured"])
    if test["outcome"] == "passed":
        return figures or "holds"
    if test["test"] in passed:
        return f"{test['test']}: {test['outcome']} in one run, passed when it was repeated"
    return f"**{test['outcome']}**: {test['test']}"


if __name__ == "__main__":
    found = [one for path in sys.argv[1:] for one in json.loads(Path(path).read_text("utf-8"))]
    sys.stdout.write(page(found))

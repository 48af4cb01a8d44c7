"""MLflow: each score, and each label, is a feedback of its span in the trace ``tr-<trace id>``.

MLflow gives each feedback an id of its own, so a request whose answer was lost could store it
twice. Therefore the id of this library and the time of the feedback are in the metadata, and the
feedback of a trace is read after it was written. Of several with one id, the last is kept: another
judge may score a turn again, and a person may change her mind. The client reads the address and
the key from variables such as ``MLFLOW_TRACKING_URI`` and ``MLFLOW_TRACKING_TOKEN``.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from rag_eval_otel.export.backends.annotation import (
    IDENTIFIER,
    Annotation,
    Parallel,
    Refusal,
    reported,
)

_ID, _MADE = f"{IDENTIFIER}.id", f"{IDENTIFIER}.made"
_MAX_DOUBTFUL = 10_000
_SOURCES = {"LLM": "LLM_JUDGE", "CODE": "CODE", "HUMAN": "HUMAN"}


class MLflow:
    """Writes feedback by the client of the package ``mlflow``."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import warns of parts of its own
            self._mlflow = import_module("mlflow")
            self._entities = import_module("mlflow.entities")
            self._traces: Any = import_module("mlflow.tracing.client").TracingClient()
        self._errors = (
            import_module("mlflow.exceptions").MlflowException,
            import_module("requests").RequestException,
        )
        self._parallel = Parallel()
        self._doubtful = set[str]()  # traces in which feedback may be stored, or may not

    def send(self, annotations: Sequence[Annotation]) -> Sequence[Refusal]:
        """Write the feedback trace by trace; refuse that of a trace that failed."""
        traces: dict[str, list[Annotation]] = defaultdict(list)
        for one in annotations:
            traces[f"tr-{one.trace_hex}"].append(one)
        return self._parallel.send(
            lambda trace: self._write(trace, traces[trace]), list(traces.items())
        )

    def _write(self, trace: str, annotations: Sequence[Annotation]) -> None:
        with reported(*self._errors):
            is_full = len(self._doubtful) >= _MAX_DOUBTFUL
            known = self._known(trace) if is_full or trace in self._doubtful else {}
            if not is_full:
                self._doubtful.add(trace)
            for feedback in self._feedback(trace, annotations):
                own, made = feedback["metadata"][_ID], feedback["metadata"][_MADE]
                if float(made) not in (stored for stored, _ in known.get(own, ())):
                    self._mlflow.log_feedback(**feedback)
            self._remove_duplicates(trace)
            self._doubtful.discard(trace)

    def _known(self, trace: str) -> dict[str, list[tuple[float, str]]]:
        """Return the time and MLflow's id of our feedback of ``trace``, by our own ids."""
        found: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for one in self._traces.get_trace_info(trace).assessments:
            metadata = one.metadata or {}
            if own := metadata.get(_ID):
                found[own].append((float(metadata.get(_MADE, 0)), one.assessment_id))
        return found

    def _remove_duplicates(self, trace: str) -> None:
        """Delete all but the last feedback of each id.

        The client may store one twice, because it repeats requests by itself.
        """
        for stored in self._known(trace).values():
            for _, surplus in sorted(stored)[:-1]:
                self._mlflow.delete_assessment(trace_id=trace, assessment_id=surplus)

    def _feedback(self, trace: str, annotations: Sequence[Annotation]) -> Iterator[dict[str, Any]]:
        for one in annotations:
            source = self._entities.AssessmentSource(_SOURCES[one.kind], one.annotator)
            for part in one.parts:
                metadata = {key: str(value) for key, value in one.metadata.items()}
                yield {
                    "trace_id": trace,
                    "span_id": one.span_hex,
                    "name": part.name,
                    "value": part.value,
                    "rationale": one.explanation,
                    "source": source,
                    "metadata": {**metadata, _ID: str(part.id), _MADE: f"{one.made:.6f}"},
                }

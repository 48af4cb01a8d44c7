"""Define `Row`, the scores of one turn, and convert scores to and from dicts and table cells."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, cast

from rag_eval_otel.errors import ConfigError
from rag_eval_otel.types import Evaluation, Label, Reason, Sample, Sampling, Score

LEAVES: Final = ("status", "reason", "label", "threshold", "normalized", "explanation", "version")
"""The fields of a score that have a column of their own in a table, ``<metric>.<leaf>``."""

TEXTS: Final = ("question", "contexts", "answer", "reference", "history", "query")
ORIGIN: Final = ("trace_id", "span_id", "time", "service")
"""Where a turn comes from that `rag-eval-otel collect` has read: its span, its end, its service."""

VERDICT: Final = ("label", "outcome", "cause")
CAUSES: Final = {
    "unsupported": "no context supports what is marked",
    "needless_refusal": "it declines, although the contexts have the answer",
    "off_topic": "it does not answer the question",
    "retrieval": "the contexts do not have the answer",
}
"""What causes mean; the cause ``metric`` is any other metric that fails."""
_HEAD = ("row", "sample", "question_id", "status", "label", "judge")  # always in JSON
_YEAR_10000 = 253402300800  # seconds since the epoch
_EPOCHS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""The least number that is a time in a unit finer than seconds, and the units in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The scores of one turn, which is one question of a user and its answer.

    ``index`` is the number of the turn in the dataset or file, from 0; a file may have several rows
    with different scores of a turn. ``evaluation.usage`` has the model requests of this run.

    Rows from a file may also have the name of the row or trace in words (``place``), the ``time``
    in seconds since the epoch, the ``service``, and the ids ``trace``, ``span`` and
    ``question_id``, which is the same in all runs.
    """

    index: int
    evaluation: Evaluation
    sample: Sample = field(default_factory=Sample)
    place: str = ""
    time: float | None = None
    service: str = ""
    trace: str = ""
    span: str = ""
    question_id: str = ""
    stored: Mapping[str, Any] = field(default_factory=dict)
    """The label, outcome and cause in the file; which metrics decided on them is not in it.

    Of a turn without scores, it is the evaluation status of its span.
    """

    def __getitem__(self, name: str) -> Score:
        return self.evaluation[name]

    @property
    def scores(self) -> tuple[Score, ...]:
        return self.evaluation.scores

    @property
    def own_question_id(self) -> str:
        """The id of the question, or a digest of the texts in the sample if there is no id."""
        return self.question_id or question_id_of(self.sample)

    @property
    def verdict(self) -> Mapping[str, str | None]:
        """Label, outcome and cause by name; of a span without scores, its ``status`` instead."""
        if any(self.stored.values()):
            return self.stored
        return {name: getattr(self.evaluation, name) for name in VERDICT}

    @property
    def unsupported(self) -> tuple[tuple[int, int], ...]:
        """The places (start, end) of sentences in the answer that the contexts do not support."""
        return next((s.unsupported for s in self.scores if s.unsupported is not None), ())

    @property
    def failed(self) -> tuple[Score, ...]:
        return tuple(score for score in self.scores if score.status == "error")

    def to_dict(self, further: Sequence[str] = ()) -> dict[str, Any]:
        """Return the row as a dict for JSON, with the columns that ``further`` names."""
        cells = self._cells(further).items()
        return {
            **{name: v for name, v in cells if name in _HEAD or v not in (None, "", [])},
            "scores": {score.name: score.as_dict() for score in self.scores},
        }

    def to_flat(self, further: Sequence[str] = ()) -> dict[str, Any]:
        """Return the row as table cells by column name; contexts and history are texts in JSON."""
        flat = self._cells(further)
        flat["tokens"] = flat["tokens"] or 0
        for name in {"contexts", "history"}.intersection(further):
            flat[name] = json.dumps(flat[name], ensure_ascii=False) if flat[name] else None
        for score in self.scores:
            flat[score.name] = score.value
            flat |= {f"{score.name}.{leaf}": getattr(score, leaf) for leaf in LEAVES}
        return flat

    def _cells(self, further: Sequence[str]) -> dict[str, Any]:
        sample, when, evaluation = self.sample, self.time, self.evaluation
        tokens = evaluation.usage.tokens or None
        cost = evaluation.cost if tokens else None
        values = {
            "question": sample.question,
            "contexts": [passage.text for passage in sample.contexts],
            "answer": sample.answer,
            "reference": sample.reference,
            "history": messages_of(sample),
            "query": sample.query,
            "trace_id": self.trace or None,
            "span_id": self.span or None,
            "time": None if when is None or not 0 <= when < _YEAR_10000 else iso(when),
            "service": self.service or None,
        }
        return {
            "row": self.index,
            "sample": digest(sample),
            "question_id": self.own_question_id,
            "status": evaluation.status,
            "label": evaluation.label,
            "judge": evaluation.judge,
            "outcome": evaluation.outcome,
            "cause": evaluation.cause,
            "tokens": tokens,
            "cost": cost,
            "currency": None if cost is None else evaluation.currency,
            **{name: values[name] for name in further},
        }


def flat_columns(metrics: Sequence[str], further: Sequence[str] = ()) -> list[str]:
    leaves = [f"{name}{leaf}" for name in metrics for leaf in ("", *(f".{n}" for n in LEAVES))]
    return [*_HEAD, *VERDICT[1:], "tokens", "cost", "currency", *further, *leaves]


def messages_of(sample: Sample) -> list[dict[str, str]]:
    return [{"role": role, "content": said} for role, said in sample.history]


def score_from_cells(name: str, cells: Mapping[str, Any]) -> Score:
    """Build the `Score` ``name`` from its fields. Only a score with a number gets the status ok."""
    value, normalized = number(cells.get("value")), number(cells.get("normalized"))
    if normalized is not None and not 0 <= normalized <= 1:
        normalized = None
    value = normalized if value is None else value
    status, label, reason = (text(cells.get(name)) for name in ("status", "label", "reason"))
    is_ok = value is not None and status not in {"undefined", "error"}
    return Score(
        name=name,
        value=value if is_ok else None,
        normalized=normalized if is_ok else None,
        status="ok" if is_ok else "error" if status == "error" else "undefined",
        reason=cast("Reason | None", reason if is_ok else reason or ""),
        label=cast("Label", label) if label in {"pass", "fail"} else None,
        threshold=number(cells.get("threshold")),
        explanation=text(cells.get("explanation")),
        detail=_places_in(cells.get("detail")),
        version=text(cells.get("version")) or "",
    )


def _places_in(detail: object) -> dict[str, Any]:
    """Return the verdicts on sentences and the places of these; nothing if they are malformed."""
    match detail:
        case {"offsets": [*places], "verdicts": [*verdicts]} if all(
            isinstance(pair, list) and [type(each) for each in pair] == [int, int]
            for pair in places
        ):
            return {"offsets": places, "verdicts": verdicts}
    return {}


def sampling_of(value: object) -> Sampling | None:
    if value is None or value == "":
        return None
    probability = number(value)
    if probability is None or not 0 < probability <= 1:
        raise ConfigError(f"a sampling probability must be above 0 and at most 1, not {value!r}")
    return Sampling(probability=probability)


def unit_value(score: Score) -> float | None:
    """Return ``score`` on [0, 1], or as it is if its scale is not known; None if it failed."""
    return score.value if score.normalized is None else score.normalized


def is_offline(version: str) -> bool:
    """Return True if the judge in ``version``, ``<metric>/<hash>/<way>/<judge>``, is offline."""
    return version.split("/", 3)[-1].startswith(("lexical", "local"))


def question_id_of(sample: Sample) -> str:
    """Return a digest of question, reference and history, which pairs rows of runs."""
    return digest(sample.question, sample.reference, *filter(None, [sample.history]))


def digest(*parts: object) -> str:
    content = "\0".join(map(repr, parts)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).hexdigest()[:16]


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def moment(value: Any) -> float | None:
    """Convert a number, a datetime or ISO 8601 (without a zone: UTC) to seconds since the epoch.

    A number after the year 5000 is in ms, us or ns. Other values become None.
    """
    if isinstance(value, str):
        with suppress(ValueError):  # it may be a number
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    seconds = number(value)
    if seconds is None:
        return None
    return seconds / next((unit for least, unit in _EPOCHS if seconds >= least), 1.0)


def number(value: object) -> float | None:
    try:
        converted = float(cast("Any", value))
    except (OverflowError, TypeError, ValueError):
        return None
    return converted if math.isfinite(converted) else None


def text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

"""Golden cases as they are written, and the samples in them, made by the public doors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from rag_eval_otel.tools.read import Dataset, open_dataset
from rag_eval_otel.types import Sample

Case: TypeAlias = "Mapping[str, Any]"

SHARED = Path(__file__).parents[3] / "shared" / "golden"
GOLDEN_CORE = SHARED / "core.json"
GOLDEN_EDGE = SHARED / "edge.json"

_SAMPLE = {field.name for field in fields(Sample)}
_FIELDS = {"expected_ids": "relevant_ids"}
_COLUMNS = {
    "questions": "question",
    "answers": "answer",
    "predicted_answers": "answer",
    "responses": "answer",
    "references": "reference",
    "ground_truth_answers": "reference",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sample of a case, and what the judge says of it."""

    sample: Sample
    judge: Mapping[str, Any]


def golden_cases(path: Path) -> list[Case]:
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return [case for file in files for case in json.loads(file.read_text(encoding="utf-8"))]


def golden_sample(case: Case) -> Sample:
    inputs = {_FIELDS.get(name, name): value for name, value in _with_grades(case)}
    rubric = inputs.pop("rubrics", case["params"].get("rubrics"))
    if case["metric"].startswith("instance") and isinstance(rubric, Mapping):
        inputs["rubric"] = rubric
    return Sample(**{name: value for name, value in inputs.items() if name in _SAMPLE})


def is_batch(case: Case) -> bool:
    return any(name in _COLUMNS or name.endswith("_list") for name in case["inputs"])


def rows_of(case: Case) -> list[Row]:
    """Return the samples of a case with their judges; raise what refuses the inputs."""
    if not is_batch(case):
        return [Row(sample=golden_sample(case), judge=case["judge"])]
    samples = list(golden_dataset(case).samples())
    return [
        Row(sample=sample, judge=_judge_of_row(case["judge"], i, rows=len(samples)))
        for i, sample in enumerate(samples)
    ]


def golden_dataset(case: Case) -> Dataset:
    columns = dict(_columns(case))
    rows = zip(*columns.values(), strict=True)
    return open_dataset([dict(zip(columns, row, strict=True)) for row in rows])


def _columns(case: Case) -> Iterator[tuple[str, Any]]:
    for name, value in _with_grades(case):
        plain = name.removesuffix("_list")
        yield _COLUMNS.get(plain, _FIELDS.get(plain, plain)), value


def _with_grades(case: Case) -> Iterator[tuple[str, Any]]:
    of_ids = "expected_ids" in str(list(case["inputs"]))
    given = {**case["inputs"], **{k: v for k, v in case["params"].items() if of_ids and _grade(k)}}
    for name, value in given.items():
        suffix = "_list" if name.endswith("_list") else ""
        yield (f"grades{suffix}" if _grade(name) else name), _by_id(value)


def _by_id(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        return value
    if all(isinstance(one, Mapping) and "score" in one for one in value):
        return {str(one.get("id", one.get("content"))): one["score"] for one in value}
    pairs = all(isinstance(one, list) and len(one) == 2 for one in value)
    graded = pairs and all(isinstance(one[0], str) and isinstance(one[1], float) for one in value)
    return dict(value) if graded else value


def _grade(name: str) -> bool:
    return any(word in name for word in ("score", "grade", "gain", "relevance"))


def _judge_of_row(judge: Mapping[str, Any], row: int, *, rows: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in judge.items():
        if name.endswith("_list"):
            found[name.removesuffix("_list")] = value[row]
        elif name == "raw" and len(value) == rows:
            found[name] = [value[row]]
        else:
            found[name] = value
    if "pair_logits" in judge:
        found["logit"] = judge["pair_logits"][row]
    return found

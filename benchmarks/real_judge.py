"""How a real judge agrees with people: by metric and language, with intervals, tokens and price.

``python benchmarks/real_judge.py --judge openai/MODEL [FOLDER | FILE.jsonl ...]``

Needs the key or the address of the judge (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``). It reads

- the golden turns in ``../shared/golden`` beside the project, if they are there: how many of them
  get a score;
- labelled rows, as `offline_judge`: of each ``FOLDER`` (public sets, see `labelled`) and ``FILE``,
  by default of ``../shared/data`` and ``benchmarks/data``. A row may also have ``history``,
  ``query``, ``language`` (by default English, or that of the file's name), and the label
  ``answered``: false if the answer declines.

The sensitivity is the share of the rows that people pass, and the metric passes, too; the
specificity is the share of the rows that both fail. Rows without a score are counted apart.
The replies are stored, with their prompts, in the file ``--replies``; its cache makes a second run
ask only for scores that are missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from _common import setting
from labelled import Row, parts, read
from offline_judge import DEFAULT, HERE, LABELS

from rag_eval_otel.judge.codec import compose
from rag_eval_otel.judge.tasks import Judge, Reply, Task
from rag_eval_otel.models import chosen_models
from rag_eval_otel.tools.calibrate import Calibration, Figure, calibrate
from rag_eval_otel.tools.dataset import DatasetResult, aevaluate_dataset
from rag_eval_otel.tools.stats import aligned
from rag_eval_otel.types import Evaluation, Replies, Sample

SHARED = HERE.parent.parent / "shared"
LANGUAGES = {"french": "fr", "german": "de"}
HEAD = ("metric", "language", "rows", "without", "agreement", "sensitivity", "specificity")


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Asks ``judge``, and writes each request with its replies to ``file``."""

    judge: Judge
    file: TextIO

    @property
    def model(self) -> str:
        return self.judge.model

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Return the judge's replies to ``tasks``."""
        replies, request = await self.judge.reply(tasks), compose(tasks)
        said = [one.model_dump() if isinstance(one, Reply) else str(one) for one in replies.parts]
        line = {"model": replies.model, "prompt": request.user, "replies": said}
        self.file.write(f"{json.dumps(line, ensure_ascii=False)}\n")
        return replies


def golden() -> list[Sample]:
    """Return the distinct golden turns with a question, contexts and an answer."""
    path, samples = SHARED / "golden" / "core.json", dict[Sample, None]()
    for case in json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ():
        texts = {name: case["inputs"].get(name) for name in ("question", "contexts", "answer")}
        if all(texts.values()):
            samples[Sample(**texts)] = None
    return [*samples]


def labelled_rows(paths: Iterable[Path]) -> list[Row]:
    """Return the rows in files and folders, each with its language."""
    rows: list[Row] = []
    for path in paths:
        sets = {path.stem: read(path)} if path.is_file() else _sets(path)
        for name, found in sets.items():
            usual = LANGUAGES.get(name, "en")
            rows += [{**row, "language": row.get("language") or usual} for row in found]
    return rows


def _sets(folder: Path) -> Mapping[str, list[Row]]:
    found = parts(folder) if folder.is_dir() else {}
    return {name: rows for sets in found.values() for name, rows in sets.items()}


def sample_of(row: Row) -> Sample:
    """Return the sample of ``row``, whose contexts may be one text."""
    contexts = row.get("contexts") or ()
    return Sample(
        question=row.get("question") or "",
        answer=row.get("answer") or "",
        contexts=[contexts] if isinstance(contexts, str) else contexts,
        history=row.get("history") or (),
        query=row.get("query"),
    )


def verdicts(row: Row, evaluation: Evaluation) -> Iterator[tuple[str, float | None, bool]]:
    """Yield metrics that people have a label for, with 1 for pass or 0 for fail, and the label."""
    for name in DEFAULT:
        if isinstance(label := row.get(LABELS[name]), bool):
            said = evaluation[name].label
            yield name, None if said is None else float(said == "pass"), label
    if isinstance(label := row.get("answered"), bool):
        said = evaluation.outcome
        yield "outcome", None if said is None else float(said == "answered"), label


def agreement(rows: Sequence[Row], evaluations: Sequence[Evaluation]) -> list[Calibration]:
    """Return the agreement by metric and language, and by metric over all languages."""
    seen: defaultdict[tuple[str, str], list[tuple[float | None, bool]]] = defaultdict(list)
    for row, evaluation in zip(rows, evaluations, strict=True):
        for metric, said, label in verdicts(row, evaluation):
            for language in (row["language"], "all"):
                seen[metric, language].append((said, label))
    return [
        calibrate(*zip(*pairs, strict=True), threshold=0.5, metric=" ".join(key))
        for key, pairs in sorted(seen.items())
    ]


def table(found: Iterable[Calibration]) -> str:
    """Return the figures as lines of text."""
    lines = [
        (
            *each.metric.split(),
            *(str(each.labelled), str(each.without_score)),
            *map(_shown, (each.accuracy, each.sensitivity, each.specificity)),
        )
        for each in found
    ]
    return aligned([HEAD, *lines], left=2)


def _shown(figure: Figure) -> str:
    return "-" if figure.value is None else str(figure)


def spent(result: DatasetResult) -> str:
    """Return requests, tokens and price as a line of text."""
    usage, totals = result.usage, result.totals
    price = "not known" if totals.cost is None else f"{totals.cost:.4f} {totals.currency}"
    return (
        f"{totals.rows:,} turns, {totals.failed} with errors; {usage.judge_requests:,} requests,"
        f" {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens, price {price}"
    )


async def measured(samples: Sequence[Sample], options: argparse.Namespace) -> DatasetResult:
    """Return the scores of ``samples``, whose replies are added to the file of replies."""
    judge, embedder = chosen_models(options.judge, options.embedder)
    with options.replies.open("a", encoding="utf-8") as file:
        return await aevaluate_dataset(
            samples,
            judge=Recorder(judge=judge, file=file),
            embedder=embedder,
            concurrency=options.concurrency,
            timeout=options.timeout,
            cache=options.replies.with_name(f"{options.replies.name}.cache"),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures. Return 1 if a turn has an error instead of a score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="FOLDER|FILE.jsonl")
    parser.add_argument("--judge", required=True, metavar="PROVIDER/MODEL")
    parser.add_argument("--embedder", metavar="PROVIDER/MODEL", help="(default: by the judge)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N rows of all")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--replies", type=Path, default=Path("judge_replies.jsonl"))
    options = parser.parse_args(arguments)
    rows = labelled_rows(options.paths or [SHARED / "data", HERE / "data"])[: options.limit]
    turns = golden()[: options.limit]
    result = asyncio.run(measured([*turns, *map(sample_of, rows)], options))
    evaluations = [row.evaluation for row in result.rows]
    print(f"{result.judge or options.judge}; {setting('rag-eval-otel')}\n{spent(result)}")
    if turns:
        statuses = Counter(each.status for each in evaluations[: len(turns)])
        print(f"golden turns: {', '.join(f'{n} {status}' for status, n in statuses.items())}")
    done = evaluations[len(turns) :]  # fewer, if the run was stopped
    print(table(agreement(rows[: len(done)], done)))
    if result.totals.stopped:
        print(f"stopped: {result.totals.stopped}", file=sys.stderr)
    return 1 if result.totals.failed or result.totals.stopped else 0


if __name__ == "__main__":
    sys.exit(main())

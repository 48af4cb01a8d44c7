"""MLflow's page, opened in Chromium: its list of traces shows the turns and their scores."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from apps import company
from e2e.browser import opened
from e2e.fickle import BAD, GOOD, fickle
from e2e.programs import eventually, program
from e2e.test_mlflow import COMMAND, PATIENCE, MLflow
from e2e.test_mlflow import mlflow as mlflow  # noqa: PLC0414  # a fixture

ARTEFACTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rag-eval-otel"
TURNS = 3
CLOSED = {
    "mlflow.detectIssues.guidanceShown_v1": "true",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}
"""What the page keeps when a user closes its assistant and the hint on a new button."""
TABLE = """[...document.querySelectorAll('[role=row]')].map(row =>
  [...row.querySelectorAll('[role=columnheader], [role=cell]')].map(cell => cell.innerText))"""

pytestmark = [
    pytest.mark.skipif(not COMMAND.exists(), reason="mlflow is not installed"),
    pytest.mark.timeout(2400),
    # MLflow and its parts warn at their import.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def chromium() -> str:
    return program("chromium")


def scored(mlflow: MLflow, experiment: str) -> list[Mapping[str, Any]]:
    """Send two good turns and a bad one, with their texts; return the turns' attributes."""
    memory = InMemorySpanExporter()
    headers = {"x-mlflow-experiment-id": experiment}
    otlp = OTLPSpanExporter(endpoint=f"{mlflow.http}/v1/traces", headers=headers, timeout=120)
    options: dict[str, Any] = {"export_content": "all", "backends": ["mlflow"]}
    with fickle(mlflow, "shop", signals="traces", traces=[otlp, memory], **options) as app:
        app.run(TURNS - 1, GOOD)
        app.run(1, BAD)
        assert app.handle.flush(PATIENCE)  # the feedback, too
    every = [span.attributes or {} for span in memory.get_finished_spans()]
    return [attributes for attributes in every if "rag.evaluation.status" in attributes]


def names(turn: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics of a turn."""
    return sorted(key.split(".")[2] for key in turn if key.endswith(".score"))


def table(rows: list[list[str]] | None, columns: set[str]) -> list[dict[str, str]]:
    """Return the rows with a text in each of these ``columns``, by the heads of the columns."""
    heads, *rest = rows or [[]]
    found = [dict(zip(heads, cells, strict=False)) for cells in rest]
    return [row for row in found if all(row.get(name) for name in columns)]


@pytest.mark.usefixtures("chromium")
def test_the_list_of_traces_shows_the_scores(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without settings, the list has the input, the output, and a column of each feedback."""
    mlflow: MLflow = request.getfixturevalue("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.http)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    experiment = mlflow.create_experiment("shop-page")
    turns = scored(mlflow, experiment)
    assert len(turns) == TURNS
    metrics = names(turns[0])
    assert len(metrics) == 4
    labels = ["rag.evaluation", *(f"{name}.label" for name in metrics)]
    columns = {"Input", "Output", *metrics, *labels}
    url = f"{mlflow.http}/#/experiments/{experiment}/traces"
    picture = ARTEFACTS / "artefacts" / "mlflow.png"
    with opened(url, tmp_path / "profile", size="3080,643", kept=CLOSED) as page:

        def rows() -> list[dict[str, str]]:
            found = table(page.value(TABLE), columns)
            return found if len(found) == TURNS else []

        shown = eventually(rows, f"{TURNS} rows with {sorted(columns)}")
        page.picture(picture)
    with capsys.disabled():
        print(f"\n    {picture}")  # noqa: T201  # prints the path of the screenshot
    assert {row["Input"].strip('"') for row in shown} == {company.FOUNDED}

    def said(row: Mapping[str, str]) -> tuple[Any, ...]:
        return row["Output"].strip('"'), *(row[name].lower() for name in labels)

    def numbers(row: Mapping[str, str]) -> list[float]:
        return [float(row[name]) for name in metrics]

    told = [
        {"Output": turn["output.value"], "rag.evaluation": turn["rag.evaluation.label"]}
        | {f"{name}.label": turn[f"rag.evaluation.{name}.label"] for name in metrics}
        | {name: str(turn[f"rag.evaluation.{name}.score"]) for name in metrics}
        for turn in turns
    ]
    shown.sort(key=said)
    told.sort(key=said)
    assert list(map(said, shown)) == list(map(said, told))
    for row, turn in zip(shown, told, strict=True):
        # At most two decimals are shown.
        assert numbers(row) == pytest.approx(numbers(turn), abs=0.0051)

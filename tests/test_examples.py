"""The examples: short, runnable as they stand, and what they say happens."""

import re
import subprocess
from ast import literal_eval
from pathlib import Path

import pytest

from otlp_receiver import OtlpReceiver
from processes import ran

pytestmark = pytest.mark.slow  # each starts programs

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def started(example: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    done = ran(f"import runpy; runpy.run_path({str(example)!r}, run_name='__main__')", **variables)
    assert done.returncode == 0, done.stderr
    return done


def run(example: Path, backend: OtlpReceiver) -> str:
    exporters = {f"OTEL_{signal}_EXPORTER": "otlp" for signal in ("TRACES", "METRICS", "LOGS")}
    address = {"OTEL_EXPORTER_OTLP_ENDPOINT": backend.http_endpoint}
    protocol = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    return started(example, **exporters, **address, **protocol).stdout


@pytest.mark.parametrize("example", [EXAMPLES[0], EXAMPLES[4]], ids=lambda path: path.stem)
def test_examples_without_a_backend_print_their_scores(example: Path) -> None:
    """No endpoint is set and nothing listens: the scores are printed, and no connection fails."""
    done = started(example)
    assert re.search(r"^pass: .*faithfulness \d\.\d\d pass", done.stdout, flags=re.MULTILINE)
    assert done.stderr == ""


def test_the_application_of_the_tutorial_runs(tmp_path: Path, backend: OtlpReceiver) -> None:
    """The tutorial's code is scored as its text says: a wrong price fails."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (tmp_path / "app.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    assert "15 euros" in run(tmp_path / "app.py", backend)
    (root,) = [span for span in backend.spans() if span.parent_span_id is None]
    assert root.name == "invoke_workflow"
    assert len(backend.spans()) == 3
    assert root.attributes["rag.evaluation.label"] == "fail"
    assert root.attributes["rag.evaluation.faithfulness.label"] == "fail"


@pytest.mark.parametrize(
    ("number", "printed", "scored"),
    [
        (0, ["12 euros"], "invoke_workflow"),
        (1, ['"rag.evaluation.status": "scored"', '"name": "GET /ask"'], None),
        (2, ["judged by lexical"], None),
        (4, ["A ticket costs 12 euros."], "ask"),
    ],
)
def test_an_example_says_and_exports_its_scores(
    number: int, printed: list[str], scored: str | None, backend: OtlpReceiver
) -> None:
    """By the callback, on spans of its own, without tracing, by hand: no text is exported."""
    output = run(EXAMPLES[number], backend)
    assert [output.count(text) for text in printed] == [1] * len(printed)
    found = [span for span in backend.spans() if "rag.evaluation.status" in span.attributes]
    assert [span.name for span in found] == ([scored] if scored else [])
    assert {span.attributes["rag.evaluation.label"] for span in found} <= {"pass"}
    assert not any("12 euros" in str(span) for span in backend.spans())


def test_metrics_tour_example(backend: OtlpReceiver) -> None:
    """The families of metrics are shown offline; what takes a model says so and gives no number."""
    printed = run(EXAMPLES[3], backend)
    assert not backend.spans()
    good, wrong, evasive = map(literal_eval, re.findall(r"^{.*}$", printed, flags=re.MULTILINE))
    assert good["faithfulness"] > wrong["faithfulness"]
    assert good["answer_correctness"] > wrong["answer_correctness"]
    assert evasive["faithfulness"] == "no_claims"
    for row in (good, wrong, evasive):
        assert row["mrr"] == 1
        assert row["context_recall"] > 0.95
        assert row["rubric"] == row["politeness"] == "unparsable"
    assert "take a judge that is a model" in printed

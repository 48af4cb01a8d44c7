"""The command line: what it prints, where it stops, and that a killed run can be taken up again."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from offline import asked_rows
from openai_server import ScriptedOpenAI
from processes import environment, ran
from rag_eval_otel import OpenAIJudge
from rag_eval_otel.tools.cli import main, registered
from rag_eval_otel.tools.read import source_of
from score_files import jsonl
from support import yes

MAIN = "import sys; from rag_eval_otel.tools.cli import main; sys.exit(main())"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "data.jsonl", asked_rows(40))


def test_a_file_without_rows_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A header alone is no error, but whoever sees a table of dashes learns why."""
    path = tmp_path / "header.csv"
    path.write_text("question,contexts,answer\n", encoding="utf-8")
    assert main(["evaluate", str(path)]) == 0
    assert "header.csv has no rows" in capsys.readouterr().err


def test_no_text_controls_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escape sequences of a judge's name, a column or a metric are not printed."""
    hostile = "\x1b[2J\x1b]0;owned\x07\u202e"
    rows = [{"question": "q", hostile: "a"}]
    data = jsonl(tmp_path / "data.jsonl", rows)
    assert main(["evaluate", str(data), "--metrics", "faithfulness"]) == 2
    command = import_module("rag_eval_otel.tools.dataset")
    monkeypatch.setattr(command, "print_result", lambda *_: print(f"judge {hostile}"))  # noqa: T201
    data = jsonl(tmp_path / "data.jsonl", asked_rows(1))
    assert main(["evaluate", str(data)]) == 0
    out, err = capsys.readouterr()
    assert "judge [2J]0;owned" in out
    assert not set("\x1b\x07\u202e") & set(out + err)


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "csv"])
def test_options_are_heard(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, columns, limit and output, with a summary as JSON."""
    monkeypatch.setenv("RAG_EVAL_JUDGE", "lexical")
    rows = [{"prompt": "q", "output": "a", "truth": "a"}] * 3
    data = jsonl(tmp_path / "data.jsonl", rows)
    output = tmp_path / f"scores.{suffix}"
    arguments = ["--metrics", "answer_exact_match", "--limit", "2", "--output", str(output)]
    columns = ["--columns", "question=prompt,answer=output,reference=truth"]
    assert main(["evaluate", str(data), *arguments, *columns, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["row_count"] == 2
    assert found["metrics"]["answer_exact_match"]["mean"] == 1.0
    written = [cells for _, cells in source_of(output).rows()]
    assert [int(row["row"]) for row in written] == [0, 1]
    assert [row["status"] for row in written] == ["scored", "scored"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.jsonl", output.name]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.jsonl"], "there is no such file"),
        (["DATA", "--metrics", "nothing"], "unknown metric 'nothing'"),
        (["DATA", "--metrics", "mrr"], "mrr needs relevant_ids"),
        (["DATA", "--judge", "gpt"], "openai/<model>"),
        (["DATA", "--output", "scores.xlsx"], "cannot write .xlsx"),
        (["DATA", "--output", "DATA"], "is the file that is read; name another"),
        (["DATA", "--output", "FOLDER"], "folder.csv is a folder; name a file"),
        (["DATA", "--concurrency", "0"], "concurrency"),
        (["DATA", "--columns", "question=prompt"], "has no column 'prompt'"),
    ],
)
def test_misuse(
    arguments: list[str], told: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and the way out on stderr."""
    places = {"DATA": data, "FOLDER": data.with_name("folder.csv")}
    places["FOLDER"].mkdir()
    assert main(["evaluate", *(str(places.get(a, a)) for a in arguments)]) == 2
    assert told in capsys.readouterr().err


def command(data: Path, server: ScriptedOpenAI, *arguments: str) -> list[str]:
    os.environ["OPENAI_BASE_URL"] = server.base_url
    return [
        *("evaluate", str(data), "--metrics", "context_agreement", "--judge", "openai/gpt-x"),
        *("--embedder", "hashing", *arguments),
    ]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.setenv("OPENAI_BASE_URL", "")  # restored after the test
    monkeypatch.setitem(OpenAIJudge.__init__.__kwdefaults__, "retries", 0)


@pytest.mark.slow
def test_rows_without_scores(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A judge that says nothing usable of some rows is status 1; they are asked for again."""
    prose = iter(["Looks fine.", "I can't.", ""] + ["Sorry, again."] * 3)
    output = tmp_path / "scores.jsonl"
    with ScriptedOpenAI(lambda body: next(prose, None) or yes(body)) as server:
        arguments = command(data, server, "--output", str(output), "--repairs", "0")
        assert main([*arguments, "--concurrency", "1"]) == 1
        told = capsys.readouterr()
        assert "40 rows, 0 with errors, 5 without a score; judge" in told.out
        assert "5 rows without a score: no metric can use what the judge says" in told.err
        assert "(unparsable)" in told.err
        statuses = [row["status"] for _, row in source_of(output).rows()]
        assert (statuses.count("unscored"), statuses.count("scored")) == (5, 35)
        asked = len(server.requests)
        assert main(arguments) == 0
        assert len(server.requests) == asked + 5
    assert not (tmp_path / "scores.jsonl.cache").exists()


class Stalling:
    """Answers some requests, then lets all others wait until it is told to go on."""

    def __init__(self, answers: int) -> None:
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self._left = answers
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> object:
        with self._lock:
            self._left -= 1
            waits = self._left < 0
        if waits:
            self.stalled.set()
            self.go_on.wait(60)
        return yes(body)


def ended_by(sign: signal.Signals, arguments: list[str], stalling: Stalling) -> tuple[int, str]:
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert stalling.stalled.wait(60)
        process.send_signal(sign)
        try:
            _, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()  # else it is waited for without end
            raise
        return process.returncode, err


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_done(data: Path, tmp_path: Path) -> None:
    """^C ends with status 130 and says how to go on; there is no half of an output."""
    output = tmp_path / "scores.csv"
    stalling = Stalling(answers=25)
    with ScriptedOpenAI(stalling) as server:
        arguments = command(data, server, "--concurrency", "4", "--output", str(output))
        status, err = ended_by(signal.SIGINT, arguments, stalling)
        stalling.go_on.set()
    assert status == 130
    assert "scores.csv.cache: run the same command again to continue" in err
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.jsonl", "scores.csv.cache"]


SPENT = ("tokens", "cost", "currency", "usage")


def without_cost(value: Any) -> Any:
    if isinstance(value, Path):
        return [without_cost(cells) for _, cells in source_of(value).rows()]
    if not isinstance(value, Mapping):
        return value
    kept = [name for name in value if name.rpartition(".")[2] not in SPENT]
    return {name: without_cost(value[name]) for name in kept}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_killed_run_is_taken_up_again(suffix: str, data: Path, tmp_path: Path) -> None:
    """After a kill -9 the same command asks for the rest, and writes the scores of a whole run."""
    output, whole = tmp_path / f"scores.{suffix}", tmp_path / f"whole.{suffix}"
    stalling = Stalling(answers=25)
    with ScriptedOpenAI(stalling) as server:
        arguments = command(data, server, "--concurrency", "4", "--output", str(output))
        assert ended_by(signal.SIGKILL, arguments, stalling)[0] == -signal.SIGKILL
        assert not output.exists()
        assert (tmp_path / f"scores.{suffix}.cache").exists()
        stalling.go_on.set()
        before = len(server.requests)
        assert main(arguments) == 0
        asked_again = len(server.requests) - before
    with ScriptedOpenAI(yes) as server:
        assert main(command(data, server, "--output", str(whole))) == 0
    assert without_cost(output) == without_cost(whole)
    assert asked_again <= 40 - 25 + 4  # those answered as the process died may not have been kept
    assert not list(tmp_path.glob("*.cache*")) + list(tmp_path.glob("*.part"))


def test_metrics_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each metric, with a mark at those of the default set; the same as JSON."""
    assert main(["metrics"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert main(["metrics", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len({metric["name"] for metric in found}) == len(found)
    for metric in found:
        mark = "* " if "default" in metric["sets"] else ""
        assert lines.count(f"{mark}{metric['name']} {metric['about']}") == 1
    (mrr,) = [metric for metric in found if metric["name"] == "mrr"]
    assert (mrr["needs"], mrr["range"]) == (["relevant_ids", "retrieved_ids"], "0 to 1")


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command() -> None:
    """A pipe that is closed, as by ``head``, and a full disk; both without a traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    for output, status, error in ((writer, 1, b""), ("/dev/full", 2, b"No space left on device\n")):
        command = [sys.executable, "-c", MAIN, "metrics"]
        with open(output, "wb") as file:  # noqa: PTH123  # also of a number
            done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, check=False)
        assert done.returncode == status
        assert done.stderr.endswith(error)
        assert len(done.stderr.splitlines()) == bool(error)


HELP = f"""
import sys
from rag_eval_otel.tools.cli import main
for name in {["", *registered()]}:
    try:
        main([*name.split(), "--help"])
    except SystemExit as end:
        print("END", end.code)
print(*sys.modules)
"""


def test_help_is_quick() -> None:
    """It imports neither the SDK nor a judge nor pandas, and says what the exit statuses mean."""
    overall, *of_commands, modules = ran(HELP).stdout.split("END 0")
    assert {*registered()} <= {*overall.split()}
    assert "Exit status: 0 " not in overall
    assert len(of_commands) == len(registered())
    assert all("Exit status: 0 " in text for text in of_commands)
    slow = {"opentelemetry.sdk", "numpy", "pydantic", "pandas", "openai", "rag_eval_otel.config"}
    assert not slow & {*modules.split()}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("reprot", "there is no command 'reprot'; did you mean report?"),
        ("xyzzy", "there is no command 'xyzzy'; commands: backfill, "),
        ("", "a command is missing; commands: backfill, "),
        ("report a --wrost 1", "unrecognized arguments: --wrost 1; did you mean --worst?"),
        ("evaluate a --outptu=b", "unrecognized arguments: --outptu=b; did you mean --output?"),
        ("metrics --xyzzy", "unrecognized arguments: --xyzzy\n"),
    ],
)
def test_a_name_that_is_near_is_suggested(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a command and for an option; the status is 2."""
    assert status_of(words.split()) == 2
    assert told in capsys.readouterr().err


def test_an_interrupt_has_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """^C in any command is a line and status 130."""

    def interrupted(options: Any) -> int:
        raise KeyboardInterrupt(options.texts)

    monkeypatch.setattr(import_module("rag_eval_otel.tools.report"), "run", interrupted)
    assert main(["report", "a.jsonl", "--texts", "on"]) == 130
    assert capsys.readouterr().err == "rag-eval-otel: interrupted; on\n"


ROW = {"question": "When?", "contexts": ["In 1879."], "answer": "In 1879.", "score": 0.5}


def status_of(command: list[str]) -> int:
    try:
        return main(command)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else -1


@pytest.fixture
def rows(tmp_path: Path) -> str:
    return str(jsonl(tmp_path / "rows.jsonl", [ROW]))


BUDGET = "must be a whole number, 0 or more"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("report --versions any", "need a second file"),
        ("report --json", "need a second file"),
        ("report --worst many", "must be a whole number from 0 to 1000"),
        ("report --metric nosuch", "--metric"),
        ("evaluate --judge lexical --max-requests=-1", f"--max-requests: {BUDGET}"),
        ("evaluate --judge lexical --max-tokens=1.5", f"--max-tokens: {BUDGET}"),
    ],
)
def test_unusable_options(
    command: str, told: str, rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option and what it takes."""
    name, *options = command.split()
    assert status_of([name, rows, *options]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('{"models": {"m": {"input": -1}}}', "'m' must have input, and may have output and"),
        ("[1", "must be JSON"),
        (None, "No such file"),
    ],
)
def test_wrong_prices_are_refused(
    rows: str, table: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file, shows the form of a table, and says what is wrong."""
    file = tmp_path / "prices.json"
    if table is not None:
        file.write_text(table, encoding="utf-8")
    assert status_of(["evaluate", rows, "--judge", "lexical", "--prices", str(file)]) == 2
    shown = capsys.readouterr().err
    assert str(file) in shown
    assert '{"models": {NAME: {"input": X, "output": Y}}}' in shown
    assert told in shown

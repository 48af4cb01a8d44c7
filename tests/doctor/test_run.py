"""`rag-eval-otel doctor -- COMMAND`: programs in processes of their own, and what is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from rag_eval_otel.cli import main
from rag_eval_otel.doctor.environment import NOTES_VARIABLE, with_bootstrap
from rag_eval_otel.testing import OtlpReceiver

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
MAIN = "import sys; from rag_eval_otel.cli import main; sys.exit(main())"

RAG = "from apps.parts import rag\n"
ASK = "rag().invoke('When was Borealis Kites founded?'"
PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider()
trace.set_tracer_provider(provider)
"""
SPANS = """
KIND, ASKED, SAID = "openinference.span.kind", "When was Borealis founded?", "Founded in 1987."
PAGE = "Borealis was founded in 1987."
def answer(tracer):
    chain = {KIND: "CHAIN", "input.value": ASKED, "output.value": SAID}
    search = {KIND: "RETRIEVER", "input.value": ASKED,
              "retrieval.documents.0.document.content": PAGE}
    call = {KIND: "LLM", "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": f"{PAGE} {ASKED}",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": SAID}
    with tracer.start_as_current_span("chain", attributes=chain):
        tracer.start_span("search", attributes=search).end()
        tracer.start_span("call", attributes=call).end()
"""

Run: TypeAlias = "Callable[..., Report]"


class Report(dict[str, Any]):
    """A report as JSON, and the doctor's exit status."""

    exit_status: int

    @property
    def levels(self) -> Mapping[str, str]:
        """The levels of the findings by their names."""
        return {one["id"]: one["level"] for one in self["findings"]}

    @property
    def seen(self) -> Mapping[str, str]:
        """What was seen by the findings' names."""
        return {one["id"]: one["seen"] for one in self["findings"]}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Where the programs export to."""
    with OtlpReceiver() as started:
        yield started


@pytest.fixture
def run(receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a program under the doctor."""
    for name in [name for name in os.environ if name.startswith(("OTEL_", "RAG_EVAL_", "PYTEST"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.http_endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))
    output = tmp_path / "report.json"

    def doctor(program: str, *arguments: str, command: str | None = None) -> Report:
        script = tmp_path / "app.py"
        script.write_text(program)
        start = [command or sys.executable] if command != "" else []
        options = ["--json", "--output", str(output), "--timeout", "5", "--"]
        status = main(["doctor", *options, *start, str(script), *arguments])
        report = Report(json.loads(output.read_text()))
        report.exit_status = status
        return report

    return doctor


def test_a_healthy_program(
    run: Run, receiver: OtlpReceiver, capfd: pytest.CaptureFixture[str]
) -> None:
    """A chain with our handler: scored and exported, no problem, its output as without us."""
    report = run(
        RAG
        + "import sys; from rag_eval_otel import RagEvalCallbackHandler\n"
        + f"print({ASK}, config={{'callbacks': [RagEvalCallbackHandler()]}}), *sys.argv[1:])\n"
        + "print('warned', file=sys.stderr)",
        "--json",
        "--",
    )
    assert capfd.readouterr() == (
        "It was founded in 1987. [History; Founder] --json --\n",
        "warned\n",
    )
    assert report.exit_status == 0
    assert set(report.levels) == {"judge-lexical"}
    assert report["program"]["turns"] == {"scored": 1}
    assert report["program"]["sources"] == {"callback": 1}
    assert report["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    statuses = [span.attributes.get("rag.evaluation.status") for span in receiver.spans()]
    assert sorted(statuses, key=str) == [None, None, "scored"]


def test_a_program_that_knows_nothing_of_us(run: Run) -> None:
    """Spans of another instrumentation are read and scored; it is said who attached."""
    exporter = (
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter\n"
        "provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))\n"
    )
    report = run(PROVIDER + exporter + SPANS + "answer(trace.get_tracer('openinference'))")
    assert report.exit_status == 0
    assert report.levels == {"attached-by-doctor": "info", "judge-lexical": "info"}
    assert report["program"]["turns"] == {"scored": 1}
    assert report["program"]["sources"] == {"openinference": 3}
    (exports,) = report["program"]["exports"]
    assert (exports["signal"], exports["failed"]) == ("traces", 0)


def test_nothing_happens(run: Run) -> None:
    """A program without a trace of RAG is told so, though all who were asked answer."""
    report = run("", command="")  # a bare script: run by our Python
    assert report.exit_status == 1
    assert report.levels == {"nothing-seen": "problem", "judge-lexical": "info"}
    assert [answer["verdict"] for answer in report["otlp"]] == ["ok"] * 3


def test_its_own_failure(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """A program that crashes has a report, too, and the doctor a status of its own for that."""
    report = run(PROVIDER + SPANS + "answer(trace.get_tracer('oi')); raise RuntimeError('mine')")
    assert report.exit_status == 3
    assert report.seen["program-failed"] == "exit status 1"
    assert report["program"]["turns"] == {"scored": 1}
    assert "RuntimeError: mine" in capfd.readouterr().err


def test_the_program_s_options_win(run: Run) -> None:
    """The doctor's pipeline makes way for the program's own, and tells of the callback it lacks."""
    report = run(
        RAG
        + PROVIDER
        + "trace.get_tracer('app').start_span('start-up').end()\n"
        + "from rag_eval_otel import HashingEmbedder, instrument\n"
        + "options = {'judge_api_key': 'in-code', 'embedder': HashingEmbedder()}\n"
        + "handle = instrument(hold_seconds=7, **options)\n"
        + "assert handle.config.hold_seconds == 7\n"
        + "instrument(hold_seconds=8)\n"
        + f"{ASK}); handle.shutdown()"
    )
    assert report.exit_status == 0
    assert report["program"]["turns"] == {"scored": 1}
    warnings = {name for name, level in report.levels.items() if level == "warning"}
    assert warnings == {"callback-missing", "options-ignored"}
    (process,) = report["program"]["processes"]
    assert [(one["by"], one["judge_key"], one["embedder"]) for one in process["pipelines"]] == [
        ("doctor", "none", "hashing"),
        ("program", "code", "an object, HashingEmbedder"),
    ]
    assert "in-code" not in json.dumps(report)


def test_children_are_watched(run: Run) -> None:
    """Forked, spawned and executed processes are counted, each for itself."""
    report = run(
        PROVIDER
        + SPANS
        + "import multiprocessing, os, sys\n"
        + "from rag_eval_otel.live.processor import find_seat\n"
        + "def work():\n"
        + "    answer(trace.get_tracer('openinference'))\n"
        + "    find_seat(provider).owner.flush(60)\n"
        + "if __name__ == '__main__':\n"
        + "    work()\n"
        + "    for how in ('fork', 'spawn'):\n"
        + "        child = multiprocessing.get_context(how).Process(target=work)\n"
        + "        child.start(); child.join()\n"
        + "    os.execl(sys.executable, sys.executable, '-c', 'import sys; sys.exit(3)')\n"
    )
    assert report["program"]["status"] == 3
    assert report["program"]["turns"] == {"scored": 3}
    ended = [one["ended"] for one in report["program"]["processes"] if one["program"] != "-c"]
    assert sorted(ended) == ["exec", "exit", "os._exit"]


@pytest.mark.parametrize(
    ("setup", "cause"),
    [
        ("from opentelemetry.sdk.trace.sampling import ALWAYS_OFF as s\n", "sampler-off"),
        ("s = None\n", "provider-unwatched"),
        ("from opentelemetry import trace as p\n", "provider-unset"),
    ],
)
def test_spans_that_nobody_sees(run: Run, setup: str, cause: str) -> None:
    """No provider, one that nobody knows of, or a sampler that drops all: the one problem named."""
    made = setup
    if cause != "provider-unset":
        made += "from opentelemetry.sdk.trace import TracerProvider as T; p = T(sampler=s)\n"
    if cause == "sampler-off":
        made += "from opentelemetry import trace; trace.set_tracer_provider(p)\n"
    report = run(made + SPANS + "answer(p.get_tracer('openinference'))")
    assert report.exit_status == 1
    assert [name for name, level in report.levels.items() if level == "problem"] == [cause]


def test_a_provider_that_is_set_too_late(run: Run) -> None:
    """instrument() before the provider: the provider is refused, and that is said."""
    report = run(
        "from rag_eval_otel import instrument; instrument()\n"
        + PROVIDER
        + SPANS
        + "answer(provider.get_tracer('openinference'))"
    )
    assert report.levels["provider-late"] == "problem"
    assert report.levels["provider-unwatched"] == "problem"


def test_bad_options(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that cannot be used is named, by what attached and by what would have asked."""
    monkeypatch.setenv("RAG_EVAL_HOLD_SECONDS", "soon")
    attempt = (
        "from rag_eval_otel import instrument\n"
        "try: instrument(judge='of fashion')\n"
        "except ValueError: pass\n"
    )
    report = run(PROVIDER + attempt + SPANS + "answer(trace.get_tracer('openinference'))")
    assert report.levels["attach-failed"] == report.levels["config-invalid"] == "problem"
    told = [one["seen"] for one in report["findings"] if one["id"] == "attach-failed"]
    assert all("RAG_EVAL_HOLD_SECONDS" in one for one in told)
    (process,) = report["program"]["processes"]
    assert len(process["failures"]) == 2  # the program's own attempt, and the doctor's


def test_a_python_without_this_library(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named with its error; the program runs as ever, its own ``sitecustomize`` too."""
    (tmp_path / "rag_eval_otel.py").write_text("raise ImportError('too old')")
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = run("print('done')")
    assert capfd.readouterr() == ("customized\ndone\n", "")
    assert report.levels["not-installed-there"] == "problem"
    assert report.seen["not-installed-there"] == f"{sys.executable}: ImportError: too old"


def test_a_python_that_outlives_the_doctor(tmp_path: Path) -> None:
    """With nowhere to leave a note it runs as ever, and so does its own ``sitecustomize``."""
    (tmp_path / "rag_eval_otel.py").write_text("raise ImportError('too old')")
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    environ = {
        **os.environ,
        NOTES_VARIABLE: str(tmp_path / "gone"),
        "PYTHONPATH": with_bootstrap(str(tmp_path)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", "print('done')"], env=environ, capture_output=True, check=True
    )
    assert (ran.stdout.split(), ran.stderr) == ([b"customized", b"done"], b"")


def test_calls_by_the_names_of_arguments(run: Run) -> None:
    """What is looked on at takes its arguments by position or by name, as it does without us."""
    report = run(
        "import os, sys\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "trace.get_tracer_provider().get_tracer(instrumenting_module_name='mine')\n"
        "trace.set_tracer_provider(tracer_provider=TracerProvider())\n"
        "last = [sys.executable, '-c', 'import os; os._exit(status=3)']\n"
        "os.execve(path=last[0], argv=last, env=dict(os.environ))\n"
    )
    assert report["program"]["status"] == 3
    ended = [one["ended"] for one in report["program"]["processes"]]
    assert sorted(ended) == ["exec", "os._exit"]


def test_exports_that_fail(run: Run, receiver: OtlpReceiver) -> None:
    """An exporter whose path is wrong: the failed exports, and why they did."""
    exporter = (
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter\n"
        f"there = OTLPSpanExporter('{receiver.http_endpoint}/nowhere')\n"
        "provider.add_span_processor(SimpleSpanProcessor(there))\n"
    )
    report = run(PROVIDER + exporter + SPANS + "answer(trace.get_tracer('openinference'))")
    problems = [name for name, level in report.levels.items() if level == "problem"]
    assert sorted(problems) == ["export-failing", "otlp-path"]
    assert "/nowhere" in report.seen["otlp-path"]


def test_a_killed_program(run: Run) -> None:
    """What is known of a process that is killed is what it had noted."""
    report = run(PROVIDER + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert report.exit_status == 3
    assert report.seen["program-failed"] == "ended by SIGKILL"


WAITS = "import signal; print('ready', flush=True); signal.pause()"


def doctor_of(script: Path, prelude: str = "", **popen: Any) -> subprocess.Popen[bytes]:
    """Start a doctor in a process of its own, on a program that waits to be ended."""
    script.write_text(WAITS)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTEST"))}
    doctor = subprocess.Popen(
        [sys.executable, "-c", prelude + MAIN, "doctor", "--", sys.executable, str(script)],
        env={**kept, "PYTHONPATH": str(TESTS.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **popen,
    )
    assert doctor.stdout is not None
    assert doctor.stdout.readline() == b"ready\n"
    return doctor


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both_with_a_report(tmp_path: Path, number: signal.Signals) -> None:
    """A signal to the doctor ends the program, which is no failure; the report is on stderr."""
    with doctor_of(tmp_path / "app.py") as doctor:
        doctor.send_signal(number)
        out, err = doctor.communicate(timeout=60)
    assert (doctor.returncode, out) == (1, b"")
    assert f"ended by {number.name}".encode() in err
    assert b"PROBLEM nothing-seen" in err


def test_an_interrupt_by_a_terminal(tmp_path: Path) -> None:
    """^C on a terminal reaches the program by itself, and is not handed on a second time."""
    ours, theirs = os.openpty()
    on_terminal = (
        "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from rag_eval_otel.doctor.launch import is_from_terminal; assert is_from_terminal()\n"
    )
    options = {"stdin": theirs, "start_new_session": True}
    with doctor_of(tmp_path / "app.py", prelude=on_terminal, **options) as doctor:
        os.write(ours, b"\x03")
        _, err = doctor.communicate(timeout=60)
    for end in (ours, theirs):
        os.close(end)
    assert doctor.returncode == 1
    assert b"ended by SIGINT" in err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["--"], "no command after --"),
        (["--", "no-such-command"], "no command 'no-such-command'"),
        (["--output", "/no/such/folder/report", "--", "python"], "--output"),
        (["--", "BROKEN"], "cannot be started"),
    ],
)
def test_misuse(
    command: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that cannot be run is refused with a way out, before anything is done."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    assert main(["doctor", *(str(broken) if one == "BROKEN" else one for one in command)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_time_limit_has_to_be_one(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who is asked gets some time, and not for ever."""
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", f"--timeout={seconds}"])
    assert "--timeout" in capsys.readouterr().err

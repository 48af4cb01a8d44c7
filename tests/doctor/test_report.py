"""`rag-eval-otel doctor -- COMMAND`: real programs, and the report on each."""

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
from rag_eval_otel.testing import OtlpReceiver

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
MAIN = "import sys; from rag_eval_otel.cli import main; sys.exit(main())"

RAG = "from apps.parts import rag\n"
ASK = "rag().invoke('When was Borealis Kites founded?'"
PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
"""
ATTACHED = PROVIDER + "from rag_eval_otel import instrument; handle = instrument()\n"
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
        """The evidence of the findings by their names."""
        return {one["id"]: one["seen"] for one in self["findings"]}


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """Yield the receiver of the programs' exports."""
    with OtlpReceiver() as started:
        yield started


@pytest.fixture
def run(receiver: OtlpReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a program under the doctor and returns the report."""
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
    """A chain with our handler is scored and exported; the program's output is unchanged."""
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
    assert statuses.count("scored") == 1


def test_spans_of_another_instrumentation(run: Run, receiver: OtlpReceiver) -> None:
    """Spans of another instrumentation are read, scored and exported without a problem."""
    report = run(ATTACHED + SPANS + "answer(trace.get_tracer('openinference'))")
    assert report.exit_status == 0
    assert report.levels == {"judge-lexical": "info"}
    assert report["program"]["turns"] == {"scored": 1}
    assert report["program"]["sources"] == {"openinference": 3}
    assert report["program"]["spans"] == {"openinference": 3}
    assert len(receiver.spans()) == 3


def test_the_callback_beside_an_instrumentation(run: Run, receiver: OtlpReceiver) -> None:
    """A turn that both record is counted once; the second record is a finding."""
    report = run(
        RAG
        + ATTACHED
        + "kind, asked = 'openinference.span.kind', 'When was Borealis Kites founded?'\n"
        + "with trace.get_tracer('openinference').start_as_current_span('chain') as span:\n"
        + "    chain = rag()\n"
        + "    said = chain.invoke(asked, config={'callbacks': [handle.callback]})\n"
        + "    span.set_attributes({kind: 'CHAIN', 'input.value': asked, 'output.value': said})\n"
        + "    from apps import company\n"
        + "    page = company.documents()[0].page_content\n"
        + "    trace.get_tracer('openinference').start_span('search', attributes={\n"
        + "        kind: 'RETRIEVER', 'input.value': asked,\n"
        + "        'retrieval.documents.0.document.content': page}).end()\n"
        + "    trace.get_tracer('openinference').start_span('call', attributes={\n"
        + "        kind: 'LLM', 'llm.input_messages.0.message.role': 'user',\n"
        + "        'llm.input_messages.0.message.content': page + asked,\n"
        + "        'llm.output_messages.0.message.role': 'assistant',\n"
        + "        'llm.output_messages.0.message.content': said}).end()\n"
    )
    assert report["program"]["turns"] == {"scored": 1}
    assert report["program"]["repeated"] == 1
    assert report.levels == {"turns-duplicate": "info", "judge-lexical": "info"}


def test_nothing_is_added_to_an_instrumented_program(run: Run, receiver: OtlpReceiver) -> None:
    """The doctor adds no callback and no span to LangChain runs."""
    report = run(
        RAG + ATTACHED + SPANS + f"{ASK})\n" + "answer(trace.get_tracer('openinference'))\n"
    )
    assert report["program"]["turns"] == {"scored": 1}
    assert {span.scope for span in receiver.spans()} == {"openinference"}
    assert report.levels == {"judge-lexical": "info"}


def test_nothing_is_attached(run: Run) -> None:
    """A program without a pipeline is ``nothing-attached``, though all endpoints answer."""
    report = run("", command="")  # a bare script: run by our Python
    assert report.exit_status == 1
    assert report.levels == {"nothing-attached": "problem", "judge-lexical": "info"}
    assert [answer["verdict"] for answer in report["otlp"]] == ["ok"] * 3


def test_langchain_without_its_callback(run: Run) -> None:
    """instrument() without its callback records no LangChain run: ``callback-missing``."""
    report = run(RAG + ATTACHED + f"{ASK})")
    assert report.exit_status == 1
    assert report.levels == {"callback-missing": "problem", "judge-lexical": "info"}


def test_a_program_that_crashes(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """A program that crashes has a report; the doctor's exit status is 3."""
    report = run(ATTACHED + SPANS + "answer(trace.get_tracer('oi')); raise RuntimeError('mine')")
    assert report.exit_status == 3
    assert report.seen["program-failed"] == "exit status 1"
    assert report["program"]["turns"] == {"scored": 1}
    assert "RuntimeError: mine" in capfd.readouterr().err


def test_the_options_in_force(run: Run) -> None:
    """Ignored options of a second call are a finding; keys in the code are not in the report."""
    report = run(
        RAG
        + PROVIDER
        + "from rag_eval_otel import HashingEmbedder, instrument\n"
        + "options = {'judge_api_key': 'in-code', 'embedder': HashingEmbedder()}\n"
        + "handle = instrument(hold_seconds=7, **options)\n"
        + "instrument(hold_seconds=8)\n"
        + f"{ASK}, config={{'callbacks': [handle.callback]}}); handle.shutdown()"
    )
    assert report.exit_status == 0
    assert report["program"]["turns"] == {"scored": 1}
    assert report.levels == {"options-ignored": "warning", "judge-lexical": "info"}
    (one,) = report["program"]["pipelines"]
    assert (one["judge_key"], one["embedder"]) == ("code", "an object, HashingEmbedder")
    assert "in-code" not in json.dumps(report)


def test_processes_report_for_themselves(run: Run) -> None:
    """Forked and spawned processes report on themselves, even if they end by os._exit."""
    report = run(
        ATTACHED
        + SPANS
        + "import multiprocessing\n"
        + "def work():\n"
        + "    answer(trace.get_tracer('openinference'))\n"
        + "    handle.flush()\n"
        + "if __name__ == '__main__':\n"
        + "    for how in ('fork', 'spawn'):\n"
        + "        child = multiprocessing.get_context(how).Process(target=work)\n"
        + "        child.start(); child.join()\n"
        + "    work()\n"
    )
    assert report["program"]["turns"] == {"scored": 3}
    assert len({one["pid"] for one in report["program"]["pipelines"]}) == 3


def test_a_sampler_that_drops_all(run: Run) -> None:
    """If the sampler drops all spans, it is the only problem in the report."""
    report = run(
        "import os; os.environ['OTEL_TRACES_SAMPLER'] = 'always_off'\n"
        + ATTACHED
        + SPANS
        + "answer(trace.get_tracer('openinference'))"
    )
    assert [name for name, level in report.levels.items() if level == "problem"] == ["sampler-off"]


def test_a_provider_that_is_set_too_late(run: Run) -> None:
    """A provider that is set after instrument() is refused: ``provider-late``."""
    report = run(
        "from rag_eval_otel import instrument; instrument()\n"
        + PROVIDER
        + SPANS
        + "answer(provider.get_tracer('openinference'))"
    )
    problems = [name for name, level in report.levels.items() if level == "problem"]
    assert problems == ["provider-late"]


def test_texts_recorded_without_a_span(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """A record_*() call without a span is a finding; its warning is printed once, as usual."""
    report = run(
        ATTACHED
        + SPANS
        + "from rag_eval_otel import record_answer\n"
        + "record_answer('Founded in 1987.')\n"
        + "answer(trace.get_tracer('openinference'))"
    )
    assert report.levels["record-lost"] == "warning"
    assert capfd.readouterr().err.count("record_answer() has no effect") == 1


def test_bad_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An invalid variable is a problem, and explains that nothing is attached."""
    monkeypatch.setenv("RAG_EVAL_HOLD_SECONDS", "soon")
    report = run(ATTACHED)
    assert report.exit_status == 3
    problems = [name for name, level in report.levels.items() if level == "problem"]
    assert sorted(problems) == ["config-invalid", "program-failed"]
    assert "RAG_EVAL_HOLD_SECONDS" in capfd.readouterr().err


def test_exports_that_fail(run: Run, receiver: OtlpReceiver) -> None:
    """An exporter that fails when the provider shuts down is in the report."""
    report = run(
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import BatchSpanProcessor\n"
        "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter\n"
        "provider = TracerProvider()\n"
        f"there = OTLPSpanExporter('{receiver.http_endpoint}/nowhere')\n"
        "provider.add_span_processor(BatchSpanProcessor(there))\n"
        "from rag_eval_otel import instrument; instrument(tracer_provider=provider)\n"
        + SPANS
        + "answer(provider.get_tracer('openinference'))"
    )
    assert report["program"]["turns"] == {"scored": 1}
    problems = [name for name, level in report.levels.items() if level == "problem"]
    assert problems == ["export-failing"]
    assert "404" in report.seen["export-failing"]


def test_a_killed_program(run: Run) -> None:
    """The report on a killed process has the note of its start."""
    report = run(ATTACHED + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert report.exit_status == 3
    assert report.seen["program-failed"] == "ended by SIGKILL"
    assert [one["ended"] for one in report["program"]["pipelines"]] == [False]


def test_a_program_that_leaves_by_os_exit(run: Run) -> None:
    """Without Python's exit handlers the report has the state of the last flush."""
    report = run(
        ATTACHED
        + SPANS
        + "answer(trace.get_tracer('openinference')); handle.flush()\n"
        + "answer(trace.get_tracer('openinference')); import os; os._exit(0)"
    )
    assert report["program"]["turns"] == {"scored": 1}
    assert report.levels["killed"] in {"info", "warning"}


def test_a_program_that_deletes_the_folder(run: Run) -> None:
    """Notes that cannot be written do not disturb the program."""
    report = run(ATTACHED + "import os, shutil; shutil.rmtree(os.environ['RAG_EVAL_DOCTOR'])")
    assert report["program"]["status"] == 0
    assert report.levels["nothing-attached"] == "problem"


def test_a_line_without_the_doctor(tmp_path: Path) -> None:
    """``RAG_EVAL_DOCTOR=1`` prints one line on the turns when the process ends."""
    script = tmp_path / "app.py"
    script.write_text(ATTACHED + SPANS + "answer(trace.get_tracer('openinference'))")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={
            **kept,
            "PYTHONPATH": str(TESTS.parent),
            "OTEL_METRICS_EXPORTER": "none",
            "RAG_EVAL_DOCTOR": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("rag-eval-otel, app.py")]
    assert "read: openinference 3; turns: scored 1." in line


WAITS = "import signal; print('ready', flush=True); signal.pause()"


def doctor_of(script: Path, prelude: str = "", **popen: Any) -> subprocess.Popen[bytes]:
    """Start a doctor process with a program that waits for a signal."""
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
    """A signal to the doctor ends the program; the report follows on stderr."""
    with doctor_of(tmp_path / "app.py") as doctor:
        doctor.send_signal(number)
        out, err = doctor.communicate(timeout=60)
    assert (doctor.returncode, out) == (1, b"")
    assert f"ended by {number.name}".encode() in err
    assert b"PROBLEM nothing-attached" in err


def test_an_interrupt_by_a_terminal(tmp_path: Path) -> None:
    """The doctor does not pass on a ^C that the terminal has sent to the program."""
    ours, theirs = os.openpty()
    on_terminal = (
        "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from rag_eval_otel.doctor.report import is_from_terminal; assert is_from_terminal()\n"
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
    """A command that cannot be run is refused before anything is done."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    assert main(["doctor", *(str(broken) if one == "BROKEN" else one for one in command)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_time_limit_has_to_be_one(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A time limit must be positive and finite."""
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", f"--timeout={seconds}"])
    assert "--timeout" in capsys.readouterr().err

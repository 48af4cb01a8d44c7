"""The wheel and the source distribution: complete, and able to run where the tree is not."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from live import attached
from otlp_receiver import OtlpReceiver
from score_files import exported, jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
COMMANDS = (
    "rag-eval-otel demo",
    "rag-eval-otel doctor",
    "rag-eval-otel metrics",
    "rag-eval-otel evaluate examples/answers.jsonl --metrics online --output scores.csv",
    "rag-eval-otel evaluate examples/answers.jsonl --fail-under faithfulness=0.6",
    "rag-eval-otel calibrate --built-in --bound 0.5",
    "rag-eval-otel calibrate examples/labels.jsonl",
    "rag-eval-otel report scores.csv -o scores.html",
    "rag-eval-otel report scores.csv scores.csv",
    "rag-eval-otel rules --slo .95 --every 100000",
    "rag-eval-otel collect traces.json -o samples.jsonl",
    "opentelemetry-instrument python app.py",
)
EXTRAS = "auto,tools"  # of these commands


def run(
    *command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def environment(folder: Path) -> Path:
    assert run(sys.executable, "-m", "venv", "--without-pip", folder).returncode == 0
    return folder / "bin" / "python"


def installed(python: Path, *packages: str) -> str:
    """Install ``packages`` for ``python``, and return what went wrong.

    uv comes with nox and takes a tenth of pip's time. It does not read the settings of pip, so pip
    may reach packages where uv does not.
    """
    ours = (sys.executable, "-m")
    done = run(*ours, "uv", "pip", "install", "--python", python, *packages)
    if done.returncode:
        done = run(*ours, "pip", "--python", python, "install", "--quiet", *packages)
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the wheel and the source distribution, which a release uploads."""
    folder = tmp_path_factory.mktemp("built")
    python = environment(folder / "tools")
    if told := installed(python, "hatchling", "hatch-fancy-pypi-readme"):
        pytest.skip(f"no package can be installed here: {told}")
    done = run(python, "-m", "hatchling", "build", "-d", folder / "dist")
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = folder.glob("dist/*.whl"), folder.glob("dist/*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def python(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = environment(tmp_path_factory.mktemp("environment"))
    told = installed(made, f"rag-eval-otel[{EXTRAS}] @ {built[0].as_uri()}")
    assert not told, told
    return made


def test_every_tracked_file_is_in_what_is_built(built: tuple[Path, Path]) -> None:
    """The source distribution has all files, and the wheel all of the package."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no checkout, or git is not installed")
    done = run("git", "ls-files", "--cached", "--others", "--exclude-standard")
    assert done.returncode == 0, done.stderr
    tracked = {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert names ^ tracked == {"PKG-INFO"}
    with zipfile.ZipFile(built[0]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    of_look = {name for name in held if name.startswith("rag_eval_otel/tools/collector/")}
    assert held - of_look == {name for name in tracked if name.startswith("rag_eval_otel/")}
    assert {name.removeprefix("rag_eval_otel/tools/") for name in of_look} < tracked
    assert "rag_eval_otel/tools/collector/build.sh" in of_look


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (tmp_path / "app.py").write_text(re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)[0])
    with attached() as app:
        app.turn()
    jsonl(tmp_path / "traces.json", exported(app)[:1])
    return tmp_path


@pytest.fixture
def settings(python: Path, place: Path) -> Iterator[Mapping[str, str]]:
    with OtlpReceiver() as receiver:
        yield {
            "HOME": str(place),
            "PATH": f"{python.parent}:{os.defpath}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }


def test_the_commands_of_the_pages_run(place: Path, settings: Mapping[str, str]) -> None:
    """Each one runs from the wheel, one after the other."""
    for command in COMMANDS:
        name, *words = command.split()
        program = shutil.which(name, path=settings["PATH"])
        assert program
        done = run(program, *words, cwd=place, env=settings)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert "</html>" in (place / "scores.html").read_text(encoding="utf-8")
    assert (place / "samples.jsonl").read_text(encoding="utf-8").count("\n") == 1

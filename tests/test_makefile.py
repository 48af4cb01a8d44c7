"""The Makefile tells what it does while it takes long."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = "#!/bin/sh\\necho Collecting numpy\\necho Installing collected\\nexit ${PIP_STATUS:-0}\\n"
PYTHON = f"""#!/bin/sh
# Makes the virtual environment that `python -m venv --clear FOLDER` makes, with programs that do
# nothing.
[ "$2" = venv ] || exit 0
mkdir -p "$4/bin"
printf '{PIP}' > "$4/bin/python"
printf '#!/bin/sh\necho the demo\n' > "$4/bin/rag-eval-otel"
chmod +x "$4/bin/"*
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def demo(folder: Path, *, pip_status: int = 0) -> subprocess.CompletedProcess[str]:
    own = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the `make test` around this test
    without_make = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [str(shutil.which("make")), "demo", f"PYTHON={folder / 'python'}", "VENV=venv"],
        cwd=folder,
        env={**without_make, "PIP_STATUS": str(pip_status)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_says_what_is_installed(folder: Path) -> None:
    """`make demo` prints that it installs packages, how long, and their names; and only once."""
    first, second = demo(folder).stdout, demo(folder).stdout
    assert "Installing packages into venv, once: this takes one or two minutes" in first
    assert first.index("Installing packages") < first.index("    numpy\nUnpacking them.\n")
    assert first.endswith("the demo\n")
    assert second == "the demo\n"


def test_demo_ends_if_pip_fails(folder: Path) -> None:
    """The demo is not started, and the next `make demo` installs again."""
    demo(folder)
    (folder / "venv" / ".core").unlink()
    failed = demo(folder, pip_status=1)
    assert failed.returncode != 0
    assert "the demo" not in failed.stdout
    assert "Installing packages" in demo(folder).stdout

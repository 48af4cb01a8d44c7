"""The Makefile tells what it does while it takes long."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = "#!/bin/sh\necho pip >> pip.log\n"
PYTHON = f"""#!/bin/sh
# Makes the virtual environment that `python -m venv --clear FOLDER` makes, with programs that do
# nothing.
[ "$2" = venv ] || exit 0
mkdir -p "$4/bin"
printf '{PIP}' > "$4/bin/python"
printf '#!/bin/sh\necho the demo\n' > "$4/bin/rag-eval-otel"
chmod +x "$4/bin/"*
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_demo_says_that_packages_are_installed(tmp_path: Path) -> None:
    """`make demo` prints that it installs packages, how long, and where only once."""
    make, python = str(shutil.which("make")), tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    own = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the `make test` around this test
    without_make = {name: value for name, value in os.environ.items() if name not in own}
    told = [
        subprocess.run(
            [make, "demo", f"PYTHON={python}", "VENV=venv"],
            cwd=tmp_path,
            env=without_make,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert "Installing packages into venv, once: this takes one or two minutes" in told[0]
    assert told[0].index("Installing packages") < told[0].index("the demo")
    assert told[1] == "the demo\n"

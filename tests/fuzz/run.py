"""Fuzz one target with atheris, which follows the coverage of the code.

    pip install atheris
    PYTHONPATH=tests python tests/fuzz/run.py judge_reply -max_total_time=600

The other arguments go to libFuzzer. An input that fails is written to the current folder.
"""

import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]  # only wanted here

with atheris.instrument_imports(include=["rag_eval_otel"]):
    from fuzz.targets import SEEDS, TARGETS


def main() -> None:
    """Run the target that the first argument names, until the time is over or it fails."""
    name = sys.argv.pop(1)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(SEEDS.get(name, ())):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()

"""CPU time of importing this package, beside that of the SDK and a LangChain run.

Each program runs in a new interpreter; the programs alternate. The times are medians of the CPU
time from before the first import to after the last.

``python benchmarks/import_time.py [repetitions]``
"""

from __future__ import annotations

import subprocess
import sys

from _common import median, setting

REPETITIONS = 21
SDK = "import opentelemetry.sdk.trace"
CHAIN = """import opentelemetry.sdk.trace
from langchain_core.runnables import RunnableLambda
RunnableLambda(str).invoke(1)"""
HANDLER = "from rag_eval_otel import RagEvalCallbackHandler; RagEvalCallbackHandler()"
PROGRAMS = {
    "opentelemetry.sdk.trace": SDK,
    "rag_eval_otel": "import rag_eval_otel",
    "SDK and a first chain": CHAIN,
    "the same and the first handler": f"{CHAIN}\n{HANDLER}",
}
HEAVY = (
    *("aiohttp", "grpc", "httpx", "httpx2", "langchain_core", "langsmith", "numpy", "openai"),
    *("opentelemetry.sdk", "pydantic", "requests"),
)
TIMED = """
import sys, time
start = time.process_time()
{program}
spent = time.process_time() - start
print(spent, *[name for name in {heavy} if name in sys.modules])
"""


def run(program: str) -> tuple[float, list[str]]:
    """Run ``program``; return its CPU time in milliseconds and the heavy modules it imported."""
    code = TIMED.format(program=program, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    spent, *heavy = done.stdout.split()
    return float(spent) * 1000, heavy


def main() -> None:
    """Print the median time of each program, and its heavy modules."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    for program in PROGRAMS.values():
        run(program)
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    heavy: dict[str, list[str]] = {}
    for _ in range(repetitions):
        for name, program in PROGRAMS.items():
            spent, heavy[name] = run(program)
            times[name].append(spent)
    print(setting("opentelemetry-sdk", "langchain-core", "openai", "rag-eval-otel"))
    print(f"{'import of':32}{'ms':>7}{'ratio':>7}  heavy modules")
    first = median(times["opentelemetry.sdk.trace"])
    for name, found in times.items():
        spent = median(found)
        print(f"{name:32}{spent:7.0f}{spent / first:7.2f}  {', '.join(heavy[name])}")


if __name__ == "__main__":
    main()

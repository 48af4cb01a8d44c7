"""Wall time, CPU time and requests of scoring 200 turns at 64 requests at once, beside Haystack.

The judge takes 200 ms for a reply and the embedder 20 ms. The *ideal* time of a library is the sum
of the latencies of its own requests, divided by the requests at once. CPU is the client's process.
Each contestant runs in a separate process; imports and a first turn are not timed. Further runs
have a judge that fails 5 % of its requests, and a judge that refuses requests above 60 a second.

A contestant may have an environment of its own: haystack-ai needs an older openai.

``python benchmarks/throughput.py [rounds] [Haystack=/path/to/its/python]``
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, TypeAlias

from _common import median, setting
from _contestants import Run, haystack, live, llamaindex, ours
from _judge import Fault, Judge
from _turns import COUNT, turns

AT_ONCE = 64
PYTHONS: dict[str, str] = {}  # by contestant
ROUNDS = 3
FAULTS: tuple[Fault, ...] = ("500", "429")
WITH_FAULTS = ("ours", "ours, live", "Haystack")
CONTESTANTS: Mapping[str, tuple[str, Callable[[str, int], Run]]] = {
    "ours": ("rag_eval_otel", ours),
    "ours, live": ("rag_eval_otel", live),
    "Haystack": ("haystack", haystack),
    "LlamaIndex": ("llama_index", llamaindex),
}

Figures: TypeAlias = "dict[str, float]"


def contend(name: str, url: str, at_once: int) -> None:
    """Run one contestant, with a turn beforehand, and print its figures as JSON."""
    run, rows = CONTESTANTS[name][1](url, at_once), turns()
    run([{**rows[0], "question": "Is this the first turn?"}])
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, began = time.process_time(), time.perf_counter()
    missing = run(rows)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"wall": wall, "cpu": cpu * 1e3 / COUNT, "missing": missing, "rss": peak}))


async def measured(name: str, *, at_once: int, fault: Fault = "none") -> Figures:
    """Return the figures of one run of the contestant ``name``."""
    judge = Judge(slots=at_once)
    url = await judge.start()
    command = (PYTHONS.get(name, sys.executable), __file__, "--contend", name, url, str(at_once))
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert child.stdout is not None
    while (line := await child.stdout.readline()) and line != b"ready\n":
        pass
    judge.clear()
    judge.fault = fault
    out, _ = await child.communicate(b"go\n")
    judge.stop()
    if child.returncode:
        sys.exit(f"{name} failed")
    found: Figures = json.loads(out.splitlines()[-1])
    prompt, written = judge.tokens
    sent = judge.latency * len(judge.chats) + judge.embed_latency * judge.embeddings
    counts = {
        "requests": len(judge.chats),
        "embeddings": judge.embeddings,
        "prompt": prompt,
        "reply": written,
        "refused": judge.refused + judge.failed,
    }
    ideal = sent / at_once
    return {**found, **{k: v / COUNT for k, v in counts.items()}, "ideal": found["wall"] / ideal}


def medians(rounds: list[Figures]) -> Figures:
    return {key: median([one[key] for one in rounds]) for key in rounds[0]}


async def compared(names: list[str], rounds: int, **options: Any) -> dict[str, Figures]:
    """Measure the contestants alternately; return the medians, with ratios to Haystack."""
    runs = [{name: await measured(name, **options) for name in names} for _ in range(rounds)]
    found = {name: medians([one[name] for one in runs]) for name in names}
    for key in ("wall", "cpu") if "Haystack" in names else ():
        for figures in runs:
            for name in names:
                figures[name][f"{key} / H"] = figures[name][key] / figures["Haystack"][key]
        for name in names:
            found[name][f"{key} / H"] = median([one[name][f"{key} / H"] for one in runs])
    if {"ours", "ours, live"} <= set(names):
        walls = [one["ours, live"]["wall"] / one["ours"]["wall"] for one in runs]
        found["ours, live"]["live / batch"] = median(walls)
    return found


def shown(title: str, found: Mapping[str, Figures]) -> None:
    print(f"\n{title}; load {os.getloadavg()[0]:.1f}")
    for name, one in found.items():
        print(f"  {name:12}", ", ".join(f"{k} {v:.4g}" for k, v in one.items()))


async def main(rounds: int) -> None:
    """Measure the contestants that are installed, and print the figures."""
    print(setting("rag-eval-otel", "haystack-ai", "llama-index-core", "openai", "aiohttp"))
    names = [name for name, (package, _) in CONTESTANTS.items() if find_spec(package)]
    names += PYTHONS.keys() - {*names}
    for at_once in (AT_ONCE, AT_ONCE // 4):
        found = await compared(names, rounds, at_once=at_once)
        shown(f"{at_once} requests at once, medians of {rounds} rounds", found)
    names = [name for name in names if name in WITH_FAULTS]
    for fault in FAULTS:
        found = await compared(names, 1, at_once=AT_ONCE // 2, fault=fault)
        shown(f"{AT_ONCE // 2} requests at once, with status {fault}", found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contend"]:
        contend(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        PYTHONS |= dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
        asyncio.run(main(int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else ROUNDS))

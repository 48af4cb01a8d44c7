"""Time, requests and tokens of scoring 200 turns: ours, LlamaIndex and Haystack.

Each scores answer relevancy, context relevance and faithfulness with one scripted judge. The judge
takes 150 ms and 4 ms for each reply token, and answers at most 16 requests at once. Each contestant
runs in a separate process; imports are not timed. Haystack has no concurrency, so it runs on 16
threads. Peers that are not installed are skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from _common import median, setting
from _contestants import Run, haystack, llamaindex, ours
from _turns import COUNT, embed, reply, turns

from openai_server import ScriptedOpenAI, estimate_tokens

AT_ONCE = 16
ROUNDS = 2


CONTESTANTS: Mapping[str, tuple[str, Callable[[str, int], Run]]] = {
    "ours": ("rag_eval_otel", ours),
    "ours, explanations on": ("rag_eval_otel", partial(ours, explanations=True)),
    "ours, default set": ("rag_eval_otel", partial(ours, metrics=["default"])),
    "LlamaIndex": ("llama_index", llamaindex),
    "Haystack": ("haystack", haystack),
}


def contend(name: str, url: str) -> None:
    """Run one contestant and print its seconds."""
    run, rows = CONTESTANTS[name][1](url, AT_ONCE), turns()
    started = time.perf_counter()
    missing = run(rows)
    seconds = time.perf_counter() - started
    assert missing == 0
    print(seconds)


# --- the measurement ------------------------------------------------------------------------------


def measured(name: str) -> dict[str, float]:
    """Return seconds, and the server's counts of requests and tokens per turn."""
    written: list[int] = []

    def answer(body: dict[str, Any]) -> object:
        said = reply(body)
        written.append(estimate_tokens(str(said)))
        return said

    with ScriptedOpenAI(
        answer,
        embed,
        latency=0.15,
        embed_latency=0.02,
        token_latency=0.004,
        slots=AT_ONCE,
        tokens=estimate_tokens,
    ) as server:
        command = [sys.executable, __file__, name, server.base_url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stderr}")
        chats = [r.body for r in server.requests if r.path.endswith("completions")]
        embeddings = len(server.requests) - len(chats)
    shown = sum(estimate_tokens(str(m["content"])) for body in chats for m in body["messages"])
    return {
        "seconds": float(done.stdout.split()[-1]),
        "requests": len(chats) / COUNT,
        "embeddings": embeddings / COUNT,
        "prompt": shown / COUNT,
        "reply": sum(written) / COUNT,
    }


def main() -> None:
    """Measure the contestants alternately and print medians and ratios."""
    print(setting("rag-eval-otel", "llama-index-core", "haystack-ai", "openai"))
    names = [name for name, (package, _) in CONTESTANTS.items() if find_spec(package)]
    rounds = [{name: measured(name) for name in names} for _ in range(ROUNDS)]
    found = {
        name: {key: median([one[name][key] for one in rounds]) for key in rounds[0][name]}
        for name in names
    }
    print(json.dumps(found, indent=2))
    peers = [name for name in ("LlamaIndex", "Haystack") if name in found]
    print(f"\n{'':24}{'s':>7}{'requests':>10}{'prompt':>9}{'reply':>7}  of {', '.join(peers)}")
    for name, one in found.items():
        ratios = " ".join(f"{one['seconds'] / found[peer]['seconds']:.2f}" for peer in peers)
        print(
            f"{name:24}{one['seconds']:7.2f}{one['requests']:6.2f}+{one['embeddings']:.2f}"
            f"{one['prompt']:9.0f}{one['reply']:7.0f}  {ratios}"
        )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        contend(sys.argv[1], sys.argv[2])
    else:
        main()

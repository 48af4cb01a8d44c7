"""Time, requests and tokens of scoring 200 turns: ours, LlamaIndex and Haystack.

Each scores answer relevancy, context relevance and faithfulness with one scripted judge. The judge
takes 150 ms and 4 ms for each reply token, and answers at most 16 requests at once. Each contestant
runs in a separate process; imports are not timed. Haystack has no concurrency, so it runs on 16
threads. Peers that are not installed are skipped.
"""

# ruff: noqa: PLC0415  # each contestant runs in a separate process and imports its own packages

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

from _common import median, setting
from _turns import COUNT, embed, reply, turns

from rag_eval_otel.testing import ScriptedOpenAI, estimate_tokens

AT_ONCE = 16
ROUNDS = 2
KEY = "sk-none"


# --- the contestants, each in a separate process --------------------------------------------------


def ours(url: str, *, explanations: str = "off", metrics: Any = None) -> Callable[[], None]:
    """Return a function that runs our dataset evaluation."""
    from rag_eval_otel.dataset.run import evaluate_dataset
    from rag_eval_otel.embed import OpenAIEmbedder
    from rag_eval_otel.judge.openai import OpenAIJudge

    judge = OpenAIJudge("judge", base_url=url, api_key=KEY)
    embedder = OpenAIEmbedder("embedder", base_url=url, api_key=KEY)

    def run() -> None:
        result = evaluate_dataset(
            turns(),
            metrics=metrics or ["answer_relevancy", "context_relevance", "faithfulness"],
            judge=judge,
            embedder=embedder,
            concurrency=AT_ONCE,
            explanations=explanations,  # type: ignore[arg-type]
            progress="off",
        )
        assert result.totals.rows == COUNT
        assert all(one.ok == COUNT for one in result.totals.metrics), result

    return run


def llamaindex(url: str) -> Callable[[], None]:
    """Return a function that runs LlamaIndex's batch runner."""
    from llama_index.core.evaluation import (
        AnswerRelevancyEvaluator,
        BatchEvalRunner,
        ContextRelevancyEvaluator,
        FaithfulnessEvaluator,
    )
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model="judge", api_base=url, api_key=KEY, is_chat_model=True, context_window=128_000
    )
    evaluators = {
        "answer_relevancy": AnswerRelevancyEvaluator(llm=llm),
        "context_relevancy": ContextRelevancyEvaluator(llm=llm),
        "faithfulness": FaithfulnessEvaluator(llm=llm),
    }
    rows = turns()

    def run() -> None:
        runner = BatchEvalRunner(evaluators, workers=AT_ONCE)
        found = asyncio.run(
            runner.aevaluate_response_strs(
                queries=[row["question"] for row in rows],
                response_strs=[row["answer"] for row in rows],
                contexts_list=[row["contexts"] for row in rows],
            )
        )
        assert all(one.score is not None for results in found.values() for one in results)

    return run


def haystack(url: str) -> Callable[[], None]:
    """Return a function that runs Haystack's evaluators, one turn per thread."""
    from haystack.components.evaluators import (
        ContextRelevanceEvaluator,
        FaithfulnessEvaluator,
        LLMEvaluator,
    )
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.utils import Secret

    def generator() -> Any:
        options = {"response_format": {"type": "json_object"}}
        return OpenAIChatGenerator(
            model="judge",
            api_base_url=url,
            api_key=Secret.from_token(KEY),
            generation_kwargs=options,
        )

    asked = LLMEvaluator(
        instructions="Write three questions that the answer replies to, as 'written_questions'.",
        inputs=[("predicted_answers", list[str])],
        outputs=["written_questions", "noncommittal"],
        examples=[
            {
                "inputs": {"predicted_answers": "Berlin."},
                "outputs": {"written_questions": ["What is Germany's capital?"], "noncommittal": 0},
            }
        ],
        chat_generator=generator(),
        progress_bar=False,
    )
    relevant = ContextRelevanceEvaluator(chat_generator=generator(), progress_bar=False)
    faithful = FaithfulnessEvaluator(chat_generator=generator(), progress_bar=False)

    def score(row: Mapping[str, Any]) -> None:
        answer, question, contexts = [row["answer"]], [row["question"]], [row["contexts"]]
        assert asked.run(predicted_answers=answer)["results"][0]
        assert relevant.run(questions=question, contexts=contexts)["score"] == 1
        found = faithful.run(questions=question, contexts=contexts, predicted_answers=answer)
        assert found["score"] > 0

    def run() -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(score, turns()))

    return run


CONTESTANTS: Mapping[str, tuple[str, Callable[[str], Callable[[], None]]]] = {
    "ours": ("rag_eval_otel", ours),
    "ours, explanations on": ("rag_eval_otel", lambda url: ours(url, explanations="on")),
    "ours, default set": ("rag_eval_otel", lambda url: ours(url, metrics=["default"])),
    "LlamaIndex": ("llama_index", llamaindex),
    "Haystack": ("haystack", haystack),
}


def contend(name: str, url: str) -> None:
    """Run one contestant and print its seconds."""
    run = CONTESTANTS[name][1](url)
    started = time.perf_counter()
    run()
    print(time.perf_counter() - started)


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

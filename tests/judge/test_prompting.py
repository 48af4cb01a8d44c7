"""Prompts of one's own, in a folder."""

import asyncio
import shutil
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

import rag_eval_otel
from openai_server import ScriptedOpenAI
from rag_eval_otel import aevaluate, instrument
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.judge.openai import OpenAIJudge
from rag_eval_otel.judge.wire import load_prompts
from rag_eval_otel.tools import evaluate_dataset
from rag_eval_otel.types import Evaluation
from support import SAMPLE, good_parts

METRIC = "context_relevance"
PROMPT = "context_relevance_1.md"
MINE = "How much of the question do these passages answer? Rate them."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    mine = tmp_path / "prompts"
    shutil.copytree(Path(rag_eval_otel.__file__).parent / "judge" / "prompts", mine)
    (mine / PROMPT).write_text(MINE, encoding="utf-8")
    return mine


def asked(**options: object) -> tuple[Evaluation, str]:
    with ScriptedOpenAI(good_parts) as server:
        judge = OpenAIJudge("m", base_url=server.base_url, api_key="k", retries=0)
        evaluation = asyncio.run(
            aevaluate(SAMPLE, [METRIC], judge=judge, embedder="hashing", **options)  # type: ignore[arg-type]
        )
        return evaluation, str([request.body for request in server.requests])


def test_the_judge_is_asked_in_these_words(folder: Path) -> None:
    """A file takes the place of the built-in text, and the version tells so."""
    built_in, before = asked()
    own, after = asked(prompts=folder)
    assert MINE in after
    assert MINE not in before
    assert own[METRIC].value == built_in[METRIC].value
    assert own[METRIC].version != built_in[METRIC].version
    again, _ = asked()
    assert again[METRIC].version == built_in[METRIC].version, "nothing is left behind"


def test_the_environment_names_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``RAG_EVAL_PROMPTS`` holds for datasets, the command and live turns alike."""
    built_in = evaluate_dataset([SAMPLE], [METRIC], judge="lexical")
    monkeypatch.setenv("RAG_EVAL_PROMPTS", str(folder))
    own = evaluate_dataset([SAMPLE], [METRIC])
    assert own[METRIC].versions != built_in[METRIC].versions
    assert asked()[1].count(MINE) == 1
    (folder / PROMPT).unlink()
    with pytest.raises(ConfigError, match=PROMPT):
        instrument(tracer_provider=TracerProvider())


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (PROMPT, None, rf"has no {PROMPT}; copy what you do not change from"),
        (PROMPT, "", rf"{PROMPT} is empty"),
        (PROMPT, " \n\t", rf"{PROMPT} is empty"),
        (PROMPT, b"\xff\xfe\xff", "cannot be read"),
        ("context_relevence_1.md", "x", r"did you mean context_relevance_1\.md\?"),
        ("zzzzzz.md", "x", "no prompt has that name$"),
    ],
)
def test_a_folder_that_is_not_whole(
    name: str, text: str | bytes | None, told: str, folder: Path
) -> None:
    """A file that is missing, empty, unreadable or of an unknown name is refused at once."""
    path = folder / name
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    for use in (
        lambda: load_prompts(folder),
        lambda: evaluate_dataset([SAMPLE], [METRIC], prompts=folder),
    ):
        with pytest.raises(ConfigError, match=told):
            use()

"""Make the judge, the embedder and the prompts that a `Config` or a caller names.

`CircuitBreaker` stops sending requests to a judge after several failed requests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from rag_eval_otel.config import Config
from rag_eval_otel.embed import LangChainEmbedder
from rag_eval_otel.environment import first_set
from rag_eval_otel.errors import JudgeRequestError, JudgeUnavailableError, UnparsableReplyError
from rag_eval_otel.judge.langchain import LangChainJudge
from rag_eval_otel.judge.lexical import LexicalJudge
from rag_eval_otel.judge.local import LocalJudge
from rag_eval_otel.judge.prompting import BUILT_IN, Prompts, load_prompts
from rag_eval_otel.judge.tasks import Judge, Task
from rag_eval_otel.providers import REGISTRIES, parts_of
from rag_eval_otel.types import Embedder, Replies

if TYPE_CHECKING:
    from os import PathLike

    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables import Runnable
    from typing_extensions import TypeIs


AnyJudge: TypeAlias = "Judge | Runnable[Any, Any] | str | None"
"""A judge, a LangChain chat model, or a judge's name; None: ``RAG_EVAL_JUDGE`` or the default."""

AnyEmbedder: TypeAlias = "Embedder | Embeddings | str | None"
"""An embedder, LangChain ``Embeddings``, the name of an embedder, or None.

None stands for the embedder that ``RAG_EVAL_EMBEDDER`` names. If the variable is not set, None
stands for the default embedder of the judge.
"""

AnyPrompts: TypeAlias = "Prompts | str | PathLike[str] | None"
"""Prompts, or the path of a folder with prompts; None: ``RAG_EVAL_PROMPTS`` or built in."""


def build_judge(config: Config) -> Judge:
    """Return the judge of ``config``; unless it is lexical or local, in a `CircuitBreaker`."""
    judge = build_plain_judge(config)
    is_here = isinstance(judge, LexicalJudge | LocalJudge)
    return judge if is_here else CircuitBreaker(judge)


def build_plain_judge(config: Config) -> Judge:
    """Return the judge of ``config``, which is given by name or as an object."""
    if not isinstance(config.judge, str):
        return (
            config.judge if _is_judge(config.judge) else LangChainJudge(cast("Any", config.judge))
        )
    provider, _, model = config.judge.partition("/")
    judge: Judge = REGISTRIES["judge"].make(provider, model, config)
    return judge


def build_embedder(config: Config) -> Embedder:
    """Return the embedder of ``config``, which is given by name or as an object."""
    if not isinstance(config.embedder, str):
        given = config.embedder
        return given if _is_embedder(given) else LangChainEmbedder(cast("Any", given))
    provider, _, model = config.embedder.partition("/")
    embedder: Embedder = REGISTRIES["embedder"].make(provider, model, config)
    return embedder


def _is_judge(given: object) -> TypeIs[Judge]:
    is_langchains = hasattr(
        given, "ainvoke"
    )  # a LangChain model may have a field called ``reply``, too
    return hasattr(given, "reply") and not is_langchains


def _is_embedder(given: object) -> TypeIs[Embedder]:
    return hasattr(given, "embed") and not hasattr(given, "aembed_documents")


def chosen_models(judge: AnyJudge, embedder: AnyEmbedder) -> tuple[Judge, Embedder]:
    """Return a judge and an embedder: the objects that are passed, or made from their names.

    For None, the environment variables or the defaults of `Config` give the name. If both are given
    by name, they are made once and then reused in later calls. Raises `ConfigError` for an object
    of another type, and `MissingDependencyError` if a package is not installed.
    """
    if _is_judge(judge) and _is_embedder(embedder):
        return judge, embedder
    given: dict[str, Any] = {"judge": judge, "embedder": embedder}
    config = Config.from_env(**{part: model for part, model in given.items() if model is not None})
    key = _key(config)
    return _made(key) if key else (build_plain_judge(config), build_embedder(config))


def chosen_prompts(prompts: AnyPrompts) -> Prompts:
    """Return ``prompts``, or load them from the folder that ``prompts`` names.

    For None, the folder in ``RAG_EVAL_PROMPTS`` is loaded; if the variable is not set, the built-in
    prompts are returned. Raises `ConfigError` for a folder that lacks a prompt.
    """
    if isinstance(prompts, Prompts):
        return prompts
    folder = prompts or first_set(("RAG_EVAL_PROMPTS",))
    return load_prompts(folder) if folder else BUILT_IN


_OF_MODELS = (
    "judge",
    "embedder",
    "judge_base_url",
    "judge_api_key",
    "embedder_base_url",
    "embedder_api_key",
    "judge_timeout",
    "judge_retries",
    "temperature",
    "seed",
    "max_tokens",
    "device",
    "batch_size",
    "concurrency",
)


def _key(config: Config) -> tuple[tuple[str, Any], ...]:
    """Return the options of ``config`` that decide how judge and embedder are made, as a cache key.

    The key is empty if the judge or the embedder is given as an object, which is not cached.
    """
    if not (isinstance(config.judge, str) and isinstance(config.embedder, str)):
        return ()
    extra = json.dumps(config.extra_body, sort_keys=True) if config.extra_body else None
    options = tuple((name, getattr(config, name)) for name in _OF_MODELS)
    return (*options, ("extra_body", extra), ("environment", _environment(config)))


def _environment(config: Config) -> tuple[str | None, ...]:
    """Return the environment's keys and addresses for the providers of judge and embedder.

    The keys and addresses are a part of the cache key, because they may change between two calls.
    """
    found = [parts_of(name) for name in (config.judge, config.embedder) if isinstance(name, str)]
    providers = [part[0] for part in found if part]
    names = [n for one in providers for n in (*one.keys, *one.addresses, *one.settings)]
    return tuple(first_set((name,)) for name in names)


@lru_cache(maxsize=16)
def _made(key: tuple[tuple[str, Any], ...]) -> tuple[Judge, Embedder]:
    options = dict(key)
    options.pop("environment")
    options["extra_body"] = options["extra_body"] and json.loads(options["extra_body"])
    config = Config(**options)
    return build_plain_judge(config), build_embedder(config)


# --- outages --------------------------------------------------------------------------------------


class CircuitBreaker:
    """Stops asking ``judge`` for ``cooldown`` seconds after ``failures`` failed requests in a row.

    During this cool-down, each request fails at once with `JudgeUnavailableError`. After the
    cool-down, one request is sent. If this request succeeds, all requests are sent again. If it
    fails, another cool-down begins. A reply that does not parse does not count as a failed request.
    A request that the server refuses for its content, such as a text that is too long, does not
    count either. ``clock`` returns the time in seconds.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        failures: int = 5,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._judge = judge
        self._limit = failures
        self._cooldown = cooldown
        self._clock = clock
        self._failed = 0
        self._open_until = float("-inf")

    @property
    def model(self) -> str:
        return self._judge.model

    @property
    def revision(self) -> int | None:
        """The number of the wrapped judge's rules in versions of scores, or None if it has none."""
        return getattr(self._judge, "revision", None)

    @property
    def label_metrics(self) -> frozenset[str] | None:
        """The metrics whose labels decide the overall label with this judge; None: all metrics."""
        return getattr(self._judge, "label_metrics", None)

    async def reply(self, tasks: Sequence[Task[Any]]) -> Replies:
        """Pass ``tasks`` to the judge; in a cool-down, raise `JudgeUnavailableError` at once."""
        self._admit()
        failed = True
        try:
            replies = await self._judge.reply(tasks)
            failed = False
        except (UnparsableReplyError, JudgeRequestError):
            failed = False
            raise
        finally:
            self._count(failed=failed)
        return replies

    def _admit(self) -> None:
        now = self._clock()
        if now < self._open_until:
            wait = self._open_until - now
            msg = f"not asked: {self._failed} requests failed in a row; next try in {wait:.0f} s"
            raise JudgeUnavailableError(msg)
        if self._failed >= self._limit:
            self._open_until = now + self._cooldown  # other requests wait for this one

    def _count(self, *, failed: bool) -> None:
        if not failed:
            self._failed, self._open_until = 0, float("-inf")
            return
        self._failed += 1
        if self._failed >= self._limit:
            self._open_until = self._clock() + self._cooldown

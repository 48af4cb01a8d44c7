"""Test doubles for applications that use this library: receivers, servers, judges, ids and clocks.

Names are loaded on first use, so that importing this package imports neither gRPC nor HTTP servers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag_eval_otel.testing.assertions import RagEval
    from rag_eval_otel.testing.fakes import (
        FakeEmbedder,
        FakeJudge,
        ManualClock,
        SequentialIdGenerator,
    )
    from rag_eval_otel.testing.openai_server import (
        HttpReply,
        RecordedRequest,
        ScriptedOpenAI,
        estimate_tokens,
    )
    from rag_eval_otel.testing.receiver import (
        OtlpReceiver,
        ReceivedEvent,
        ReceivedLink,
        ReceivedLog,
        ReceivedMetric,
        ReceivedSpan,
    )

__all__ = [
    "FakeEmbedder",
    "FakeJudge",
    "HttpReply",
    "ManualClock",
    "OtlpReceiver",
    "RagEval",
    "ReceivedEvent",
    "ReceivedLink",
    "ReceivedLog",
    "ReceivedMetric",
    "ReceivedSpan",
    "RecordedRequest",
    "ScriptedOpenAI",
    "SequentialIdGenerator",
    "estimate_tokens",
]

_MODULES = {
    "RagEval": "assertions",
    "FakeEmbedder": "fakes",
    "FakeJudge": "fakes",
    "HttpReply": "openai_server",
    "ManualClock": "fakes",
    "OtlpReceiver": "receiver",
    "ReceivedEvent": "receiver",
    "ReceivedLink": "receiver",
    "ReceivedLog": "receiver",
    "ReceivedMetric": "receiver",
    "ReceivedSpan": "receiver",
    "RecordedRequest": "openai_server",
    "ScriptedOpenAI": "openai_server",
    "SequentialIdGenerator": "fakes",
    "estimate_tokens": "openai_server",
}


if not TYPE_CHECKING:  # with this function, a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Test doubles for applications that use this library: receivers, servers, ids and clocks.

Names are loaded on first use, so that importing this package imports neither gRPC nor HTTP servers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag_eval_otel.testing.fakes import FakeEmbedder, FakeJudge
    from rag_eval_otel.testing.openai_server import (
        HttpReply,
        RecordedRequest,
        ScriptedOpenAI,
        estimate_tokens,
    )
    from rag_eval_otel.testing.otlp_records import (
        ReceivedEvent,
        ReceivedLink,
        ReceivedLog,
        ReceivedMetric,
        ReceivedSpan,
    )
    from rag_eval_otel.testing.receiver import OtlpReceiver
    from rag_eval_otel.testing.sequence import ManualClock, SequentialIdGenerator

__all__ = [
    "FakeEmbedder",
    "FakeJudge",
    "HttpReply",
    "ManualClock",
    "OtlpReceiver",
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
    "FakeEmbedder": "fakes",
    "FakeJudge": "fakes",
    "HttpReply": "openai_server",
    "ManualClock": "sequence",
    "OtlpReceiver": "receiver",
    "ReceivedEvent": "otlp_records",
    "ReceivedLink": "otlp_records",
    "ReceivedLog": "otlp_records",
    "ReceivedMetric": "otlp_records",
    "ReceivedSpan": "otlp_records",
    "RecordedRequest": "openai_server",
    "ScriptedOpenAI": "openai_server",
    "SequentialIdGenerator": "sequence",
    "estimate_tokens": "openai_server",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        """The public name from its module; `AttributeError` for any other."""
        if name not in _MODULES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)

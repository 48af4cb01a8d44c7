"""The options of ``serve --kafka``, and what they run."""

from __future__ import annotations

import argparse
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from processes import PATIENCE
from rag_eval_otel.errors import ConfigError, MissingDependencyError
from rag_eval_otel.tools.cli import main
from rag_eval_otel.worker.kafka_client import KafkaOutput
from rag_eval_otel.worker.kafka_command import KafkaReader, add_kafka_options, chosen_kafka_options
from worker.fake_kafka import Cluster, KafkaError


def parsed(*arguments: str, probes: object = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_kafka_options(parser)
    return parser.parse_args(
        ["--kafka", "broker:9092", *arguments], argparse.Namespace(probes=probes)
    )


class Idle:
    """An engine that gets nothing."""

    state = "ready"

    def drop(self, receipts: object) -> None:
        """Do nothing."""

    def is_collecting(self, trace_id: int) -> bool:
        return False

    def share(self, workers: float) -> None:
        """Do nothing: there is no judge."""


def test_options_and_variables_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line has precedence over variables, and values may have equals signs."""
    monkeypatch.setenv("RAG_EVAL_KAFKA_SASL_PASSWORD", "hush")
    monkeypatch.setenv("RAG_EVAL_KAFKA_ACKS", "1")
    found = chosen_kafka_options(
        parsed("--kafka-option", "acks=all", "--kafka-option", "sasl.username=a=b", "--topic", "t")
    )
    assert found.client == {"sasl.password": "hush", "acks": "all", "sasl.username": "a=b"}
    assert (found.brokers, found.topic, found.group) == ("broker:9092", "t", "rag-eval")


def test_an_option_without_a_value_is_refused() -> None:
    """The message shows the form, and no value, which may be a secret."""
    with pytest.raises(ConfigError, match="such as acks=all, not 'acks'"):
        chosen_kafka_options(parsed("--kafka-option", "acks"))


def test_spans_go_to_a_topic_if_one_is_named() -> None:
    """Otherwise they go out over OTLP."""
    cluster = Cluster()
    assert KafkaReader(parsed(), None, package=cluster).output() is None
    output = KafkaReader(parsed("--output-topic", "scored"), None, package=cluster).output()
    assert isinstance(output, KafkaOutput)
    output.close(0)
    assert output.dropped == 0


@pytest.mark.slow
def test_reading_ends_with_a_signal_or_a_fatal_error(capsys: pytest.CaptureFixture[str]) -> None:
    """After a fatal error the process says so and ends, to be started again."""
    pytest.importorskip("aiohttp")
    for is_fatal in (False, True):
        cluster = Cluster()
        cluster.create("otlp_spans")
        probes = SimpleNamespace(host="127.0.0.1", port=0)
        reader = KafkaReader(parsed(probes=probes), None, package=cluster)
        reader.start(cast("Any", Idle()))
        stopping = threading.Event()

        thread = threading.Thread(target=reader.wait, args=(stopping,))
        thread.start()
        if is_fatal:
            cluster.add(None, error_=KafkaError("FENCED_INSTANCE_ID", is_fatal=True))
        else:
            stopping.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert reader.has_failed is is_fatal
        reader.drain(0)
        reader.close()
    assert "reading from Kafka has ended: what the client says" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fatal_error_is_a_failure_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is 1, so that a supervisor starts the process again."""
    cluster = Cluster()
    cluster.create("otlp_spans")
    cluster.add(None, error_=KafkaError("FENCED_INSTANCE_ID", is_fatal=True))
    monkeypatch.setitem(sys.modules, "confluent_kafka", cast("Any", cluster))
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", cluster.admin)
    assert main(["serve", "--kafka", "b:1", "--endpoint", "http://127.0.0.1:9"]) == 1


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the extra."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDependencyError, match=r"rag-eval-otel\[kafka\]"):
        KafkaReader(parsed(), None)


def test_a_reader_that_was_not_started_can_be_closed() -> None:
    """Another part may fail before."""
    reader = KafkaReader(parsed(), None, package=Cluster())
    reader.drain(0)
    reader.close()
    assert reader.wait(_set()) is None


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event

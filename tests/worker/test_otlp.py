"""Spans that come over OTLP leave once, those of turns with scores; what is refused says why."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from otlp_receiver import OtlpReceiver, ReceivedSpan
from rag_eval_otel.config import Config
from rag_eval_otel.errors import ConfigError
from rag_eval_otel.export.metrics import Meters
from wires import UNKNOWN, FakeSender, content, never, request, span, turn, until

pytest.importorskip("aiohttp")

from rag_eval_otel.worker import otlp, traces
from rag_eval_otel.worker.engine import Engine
from rag_eval_otel.worker.exporter import Exporter, Rejection, _retry_delay, build_sender
from rag_eval_otel.worker.otlp import OtlpSource

STATUS = "rag.evaluation.status"
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_ROOT_QUIET", 0.05)
    monkeypatch.setattr(otlp, "_SWEEP", 0.02)


@dataclass
class Worker:
    """A source that listens, with clients for both protocols."""

    source: OtlpSource
    ports: tuple[int, int]
    http: httpx.AsyncClient
    channel: grpc.aio.Channel

    @property
    def engine(self) -> Engine:
        return self.source.engine

    async def post(self, body: bytes, kind: str = "x-protobuf", **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(
            f"http://127.0.0.1:{self.ports[1]}/v1/traces",
            content=body,
            headers={"content-type": f"application/{kind}", **names},
        )

    async def get(self, path: str) -> int:
        return (await self.http.get(f"http://127.0.0.1:{self.ports[1]}/{path}")).status_code

    async def call(self, body: bytes, **options: Any) -> bytes:
        return bytes(await self.channel.unary_unary(METHOD)(body, timeout=30, **options))

    async def end(self, seconds: float = 10.0) -> None:
        await self.source.stop()
        await self.engine.close(seconds)
        await self.source.close()


@asynccontextmanager
async def serving(
    backend: OtlpReceiver,
    *,
    protocol: str = "grpc",
    max_bytes: int = 2**26,
    seconds: float = 10.0,
    **options: Any,
) -> AsyncIterator[Worker]:
    endpoint = backend.grpc_endpoint if protocol == "grpc" else backend.http_endpoint
    config = Config(**{"judge": "lexical", "drift": False, **options})
    variables = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    exporter = Exporter(build_sender(variables, endpoint), Meters())
    source = OtlpSource(Engine(config, exporter, max_bytes=max_bytes), Meters())
    ports = await source.start("127.0.0.1", 0, 0)
    async with (
        httpx.AsyncClient(timeout=30) as http,
        grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel,
    ):
        worker = Worker(source, ports, http, channel)
        try:
            yield worker
        finally:
            await worker.end(seconds)


def by_name(backend: OtlpReceiver) -> dict[str, ReceivedSpan]:
    return {received.name: received for received in backend.spans()}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("is_packed", [False, True])
async def test_turns_leave_scored(backend: OtlpReceiver, protocol: str, *, is_packed: bool) -> None:
    """The spans come in two requests; that of another trace does not wait."""
    async with serving(backend, protocol=protocol) as worker:
        for part in (content(*turn(1)[:2], span(2, 1)), content(turn(1)[2])):
            if protocol == "grpc":
                packed = grpc.Compression.Gzip if is_packed else None
                assert await worker.call(part, compression=packed) == b""
            else:
                body = gzip.compress(part) if is_packed else part
                encoding = {"content_encoding": "gzip"} if is_packed else {}
                assert (await worker.post(body, **encoding)).status_code == 200
        await until(lambda: len(backend.spans()) == 4)
        assert len(worker.source.traces) == worker.source.traces.size == 0
    chain = by_name(backend)["chain"]
    assert chain.attributes[STATUS] == "scored"
    assert chain.attributes["rag.evaluation.faithfulness.score"] == 1.0
    assert {event.name for event in chain.events} == {"gen_ai.evaluation.result"}
    assert STATUS not in by_name(backend)["llm"].attributes
    assert worker.engine.exporter.spans == {"sent": 4}
    assert worker.engine.size == worker.engine.waiting == 0


async def test_json_is_answered_in_json(backend: OtlpReceiver) -> None:
    """As the OTLP specification says."""
    ids = {"traceId": "01" * 16, "spanId": "02" * 8}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{**ids, "name": "by json"}]}]}]}
    async with serving(backend) as worker:
        reply = await worker.post(json.dumps(body).encode(), "json")
        assert (reply.status_code, reply.text) == (200, "{}")
        assert reply.headers["content-type"].startswith("application/json")
    assert by_name(backend)["by json"].trace_id == int("01" * 16, 16)


async def test_what_cannot_be_read_is_refused_and_said(backend: OtlpReceiver) -> None:
    """By status and text, and without the advice to send it again."""
    bomb = gzip.compress(b"\x0a\x00" * 2**20)
    async with serving(backend) as worker:
        for body, headers, status in (
            (b"\x0a\x05\x12", {}, 400),
            (b"", {"kind": "text/plain"}, 415),
            (b"{", {"kind": "json"}, 400),
            (b"x", {"content_encoding": "br"}, 415),
            (bomb, {"content_encoding": "gzip"}, 413),
            (bytes(2**24 + 1), {}, 413),
        ):
            reply = await worker.post(body, **headers)
            assert reply.status_code == status
            assert "retry-after" not in reply.headers
            assert reply.text
        for body, code in (
            (b"\x0a\x05\x12", grpc.StatusCode.INVALID_ARGUMENT),
            (bomb, grpc.StatusCode.RESOURCE_EXHAUSTED),
            (bytes(2**24 + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await worker.call(body)
            assert refused.value.code() == code
            assert not [k for k, _ in refused.value.trailing_metadata() if "retry" in k]
        assert await worker.get("v1/logs") == 404
        await worker.post(content(span(1, 1, parent=2)))
    assert len(backend.spans()) == 1


async def test_a_worker_without_room_asks_to_be_called_again(backend: OtlpReceiver) -> None:
    """By the protocol's means: else a collector would drop the spans."""
    async with serving(backend, max_bytes=1) as worker:
        worker.engine.size += 1
        reply = await worker.post(content(span(1, 1)))
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await worker.call(content(span(1, 1)))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        metadata = dict(refused.value.trailing_metadata())
        info = RetryInfo()
        status = Status.FromString(metadata["grpc-status-details-bin"])
        assert status.code == refused.value.code().value[0]
        assert status.details[0].Unpack(info)
        assert info.retry_delay.seconds == 1
        assert [await worker.get(probe) for probe in ("readyz", "livez")] == [503, 200]
        worker.engine.size -= 1
        assert await worker.get("readyz") == 200
        assert (await worker.post(content(span(1, 1)))).status_code == 200


async def test_a_turn_that_takes_too_long_leaves_without_scores(backend: OtlpReceiver) -> None:
    """After `hold_seconds` from reading."""
    async with serving(backend, metrics=[never], hold_seconds=0.1, seconds=0.5) as worker:
        await worker.post(content(*turn(1)))
        await until(lambda: len(backend.spans()) == 3)
    assert by_name(backend)["chain"].attributes[STATUS] == "timeout"


async def test_at_the_end_all_spans_leave_and_say_why(backend: OtlpReceiver) -> None:
    """A trace that is not complete is read, a turn under way is given up, a request refused."""
    async with serving(backend, metrics=[never], seconds=1.0) as worker:
        await worker.post(content(*turn(1)))
        await until(lambda: worker.engine.waiting)
        await worker.post(content(*turn(2)[:2]))
        await worker.source.stop()
        assert (await worker.post(content(span(3, 1)))).status_code == 503
    assert by_name(backend)["chain"].attributes[STATUS] == "shutdown"
    reasons = [s.attributes.get("rag.evaluation.reason") for s in backend.spans()]
    assert reasons.count("partial") == 1
    assert len(reasons) == 5


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_an_outage_of_the_backend_loses_nothing(
    backend: OtlpReceiver, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are sent again until the backend has taken them."""
    monkeypatch.setattr("rag_eval_otel.worker.exporter._FIRST", 0.01)
    backend.fail_next(5, status=503)
    async with serving(backend, protocol=protocol) as worker:
        for number in range(1, 11):
            await worker.post(content(span(number, 1)))
        await until(lambda: len(backend.spans()) == 10)
    assert worker.engine.exporter.spans == {"sent": 10}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_spans_that_the_backend_refuses_are_counted(
    backend: OtlpReceiver, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not sent again, because they would be refused again."""
    backend.fail_next(1, status=400)
    async with serving(backend, protocol=protocol) as worker:
        await worker.post(content(span(1, 1), span(2, 1)))
        await until(lambda: worker.engine.exporter.spans["refused"] == 2)
    assert "spans are lost" in caplog.text


async def test_a_backend_that_stays_away_gets_its_spans_given_up(backend: OtlpReceiver) -> None:
    """The end of the worker does not wait for it, and the spans are counted."""
    async with serving(backend, seconds=0.2) as worker:
        backend.stop()
        await worker.post(content(span(1, 1)))
        await worker.end(0.2)
        assert worker.engine.exporter.spans == {"given_up": 1}
        backend.start()


async def test_two_workers_cannot_listen_at_one_port(backend: OtlpReceiver) -> None:
    """They would share the requests without a word."""
    async with serving(backend) as worker:
        for ports in (worker.ports, (0, worker.ports[1])):
            source = OtlpSource(worker.engine, Meters())
            with pytest.raises(ConfigError, match="another process"):
                await source.start("127.0.0.1", *ports)


async def test_all_addresses_are_a_decision(
    backend: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says what belongs before the worker."""
    async with serving(backend) as worker:
        source = OtlpSource(worker.engine, Meters())
        await source.start("0.0.0.0", 0, 0)  # noqa: S104
        await source.stop()
        await source.close()
    assert "put a collector before it" in caplog.text


async def test_bodies_that_do_not_come(
    backend: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty senders announce 16 MB and send a byte."""
    monkeypatch.setattr(otlp, "_BODY_SECONDS", 0.2)
    async with serving(backend) as worker:
        sockets = []
        for _ in range(50):
            sockets.append(socket.create_connection(("127.0.0.1", worker.ports[1])))
            sockets[-1].sendall(
                b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: 16000000\r\n"
                b"Content-Type: application/x-protobuf\r\n\r\nx"
            )
        assert (await worker.post(content(span(1, 1)))).status_code == 200
        loop = asyncio.get_running_loop()
        reply = await loop.run_in_executor(None, sockets[0].recv, 100)
        assert b" 408 " in reply
        for each in sockets:
            each.close()


async def test_content_can_be_stripped(backend: OtlpReceiver) -> None:
    """Texts of users leave neither with the spans of a turn nor with others.

    So a request that could not be stripped is not accepted.
    """
    async with serving(backend, export_content="none") as worker:
        await worker.post(content(*turn(1), span(2, 1, name="other", gen_ai__prompt="secret")))
        broken = content(span(3, 1, name="NAME")).replace(b"NAME", b"\xff\xff\xff\xff")
        assert (await worker.post(broken)).status_code == 400
        await until(lambda: len(backend.spans()) == 4)
    assert by_name(backend)["chain"].attributes[STATUS] == "scored"
    assert "France" not in str(backend.spans())
    assert "secret" not in str(backend.spans())


async def test_unknown_fields_leave_as_they_came(backend: OtlpReceiver) -> None:
    """In spans with scores, and in others."""
    sender = FakeSender()
    async with serving(backend) as worker:
        worker.engine.exporter.sender = sender
        plain = request(span(2, 1))
        plain.MergeFromString(UNKNOWN)
        await worker.post(plain.SerializeToString())
        await worker.post(content(*turn(1)))
        await until(lambda: len(sender.sent) == 2)
    assert sender.sent[0] == plain.SerializeToString()
    assert sender.sent[1].count(UNKNOWN) == 3


async def test_a_trace_of_many_requests_is_sent_in_several(backend: OtlpReceiver) -> None:
    """A receiver with gRPC's usual limit of 4 MiB takes all of them."""
    sizes: list[int] = []
    async with serving(backend) as worker:
        send = worker.engine.exporter.sender.send

        async def measured(body: bytes) -> bytes | Rejection:
            sizes.append(len(body))
            return await send(body)

        worker.engine.exporter.sender.send = measured  # type: ignore[method-assign]
        tool = {"openinference__span__kind": "TOOL", "input__value": "x" * 1_000_000}
        for number in range(10, 16):
            await worker.post(content(span(1, number, parent=1, **tool)))
        await worker.post(content(*turn(1)))
        await until(lambda: len(backend.spans()) == 9)
    assert by_name(backend)["chain"].attributes[STATUS] == "scored"
    assert worker.engine.exporter.spans == {"sent": 9}
    assert max(sizes) < 4 * 2**20


async def test_other_bytes_are_not_logged(
    backend: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have keys in it."""
    caplog.set_level("DEBUG", "aiohttp")
    async with serving(backend) as worker:
        for head in (b"GET / HTTP/1.1\r\nx-key: secret\x00\r\n\r\n", b"secret\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.ports[1])
            writer.write(head)
            assert b" 400 " in await reader.readline()
            writer.close()
    assert "secret" not in caplog.text


async def test_no_answer_stops_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by details that cannot be read, nor by a wait of years."""
    years = RetryInfo()
    years.retry_delay.seconds = 10**15
    for name in ("google.rpc.retryinfo-bin", "grpc-status-details-bin"):
        assert _retry_delay([(name, b"google.rpc.RetryInfo\xff")]) is None
    asked = _retry_delay([("google.rpc.retryinfo-bin", years.SerializeToString())])
    assert asked == 1e15
    waits: list[float] = []

    async def wait(_: Exporter, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(Exporter, "_wait", wait)
    answers = [Rejection("gRPC UNAVAILABLE", asked), Rejection("HTTP 429", float("inf"))]
    exporter = Exporter(FakeSender([*answers]), Meters())
    await exporter.send(b"", 1)
    assert exporter.spans == {"sent": 1}
    assert waits == [300.0, 300.0]


async def test_spans_that_wait_for_a_retry_are_sent_before_the_end(backend: OtlpReceiver) -> None:
    """The backend has asked to be left alone for minutes, and is back."""
    sender = FakeSender([Rejection("HTTP 503", 200.0), Rejection("HTTP 503", 0.0)])
    async with serving(backend) as worker:
        worker.engine.exporter.sender = sender
        await worker.post(content(span(1, 1)))
        await until(lambda: len(sender.sent) == 1)
    assert worker.engine.exporter.spans == {"sent": 1}


def test_a_trace_that_does_not_end_is_read_before_it_takes_all_memory() -> None:
    """It is as large as the largest request, and its parts count with their objects."""
    waiting = traces.Traces()
    for _ in range(16):
        waiting.add(bytes(16), traces.Part(bytes(2**20), 1, has_root=False))
        if waiting.size < 16 * 2**20:
            assert waiting.complete() == []
    assert waiting.size > 16 * 2**20
    assert [spans for _, spans in waiting.complete()] == [16]
    assert waiting.size == 0


async def test_a_request_that_is_read_at_the_end_is_not_acknowledged(backend: OtlpReceiver) -> None:
    """Nobody would pass on its trace."""
    async with serving(backend) as worker:
        source, may_read = worker.source, threading.Event()
        read = source._read  # noqa: SLF001
        source._read = lambda *given: may_read.wait(20) and read(*given)  # type: ignore[method-assign]  # noqa: SLF001
        sending = asyncio.create_task(worker.post(content(*turn(1, answer="so " * 30_000))))
        await until(lambda: worker.engine.size)
        await source.stop()
        may_read.set()
        assert (await sending).status_code == 503
        assert len(source.traces) == worker.engine.size == 0


async def test_the_bodies_that_arrive_take_memory(backend: OtlpReceiver) -> None:
    """The second of two senders is refused, and the one that has begun may go on."""
    async with serving(backend, max_bytes=2**20) as worker:
        go = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            whole = content(span(1, 1, name="x" * 2**21))
            yield whole[: 2**20]
            await go.wait()
            yield whole[2**20 :]

        first = asyncio.create_task(worker.post(slowly()))  # type: ignore[arg-type]
        await until(lambda: worker.engine.size >= 2**20)
        assert (await worker.post(content(span(2, 1)))).status_code == 429
        go.set()
        assert (await first).status_code == 200
    assert len(backend.spans()) == 1


async def test_small_requests_that_wait_fill_the_memory(backend: OtlpReceiver) -> None:
    """A task takes more than the few bytes of its request."""
    async with serving(backend, max_bytes=2**16, seconds=0.2) as worker:
        backend.stop()
        statuses = [(await worker.post(content(span(n, 1)))).status_code for n in range(1, 41)]
        assert statuses.index(429) < 33
        await worker.end(0.2)
        backend.start()


async def test_traces_without_roots_make_room_while_requests_are_refused(
    backend: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their roots would be refused, too, if nothing else makes room."""
    monkeypatch.setattr(traces, "_QUIET", 0.3)
    first, second = (content(*turn(number)[:2]) for number in (1, 2))
    async with serving(backend, max_held=1) as worker:
        assert (await worker.post(first)).status_code == 200
        statuses = [(await worker.post(second)).status_code]
        while 200 not in statuses:
            statuses.append((await worker.post(second)).status_code)
        assert set(statuses) == {429, 200}

"""A proxy in front of an HTTP server, which may fail a tenth of the requests."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal
from urllib.parse import urlsplit

from e2e.programs import responding

Fault = Literal["none", "errors"]

_PER_HOP = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "transfer-encoding"}
)
_ERRORS, _FORWARDED = 0.1, 0.5  # shares of all requests, and of those that are answered with 500


@dataclass
class Proxy:
    """A proxy at ``url``. ``fault`` is what it does with requests from now on."""

    target: str
    url: str = ""
    fault: Fault = "none"
    requests: int = 0
    failed: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(3))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        proxy = self.proxy
        proxy.requests += 1
        if proxy.fault == "errors" and proxy.draw.random() < _ERRORS:
            proxy.failed += 1
            if proxy.draw.random() < _FORWARDED:
                self._ask(body)
            self._answer(500, {}, b"no luck")
            return
        self._answer(*self._ask(body))

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        place = urlsplit(self.proxy.target)
        connection = HTTPConnection(str(place.hostname), place.port, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _PER_HOP}
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            found = {k: v for k, v in answer.getheaders() if k.lower() not in _PER_HOP}
            return answer.status, found, answer.read()
        except (OSError, HTTPException):
            return 502, {}, b""
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        with suppress(OSError):  # the client may have gone
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    proxy = Proxy(target=target)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with responding(handler) as url:
        proxy.url = url
        yield proxy

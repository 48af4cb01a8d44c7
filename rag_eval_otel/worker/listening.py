"""Where a receiver listens, and what it requires of senders."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from rag_eval_otel.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """Where a receiver listens, and what it requires of senders.

    - ``host``: the address to listen at.
    - ``grpc_port``, ``http_port``, ``probe_port``: 0 takes a free port, None leaves the port out.
      The probes are answered at ``http_port``, and at ``probe_port`` without TLS.
    - ``max_request``: the largest request in bytes, before and after decompression.
    - ``max_reading``: bytes of all HTTP requests that arrive, or wait to be read, at the same time.
    - ``certificate``, ``key``: PEM files of the server for TLS.
    - ``client_ca``: PEM file with the authorities of clients; clients must then have a certificate.
    - ``token``: the bearer token that senders must send; None requires no token.
    """

    host: str = "127.0.0.1"
    grpc_port: int | None = 4317
    http_port: int | None = 4318
    probe_port: int | None = None
    max_request: int = 16 * 2**20
    max_reading: int = 128 * 2**20
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            msg = "certificate and key belong together: name both files, or none"
            raise ConfigError(msg)
        if self.client_ca and not self.certificate:
            msg = "client_ca needs TLS: name certificate and key as well"
            raise ConfigError(msg)
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            msg = "token must have printable ASCII characters only"
            raise ConfigError(msg)
        if self.token is not None and not self.token.strip():
            msg = "token must not be empty; leave it out to require no token"
            raise ConfigError(msg)

    @property
    def address(self) -> str:
        """The host as addresses with a port need it."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def is_open_to_all(self) -> bool:
        """Whether other machines can send without a certificate or a token."""
        is_local = self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"
        return not (is_local or self.client_ca or self.token)


def grpc_credentials(options: ReceiverOptions) -> Any:
    pair = (Path(options.key).read_bytes(), Path(options.certificate).read_bytes())
    authorities = Path(options.client_ca).read_bytes() if options.client_ca else None
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authorities, require_client_auth=authorities is not None
    )


def tls_context(options: ReceiverOptions) -> ssl.SSLContext | None:
    """Return the TLS context for HTTP, or None without TLS; raise `ConfigError` for bad files."""
    if not options.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.certificate, options.key)
        if options.client_ca:
            context.load_verify_locations(options.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.certificate, options.key, options.client_ca)))
        msg = f"the PEM files {files} cannot be used: {error}"
        raise ConfigError(msg) from error
    return context


def no_port(place: str, error: Exception) -> ConfigError:
    return ConfigError(f"cannot listen at {place}: {error}; is another process listening there?")

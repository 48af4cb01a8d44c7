"""A real Phoenix, and its data over its REST and GraphQL API."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from e2e.programs import free_ports, get, running

COMMAND = Path(sys.executable).with_name("phoenix")
PATIENCE = 300.0  # Phoenix creates its tables first

MARKS = [
    pytest.mark.skipif(not COMMAND.exists(), reason="arize-phoenix is not installed"),
    pytest.mark.timeout(1200),
    # The package of the server, which the client shares, imports outdated parts of its own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
"""The marks of a module of tests with Phoenix."""


@dataclass(frozen=True, kw_only=True)
class Phoenix:
    """A running Phoenix. A service has the project of its name."""

    http: str
    grpc: str

    def pages(self, path: str, **parameters: str) -> Iterator[dict[str, Any]]:
        cursor: str | None = ""
        while cursor is not None:
            told = get(
                f"{self.http}/v1/{path}", **parameters, **({"cursor": cursor} if cursor else {})
            )
            page = json.loads(told or '{"data": [], "next_cursor": null}')
            yield from page["data"]
            cursor = page["next_cursor"]

    def query(self, text: str) -> Any:
        body = json.dumps({"query": text}).encode()
        told = {"Content-Type": "application/json"}
        asked = Request(f"{self.http}/graphql", body, told)  # noqa: S310
        with urlopen(asked, timeout=30) as answer:  # noqa: S310
            return json.load(answer)["data"]

    def project_of(self, service: str) -> str:
        (found,) = [one["id"] for one in self.pages("projects") if one["name"] == service]
        return str(found)

    def spans(self, service: str) -> list[dict[str, Any]]:
        return list(self.pages(f"projects/{service}/spans", limit="500"))

    def turns(self, service: str) -> dict[str, dict[str, Any]]:
        return {
            span["context"]["span_id"]: span
            for span in self.spans(service)
            if "rag.evaluation.status" in span["attributes"]
        }

    def annotations(self, service: str, spans: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for i in range(0, len(spans), 50):
            ids = "&".join(f"span_ids={one}" for one in spans[i : i + 50])
            path = f"projects/{service}/span_annotations?limit=1000&{ids}"
            found += json.loads(get(f"{self.http}/v1/{path}") or '{"data": []}')["data"]
        return found


@contextmanager
def served(folder: Path, **settings: str) -> Iterator[Phoenix]:
    port, grpc = free_ports(2)
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        **settings,
    }
    found = Phoenix(http=f"http://127.0.0.1:{port}", grpc=f"127.0.0.1:{grpc}")
    with running(
        [str(COMMAND), "serve"],
        ready=f"{found.http}/healthz",
        log=folder / "phoenix.log",
        environment=environment,
        patience=PATIENCE,
    ):
        yield found


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    with served(tmp_path_factory.mktemp("phoenix")) as found:
        yield found

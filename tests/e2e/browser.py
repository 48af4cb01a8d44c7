"""A page in headless Chromium, driven over the DevTools protocol.

For pages whose content arrives late: a test asks the page until it shows what is expected.
"""

import base64
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.programs import end, eventually, get, program


class Page:
    """An open tab."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._last = socket, 0

    def send(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while (told := json.loads(self._socket.recv(timeout=60))).get("id") != self._last:
            pass
        assert "error" not in told, told
        return told["result"]

    def value(self, script: str) -> Any:
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        return None if "exceptionDetails" in told else told["result"].get("value")

    def picture(self, path: Path) -> None:
        told = self.send("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(told["data"]))


@contextmanager
def opened(url: str, profile: Path, *, size: str, kept: Mapping[str, str]) -> Iterator[Page]:
    client = pytest.importorskip("websockets.sync.client")
    ports = profile / "DevToolsActivePort"
    process = subprocess.Popen(
        [
            *(program("chromium"), "--headless", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", "--hide-scrollbars", f"--window-size={size}"),
            *("--blink-settings=preferredColorScheme=1", "--remote-debugging-port=0"),
            *(f"--user-data-dir={profile}", "about:blank"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: ports.exists() and "\n" in ports.read_text(), "Chromium's port")
        tabs = f"http://127.0.0.1:{ports.read_text().split()[0]}/json/list"
        (address,) = eventually(lambda: _addresses(tabs), "Chromium's tab")
        with client.connect(address, max_size=None, proxy=None) as socket:
            page = Page(socket)
            keep = (
                f"Object.entries({json.dumps(dict(kept))}).forEach(e=>localStorage.setItem(...e))"
            )
            page.send("Page.enable")
            page.send("Page.addScriptToEvaluateOnNewDocument", source=keep)
            page.send("Page.navigate", url=url)
            yield page
    finally:
        end(process)


def _addresses(tabs: str) -> list[str]:
    """Return the addresses of the open tabs."""
    told = json.loads(get(tabs) or "[]")
    return [one["webSocketDebuggerUrl"] for one in told if one["type"] == "page"]

"""A real Chromium without a window, driven through its own protocol over a pipe."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
    "--mute-audio",
]


class Browser:
    """One page of a browser; `network` names every address that it asked for."""

    def __init__(self, folder: Path, width: int = 1200, height: int = 900) -> None:
        self._command = [
            *(str(CHROMIUM), *QUIET, "--remote-debugging-pipe", f"--window-size={width},{height}"),
            f"--user-data-dir={folder / 'profile'}",
        ]
        self._ids = itertools.count(1)
        self.network: list[str] = []
        self.errors: list[str] = []
        self._rest = b""

    def __enter__(self) -> Self:
        read, self._write = os.pipe()
        self._read, write = os.pipe()

        # the browser looks for its pipes at 3 and 4
        placed = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", *self._command]
        self._process = subprocess.Popen(
            placed, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(self, uri: str) -> None:
        """A page, its scripts run."""
        self._ask("Page.navigate", {"url": uri})
        self.until("document.readyState === 'complete'")

    def tell(self, script: str) -> Any:
        """What an expression is worth; what it throws is raised."""
        found = self._ask(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True, "userGesture": True},
        )
        if "exceptionDetails" in found:
            raise AssertionError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> Any:
        """The value of an expression once it is true."""
        give_up_at = time.monotonic() + seconds
        while not (found := self.tell(script)):
            assert time.monotonic() < give_up_at, script
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """A key, as from a keyboard."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        about = {"key": key, "text": text, "windowsVirtualKeyCode": 13 if key == "Enter" else ord(key[0].upper())}
        self._ask("Input.dispatchKeyEvent", {"type": "keyDown", **about})
        self._ask("Input.dispatchKeyEvent", {"type": "keyUp", **about})

    def shot(self, path: Path) -> None:
        """A picture of the whole page."""
        found = self._ask("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(found["data"]))

    def _ask(self, method: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": given or {}}
        if not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("method") == "Network.requestWillBeSent":
                self.network.append(found["params"]["request"]["url"])
            if found.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(found["params"])[:2000])
            if found.get("id") == number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

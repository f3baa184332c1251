"""A real Chromium without a window, driven through its own protocol over a pipe."""

from __future__ import annotations

import atexit
import base64
import functools
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
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


class _Chromium:
    """A process of the browser, and what it says."""

    def __init__(self, profile: Path, microphone: Path | None = None) -> None:
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        options = [*QUIET, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        if microphone is not None:
            options += [
                "--use-fake-ui-for-media-stream",
                "--use-fake-device-for-media-stream",
                f"--use-file-for-fake-audio-capture={microphone}",
            ]
        # the browser looks for its pipes at 3 and 4
        command = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", str(CHROMIUM), *options]
        self._process = subprocess.Popen(
            command, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        self._rest = b""

    def write(self, message: Mapping[str, Any]) -> None:
        os.write(self._write, json.dumps(message).encode() + b"\0")

    def next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        data, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(data)
        return message

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)


@functools.cache
def _shared_chromium() -> _Chromium:
    """One process for all pages of these tests, as its start takes a second."""
    profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    atexit.register(profile.cleanup)
    chromium = _Chromium(Path(profile.name))
    atexit.register(chromium.end)
    return chromium


class Browser:
    """One page, with a profile of its own; `network` names every address that it asked for. `microphone` is a WAV that
    its microphone hears, again and again, and `folder` is then that of the profile."""

    _ids = itertools.count(1)

    def __init__(self, folder: Path, width: int = 1200, height: int = 900, microphone: Path | None = None) -> None:
        self._folder, self._size, self._microphone = folder, (width, height), microphone
        self.network: list[str] = []
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        is_shared = self._microphone is None
        self._chromium = _shared_chromium() if is_shared else _Chromium(self._folder / "profile", self._microphone)
        self._session = ""
        self._context = self._ask("Target.createBrowserContext")["browserContextId"]
        width, height = self._size
        page = {"url": "about:blank", "browserContextId": self._context, "newWindow": True}
        target = self._ask("Target.createTarget", {**page, "width": width, "height": height})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._microphone is None:
            self._ask("Target.disposeBrowserContext", {"browserContextId": self._context})
        else:
            self._chromium.end()

    def set_width(self, width: int) -> None:
        """Lay pages out as on a phone of this width."""
        self._set_screen(width, 844, 1, is_phone=True)

    def set_screen(self, width: int, height: int, density: float) -> None:
        """Lay pages out as on a screen of this size, without scroll bars; `density` is its pixels for each of ours."""
        self._set_screen(width, height, density, is_phone=False)
        self._ask("Emulation.setScrollbarsHidden", {"hidden": True})

    def set_theme(self, theme: str) -> None:
        """Show pages `light` or `dark`, and without transitions: a colour that changes has another in between."""
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        features = [{"name": "prefers-color-scheme", "value": theme}, still]
        self._ask("Emulation.setEmulatedMedia", {"features": features})

    def open(self, uri: str) -> None:
        """Open a page and wait until its scripts have run."""
        self._ask("Page.navigate", {"url": uri})
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; AssertionError with what it throws."""
        result = self._ask(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True, "userGesture": True},
        )
        if "exceptionDetails" in result:
            raise AssertionError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60) -> Any:
        """Wait until an expression is true; return its value."""
        give_up_at = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            assert time.monotonic() < give_up_at, script
            time.sleep(0.05)
        return value

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        event = {"key": key, "text": text, "windowsVirtualKeyCode": 13 if key == "Enter" else ord(key[0].upper())}
        self._ask("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        self._ask("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def screenshot(self, path: Path, area: Mapping[str, float] | None = None) -> None:
        """Save a screenshot of the whole page, or of an area of it: `x`, `y`, `width` and `height`."""
        clip = {} if area is None else {"clip": {**area, "scale": 1}}
        result = self._ask("Page.captureScreenshot", {"captureBeyondViewport": True, **clip})
        path.write_bytes(base64.b64decode(result["data"]))

    def _set_screen(self, width: int, height: int, density: float, *, is_phone: bool) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": density, "mobile": is_phone}
        self._ask("Emulation.setDeviceMetricsOverride", metrics)

    def _ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if not method.startswith("Target."):
            message["sessionId"] = self._session
        self._chromium.write(message)
        while True:
            reply = self._chromium.next()
            if reply.get("id") == number:
                assert "error" not in reply, reply
                result: dict[str, Any] = reply["result"]
                return result
            if reply.get("sessionId") != self._session:  # of a page that was closed
                continue
            if reply.get("method") == "Network.requestWillBeSent":
                self.network.append(reply["params"]["request"]["url"])
            if _is_error(reply):
                self.errors.append(json.dumps(reply["params"])[:2000])


def _is_error(event: dict[str, Any]) -> bool:
    """Whether the console shows an event as an error: an exception, `console.error`, a failed request, a policy."""
    method, params = event.get("method"), event.get("params", {})
    return (
        method == "Runtime.exceptionThrown"
        or (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"))
        or (method == "Log.entryAdded" and params["entry"]["level"] == "error")
    )

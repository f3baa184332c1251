"""A real Chromium without a window, driven through its own protocol over a pipe."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
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


class Browser:
    """One page of a browser; `network` names every address that it asked for. `microphone` is a WAV that its microphone
    hears, again and again."""

    def __init__(self, folder: Path, width: int = 1200, height: int = 900, microphone: Path | None = None) -> None:
        self._command = [
            *(str(CHROMIUM), *QUIET, "--remote-debugging-pipe", f"--window-size={width},{height}"),
            f"--user-data-dir={folder / 'profile'}",
        ]
        if microphone is not None:
            self._command += [
                "--use-fake-ui-for-media-stream",
                "--use-fake-device-for-media-stream",
                f"--use-file-for-fake-audio-capture={microphone}",
            ]
        self._ids = itertools.count(1)
        self.network: list[str] = []
        self.errors: list[str] = []
        self._rest = b""

    def __enter__(self) -> Self:
        read, self._write = os.pipe()
        self._read, write = os.pipe()

        # the browser looks for its pipes at 3 and 4
        command = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", *self._command]
        self._process = subprocess.Popen(
            command, pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(write)
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

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
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("method") == "Network.requestWillBeSent":
                self.network.append(reply["params"]["request"]["url"])
            if _is_error(reply):
                self.errors.append(json.dumps(reply["params"])[:2000])
            if reply.get("id") == number:
                assert "error" not in reply, reply
                result: dict[str, Any] = reply["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        data, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(data)
        return message


def _is_error(event: dict[str, Any]) -> bool:
    """Whether the console shows an event as an error: an exception, `console.error`, a failed request, a policy."""
    method, params = event.get("method"), event.get("params", {})
    return (
        method == "Runtime.exceptionThrown"
        or (method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"))
        or (method == "Log.entryAdded" and params["entry"]["level"] == "error")
    )

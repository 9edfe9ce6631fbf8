"""A headless Chromium for tests, driven over its own pipe.

It opens pages, presses keys, and notes every event.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds for one answer
KEYS = {"Enter": ("\r", 13), "Tab": ("", 9), "Escape": ("", 27), "/": ("/", 191)}


def found() -> str | None:
    """Debian's name of the program, and others'."""
    return next(
        (
            path
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (path := shutil.which(name))
        ),
        None,
    )


class Browser:
    """One process; `close` ends it with its children."""

    def __init__(self, program: str, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # It wants them as 3 and 4, which they may be the wrong way round.
        theirs_in, theirs_out = _high(theirs_in), _high(theirs_out)
        argv = [
            *("bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash"),
            program,
            *"--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage".split(),
            *"--no-first-run --mute-audio --disable-background-networking".split(),
            *"--disable-component-update --disable-sync --hide-scrollbars".split(),
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            argv,
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = (
            os.fdopen(ours_in, "rb", buffering=0),
            os.fdopen(ours_out, "wb", buffering=0),
        )
        os.set_blocking(self._in.fileno(), False)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        self._out.close()
        self._in.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Run a command of the DevTools protocol and return its answer. Other events are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._out.write(json.dumps(message).encode() + b"\0")
        number = self._number
        answer = self._until(lambda heard: heard.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        for event in self.events:
            if event.get("method") == method and event.get("sessionId") == session:
                return event
        return self._until(
            lambda heard: heard.get("method") == method and heard.get("sessionId") == session
        )

    def page(self) -> Page:
        return Page(self)

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\0")
                heard: dict[str, Any] = json.loads(line)
                if "method" in heard:
                    self.events.append(heard)
                if wanted(heard):
                    return heard
            assert time.monotonic() < end, "Chromium does not answer"
            self._read()

    def _read(self) -> None:
        if select.select([self._in], [], [], 0.5)[0]:
            part = self._in.read(1 << 20)
            assert part != b"", "Chromium has ended"
            self._buffer += part or b""


def _high(number: int) -> int:
    moved = fcntl.fcntl(number, fcntl.F_DUPFD, 20)
    os.close(number)
    return moved


class Page:
    """One tab."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self.session, **params)

    def open(self, path: Path) -> None:
        """Until the page has loaded."""
        self._browser.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._browser.wait_for("Page.loadEventFired", self.session)

    def look(
        self, *, width: int = 1240, height: int = 900, dark: bool = False, media: str = ""
    ) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, expression: str) -> Any:
        """What an expression gives. It is ours, so the page's policy does not matter to it."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        text, code = KEYS[key]
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                words = {"text": text} if text and kind == "keyDown" else {}
                self.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    windowsVirtualKeyCode=code,
                    **words,
                )

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def complaints(self) -> list[str]:
        """What the console says, uncaught errors, and what the page's policy refused."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self._heard() if event["method"] in kinds]

    def requests(self) -> list[str]:
        return [
            e["params"]["request"]["url"]
            for e in self._heard()
            if e["method"] == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path, selector: str = "html") -> None:
        """A screenshot of one element, for people to look at."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " const r = e.getBoundingClientRect();"
            " return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}; })()"
        )
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=True, clip={**box, "scale": 1}
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _heard(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self.session]

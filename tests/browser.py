"""Chromium without a window, for tests of pages: driven over a pipe, in its own protocol.

Source: Chrome DevTools Protocol, https://chromedevtools.github.io/devtools-protocol/; with
`--remote-debugging-pipe` messages are JSON with a zero byte behind each, on descriptors 3 and 4.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_REPLY_S = 30.0


class Browser:
    """A running Chromium; `open` gives a page."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="vermilion-browser-", ignore_cleanup_errors=True
        )
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def pipes() -> None:
            # Out of the way first: what is to become 3 may be 4.
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", "--no-first-run", "--remote-debugging-pipe",
             "--disable-dev-shm-usage", f"--user-data-dir={self._folder.name}", "about:blank"],
            close_fds=False, preexec_fn=pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command; return what it answers. Raises: AssertionError for an error."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _REPLY_S
        while time.monotonic() < deadline:
            reply = self._next(deadline)
            if reply.get("id") == self._number:
                assert "error" not in reply, f"{method}: {reply['error']}"
                result: dict[str, Any] = reply["result"]
                return result
            self.events.append(reply)
        raise AssertionError(f"{method}: no answer")

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            ready = select.select([self._read], [], [], max(0.0, left))[0]
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path, *, width: int = 1400, height: int = 900) -> Page:
        """Open a file and wait until its own script is done."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        found = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            found.ask(f"{domain}.enable")
        found.ask("Performance.enable", timeDomain="threadTicks")
        found.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        found.ask("Page.navigate", url=page.resolve().as_uri())
        found.wait("document.readyState === 'complete'")
        return found

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()


class Page:
    """One page in the browser."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of this page."""
        return self._browser.ask(method, self._session, **parameters)

    def front(self) -> None:
        """Bring it to the front: what is behind is not drawn."""
        self.ask("Page.bringToFront")

    def run(self, script: str) -> Any:
        """Return what an expression gives; promises are waited for."""
        # The tools' own scripts are let in by no policy: they run beside it.
        result = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, f"{script}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, key: str) -> None:
        """Press a key, as a person does."""
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def click(self, x: float, y: float, count: int = 1) -> None:
        """Click at a place of the page."""
        for number in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.ask(
                    "Input.dispatchMouseEvent",
                    type=kind, x=x, y=y, button="left", clickCount=number,
                )  # fmt: skip
        self.settle()

    def click_on(self, selector: str, count: int = 1) -> None:
        """Click in the middle of an element."""
        box = self.run(
            f"(() => {{ const r = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        self.click(*box, count=count)

    def picture(self, file: Path) -> None:
        """Write what is seen as a PNG."""
        self.settle()
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))

    def worked_s(self) -> float:
        """Return the processor time that scripts and layout of the page have taken so far."""
        rows = self.ask("Performance.getMetrics")["metrics"]
        taken = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
        return sum(row["value"] for row in rows if row["name"] in taken)

    def printed(self) -> bytes:
        """Return the page as it is printed, a PDF."""
        return base64.b64decode(self.ask("Page.printToPDF", landscape=True)["data"])

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, uncaught exceptions, and every request."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            about = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(about["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded":
                found.append(f"{about['entry']['level']}: {about['entry']['text']}")
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(f"{about['type']}: {about['args']}")
            elif event["method"] == "Network.requestWillBeSent":
                url = about["request"]["url"]
                if not url.startswith(("file:", "about:")):
                    found.append(f"request: {url}")
        return found

    def close(self) -> None:
        """Close the page."""
        self._browser.ask("Target.closeTarget", targetId=self._target)

"""A headless Chromium, driven over its debugging pipe: pages as a person would see them, on paper, and with axe-core.

    with Chromium(binary, tmp_path / "profile") as browser:
        page = browser.open(path, width=390, dark=True)
        page.shot(), page.pdf(), page.evaluate("1 + 1"), page.problems, page.requests

`chromium()` and `axe()` give what a test needs, or skip it with the reason. Not covered: other browsers.
"""

import base64
import fcntl
import functools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = "axe-core@4.14.1"
AXE_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
WAIT = 240.0  # seconds until an answer is given up: a hung browser fails the test instead of the suite


def chromium() -> str:
    """The browser's path; skips the test where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), "")
    if not found:
        pytest.skip("no Chromium here (apt-get install chromium)")
    return found


@functools.cache
def _axe() -> tuple[str, str]:
    """(its source, "") or ("", why there is none)."""
    npm = shutil.which("npm")
    if not npm:
        return "", "no npm here to get axe-core with"
    with tempfile.TemporaryDirectory() as folder:
        got = subprocess.run([npm, "pack", AXE], cwd=folder, capture_output=True, text=True, timeout=100, check=False)
        if got.returncode:
            return "", f"npm pack {AXE} failed: {got.stderr.strip().splitlines()[-1:]}"
        (packed,) = Path(folder).glob("*.tgz")
        shutil.unpack_archive(packed, folder)
        return (Path(folder) / "package" / "axe.min.js").read_text(encoding="utf-8"), ""


def axe() -> str:
    """The source of axe-core; skips the test where it cannot be had."""
    source, why = _axe()
    if not source:
        pytest.skip(why)
    return source


@dataclass
class Page:
    """An open page. `problems`: errors and warnings of its console; `requests`: every URL it asked for."""

    browser: "Chromium"
    session: str
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.browser.call("Runtime.evaluate", given, self.session)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def shot(self, whole: bool = True) -> bytes:
        """A PNG of the whole page, or of what is seen first."""
        given = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.browser.call("Page.getLayoutMetrics", {}, self.session)["cssContentSize"]
            given["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 15000), "scale": 1}
        return base64.b64decode(self.browser.call("Page.captureScreenshot", given, self.session)["data"])

    def pdf(self) -> bytes:
        """A4, as the print dialogue makes it."""
        given = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": False}
        return base64.b64decode(self.browser.call("Page.printToPDF", given, self.session)["data"])

    def html(self) -> str:
        """The page as it stands now; works without scripts, too."""
        root = self.browser.call("DOM.getDocument", {}, self.session)["root"]["nodeId"]
        text: str = self.browser.call("DOM.getOuterHTML", {"nodeId": root}, self.session)["outerHTML"]
        return text

    def close(self) -> None:
        self.browser.call("Page.close", {}, self.session)

    def press(self, key: str, code: int) -> None:
        """One key, down and up."""
        for kind in ("keyDown", "keyUp"):
            given = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            if kind == "keyDown" and key == "Enter":
                given["text"] = "\r"
            self.browser.call("Input.dispatchKeyEvent", given, self.session)

    def violations(self, source: str) -> list[str]:
        """What axe-core complains of, a line each."""
        self.evaluate(f"{source}; 0")
        found = json.loads(self.evaluate(f"axe.run({json.dumps(AXE_RULES)}).then((r) => JSON.stringify(r.violations))"))
        return [f"{v['id']}: {v['help']}: {n['html'][:160]}: {n['failureSummary']}" for v in found for n in v["nodes"]]


class Chromium:
    """One browser process; its profile is a folder of the test's."""

    def __init__(self, binary: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser, from_browser)]  # then 3 and 4 are free
        options = (
            *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking"),
            *("--disable-component-update", "--force-color-profile=srgb", "--hide-scrollbars"),
        )
        command = [binary, *options, f"--user-data-dir={profile}", "about:blank"]
        script = f'exec "$@" 3<&{high[0]} 4>&{high[1]} {high[0]}<&- {high[1]}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (to_browser, from_browser, *high):
            os.close(fd)
        self._last = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}
        self._loaded: deque[str] = deque()
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        self._process.kill()
        self._process.wait()

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True) -> Page:
        """A page of its own, loaded to its end."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", {}, session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size, session)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]}, session)
        self.call("Emulation.setScriptExecutionDisabled", {"value": not script}, session)
        self._loaded.clear()
        self.call("Page.navigate", {"url": path.as_uri()}, session)
        with self._news:
            assert self._news.wait_for(lambda: session in self._loaded, WAIT), f"{path} was not loaded"
        return page

    def call(self, method: str, given: dict[str, Any], session: str = "") -> dict[str, Any]:
        """One command's answer. Fails where it is refused or none comes."""
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": given}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        with self._news:
            assert self._news.wait_for(lambda: number in self._answers, WAIT), f"no answer to {method}"
            answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _listen(self) -> None:
        rest = b""
        while data := os.read(self._read, 1 << 20):
            *whole, rest = (rest + data).split(b"\0")
            for text in whole:
                self._take(json.loads(text))

    def _take(self, message: dict[str, Any]) -> None:
        with self._news:
            if "id" in message:
                self._answers[message["id"]] = message
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                self._event(page, message["method"], message["params"])
            self._news.notify_all()

    def _event(self, page: Page, method: str, said: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.append(page.session)
        elif method == "Network.requestWillBeSent":
            page.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            page.problems.append(json.dumps(said["exceptionDetails"])[:300])
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            page.problems.append(said["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            page.problems.append(json.dumps(said["args"])[:300])

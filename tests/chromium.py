"""Chromium without a window: what a person at a browser sees and does, driven over its DevTools protocol.

The protocol is spoken over a pair of pipes, so that no port is open and no client of web sockets is needed. Names that
are no address of this machine's are not looked up.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.worker_process import PATIENCE_S, eventually

FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
    *("--no-first-run", "--no-default-browser-check", "--mute-audio", "--hide-scrollbars", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
"""Root, as whom containers run tests, cannot have Chromium's sandbox; what it opens are pages of our own."""

_PIPES = 'exec "$@" 3<&"$TO_BROWSER" 4>&"$FROM_BROWSER"'
"""The pipes that the browser reads and writes."""

_APT = ("apt-get", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120")

_SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
"""Debian keeps servers where an ordinary user does not look."""

_NAVIGATED = ("target navigated", "context was destroyed", "Cannot find context")

Answer = dict[str, Any]


def chromium() -> str:
    """The program, from Debian's package if there is none."""
    return debians("chromium")


def debians(name: str) -> str:
    """The program of a package of its name. Debian's is installed if there is none; the test is skipped where that
    cannot be done."""
    found = shutil.which(name, path=_SEARCHED)
    if found is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"there is no {name}, which only root can install, from Debian's packages")
    for command in ((*_APT, "update"), (*_APT, "install", name)):
        done = subprocess.run(
            command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, capture_output=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"there is no {name}, and Debian's packages are out of reach: {done.stderr.decode()[-200:]}")
    return shutil.which(name, path=_SEARCHED) or name


class Navigated(Exception):
    """The page was replaced by another while a command was at it."""


class Browser:
    """One Chromium. Use as a context manager; it keeps nothing when it ends."""

    def __init__(self, program: str, profile: Path, *flags: str) -> None:
        """`flags` override those of FLAGS."""
        self._command = [program, *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"]
        self._numbers = count(1)
        self._rest = b""
        self._tabs: dict[str, Tab] = {}

    def __enter__(self) -> Self:
        browser_reads, self._to = os.pipe()
        self._from, browser_writes = os.pipe()
        given = {"TO_BROWSER": str(browser_reads), "FROM_BROWSER": str(browser_writes)}
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", _PIPES, "bash", *self._command],
            pass_fds=(browser_reads, browser_writes),
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_reads)
        os.close(browser_writes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It ends when nobody speaks to it any more.
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()

    def tab(self, *, width: int = 1280, height: int = 800, scheme: str = "light") -> "Tab":
        """A tab that shares nothing with others."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session, context)
        tab.prepare(width, height, scheme)
        return tab

    def close(self, context: str) -> None:
        self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, session: str | None = None, **params: Any) -> Answer:
        """The answer to one command; what happened meanwhile is noted on its tab. Raises: Navigated."""
        number = next(self._numbers)
        message: Answer = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        _write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == number:
                if any(words in told.get("error", {}).get("message", "") for words in _NAVIGATED):
                    raise Navigated(method)
                assert "error" not in told, (method, told["error"])
                result: Answer = told["result"]
                return result
            if told.get("sessionId") in self._tabs:
                self._tabs[told["sessionId"]].note(told["method"], told["params"])

    def _read(self) -> Answer:
        give_up_s = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            readable, _, _ = select.select([self._from], [], [], give_up_s - time.monotonic())
            data = os.read(self._from, 2**20) if readable else b""
            assert data, "chromium has ended, or says nothing"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        told: Answer = json.loads(message)
        return told


class Tab:
    """A page in a tab: what it asked for, what it complained of, and a person's hands. Use as a context manager."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context
        self.requests: list[Answer] = []
        """All that it asked for: `url`, `method`, `postData`, …"""
        self.complaints: list[str] = []
        """The console's errors and broken policies; an answer that is no 200 is none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close(self._context)

    def prepare(self, width: int, height: int, scheme: str) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=_features(scheme))
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def call(self, method: str, **params: Any) -> Answer:
        return self._browser.call(method, self._session, **params)

    def note(self, event: str, params: Answer) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif event == "Log.entryAdded" and params["entry"]["source"] != "network":
            self.complaints.append(params["entry"]["text"])

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str, **given: Any) -> Any:
        """The value of JavaScript, awaited, in which the names of `given` have their values."""
        names, values = ", ".join(given), ", ".join(json.dumps(value) for value in given.values())
        told = self.call(
            "Runtime.evaluate",
            expression=f"(async ({names}) => ({expression}))({values})",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, expression: str, **given: Any) -> None:
        """Wait for the expression to be true of the page, or of the one that replaces it meanwhile."""
        eventually(lambda: self._is_true(expression, **given))

    def _is_true(self, expression: str, **given: Any) -> bool:
        try:
            return bool(self.evaluate(expression, **given))
        except Navigated:
            return False

    def text(self, selector: str) -> str:
        """The text that can be read; it is empty if the element is hidden."""
        text: str = self.evaluate("document.querySelector(s)?.innerText ?? ''", s=selector)
        return text

    def shows(self, selector: str) -> bool:
        return bool(self.evaluate("document.querySelector(s)?.checkVisibility() ?? false", s=selector))

    def picture(self) -> bytes:
        """A PNG of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    # ── doing ────────────────────────────────────────────────────────────────────────────────────

    def click(self, selector: str) -> None:
        """A press of the mouse where the element is, which whatever lies over it gets instead."""
        at = self._place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    def point(self, selector: str) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self._place(selector))

    def _place(self, selector: str) -> Mapping[str, float]:
        """The middle of the element, once it is seen and has come into view."""
        eventually(lambda: self.shows(selector))
        frame = "await new Promise(requestAnimationFrame);"
        box = self.evaluate(
            f"await (async e => {{ e.scrollIntoView({{block: 'nearest'}}); {frame} {frame}"
            " const b = e.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2} })"
            "(document.querySelector(s))",
            s=selector,
        )
        return {"x": box["x"], "y": box["y"]}

    def fill(self, selector: str, text: str) -> None:
        """Type over what is in a box."""
        self.evaluate("(e => { e.focus(); e.select(); })(document.querySelector(s))", s=selector)
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        told = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": "\r"} if key == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)


_KEYS = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "Tab": 9}


def _features(scheme: str) -> list[Answer]:
    """The system's settings that a page is told of. Nothing moves, so that a picture is not taken in between."""
    told = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    return [{"name": name, "value": value} for name, value in told.items()]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]

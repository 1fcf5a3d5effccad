"""Headless Chromium by the WebDriver protocol, with nothing but the standard library."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


def missing() -> str:
    """Why no browser can be driven here; empty if one can."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(absent)} (Debian: apt-get install chromium chromium-driver)" if absent else ""


class Browser:
    """One page."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as problem:
            raise AssertionError(problem.read().decode()) from problem

    def open(self, page: Path) -> None:
        self.ask("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """The value of a function body in JavaScript."""
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})

    def press(self, keys: str) -> None:
        """Type keys; special ones by their WebDriver code points."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def resize(self, width: int, height: int) -> None:
        """Show the page as a screen of this size does, in pixels: windows have a least width."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def problems(self) -> list[str]:
        """Errors that the page has logged."""
        return [
            line["message"] for line in self.ask("POST", "/se/log", {"type": "browser"}) if line["level"] == "SEVERE"
        ]

    def picture(self, file: Path) -> None:
        file.write_bytes(b64decode(self.ask("GET", "/screenshot")))


@contextmanager
def browser(folder: Path, width: int = 1500, height: int = 1300) -> Generator[Browser]:
    """A browser with an empty profile in `folder`, ended with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"HOME": str(folder)}
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(["chromedriver", f"--port={port}"], env=environment, stdout=log, stderr=log)
    root, session = Browser(f"http://127.0.0.1:{port}"), None
    options = [*QUIET, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
    try:
        for _ in range(300):
            try:
                if root.ask("GET", "/status")["ready"]:
                    break
            except OSError:
                time.sleep(0.1)
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": options, "binary": shutil.which("chromium")}}
        wanted["goog:loggingPrefs"] = {"browser": "ALL"}
        session = root.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        yield Browser(f"{root.url}/session/{session}")
    finally:
        if session is not None:
            root.ask("DELETE", f"/session/{session}")
        driver.terminate()
        driver.wait(timeout=30)

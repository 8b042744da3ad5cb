"""A headless Chromium, driven by the DevTools protocol over a pair of pipes: no driver, no port."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: names of the program, as distributions have it
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find():
    """Path of a Chromium; None where none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


#: puts descriptors where a Chromium has them
_PLACES = """
import os, sys
high = [os.dup(os.dup(os.dup(int(word)))) for word in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A Chromium with one page; a context manager.

    Args:
        width: of the page.
        height: of the page.
        dark: True for the dark scheme.
    """

    def __init__(self, width=1400, height=1000, *, dark=False):
        self._folder = tempfile.mkdtemp(prefix="browser-")
        # it reads from descriptor 3 and writes to 4
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder}",
            f"--window-size={width},{height}",
        ]
        ends = [str(theirs_in), str(theirs_out)]
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _PLACES, *ends, find(), *options, "about:blank"],
            pass_fds=[theirs_in, theirs_out],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._folder, "XDG_RUNTIME_DIR": self._folder},
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest = b""
        self._number = 0
        #: events that came, as dictionaries
        self.events = []
        targets = self._send("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self._send("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.show(width, height, dark=dark)

    @property
    def pid(self):
        """Of the process that starts all others of the browser."""
        return self._process.pid

    def show(self, width=1400, height=1000, *, dark=False):
        """Begin anew with an empty page, as the class is made; nothing is remembered."""
        self.send("Network.clearBrowserCookies")
        self.send("Storage.clearDataForOrigin", origin="*", storageTypes="all")
        self.open("about:blank")
        self.events.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def send(self, method, **params):
        """Send a command to the page; its result."""
        return self._send(method, self._session, **params)

    def open(self, url):
        """Open an address, and wait until the page has loaded."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.await_event("Page.loadEventFired")

    def evaluate(self, text):
        """The value of an expression in the page, of JSON's types."""
        found = self.send(
            "Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, text, seconds=30.0):
        """Wait until an expression is true in the page; how many seconds that took."""
        began = time.monotonic()
        # in the page, as soon as it draws
        wanted = f"new Promise((done) => {{ const look = () => ({text}) ? done(true) : setTimeout(look, 5); look(); setTimeout(() => done(false), {seconds * 1000}); }})"
        assert self.evaluate(wanted), f"{text} was not true within {seconds} s"
        return time.monotonic() - began

    def await_event(self, method):
        """Wait for an event; its parameters."""
        while True:
            for one in self.events:
                if one["method"] == method:
                    return one["params"]
            self._take(self._read())

    def complaints(self):
        """What the page wrote as an error, what it threw, and what it was not allowed."""
        self.evaluate("1")
        found = []
        for one in self.events:
            params = one["params"]
            if one["method"] == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["exception"].get("description"))
            elif one["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
        return found

    def requests(self):
        """Addresses that the page has asked for."""
        self.evaluate("1")
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path, *, whole=False):
        """Write what is shown as PNG; the whole page, or the part in sight."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        """End it."""
        # it may have ended
        with contextlib.suppress(OSError, EOFError):
            self._send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _send(self, method, session=None, **params):
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            found = self._read()
            if found.get("id") == number:
                if "error" in found:
                    raise AssertionError(found["error"])
                return found["result"]
            self._take(found)

    def _take(self, message):
        if "method" in message:
            self.events.append(message)

    def _read(self, seconds=60.0):
        deadline = time.monotonic() + seconds
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                msg = "the browser says nothing"
                raise AssertionError(msg)
            data = os.read(self._from, 2**20)
            if not data:
                raise EOFError
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

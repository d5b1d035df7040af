"""A headless browser for tests and pictures: Chromium, driven over a pipe with the DevTools
protocol. It needs no package but the browser."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

# Names under which distributions install the browser.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ANSWER_SECONDS = 30


def program():
    """Returns the path of the browser. Ends the script if there is none."""
    found = [path for path in map(shutil.which, PROGRAMS) if path]
    if not found:
        sys.exit("chromium is missing: apt-get install chromium")
    return found[0]


class Browser:
    """A browser that ends with its `with` block. Its profile is new, and is deleted at the end."""

    def __enter__(self):
        chromium = program()
        self.profile = tempfile.mkdtemp()
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()
        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "--disable-dev-shm-usage",
            # The browser's sandbox does not start for root. The pages are the project's own.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        # The browser reads commands from descriptor 3 and writes answers to 4.
        moved = ["sh", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "sh"]
        self.log = open(
            pathlib.Path(self.profile) / "log", "wb"
        )  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [*moved, chromium, *flags, "about:blank"],
            # Other files of the browser are deleted together with its profile.
            env={**os.environ, "TMPDIR": self.profile},
            pass_fds=(to_browser, from_browser),
            stdout=self.log,
            stderr=self.log,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.rest, self.last, self.answers, self.pages = b"", 0, {}, {}
        return self

    def __exit__(self, *_):
        os.close(self.out)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.into)
        self.log.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, session=None, **params):
        """Calls a method of the protocol, and returns its result."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self.out, text) :]
        deadline = time.monotonic() + ANSWER_SECONDS
        number = self.last
        while number not in self.answers:
            if not self.receive(deadline - time.monotonic()):
                sys.exit(f"the browser does not answer {method}: {self.said()}")
        answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def receive(self, seconds):
        """Reads what the browser has sent, and waits at most `seconds` for it. Returns whether
        something came."""
        if seconds <= 0 or not select.select([self.into], [], [], seconds)[0]:
            return False
        data = os.read(self.into, 1 << 20)
        if not data:
            sys.exit(f"the browser ended: {self.said()}")
        *messages, self.rest = (self.rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].handle(message["method"], message["params"])
        return True

    def said(self):
        """The end of the browser's log."""
        return (pathlib.Path(self.profile) / "log").read_text(errors="replace")[-2000:]

    def page(self, **settings):
        """Opens an empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, target, **settings)


class Page:
    """A page, and what happened in it: requests, complaints of the browser, and exceptions."""

    def __init__(self, browser, session, target, width=1180, height=900, dark=False):
        self.browser, self.session, self.target = browser, session, target
        self.requests, self.failures, self.complaints, self.answer = [], [], [], None
        browser.pages[session] = self
        for domain in ("Page", "Network", "Log", "Runtime", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.choose(dark)

    def call(self, method, **params):
        """Calls a method of the protocol for this page."""
        return self.browser.call(method, self.session, **params)

    def handle(self, method, params):
        """Records an event."""
        if method == "Network.requestWillBeSent":
            self.requests.append((params["request"]["method"], params["request"]["url"]))
        elif method == "Log.entryAdded":
            entry = params["entry"]
            # Refused connections and error statuses of /status are part of the tests.
            where = self.failures if entry["source"] == "network" else self.complaints
            where.append(f"{entry['source']}: {entry['text']}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console: {params['args']}")
        elif method == "Fetch.requestPaused":
            self.browser.last += 1
            body = base64.b64encode(self.answer[1].encode()).decode()
            message = {
                "id": self.browser.last,
                "sessionId": self.session,
                "method": "Fetch.fulfillRequest",
                "params": {
                    "requestId": params["requestId"],
                    "responseCode": self.answer[0],
                    "body": body,
                    "responseHeaders": [{"name": "epicepoch-error", "value": self.answer[2]}],
                },
            }
            os.write(self.browser.out, json.dumps(message).encode() + b"\0")

    def resize(self, width, height):
        """Sets the size of the window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def choose(self, dark):
        """Chooses the dark or the light scheme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url):
        """Loads a page."""
        self.call("Page.navigate", url=url)

    def run(self, code):
        """Runs JavaScript in the page, and returns its value."""
        answer = self.call(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{code}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, code, what, seconds=30):
        """Waits until an expression is true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = self.run(f"Boolean({code})")
            except RuntimeError as error:
                # The page is still being loaded.
                value, why = None, error
            else:
                why = f"it is {value}"
            if value:
                return
            if time.monotonic() > deadline:
                text = self.run("document.body?.innerText")
                raise AssertionError(
                    f"not within {seconds} s: {what}; {why}. The page says: {text}"
                )
            self.browser.receive(0.05)

    def press(self, key, code=None, text=""):
        """Presses and releases a key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        event = {"key": key, "code": code or key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", text="\r" if key == "Enter" else text, **event
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text):
        """Types a text into the element with the focus."""
        self.call("Input.insertText", text=text)

    def fulfil(self, status, body, error=""):
        """From now on, the test itself answers the page's questions to /status."""
        self.answer = (status, body, error)
        self.call("Fetch.enable", patterns=[{"urlPattern": "*/status"}])

    def picture(self, path, height=None):
        """Writes a picture of the page, or of its upper part."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": height or size["height"],
            "scale": 1,
        }
        data = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

"""A headless Chromium, driven over a pipe: it opens a page, evaluates in it, takes pictures, tells what went wrong."""

import base64
import json
import os
import select
import subprocess
import tempfile
import time


class Browser:
    """One Chromium with one tab; everything that the console or the network complains of is in `errors`."""

    def __init__(self, program):
        self.errors = []
        self._count = 0
        self._buffer = b""
        self._folder = tempfile.TemporaryDirectory(prefix="pd-router-ui-", ignore_cleanup_errors=True)
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [program, "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage",
                 "--no-first-run", "--no-proxy-server", "--hide-scrollbars", f"--user-data-dir={self._folder.name}",
                 "about:blank"]
        if os.geteuid() == 0:
            # Chromium refuses to sandbox itself for root; the only page that it sees is the router's own.
            words.insert(1, "--no-sandbox")
        # Chromium reads commands at descriptor 3 and answers at descriptor 4.
        shell = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(["bash", "-c", shell, "bash", *words], pass_fds=(theirs_in, theirs_out),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._session = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """One command and its answer; at most 20 s."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 20
        while True:
            answer = self._next(end, method)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self, end, method):
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"chromium does not answer {method}")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("chromium has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        said = event.get("params", {})
        kind = event.get("method")
        if kind == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif kind == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append("console: " + " ".join(str(one.get("value")) for one in said["args"]))
        elif kind == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"log: {said['entry']['text']} {said['entry'].get('url', '')}")

    def value(self, expression):
        """What the expression is in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression, what, seconds=20):
        """Waits until the expression holds in the page."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {what}; the page: {self.value('document.body.innerText')}")
            time.sleep(0.2)

    def look(self, width, height, scheme):
        """The size of the window, and `light` or `dark`."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        """The whole page as a PNG file."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def end(self):
        """Ends it, by its process id."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

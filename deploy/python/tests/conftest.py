"""What the tests share: the programs, free ports, engines, and a wait for `/health`."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]
ROOT = PYTHON.parents[1]
# a wheel that is installed is what gets tested; else the sources are
if os.environ.get("PD_ROUTER_INSTALLED") != "1":
    SOURCES = [str(PYTHON / "src"), str(PYTHON.parent / "python-vllm-router" / "src")]
    sys.path[:0] = SOURCES
    # children that are spawned and scripts that are run find them too
    os.environ["PYTHONPATH"] = os.pathsep.join(SOURCES + [os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    os.environ.setdefault("PD_ROUTER_BIN", str(ROOT / "target/debug/pd-router"))
SIM = os.environ.get("PD_SIM_BIN", str(ROOT / "target/debug/pd-sim"))
# what a loaded machine may take for a step that takes milliseconds
PATIENCE_SECONDS = 30


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def ask(port, method, path, body=None, timeout=PATIENCE_SECONDS):
    """(status, body) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        head = {"content-type": "application/json"} if body is not None else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, head)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_healthy(port):
    """Whether `/health` says 200 now."""
    try:
        return ask(port, "GET", "/health", timeout=2)[0] == 200
    except OSError:
        return False


def until(true, what, alive=lambda: True):
    """Waits until `true()`; fails at once when `alive()` no longer is."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        if true():
            return
        assert alive(), f"ended while waiting: {what}"
        time.sleep(0.05)
    pytest.fail(f"waited {PATIENCE_SECONDS} s: {what}")


def children(pid):
    """The processes that `pid` started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]


def is_running(pid):
    """Whether `pid` runs, and is not just a dead process that nobody waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Engines:
    """One simulated engine of each role."""

    def __init__(self):
        self.ports = {"prefill": free_port(), "decode": free_port()}
        self.processes = [
            subprocess.Popen([SIM, "--role", role, "--port", str(port)], stdout=subprocess.DEVNULL)
            for role, port in self.ports.items()
        ]

    def url(self, role):
        """Its base URL."""
        return f"http://127.0.0.1:{self.ports[role]}"

    def close(self):
        """Ends them."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def engines():
    """A prefill and a decode engine that are up."""
    assert os.access(SIM, os.X_OK), f"no simulator at {SIM}: set PD_SIM_BIN, or run `cargo build -p pd-sim`"
    pair = Engines()
    try:
        for port in pair.ports.values():
            until(lambda port=port: is_healthy(port), "an engine's /health")
        yield pair
    finally:
        pair.close()


@pytest.fixture
def pd_settings(engines):
    """RouterArgs' settings for these engines, on ports of their own."""
    return {
        "port": free_port(),
        "prometheus_port": free_port(),
        "vllm_pd_disaggregation": True,
        "prefill_urls": [(engines.url("prefill"), None)],
        "decode_urls": [engines.url("decode")],
        # engines are up: a slow first look at them would only be waited for
        "health_check_interval_secs": 1,
    }


def complete(port, engines):
    """One completion through the router, which prefill and decode both took part in."""
    before = tokens_handed_over(engines)
    status, body = ask(port, "POST", "/v1/completions", {"model": "sim", "prompt": "once upon a time", "max_tokens": 5})
    assert status == 200, body
    choice = json.loads(body)["choices"][0]
    assert choice["text"] and choice["finish_reason"] == "length"
    assert tokens_handed_over(engines) > before, "decode took no cache over from prefill"


def tokens_handed_over(engines):
    """How many prompt tokens the decode engine got from the prefill engine's cache."""
    return metric(engines.ports["decode"], "vllm:external_prefix_cache_hits_total")


def metric(port, name):
    """The sum of a metric's samples."""
    _, text = ask(port, "GET", "/metrics")
    samples = [line for line in text.decode().splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    assert samples, f"no {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

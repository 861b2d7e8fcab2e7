"""Launching as reinforcement-learning frameworks do: a child process, `/health`, a completion, the end."""

import http.client
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
from conftest import ask, children, complete, free_port, is_healthy, is_running, until

from pd_router import Router, RouterArgs, launch_router


def run_with_log(args, log_path):
    """A child process that sends what it and the router say into a file."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.__stdout__.fileno())
    os.dup2(log, sys.__stderr__.fileno())
    os.close(log)
    from vllm_router.launch_router import launch_router

    launch_router(args)


def start(args, tmp_path, how="spawn"):
    """A daemon child process with a router that is healthy, and its log."""
    log = tmp_path / "router.log"
    child = multiprocessing.get_context(how).Process(target=run_with_log, args=(args, str(log)), daemon=True)
    child.start()
    until(lambda: is_healthy(args.port), "the router's /health", child.is_alive)
    return child, log


def is_free(port):
    """Whether nobody listens there."""
    try:
        ask(port, "GET", "/liveness", timeout=2)
        return False
    except OSError:
        return True


def end(child, args):
    """SIGTERM ends the child with 0, and the router with it."""
    routers = children(child.pid)
    assert len(routers) >= 1
    child.terminate()
    child.join(timeout=10)
    assert child.exitcode == 0
    assert not any(is_running(pid) for pid in routers)
    assert is_free(args.port)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_a_child_with_its_output_in_a_file(engines, pd_settings, tmp_path, how):
    args = RouterArgs(**{**pd_settings, "port": 1, "prometheus_port": 2}, host="127.0.0.1", policy="round_robin")
    # ports are chosen late, after the settings were made
    args.port, args.prometheus_port = pd_settings["port"], pd_settings["prometheus_port"]
    child, log = start(args, tmp_path, how)
    try:
        assert args.vllm_pd_disaggregation or args.pd_disaggregation
        complete(args.port, engines)
        end(child, args)
    finally:
        child.kill()
    assert f"http://127.0.0.1:{args.port}" in log.read_text(), "what the router says is not in the file"


def test_static_pools_from_a_prefixed_command_line(engines, tmp_path):
    import argparse

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser, use_router_prefix=True, exclude_host_port=True)
    args = RouterArgs.from_cli_args(parser.parse_args([]), use_router_prefix=True)
    args.host, args.port, args.prometheus_port = "127.0.0.1", free_port(), free_port()
    args.log_level = "warning"
    args.request_timeout_secs = 14400
    args.disable_circuit_breaker = True
    args.vllm_pd_disaggregation = True
    args.prefill_urls = [(engines.url("prefill"), None)]
    args.decode_urls = [engines.url("decode")]
    child, log = start(args, tmp_path)
    try:
        complete(args.port, engines)
        status, text = ask(args.prometheus_port, "GET", "/metrics")
        assert status == 200 and text
        end(child, args)
    finally:
        child.kill()
    assert "INFO" not in log.read_text()


def test_engines_that_register_with_a_router_that_has_none(engines, tmp_path):
    args = RouterArgs(host="127.0.0.1", port=free_port(), prometheus_port=free_port(), log_level="warning")
    log = tmp_path / "router.log"
    child = multiprocessing.get_context("spawn").Process(target=run_with_log, args=(args, str(log)), daemon=True)
    child.start()
    try:
        until(lambda: not is_free(args.port), "the router", child.is_alive)
        ask_for_text = {"model": "sim", "prompt": "once upon a time", "max_tokens": 5}
        assert ask(args.port, "GET", "/health")[0] == 503
        assert ask(args.port, "POST", "/v1/completions", ask_for_text)[0] == 503
        # a decode engine serves whole requests too
        url = engines.url("decode")
        status, body = ask(args.port, "POST", "/workers", {"url": url, "worker_type": "regular"})
        assert status == 200, body
        until(lambda: is_healthy(args.port), "the router's /health", child.is_alive)
        status, body = ask(args.port, "POST", "/v1/completions", ask_for_text)
        assert status == 200 and json.loads(body)["choices"][0]["text"]
        assert ask(args.port, "DELETE", f"/workers/{urllib.parse.quote(url, safe='')}")[0] == 200
        until(lambda: ask(args.port, "GET", "/list_workers")[1] == b'{"urls":[]}', "no engine")
        assert ask(args.port, "POST", "/v1/completions", ask_for_text)[0] == 503
        end(child, args)
    finally:
        child.kill()


class Story:
    """A stream of 50 tokens through the router, half a second long, whose first event has come."""

    def __init__(self, port):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        body = {"model": "sim", "prompt": "a long story", "max_tokens": 50, "stream": True}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        self._stream = self._connection.getresponse()
        self._first = self._stream.readline()

    def is_whole(self):
        """Reads the rest."""
        text = self._first + self._stream.read()
        self._connection.close()
        return text.count(b'"text"') == 50 and text.rstrip().endswith(b"data: [DONE]")


def test_a_stream_ends_before_the_router_does(engines, pd_settings, tmp_path):
    args = RouterArgs(**pd_settings)
    child, _ = start(args, tmp_path)
    try:
        story = Story(args.port)
        child.terminate()
        assert story.is_whole()
        child.join(timeout=10)
        assert child.exitcode == 0
    finally:
        child.kill()


def test_a_parent_that_is_killed_takes_the_router_along(engines, pd_settings, tmp_path):
    args = RouterArgs(**pd_settings)
    child, _ = start(args, tmp_path)
    routers = children(child.pid)
    assert routers
    child.kill()
    child.join()
    until(lambda: not any(is_running(pid) for pid in routers), "the router's end")
    assert is_free(args.port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_a_program_that_launches(engines, pd_settings, number):
    script = f"import pd_router; pd_router.launch_router(pd_router.RouterArgs(**{pd_settings!r})); print('after')"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as program:
        until(lambda: is_healthy(pd_settings["port"]), "the router's /health", lambda: program.poll() is None)
        story = Story(pd_settings["port"])
        # to the whole group, as a terminal does: the router must get it once, as a second one cuts streams
        os.killpg(program.pid, number)
        assert story.is_whole()
        out, _ = program.communicate(timeout=30)
    assert (program.returncode, out) == (0, b"after\n")


def test_a_script_with_vllm_routers_names_only(engines, pd_settings):
    script = textwrap.dedent(f"""
        from vllm_router.launch_router import launch_router
        from vllm_router.router_args import RouterArgs
        launch_router(RouterArgs(**{pd_settings!r}))
    """)
    with subprocess.Popen([sys.executable, "-c", script]) as program:
        until(lambda: is_healthy(pd_settings["port"]), "the router's /health", lambda: program.poll() is None)
        assert Story(pd_settings["port"]).is_whole()
        program.terminate()
        assert program.wait(timeout=30) == 0


def test_the_command_as_vllm_routers(engines, pd_settings):
    main = [sys.executable, "-c", "from vllm_router.launch_router import main; main()"]
    port = pd_settings["port"]
    words = f"--vllm-pd-disaggregation --port {port} --prometheus-port {pd_settings['prometheus_port']}".split()
    words += ["--prefill", engines.url("prefill"), "none", "--decode", engines.url("decode"), "--log-level", "warning"]
    with subprocess.Popen([*main, *words]) as program:
        until(lambda: is_healthy(port), "the router's /health", lambda: program.poll() is None)
        assert Path(f"/proc/{program.pid}/exe").resolve().name.startswith("pd-router"), "the process is the router"
        complete(port, engines)
        program.terminate()
        assert program.wait(timeout=30) == 0


def test_twice_in_one_process(engines, pd_settings):
    args = RouterArgs(**pd_settings)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    for _ in range(2):
        stop = end_when_healthy(args.port)
        assert launch_router(args) is None
        stop.join()
        assert stop.seen, "the router ended before it was healthy"
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


def test_one_router_started_twice_and_from_settings(engines, pd_settings):
    for router in (Router(**pd_settings), Router.from_args(RouterArgs(**pd_settings))):
        for _ in range(2):
            stop = end_when_healthy(pd_settings["port"])
            assert router.start() is None
            stop.join()
            assert stop.seen


def end_when_healthy(port):
    """Sends SIGTERM to this process as soon as the router is healthy."""

    def watch():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not thread.seen:
            thread.seen = is_healthy(port)
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch)
    thread.seen = False
    thread.start()
    return thread


def test_a_thread_can_launch_it(engines, pd_settings, tmp_path):
    script = textwrap.dedent(f"""
        import threading, pd_router
        args = pd_router.RouterArgs(**{pd_settings!r})
        threading.Thread(target=pd_router.launch_router, args=(args,), daemon=True).start()
        input()
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as program:
        until(lambda: is_healthy(pd_settings["port"]), "the router's /health", lambda: program.poll() is None)
        complete(pd_settings["port"], engines)
        routers = children(program.pid)
        program.communicate(b"\n", timeout=30)
    until(lambda: not any(is_running(pid) for pid in routers), "the router's end")


def test_a_router_that_cannot_start_raises(pd_settings, capfd):
    with pytest.raises(RuntimeError, match="status"):
        launch_router(RouterArgs(**{**pd_settings, "decode_urls": ["not a url"]}))
    assert "not a url" in capfd.readouterr().err


def test_a_program_that_is_killed_raises(monkeypatch, tmp_path):
    program = tmp_path / "pd-router"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PD_ROUTER_BIN", str(program))
    with pytest.raises(RuntimeError, match="signal 9"):
        launch_router(RouterArgs())


def test_a_stop_before_the_router_listens(monkeypatch, tmp_path):
    program = tmp_path / "pd-router"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/up\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PD_ROUTER_BIN", str(program))

    def stop():
        while not (tmp_path / "up").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert launch_router(RouterArgs()) is None
    thread.join()

"""Finding the program, and the command line that becomes it."""

import os
import subprocess
import sys
import sysconfig

import pytest

from pd_router.binary import find_binary


def make_program(folder, text="exit 0"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pd-router"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine without the program."""
    monkeypatch.delenv("PD_ROUTER_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path / "scripts"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python/bin/python"))
    return tmp_path


def test_the_places_in_their_order(nowhere, monkeypatch):
    on_path = make_program(nowhere / "path")
    monkeypatch.setenv("PATH", str(nowhere / "path"))
    assert find_binary() == str(on_path)
    beside = make_program(nowhere / "python/bin")
    assert find_binary() == str(beside)
    script = make_program(nowhere / "scripts")
    assert find_binary() == str(script)
    asked = make_program(nowhere / "asked")
    monkeypatch.setenv("PD_ROUTER_BIN", str(asked))
    assert find_binary() == str(asked)


def test_none_says_where_it_looked_and_what_to_do(nowhere):
    with pytest.raises(FileNotFoundError) as caught:
        find_binary()
    for part in (str(nowhere / "scripts"), "pip install pd-router", "PD_ROUTER_BIN"):
        assert part in str(caught.value)


def test_a_wrong_setting_is_not_passed_over(nowhere, monkeypatch):
    make_program(nowhere / "scripts")
    monkeypatch.setenv("PD_ROUTER_BIN", str(nowhere / "nothing"))
    with pytest.raises(FileNotFoundError, match="PD_ROUTER_BIN="):
        find_binary()


@pytest.mark.parametrize("module", ["pd_router", "vllm_router", "vllm_router.launch_router"])
def test_python_m_becomes_the_program(module, tmp_path):
    program = make_program(tmp_path, 'echo "$$ $*"; exit 7')
    command = [sys.executable, "-m", module, "--policy", "x y", "--not-a-flag-of-vllm-router"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PD_ROUTER_BIN": str(program)}) as child:
        out, _ = child.communicate(timeout=30)
    assert child.returncode == 7
    assert out.decode() == f"{child.pid} --policy x y --not-a-flag-of-vllm-router\n"


def test_python_m_without_the_program():
    env = {**os.environ, "PD_ROUTER_BIN": "/nowhere/pd-router"}
    done = subprocess.run([sys.executable, "-m", "pd_router"], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "error: `PD_ROUTER_BIN=/nowhere/pd-router`" in done.stderr and "Traceback" not in done.stderr

"""The names under which vllm-router is imported."""

import argparse
import importlib
import pickle

import pytest

import pd_router

NAMES = {
    "vllm_router": ["Router", "PolicyType", "__version__"],
    "vllm_router.version": ["__version__"],
    "vllm_router.router_args": ["RouterArgs"],
    "vllm_router.launch_router": ["RouterArgs", "Router", "launch_router", "parse_router_args", "main"],
    "vllm_router.router": ["Router", "RouterArgs", "PolicyType", "policy_from_str"],
    "vllm_router_rs": ["PolicyType", "Router"],
}


@pytest.mark.parametrize("module", NAMES)
def test_the_names_are_there(module):
    loaded = importlib.import_module(module)
    for name in NAMES[module]:
        assert hasattr(loaded, name), name
        if hasattr(pd_router, name) and module != "vllm_router_rs":
            assert getattr(loaded, name) is getattr(pd_router, name)


def test_a_namespace_is_launched_too(monkeypatch):
    from vllm_router.launch_router import launch_router

    from pd_router import router

    ran = []
    monkeypatch.setattr(router, "run", ran.append)
    launch_router(argparse.Namespace(port=5, prefill=[["http://p", "none"]], decode=[["http://d"]]))
    assert ran == [["--host=127.0.0.1", "--port=5", "--prefill=http://p", "--decode=http://d"]]


def test_the_extensions_class(monkeypatch):
    from vllm_router.router import Router
    from vllm_router_rs import PolicyType
    from vllm_router_rs import Router as Extension

    from pd_router import router

    ran = []
    monkeypatch.setattr(router, "run", ran.append)
    extension = Extension(["http://w"], policy=PolicyType.RoundRobin)
    Router(router=extension).start()
    extension.start()
    assert ran[0] == ran[1] == ["--worker-urls=http://w", "--host=127.0.0.1", "--port=3001", "--policy=round_robin"]


def test_policies_by_name():
    from vllm_router.router import policy_from_str
    from vllm_router_rs import PolicyType

    assert policy_from_str(None) is None
    assert policy_from_str("sticky_least_loaded") is PolicyType.StickyLeastLoaded
    assert pickle.loads(pickle.dumps(PolicyType.Random)) is PolicyType.Random
    with pytest.raises(ValueError):
        policy_from_str("no such policy")

"""Start pd-router, the prefill/decode router for vLLM, from Python.

The router is a program of its own. `RouterArgs` says how it is to run, `launch_router` runs it as a
child process and blocks until it ends.
"""

from pd_router._version import __version__
from pd_router.args import RouterArgs
from pd_router.cli import main, parse_router_args
from pd_router.policy import PolicyType
from pd_router.router import Router, launch_router

__all__ = [
    "PolicyType",
    "Router",
    "RouterArgs",
    "__version__",
    "launch_router",
    "main",
    "parse_router_args",
]

"""The router, from Python: a child process that is waited for."""

import argparse
from typing import Any, Optional, Union

from pd_router.args import RouterArgs
from pd_router.argv import to_argv
from pd_router.child import run


class Router:
    """One router. What it will run is fixed here; `start` runs it, as often as wanted."""

    # vllm-router's class listens elsewhere than its command line does
    PORT = 3001

    def __init__(self, router: Optional["Router"] = None, **settings: Any) -> None:
        """From another router, or from settings by `RouterArgs`' names."""
        if router is not None:
            self._argv: list[str] = list(router._argv)
        else:
            self._argv = to_argv(RouterArgs(**{"port": self.PORT, **settings}))

    @classmethod
    def from_args(cls, args: RouterArgs) -> "Router":
        """The router that `args` describes now; later changes of `args` do not touch it.

        Raises ValueError where `args` contradicts itself.
        """
        router = cls.__new__(cls)
        router._argv = to_argv(args)
        return router

    def start(self) -> None:
        """Runs the router; returns when SIGTERM or SIGINT has ended it.

        Raises FileNotFoundError without the program, RuntimeError where the router ends by itself.
        """
        run(self._argv)


def launch_router(args: Union[RouterArgs, argparse.Namespace]) -> None:
    """Runs the router that `args` describes; blocks as `Router.start` does, and raises what it raises."""
    _set_title("vllm::router")
    if not isinstance(args, RouterArgs):
        args = RouterArgs.from_cli_args(args)
    Router.from_args(args).start()


def _set_title(title: str) -> None:
    """Names this process as vllm-router does, for scripts that look for it; only where setproctitle is there."""
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle(title)

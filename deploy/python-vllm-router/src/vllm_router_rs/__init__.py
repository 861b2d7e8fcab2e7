"""The names of vllm-router's extension module, served by pd-router."""

from collections.abc import Sequence
from typing import Any

import pd_router
from pd_router import PolicyType

__all__ = ["PolicyType", "Router"]


class Router(pd_router.Router):
    """The extension's class: the engines come first, the rest by name."""

    def __init__(self, worker_urls: Sequence[str] = (), **settings: Any) -> None:
        """From engines and settings by `RouterArgs`' names."""
        super().__init__(worker_urls=list(worker_urls), **settings)

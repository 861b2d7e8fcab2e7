"""vllm-router's package, served by pd-router."""

from pd_router import PolicyType, __version__
from vllm_router.router import Router

__all__ = ["PolicyType", "Router", "__version__"]

"""`RouterArgs`, where vllm-router keeps it."""

from pd_router import RouterArgs

__all__ = ["RouterArgs"]

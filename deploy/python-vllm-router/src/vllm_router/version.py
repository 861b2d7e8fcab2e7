"""pd-router's version, where vllm-router keeps its own."""

from pd_router import __version__

__all__ = ["__version__"]

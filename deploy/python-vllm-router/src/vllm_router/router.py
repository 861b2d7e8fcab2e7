"""`Router`, where vllm-router keeps it."""

from pd_router import PolicyType, Router, RouterArgs
from pd_router.policy import policy_from_str

__all__ = ["PolicyType", "Router", "RouterArgs", "policy_from_str"]

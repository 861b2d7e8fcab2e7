"""The names of vllm-router's policies."""

import enum
from typing import Optional


class PolicyType(enum.Enum):
    """A policy; its value is the name that is typed."""

    Random = "random"
    RoundRobin = "round_robin"
    CacheAware = "cache_aware"
    KvAware = "kv_aware"
    PowerOfTwo = "power_of_two"
    ConsistentHash = "consistent_hash"
    StickyLeastLoaded = "sticky_least_loaded"


NAMES = [policy.value for policy in PolicyType]


def policy_from_str(name: Optional[str]) -> Optional[PolicyType]:
    """The policy of this name; None stays None.

    Raises ValueError for an unknown name.
    """
    return None if name is None else PolicyType(name)

"""The program knows every flag that RouterArgs may say."""

import subprocess

import pytest
from test_argv import VALUES

from pd_router.binary import find_binary

# flags that the program does not have yet; one that it gets is to be taken off
MISSING = {
    "mini_lb", "pd_kv_events", "router_temperature", "kv_penalty_host", "kv_penalty_external",
    "kv_penalty_disk", "kv_aware_session_affinity_ttl_secs", "kv_event_source", "kv_event_replay_source",
    "kv_event_block_size", "kv_event_model", "cache_threshold", "balance_abs_threshold", "balance_rel_threshold",
    "eviction_interval_secs", "max_tree_size", "wasm_middleware", "wasm_middleware_sha256", "wasm_middleware_routes",
    "enable_igw", "api_key", "log_dir", "service_discovery", "selector", "service_discovery_port",
    "service_discovery_namespace", "prefill_selector", "decode_selector", "vllm_discovery_address", "kv_connector",
    "enable_program_scheduling", "program_scheduling_config_json",
    "rate_limit_tokens_per_second", "cors_allowed_origins",
}  # fmt: skip


def refusal(words):
    """Whether the program stops at a word that it does not know. The last word keeps it from starting."""
    command = [find_binary(), *words, "--port=not-a-port"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2, done.stderr
    return "unexpected argument" in done.stderr


def test_an_unknown_flag_is_seen_as_one():
    assert refusal(["--no-such-flag=1"])


@pytest.mark.parametrize("name", [name for name in VALUES if name not in MISSING])
def test_the_program_knows(name):
    words = [word for word in VALUES[name][1] if not word.startswith("--port=")]
    assert not refusal(words)

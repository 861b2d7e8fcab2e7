"""What a RouterArgs means in the program's words: every field, and every way to leave one unset."""

import copy
import dataclasses

import pytest

from pd_router import PolicyType, RouterArgs
from pd_router.argv import to_argv

ADDRESS = ["--host=127.0.0.1", "--port=30000"]
# a router without engines, which register with it later
DEFAULTS = ["--worker-urls", *ADDRESS]

# field: (a value that is no default, its words)
VALUES = {
    "worker_urls": (["http://a", "http://b"], ["--worker-urls=http://a", "--worker-urls=http://b"]),
    "host": ("::1", ["--host=::1"]),
    "port": (1234, ["--port=1234"]),
    "mini_lb": (True, ["--mini-lb"]),
    "prefill_urls": (
        [("http://a", None), ("http://b", 8998), ["http://c"], "http://d", ("http://e", -1), ("http://f", "none")],
        ["--prefill=http://a", "--prefill", "http://b", "8998", "--prefill=http://c", "--prefill=http://d"]
        + ["--prefill=http://e", "--prefill=http://f"],
    ),
    "decode_urls": (["http://a", ["http://b"]], ["--decode=http://a", "--decode=http://b"]),
    "pd_kv_events": (["a=b,c", "d=e"], ["--pd-kv-events=a=b,c", "--pd-kv-events=d=e"]),
    "policy": ("round_robin", ["--policy=round_robin"]),
    "prefill_policy": (PolicyType.ConsistentHash, ["--prefill-policy=consistent_hash"]),
    "decode_policy": ("cache_aware", ["--decode-policy=cache_aware"]),
    "router_temperature": (0.5, ["--router-temperature=0.5"]),
    "kv_penalty_host": (0.1, ["--kv-penalty-host=0.1"]),
    "kv_penalty_external": (0.1, ["--kv-penalty-external=0.1"]),
    "kv_penalty_disk": (0.1, ["--kv-penalty-disk=0.1"]),
    "kv_aware_session_affinity_ttl_secs": (9, ["--kv-aware-session-affinity-ttl-secs=9"]),
    "kv_event_source": (["a=b"], ["--kv-event-source=a=b"]),
    "kv_event_replay_source": (["a=b"], ["--kv-event-replay-source=a=b"]),
    "kv_event_block_size": (32, ["--kv-event-block-size=32"]),
    "kv_event_model": ("m", ["--kv-event-model=m"]),
    "worker_startup_timeout_secs": (4200, ["--worker-startup-timeout-secs=4200"]),
    "worker_startup_check_interval": (1, ["--worker-startup-check-interval=1"]),
    "cache_threshold": (0.7, ["--cache-threshold=0.7"]),
    "balance_abs_threshold": (10, ["--balance-abs-threshold=10"]),
    "balance_rel_threshold": (1.2, ["--balance-rel-threshold=1.2"]),
    "eviction_interval_secs": (5, ["--eviction-interval-secs=5"]),
    "max_tree_size": (4096, ["--max-tree-size=4096"]),
    "max_payload_size": (4096, ["--max-payload-size=4096"]),
    "wasm_middleware": ("m.wasm", ["--wasm-middleware=m.wasm"]),
    "wasm_middleware_sha256": ("abc", ["--wasm-middleware-sha256=abc"]),
    "wasm_middleware_routes": (["/a", "/b"], ["--wasm-middleware-route=/a", "--wasm-middleware-route=/b"]),
    "intra_node_data_parallel_size": (8, ["--intra-node-data-parallel-size=8"]),
    "enable_igw": (True, ["--enable-igw"]),
    "api_key": ("-starts-like-a-flag", ["--api-key=-starts-like-a-flag"]),
    "log_dir": ("/tmp/a folder", ["--log-dir=/tmp/a folder"]),
    "log_level": ("warning", ["--log-level=warning"]),
    "service_discovery": (True, ["--service-discovery"]),
    "selector": ({"a": "b", "c": "d=e"}, ["--selector=a=b", "--selector=c=d=e"]),
    "service_discovery_port": (81, ["--service-discovery-port=81"]),
    "service_discovery_namespace": ("n", ["--service-discovery-namespace=n"]),
    "prefill_selector": ({"a": "b"}, ["--prefill-selector=a=b"]),
    "decode_selector": ({"a": "b"}, ["--decode-selector=a=b"]),
    "bootstrap_port_annotation": ("mine/port", []),
    "vllm_discovery_address": ("a:1", ["--vllm-discovery-address=a:1"]),
    "kv_connector": ("mooncake", ["--kv-connector=mooncake"]),
    "enable_program_scheduling": (True, ["--enable-program-scheduling"]),
    "program_scheduling_config_json": ('{"a": 1}', ['--program-scheduling-config-json={"a": 1}']),
    "prometheus_port": (29000, ["--prometheus-port=29000"]),
    "prometheus_host": ("0.0.0.0", ["--prometheus-host=0.0.0.0"]),
    "request_id_headers": (["x-a", "x-b"], ["--request-id-headers=x-a", "--request-id-headers=x-b"]),
    "request_timeout_secs": (14400, ["--request-timeout-secs=14400"]),
    "max_concurrent_requests": (2, ["--max-concurrent-requests=2"]),
    "queue_size": (0, ["--queue-size=0"]),
    "queue_timeout_secs": (1, ["--queue-timeout-secs=1"]),
    "rate_limit_tokens_per_second": (7, ["--rate-limit-tokens-per-second=7"]),
    "cors_allowed_origins": (["http://o"], ["--cors-allowed-origins=http://o"]),
    "retry_max_retries": (0, ["--retry-max-retries=0"]),
    "retry_initial_backoff_ms": (1, ["--retry-initial-backoff-ms=1"]),
    "retry_max_backoff_ms": (1, ["--retry-max-backoff-ms=1"]),
    "retry_backoff_multiplier": (2, ["--retry-backoff-multiplier=2"]),
    "retry_jitter_factor": (0.0, ["--retry-jitter-factor=0.0"]),
    "disable_retries": (True, ["--disable-retries"]),
    "health_failure_threshold": (1, ["--health-failure-threshold=1"]),
    "health_success_threshold": (1, ["--health-success-threshold=1"]),
    "health_check_timeout_secs": (1, ["--health-check-timeout-secs=1"]),
    "health_check_interval_secs": (1, ["--health-check-interval-secs=1"]),
    "health_check_endpoint": ("/ping", ["--health-check-endpoint=/ping"]),
    "cb_failure_threshold": (1, ["--cb-failure-threshold=1"]),
    "cb_success_threshold": (1, ["--cb-success-threshold=1"]),
    "cb_timeout_duration_secs": (1, ["--cb-timeout-duration-secs=1"]),
    "cb_window_duration_secs": (1, ["--cb-window-duration-secs=1"]),
    "disable_circuit_breaker": (True, ["--disable-circuit-breaker"]),
    "extra_args": (["--drain-timeout-secs", 5], ["--drain-timeout-secs", "5"]),
}
# these two change the mode, and have tests of their own
MODE = {"vllm_pd_disaggregation", "pd_disaggregation"}


def words_of(**settings):
    """The words beyond the address and those of a router without engines."""
    words = to_argv(RouterArgs(**settings))
    address = [word for word in words if word.startswith(("--host=", "--port="))]
    assert len(address) == 2
    return [word for word in words if word != "--worker-urls" and (word not in address or word not in ADDRESS)]


def test_every_field_is_listed():
    assert set(VALUES) | MODE == {spec.name for spec in dataclasses.fields(RouterArgs)}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_becomes_its_words(name):
    value, words = VALUES[name]
    assert words_of(**{name: value}) == words


def test_all_at_once_keeps_every_word():
    settings = {name: value for name, (value, _) in VALUES.items() if name != "service_discovery"}
    expected = [word for name in settings for word in VALUES[name][1]]
    assert sorted(to_argv(RouterArgs(**settings))) == sorted(expected)


def test_defaults_say_only_where_to_listen_and_that_engines_will_register():
    assert to_argv(RouterArgs()) == DEFAULTS
    assert to_argv(RouterArgs(policy=PolicyType.CacheAware, log_level="INFO")) == DEFAULTS


@pytest.mark.parametrize(
    "settings",
    [
        {"worker_urls": ["http://w"]},
        {"vllm_pd_disaggregation": True, "prefill_urls": [("http://p", None)], "decode_urls": ["http://d"]},
        {"prefill_urls": [("http://p", None)]},
        {"decode_urls": ["http://d"]},
        {"service_discovery": True},
        {"vllm_discovery_address": "a:1"},
    ],
)
def test_a_router_that_is_told_of_engines_does_not_say_that_it_has_none(settings):
    assert "--worker-urls" not in to_argv(RouterArgs(**settings))


@pytest.mark.parametrize("unset", [None, -1, -0.5])
def test_unset_is_the_default(unset):
    settings = {
        spec.name: unset for spec in dataclasses.fields(RouterArgs) if unset is None or spec.type in (int, float)
    }
    assert len(settings) > 30 or unset is None
    assert to_argv(RouterArgs(**settings)) == DEFAULTS


@pytest.mark.parametrize("mode", sorted(MODE))
def test_either_switch_means_pools(mode):
    settings = {"prefill_urls": [("http://p", None)], "decode_urls": ["http://d"], "worker_urls": ["http://w"]}
    assert words_of(**settings, **{mode: True}) == [
        "--vllm-pd-disaggregation",
        "--prefill=http://p",
        "--decode=http://d",
    ]


@pytest.mark.parametrize("empty", ["prefill_urls", "decode_urls"])
def test_an_empty_pool_is_said_at_once(empty):
    settings = {"prefill_urls": [("http://p", None)], "decode_urls": ["http://d"], empty: []}
    with pytest.raises(ValueError, match=empty):
        to_argv(RouterArgs(vllm_pd_disaggregation=True, **settings))


def test_pools_that_are_discovered_are_left_to_the_program():
    words = words_of(vllm_pd_disaggregation=True, vllm_discovery_address="a:1")
    assert words == ["--vllm-pd-disaggregation", "--vllm-discovery-address=a:1"]


def test_the_last_mutation_counts_and_nothing_is_changed():
    args = RouterArgs(vllm_pd_disaggregation=True)
    args.prefill_urls = [("http://p", None)]
    args.decode_urls.append("http://d")
    args.port = 7
    before = copy.deepcopy(args)
    assert to_argv(args) == to_argv(args)
    assert "--port=7" in to_argv(args) and args == before

"""RouterArgs: vllm-router's fields, flags and prefixes, and what frameworks do with it."""

import argparse
import copy
import dataclasses
import multiprocessing
import pickle
import re

import pytest
from conftest import ROOT

from pd_router import PolicyType, RouterArgs, __version__, parse_router_args

# vllm-router 0.1.17's fields, in its order, with its defaults
PEER = {
    "worker_urls": [], "host": "127.0.0.1", "port": 30000, "mini_lb": False, "vllm_pd_disaggregation": False,
    "prefill_urls": [], "decode_urls": [], "pd_kv_events": [], "policy": "cache_aware", "prefill_policy": None,
    "decode_policy": None, "router_temperature": 0.0, "kv_penalty_host": 0.8, "kv_penalty_external": 0.6,
    "kv_penalty_disk": 0.3, "kv_aware_session_affinity_ttl_secs": None, "kv_event_source": [],
    "kv_event_replay_source": [], "kv_event_block_size": 16, "kv_event_model": None,
    "worker_startup_timeout_secs": 600, "worker_startup_check_interval": 30, "cache_threshold": 0.3,
    "balance_abs_threshold": 64, "balance_rel_threshold": 1.5, "eviction_interval_secs": 120,
    "max_tree_size": 33554432, "max_payload_size": 536870912, "wasm_middleware": None,
    "wasm_middleware_sha256": None, "wasm_middleware_routes": [], "intra_node_data_parallel_size": 1,
    "enable_igw": False, "api_key": None, "log_dir": None, "log_level": None, "service_discovery": False,
    "selector": {}, "service_discovery_port": 80, "service_discovery_namespace": None, "prefill_selector": {},
    "decode_selector": {}, "bootstrap_port_annotation": "vllm.ai/bootstrap-port", "vllm_discovery_address": None,
    "kv_connector": "nixl", "enable_program_scheduling": False, "program_scheduling_config_json": None,
    "prometheus_port": None, "prometheus_host": None, "request_id_headers": None, "request_timeout_secs": 1800,
    "max_concurrent_requests": 32768, "queue_size": 100, "queue_timeout_secs": 60,
    "rate_limit_tokens_per_second": None, "cors_allowed_origins": [], "retry_max_retries": 5,
    "retry_initial_backoff_ms": 50, "retry_max_backoff_ms": 30000, "retry_backoff_multiplier": 1.5,
    "retry_jitter_factor": 0.2, "disable_retries": False, "health_failure_threshold": 3,
    "health_success_threshold": 2, "health_check_timeout_secs": 5, "health_check_interval_secs": 60,
    "health_check_endpoint": "/health", "cb_failure_threshold": 10, "cb_success_threshold": 3,
    "cb_timeout_duration_secs": 60, "cb_window_duration_secs": 120, "disable_circuit_breaker": False,
}  # fmt: skip
OURS = {"pd_disaggregation": False, "extra_args": []}
# what its command line has as defaults in the place of the fields' own
PEER_TYPED = {"log_level": "info", "prometheus_port": 29000, "prometheus_host": "127.0.0.1"}


def parser(**how):
    made = argparse.ArgumentParser()
    RouterArgs.add_cli_args(made, **how)
    return made


def test_fields_order_and_defaults_are_the_peers():
    fields = list(dataclasses.asdict(RouterArgs()).items())
    assert fields[: len(PEER)] == list(PEER.items())
    assert dict(fields[len(PEER) :]) == OURS


def test_every_field_has_a_default():
    for spec in dataclasses.fields(RouterArgs):
        assert spec.default is not dataclasses.MISSING or spec.default_factory is not dataclasses.MISSING


def test_an_empty_command_line_means_the_defaults():
    assert parse_router_args([]) == RouterArgs(**PEER_TYPED)


def test_two_do_not_share_their_lists():
    one, other = RouterArgs(), RouterArgs()
    one.decode_urls.append("http://d")
    one.selector["a"] = "b"
    assert other.decode_urls == [] and other.selector == {}


def test_prefill_as_typed():
    read = parse_router_args(
        "--vllm-pd-disaggregation --prefill http://a 9000 --prefill http://b none --prefill http://c "
        "--decode http://d --decode http://e --policy round_robin".split()
    )
    assert read.prefill_urls == [("http://a", 9000), ("http://b", None), ("http://c", None)]
    assert read.decode_urls == ["http://d", "http://e"]
    assert read.vllm_pd_disaggregation and read.policy == "round_robin"


@pytest.mark.parametrize("words", [["http://a", "nine"], ["http://a", "1", "2"]])
def test_a_port_that_is_none(words):
    with pytest.raises(ValueError, match="http://a"):
        parse_router_args(["--prefill", *words])


def test_lists_and_labels_as_typed():
    read = parse_router_args(
        "--worker-urls http://a http://b --request-id-headers x-a x-b --cors-allowed-origins http://o "
        "--selector app=vllm tier=1 --prefill-selector r=p --decode-selector r=d "
        "--pd-kv-events a=b --pd-kv-events c=d --wasm-middleware-route /x".split()
    )
    assert read.worker_urls == ["http://a", "http://b"]
    assert read.request_id_headers == ["x-a", "x-b"]
    assert read.cors_allowed_origins == ["http://o"]
    assert (read.selector, read.prefill_selector, read.decode_selector) == (
        {"app": "vllm", "tier": "1"},
        {"r": "p"},
        {"r": "d"},
    )
    assert read.pd_kv_events == ["a=b", "c=d"] and read.wasm_middleware_routes == ["/x"]


def test_flags_with_prefix():
    made = parser(use_router_prefix=True, exclude_host_port=True)
    flags = {flag for action in made._actions for flag in action.option_strings}
    plain = {flag for flag in flags if not flag.startswith("--router-")}
    assert plain == {"-h", "--help", "--worker-urls"}
    assert "--router-router-temperature" in flags
    both = {flag for action in parser(use_router_prefix=True)._actions for flag in action.option_strings}
    assert both - flags == {"--host", "--port"}


def test_reading_with_prefix():
    made = parser(use_router_prefix=True, exclude_host_port=True)
    # a framework's own flags stand beside the router's
    made.add_argument("--api-key", default="the framework's")
    made.add_argument("--prefill", default="the framework's")
    made.add_argument("--host", default="0.0.0.0")
    made.set_defaults(router_balance_abs_threshold=10, router_balance_rel_threshold=1.2)
    typed = made.parse_args(
        "--router-policy consistent_hash --router-prefill http://a 7 --router-decode http://b "
        "--router-wasm-middleware-route /x --worker-urls http://w".split()
    )
    read = RouterArgs.from_cli_args(typed, use_router_prefix=True)
    assert (read.balance_abs_threshold, read.balance_rel_threshold) == (10, 1.2)
    assert read.policy == "consistent_hash" and read.host == "0.0.0.0"
    assert (read.prefill_urls, read.decode_urls) == ([("http://a", 7)], ["http://b"])
    assert read.wasm_middleware_routes == ["/x"] and read.worker_urls == ["http://w"]
    assert read.api_key is None, "the prefixed name is there and says none"


def test_reading_a_namespace_of_another_framework():
    typed = argparse.Namespace(
        router_max_concurrent_requests=-1, router_policy=None, router_pd_disaggregation=True, log_level="error", x=1,
        prefill="theirs", decode_urls=["theirs"], selector=["a=theirs"],
    )  # fmt: skip
    read = RouterArgs.from_cli_args(typed, use_router_prefix=True)
    assert read.policy == "cache_aware" and read.log_level == "error"
    assert read.pd_disaggregation and read.is_pd
    assert (read.prefill_urls, read.decode_urls, read.selector) == ([], [], {})


def test_the_mode_under_both_names():
    assert not (RouterArgs().vllm_pd_disaggregation or RouterArgs().pd_disaggregation)
    assert RouterArgs(vllm_pd_disaggregation=True).is_pd and RouterArgs(pd_disaggregation=True).is_pd
    assert parse_router_args(["--pd-disaggregation"]).is_pd


def test_resetting_negative_numbers_as_frameworks_do():
    args = RouterArgs(max_concurrent_requests=-1, queue_size=-1)
    fixes = {
        spec.name: spec.default
        for spec in dataclasses.fields(args)
        if isinstance(getattr(args, spec.name), int) and getattr(args, spec.name) < 0
    }
    assert dataclasses.replace(args, **fixes) == RouterArgs()


def send_back(queue, args):
    queue.put((args, args.policy is PolicyType.Random))


@pytest.mark.parametrize("how", ["spawn", "fork", "forkserver"])
def test_through_a_child_process(how):
    args = RouterArgs(prefill_urls=[("http://a", None)], policy=PolicyType.Random)
    args.port = 4711
    context = multiprocessing.get_context(how)
    queue = context.Queue()
    child = context.Process(target=send_back, args=(queue, args))
    child.start()
    assert queue.get(timeout=30) == (args, True)
    child.join()


def test_copies_are_equal():
    args = RouterArgs(decode_urls=["http://d"], selector={"a": "b"})
    assert pickle.loads(pickle.dumps(args)) == args == copy.deepcopy(args)


def test_policy_types_are_the_peers():
    names = "Random RoundRobin CacheAware KvAware PowerOfTwo ConsistentHash StickyLeastLoaded".split()
    assert [policy.name for policy in PolicyType] == names


def test_version_is_the_workspaces():
    text = (ROOT / "Cargo.toml").read_text()
    assert re.search(r'^version = "(.+)"$', text, re.MULTILINE).group(1) == __version__
    shim = (ROOT / "deploy/python-vllm-router/pyproject.toml").read_text()
    assert f'version = "{__version__}"' in shim and f'"pd-router=={__version__}"' in shim

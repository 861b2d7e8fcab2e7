"""RouterArgs: vllm-router's settings, by its names, in its order, with its defaults."""

import argparse
import dataclasses
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from pd_router.policy import NAMES, PolicyType

PrefillUrl = tuple[str, Optional[int]]
Policy = Union[str, PolicyType]


def _flag(default: Any, help: str, kind: str = "value", **how: Any) -> Any:
    """A field and its flag.

    kind: value, switch, words (one flag, many words), repeat (one word a flag), labels (K=V words), pool
    (engines' URLs) or none (no flag). `how` may hold `type`, `choices`, `flag` (where its name is not the
    field's) and `typed_default` (where the command line's default is not the field's).
    """
    metadata = {"help": help, "kind": kind, **how}
    if isinstance(default, (list, dict)):
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class RouterArgs:
    """How the router is to run. None, and a number below zero, mean the default."""

    worker_urls: list[str] = _flag([], "engines that serve whole requests", "words")
    host: str = _flag("127.0.0.1", "address to listen on")
    port: int = _flag(30000, "port to listen on", type=int)
    mini_lb: bool = _flag(False, "vllm-router's debug balancer; not supported, refused", "switch")
    vllm_pd_disaggregation: bool = _flag(False, "serve with prefill and decode pools", "switch")
    prefill_urls: list[PrefillUrl] = _flag(
        [], "a prefill engine, and its PORT or none; repeat for more", "pool", flag="prefill"
    )
    decode_urls: list[str] = _flag([], "a decode engine; repeat for more", "pool", flag="decode")
    pd_kv_events: list[str] = _flag([], "URL=ENDPOINT[,...] of KV events (kv_aware)", "repeat")
    policy: Policy = _flag("cache_aware", "how engines are chosen", choices=NAMES)
    prefill_policy: Optional[Policy] = _flag(None, "the same for prefill engines", choices=NAMES)
    decode_policy: Optional[Policy] = _flag(None, "the same for decode engines", choices=NAMES)
    router_temperature: float = _flag(0.0, "kv_aware: spread", type=float)
    kv_penalty_host: float = _flag(0.8, "kv_aware: worth of blocks in host memory", type=float)
    kv_penalty_external: float = _flag(0.6, "kv_aware: worth of blocks outside", type=float)
    kv_penalty_disk: float = _flag(0.3, "kv_aware: worth of blocks on disk", type=float)
    kv_aware_session_affinity_ttl_secs: Optional[int] = _flag(
        None, "kv_aware: seconds that a session is kept", type=int
    )
    kv_event_source: list[str] = _flag([], "kv_aware: URL=ENDPOINT[,...]", "repeat")
    kv_event_replay_source: list[str] = _flag([], "kv_aware: URL=ENDPOINT[,...]", "repeat")
    kv_event_block_size: int = _flag(16, "kv_aware: tokens a block", type=int)
    kv_event_model: Optional[str] = _flag(None, "kv_aware: the model's name")
    worker_startup_timeout_secs: int = _flag(600, "seconds that engines may take to start", type=int)
    worker_startup_check_interval: int = _flag(30, "seconds between two looks at a starting engine", type=int)
    cache_threshold: float = _flag(0.3, "cache_aware: part of the prompt that must match", type=float)
    balance_abs_threshold: int = _flag(64, "cache_aware: difference in load that ends affinity", type=int)
    balance_rel_threshold: float = _flag(1.5, "cache_aware: ratio of loads that ends affinity", type=float)
    eviction_interval_secs: int = _flag(120, "cache_aware: seconds between two evictions", type=int)
    max_tree_size: int = _flag(2**25, "cache_aware: size of the memory of prefixes", type=int)
    max_payload_size: int = _flag(512 * 1024 * 1024, "bytes of the largest request body", type=int)
    wasm_middleware: Optional[str] = _flag(None, "not supported; refused")
    wasm_middleware_sha256: Optional[str] = _flag(None, "not supported; refused")
    wasm_middleware_routes: list[str] = _flag([], "not supported; refused", "repeat", flag="wasm-middleware-route")
    intra_node_data_parallel_size: int = _flag(1, "data-parallel ranks of an engine that names none", type=int)
    enable_igw: bool = _flag(False, "not supported; refused", "switch")
    api_key: Optional[str] = _flag(None, "key that engines ask for")
    log_dir: Optional[str] = _flag(None, "folder for log files")
    log_level: Optional[str] = _flag(
        None, "what is logged", choices=["debug", "info", "warning", "error", "critical"], typed_default="info"
    )
    service_discovery: bool = _flag(False, "not supported; refused", "switch")
    selector: dict[str, str] = _flag({}, "not supported; refused", "labels")
    service_discovery_port: int = _flag(80, "not supported; refused", type=int)
    service_discovery_namespace: Optional[str] = _flag(None, "not supported; refused")
    prefill_selector: dict[str, str] = _flag({}, "not supported; refused", "labels")
    decode_selector: dict[str, str] = _flag({}, "not supported; refused", "labels")
    bootstrap_port_annotation: str = _flag("vllm.ai/bootstrap-port", "has no flag", "none")
    vllm_discovery_address: Optional[str] = _flag(None, "not supported; refused")
    kv_connector: str = _flag("nixl", "how KV caches travel", choices=["nixl", "mooncake", "moriio"])
    enable_program_scheduling: bool = _flag(False, "not supported; refused", "switch")
    program_scheduling_config_json: Optional[str] = _flag(None, "not supported; refused")
    prometheus_port: Optional[int] = _flag(None, "port of /metrics", type=int, typed_default=29000)
    prometheus_host: Optional[str] = _flag(None, "address of /metrics", typed_default="127.0.0.1")
    request_id_headers: Optional[list[str]] = _flag(None, "headers that may bring a request's id", "words")
    request_timeout_secs: int = _flag(1800, "seconds for the whole of a request", type=int)
    max_concurrent_requests: int = _flag(32768, "requests in flight at once", type=int)
    queue_size: int = _flag(100, "requests that wait for a slot", type=int)
    queue_timeout_secs: int = _flag(60, "seconds that a request waits for a slot", type=int)
    rate_limit_tokens_per_second: Optional[int] = _flag(None, "requests admitted a second", type=int)
    cors_allowed_origins: list[str] = _flag([], "origins that browsers may call from", "words")
    retry_max_retries: int = _flag(5, "tries after the first", type=int)
    retry_initial_backoff_ms: int = _flag(50, "milliseconds before the first of them", type=int)
    retry_max_backoff_ms: int = _flag(30000, "milliseconds of the longest wait", type=int)
    retry_backoff_multiplier: float = _flag(1.5, "by what each wait grows", type=float)
    retry_jitter_factor: float = _flag(0.2, "part of a wait that is left to chance", type=float)
    disable_retries: bool = _flag(False, "try each request once", "switch")
    health_failure_threshold: int = _flag(3, "failed probes that put an engine down", type=int)
    health_success_threshold: int = _flag(2, "good probes that bring it back", type=int)
    health_check_timeout_secs: int = _flag(5, "seconds that a probe may take", type=int)
    health_check_interval_secs: int = _flag(60, "seconds between two probes", type=int)
    health_check_endpoint: str = _flag("/health", "path that a probe asks for")
    cb_failure_threshold: int = _flag(10, "failures that open a circuit breaker", type=int)
    cb_success_threshold: int = _flag(3, "successes that close it", type=int)
    cb_timeout_duration_secs: int = _flag(60, "seconds that it stays open", type=int)
    cb_window_duration_secs: int = _flag(120, "seconds in which failures count together", type=int)
    disable_circuit_breaker: bool = _flag(False, "have no circuit breaker", "switch")
    # not vllm-router's: frameworks read the one or the other, and either switches the mode on
    pd_disaggregation: bool = _flag(False, "the same as --vllm-pd-disaggregation", "switch")
    # not vllm-router's: words for pd-router itself, such as ["--drain-timeout-secs", "30"]
    extra_args: list[str] = _flag([], "has no flag", "none")

    @property
    def is_pd(self) -> bool:
        """Whether either of the two switches is on."""
        return bool(self.vllm_pd_disaggregation or self.pd_disaggregation)

    @staticmethod
    def add_cli_args(
        parser: argparse.ArgumentParser,
        use_router_prefix: bool = False,
        exclude_host_port: bool = False,
    ) -> None:
        """Adds every flag to `parser`.

        With `use_router_prefix` flags read `--router-...`, all but --host, --port and --worker-urls.
        """
        for spec in dataclasses.fields(RouterArgs):
            if spec.metadata["kind"] == "none" or (exclude_host_port and spec.name in ("host", "port")):
                continue
            prefixed = use_router_prefix and spec.name not in ("host", "port", "worker_urls")
            flag, dest = flag_of(spec), dest_of(spec)
            if prefixed:
                flag, dest = f"--router-{flag[2:]}", f"router_{dest}"
            parser.add_argument(flag, dest=dest, help=spec.metadata["help"], **_argparse(spec))

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace, use_router_prefix: bool = False) -> "RouterArgs":
        """The settings in `args`: `router_NAME` where there is one and the prefix is in use, else `NAME`.

        Raises ValueError for a prefill PORT that is none.
        """
        typed = vars(args)
        prefix = "router_" if use_router_prefix else ""
        values: dict[str, Any] = {}
        for spec in dataclasses.fields(cls):
            kind = spec.metadata["kind"]
            if kind == "none":
                continue
            names = [prefix + dest_of(spec), prefix + spec.name]
            if kind not in ("pool", "labels"):
                # these are taken from a framework's own arguments too, as vllm-router does
                names.append(spec.name)
            name = next((name for name in names if name in typed), None)
            if name is not None and typed[name] is not None:
                values[spec.name] = typed[name]
        for name in ("selector", "prefill_selector", "decode_selector"):
            values[name] = _labels(values.get(name))
        values["prefill_urls"] = [prefill_url(entry) for entry in values.get("prefill_urls") or []]
        values["decode_urls"] = [decode_url(entry) for entry in values.get("decode_urls") or []]
        return cls(**values)


def flag_of(spec: dataclasses.Field) -> str:
    """The flag of a field, without prefix."""
    return "--" + spec.metadata.get("flag", spec.name).replace("_", "-")


def dest_of(spec: dataclasses.Field) -> str:
    """The name under which argparse keeps a field, without prefix."""
    return spec.metadata["flag"] if spec.metadata["kind"] == "pool" else spec.name


def default_of(spec: dataclasses.Field) -> Any:
    """A field's default; a fresh one where it can be changed."""
    return spec.default if spec.default is not dataclasses.MISSING else spec.default_factory()


def prefill_url(entry: Any) -> PrefillUrl:
    """`(url, port or None)` from any of `url`, `(url,)`, `(url, port)`; `none` and below zero are no port.

    Raises ValueError for a port that is none.
    """
    words = [entry] if isinstance(entry, str) else list(entry)
    if not 1 <= len(words) <= 2:
        raise ValueError(f"`{entry}` is no prefill engine: write URL, or URL and PORT")
    port = words[1] if len(words) == 2 else None
    if port is None or str(port).lower() == "none":
        return str(words[0]), None
    try:
        number = int(port)
    except (TypeError, ValueError):
        raise ValueError(f"`{port}` behind prefill URL `{words[0]}` is neither a port nor `none`") from None
    return str(words[0]), number if number >= 0 else None


def decode_url(entry: Any) -> str:
    """The URL, also where argparse wrapped it into a list."""
    return str(entry) if isinstance(entry, str) else str(entry[0])


def _labels(words: Any) -> dict[str, str]:
    if isinstance(words, dict):
        return dict(words)
    return dict(word.split("=", 1) for word in words or [] if "=" in word)


def _argparse(spec: dataclasses.Field) -> dict[str, Any]:
    how = spec.metadata
    default = how.get("typed_default", default_of(spec))
    if how["kind"] == "switch":
        return {"action": "store_true", "default": default}
    if how["kind"] == "pool":
        return {"action": "append", "nargs": "+" if spec.name == "prefill_urls" else 1, "default": None}
    many = {"words": {"nargs": "*"}, "labels": {"nargs": "+"}, "repeat": {"action": "append"}}
    return {
        "default": default,
        "type": how.get("type"),
        "choices": how.get("choices"),
        **many.get(how["kind"], {}),
    }

"""From a RouterArgs to the program's words."""

import dataclasses
import enum
import numbers
from typing import Any

from pd_router.args import RouterArgs, decode_url, default_of, flag_of, prefill_url


def to_argv(args: RouterArgs) -> list[str]:
    """The words behind `pd-router` that say what `args` says. Leaves `args` as it is.

    What is at vllm-router's default is left out, so that pd-router's own default holds there.

    Raises ValueError where prefill and decode pools are asked for and one is empty.
    """
    elsewhere = args.service_discovery or args.vllm_discovery_address
    if args.is_pd and not elsewhere:
        for pool, urls in (("prefill", args.prefill_urls), ("decode", args.decode_urls)):
            if not urls:
                raise ValueError(f"no {pool} engine: with `vllm_pd_disaggregation`, give `{pool}_urls`")
    words: list[str] = []
    for spec in dataclasses.fields(args):
        words += _words(args, spec)
    return words + [str(word) for word in args.extra_args or []]


def _words(args: RouterArgs, spec: dataclasses.Field) -> list[str]:
    value, default, flag = getattr(args, spec.name), default_of(spec), flag_of(spec)
    kind = spec.metadata["kind"]
    if spec.name in ("host", "port"):
        # always said: who starts a router asks for it at this address, whatever the environment says
        return [f"{flag}={default if _unset(value) else value}"]
    if spec.name == "vllm_pd_disaggregation":
        return [flag] if args.is_pd else []
    if spec.name == "worker_urls":
        return _worker_urls(args, flag)
    if kind == "none" or spec.name == "pd_disaggregation" or _unset(value):
        return []
    if kind == "switch":
        return [flag] if value else []
    if spec.name == "prefill_urls":
        return [word for entry in value for word in _prefill(flag, entry)]
    if spec.name == "decode_urls":
        return [f"{flag}={decode_url(entry)}" for entry in value]
    if kind == "labels":
        return [f"{flag}={key}={label}" for key, label in value.items()]
    if kind in ("words", "repeat"):
        return [f"{flag}={word}" for word in value]
    value = value.value if isinstance(value, enum.Enum) else value
    if spec.name == "log_level":
        value, default = str(value).lower(), spec.metadata["typed_default"]
    return [] if value == default else [f"{flag}={value}"]


def _worker_urls(args: RouterArgs, flag: str) -> list[str]:
    if args.is_pd or args.service_discovery:
        # vllm-router does not look at them then
        return []
    named = bool(args.prefill_urls or args.decode_urls or args.vllm_discovery_address)
    # a router without engines, which register with it later, has the flag without a word
    return [f"{flag}={url}" for url in args.worker_urls or []] or ([] if named else [flag])


def _unset(value: Any) -> bool:
    """None, and what other frameworks write for it: a number below zero."""
    return value is None or (isinstance(value, numbers.Real) and value < 0)


def _prefill(flag: str, entry: Any) -> list[str]:
    url, port = prefill_url(entry)
    return [f"{flag}={url}"] if port is None else [flag, url, str(port)]

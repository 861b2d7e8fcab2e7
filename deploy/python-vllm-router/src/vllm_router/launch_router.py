"""`launch_router`, where vllm-router keeps it; as a script, the command `vllm-router`."""

from pd_router import Router, RouterArgs, launch_router, main, parse_router_args

__all__ = ["Router", "RouterArgs", "launch_router", "main", "parse_router_args"]

if __name__ == "__main__":
    main()

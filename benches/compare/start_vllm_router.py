"""Starts vllm-router's own Python entry without its debug load balancer, so that the wheel alone is enough.

`vllm_router.launch_router` imports a test tool that needs a web framework; what serves is the class below.
"""

import argparse
import sys

from vllm_router.router import Router
from vllm_router.router_args import RouterArgs

parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser)
args = RouterArgs.from_cli_args(parser.parse_args(sys.argv[1:]))
args._validate_router_args()
Router.from_args(args).start()

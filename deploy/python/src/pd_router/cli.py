"""The command line: read into a RouterArgs, or handed to the program as it is."""

import argparse
import os
import sys
from typing import Optional

from pd_router.args import RouterArgs
from pd_router.binary import NAME, find_binary


def parse_router_args(argv: list[str]) -> RouterArgs:
    """The `RouterArgs` that vllm-router's flags in `argv` mean."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="vllm-router's flags, as Python reads them; `pd-router --help` shows all that pd-router has",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    RouterArgs.add_cli_args(parser)
    return RouterArgs.from_cli_args(parser.parse_args(argv))


def main(argv: Optional[list[str]] = None) -> None:
    """Becomes the program: same process, arguments as typed. Does not return."""
    words = sys.argv[1:] if argv is None else argv
    try:
        binary = find_binary()
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(binary, [NAME, *words])

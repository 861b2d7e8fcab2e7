"""Where the program is."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

NAME = "pd-router"
ENV = "PD_ROUTER_BIN"


def find_binary() -> str:
    """The path of the program: `$PD_ROUTER_BIN`, else where pip put it, else on the PATH.

    Raises FileNotFoundError, which names every place that was looked at.
    """
    asked = os.environ.get(ENV)
    if asked:
        if not _is_program(Path(asked)):
            raise FileNotFoundError(f"`{ENV}={asked}` is no file that can be run")
        return os.path.abspath(asked)
    places = _places()
    for place in places:
        if _is_program(place / NAME):
            return str(place / NAME)
    found = shutil.which(NAME)
    if found:
        return found
    looked = ", ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"the program `{NAME}` was not found in {looked} or on the PATH\n"
        f"hint: `pip install pd-router` brings it; or set `{ENV}` to its path"
    )


def _places() -> list[Path]:
    scripts = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # `pip install --target DIR` puts packages into DIR and programs into DIR/bin
    beside = [Path(__file__).resolve().parents[1] / "bin"]
    python = [Path(sys.executable).parent] if sys.executable else []
    places = [Path(place) for place in scripts if place] + python + beside
    return list(dict.fromkeys(places))


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)

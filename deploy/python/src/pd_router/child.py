"""Runs the program as a child: signals go to it, and it does not outlive this process."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any, Optional

from pd_router import tie
from pd_router.binary import NAME, find_binary

FORWARDED = (signal.SIGTERM, signal.SIGINT)


def run(argv: list[str]) -> None:
    """Runs `pd-router` with these words and waits for its end.

    SIGTERM and SIGINT are passed on, where Python lets signals be caught: in the main thread.

    Raises RuntimeError where the router ends without having been asked to.
    """
    command = _command(find_binary(), argv)
    with _Forward() as forward:
        if forward.asked:
            return
        # a session of its own: Ctrl-C reaches it once, through this process, and not twice
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            forward.to(child)
            status = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if status == 0 or (forward.asked and status in [-number for number in FORWARDED]):
        return
    how = f"signal {-status}" if status < 0 else f"status {status}"
    raise RuntimeError(f"`{NAME}` ended with {how}; its standard error says why")


def _command(binary: str, argv: list[str]) -> list[str]:
    if not (tie.POSSIBLE and sys.executable):
        return [binary, *argv]
    # -I and -S: no site packages, no environment; it starts in some 20 ms and becomes the program
    return [sys.executable, "-I", "-S", tie.__file__, str(os.getpid()), binary, *argv]


class _Forward:
    """While open, passes signals on to the child, also those that came before it was there."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._child: Optional[subprocess.Popen[bytes]] = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Forward":
        if threading.current_thread() is threading.main_thread():
            for number in FORWARDED:
                self._before[number] = signal.signal(number, self._on)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            # None: a handler that Python did not set and cannot set again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def to(self, child: "subprocess.Popen[bytes]") -> None:
        """From now on signals go to `child`."""
        self._child = child
        if self.asked:
            child.send_signal(self.asked[0])

    def _on(self, number: int, _frame: Any) -> None:
        self.asked.append(number)
        if self._child is not None:
            self._child.send_signal(number)

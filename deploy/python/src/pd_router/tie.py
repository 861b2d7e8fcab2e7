"""Run as a script: ties this process's life to its parent's, then becomes the program.

A parent that is killed cannot end its child, so the kernel is asked to. That has to be asked in the
child; a script of its own does it without running Python between fork and exec, which is not safe in a
parent with threads.

    python tie.py PARENT_PID PROGRAM WORDS...
"""

import os
import signal
import sys

POSSIBLE = sys.platform == "linux"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Becomes the program, unless the parent is gone already."""
    parent, program, *words = sys.argv[1:]
    import ctypes

    # SIGKILL, as the parent had no time for a drain either, and the port must be free again at once
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the process that started the router is gone")
    os.execv(program, [program, *words])


if __name__ == "__main__":
    main()

"""The child that stands for VLLM::EngineCore: ignores SIGTERM and outlives its parent.

Runs by path without the package: standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

TITLE = "VLLM::EngineCore"
#: No process of the fake outlives this, so that a broken test leaves nothing behind for long.
LIFE_S = 900
PR_SET_NAME = 15  # linux/prctl.h


def spawn() -> subprocess.Popen[bytes]:
    """Start the child in the group and session of the caller, under vLLM's process title."""
    # The title takes the place of argv[0], from which Python would otherwise find its library.
    env = os.environ | {"PYTHONHOME": sys.base_prefix}
    argv = [TITLE, "-S", os.path.abspath(__file__)]
    # Before exec, so that there is no moment in which SIGTERM kills the child. No threads run yet.
    return subprocess.Popen(argv, executable=sys.executable, env=env, preexec_fn=ignore)  # noqa: PLW1509


def ignore() -> None:
    """Ignore the polite signals; exec keeps that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    """Do nothing until killed."""
    ignore()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_NAME, TITLE.encode(), 0, 0, 0)
    signal.alarm(LIFE_S)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()

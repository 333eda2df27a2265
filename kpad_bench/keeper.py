"""The process between the harness and one server: nothing of the server outlives the harness.

Run as a script by ``server`` (standard library only, no import of this package)::

    python -I -S keeper.py LOG FOLDER -- COMMAND ...

It starts the command in a session of its own, tells its pid and later its exit status as JSON lines
on stdout, and waits. When stdin closes (the harness is done, or was killed with kill -9) it kills the
command's group and everything that came back to it as a subreaper, reaps it, removes the folder that
was made for this server, and exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
POLL_S = 0.05
LAST_KILLS_S = 10.0


def main(log_path: str, command: list[str]) -> int:
    """Keep one server. Returns 0 when nothing of it is left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        with open(log_path, "ab", buffering=0) as log:
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as error:
        tell({"error": f"{error.filename or command[0]}: {error.strerror}"})
        return 1
    tell({"pid": server.pid})
    while not harness_gone(POLL_S):
        reap(server.pid)
    return clean_up(server.pid)


def stay(*_: object) -> None:
    """Only the harness, or its end, ends a keeper."""


def tell(message: dict[str, object]) -> None:
    """One JSON line to the harness; it may be gone already."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def harness_gone(timeout_s: float) -> bool:
    """True when the other end of stdin is closed."""
    readable, _, _ = select.select([0], [], [], timeout_s)
    return bool(readable) and os.read(0, 1) == b""


def reap(server_pid: int) -> None:
    """Take the status of every child that has ended, without waiting; tell the server's."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == server_pid:
                tell({"rc": os.waitstatus_to_exitcode(status)})


def clean_up(server_pid: int) -> int:
    """Kill and reap until no child is left; 1 when some could not be killed in time.

    Only own children are killed, and each killed one hands its children up to us, so no pid or group
    that the system has given to somebody else can be hit.
    """
    deadline = time.monotonic() + LAST_KILLS_S
    while time.monotonic() < deadline:
        for pid in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap(server_pid)
        if not children():
            return 0
        time.sleep(POLL_S)
    return 1


def children() -> list[int]:
    """Pids whose parent is this process, zombies included."""
    mine = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat,
            ):
                if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                    mine.append(int(name))
    return mine


def out_of_reach() -> None:
    """Go on as a grandchild of the harness; its child only waits for that, to have something to wait for.

    Who ends a harness may end its children first, as Ray does with an actor's. That must not be the keeper.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stay)  # not SIG_IGN, which the server would inherit
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        os._exit(abs(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    out_of_reach()
    try:
        raise SystemExit(main(sys.argv[1], sys.argv[4:]))
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)

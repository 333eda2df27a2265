"""The process between the harness and one server: nothing of the server outlives the harness.

Run as a script by ``server`` (standard library only, no import of this package)::

    python -I -S keeper.py LOG FOLDER -- COMMAND ...

It starts the command in a session of its own, tells its pid and later its exit status as JSON lines
on stdout, and waits; what the command prints it writes to LOG, of which a flood keeps its beginning and
its end. A byte on stdin asks for a line on stdout once all that was printed so far is in LOG. When stdin
closes (the harness is done, or was killed with kill -9) it kills the command's group and everything that
came back to it as a subreaper, reaps it, removes the folder that was made for this server, and exits.
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
#: What is kept of a log: its beginning, and of its end once to twice so much. A boot on 8 GPUs prints about
#: 0.3 MiB, an hour of a sweep's requests less than 1 MiB.
HEAD_BYTES, TAIL_BYTES = 2 * 2**20, 2 * 2**20
#: No pipe of Linux holds more unless root has said so: one read takes all that is in it.
PIPE_BYTES = 2**20
#: A line that is longer may be cut inside.
LINE_BYTES = 2**16


class Log:
    """The end of a boot's log file, to which nobody else writes, whatever the server prints.

    After ``HEAD_BYTES`` only the newest ``TAIL_BYTES`` to twice that are kept, below a line that says how
    many bytes are missing. The file is whole at every moment, so that nothing is left to do at the end.
    """

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.end = os.lseek(self.file, 0, os.SEEK_END)
        #: where the head ends, and where what is kept of the rest begins
        self.head_end = self.tail = self.end + HEAD_BYTES
        self.n_cut = self.n_refused = 0

    def write(self, data: bytes) -> None:
        """Add to the end. What a full disk refuses is counted, and told when there is room again."""
        if self.n_refused:
            data = b"\n[... the disk took no %d bytes here ...]\n" % self.n_refused + data
        n_written = self._put(data, self.end)
        self.end += n_written
        self.n_refused = 0 if n_written == len(data) else self.n_refused + len(data) - n_written
        if self.end - self.tail > 2 * TAIL_BYTES:
            self._cut()

    def _cut(self) -> None:
        """Move the newest bytes, from the beginning of a line on, to where the head ends."""
        newest = os.pread(self.file, TAIL_BYTES, self.end - TAIL_BYTES)
        newest = newest[newest.find(b"\n", 0, LINE_BYTES) + 1 :]
        self.n_cut += self.end - self.tail - len(newest)
        note = b"\n[... %d bytes of this log were cut out here ...]\n" % self.n_cut
        self.tail = self.head_end + len(note)
        self.end = self.head_end + self._put(note + newest, self.head_end)
        os.ftruncate(self.file, self.end)

    def _put(self, data: bytes, place: int) -> int:
        """Write at a place as much as the disk takes; how many bytes that was."""
        n_written = 0
        with contextlib.suppress(OSError):
            while n_written < len(data):
                n_written += os.pwrite(self.file, data[n_written:], place + n_written)
        return n_written


class Printed:
    """What a server prints: a pipe of which it has one end, and its log."""

    def __init__(self, path: str) -> None:
        self.log = Log(path)
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self.is_open = True

    def take(self) -> None:
        """Write down all that was printed so far."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.source, PIPE_BYTES)
            self.is_open = data != b""
            if data:
                self.log.write(data)


def main(log_path: str, command: list[str]) -> int:
    """Keep one server. Returns 0 when nothing of it is left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        printed = Printed(log_path)
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed.sink,
            stderr=printed.sink,
            start_new_session=True,
        )
    except OSError as error:
        tell({"error": f"{error.filename or command[0]}: {error.strerror}"})
        return 1
    os.close(printed.sink)
    tell({"pid": server.pid})
    while not harness_gone(POLL_S, printed):
        reap(server.pid, printed)
    return clean_up(server.pid, printed)


def stay(*_: object) -> None:
    """Only the harness, or its end, ends a keeper."""


def tell(message: dict[str, object]) -> None:
    """One JSON line to the harness; it may be gone already."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def harness_gone(timeout_s: float, printed: Printed) -> bool:
    """True when the other end of stdin is closed. Takes what was printed, and tells who has asked for it."""
    sources = [0, printed.source] if printed.is_open else [0]
    readable, _, _ = select.select(sources, [], [], timeout_s)
    asked = os.read(0, 1) if 0 in readable else None
    printed.take()
    if asked:
        tell({"log": "written"})
    return asked == b""


def reap(server_pid: int, printed: Printed) -> None:
    """Take the status of every child that has ended, without waiting; tell that of the server."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == server_pid:
                printed.take()  # its last words: who hears of its end reads them
                tell({"rc": os.waitstatus_to_exitcode(status)})


def clean_up(server_pid: int, printed: Printed) -> int:
    """Kill and reap until no child is left; 1 when some could not be killed in time.

    Only own children are killed, and each killed one hands its children up to us, so no pid or group
    that the system has given to somebody else can be hit.
    """
    deadline = time.monotonic() + LAST_KILLS_S
    while time.monotonic() < deadline:
        for pid in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        printed.take()
        reap(server_pid, printed)
        if not children():
            printed.take()
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

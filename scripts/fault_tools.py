"""What some faults of ``fault_list.py`` are made with: a full disk, a stranger, a jumping clock."""

from __future__ import annotations

import contextlib
import ctypes
import http.server
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

MNT_DETACH = 2  # linux/fs.h
#: Runs the command while the wall clock jumps by hours and a day, back and forth, at every look at it. Waits
#: and deadlines must not mind. (Python's own clocks: a clock of the system cannot be bent for one process.)
JUMPING_CLOCK = """
import datetime, itertools, sys, time, types
from kpad_bench import cli, sweep
real, jumps = time.time, itertools.cycle((86400, -86400, 3600, 0))
time.time = lambda: real() + next(jumps)
time.time_ns = lambda: int(time.time() * 1e9)
class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
bent = types.ModuleType("datetime")
bent.__dict__.update(datetime.__dict__, datetime=Jumping)
for name, module in list(sys.modules.items()):
    if name.startswith("kpad_bench") and getattr(module, "dt", None) is datetime:
        module.dt = bent
cli.main()
"""


class Tmpfs:
    """A file system of its own on a folder, small enough to be filled. Needs root: see ``is_allowed``."""

    def __init__(self, path: Path, size_kb: int) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"size={size_kb}k".encode()
        if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))

    def fill(self) -> None:
        """Leave no byte free."""
        with contextlib.suppress(OSError), (self.path / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        """Take away what ``fill`` has put there."""
        (self.path / "filler").unlink()

    def close(self) -> None:
        """Unmount it, with all that is on it."""
        ctypes.CDLL(None).umount2(os.fsencode(self.path), MNT_DETACH)

    @staticmethod
    def is_allowed(path: Path) -> bool:
        """Whether one can be mounted here."""
        try:
            Tmpfs(path, 64).close()
        except OSError:
            return False
        return True


class _Stranger(http.server.BaseHTTPRequestHandler):
    """Answers everything with 200, and serves another model."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": [{"id": "other"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def stranger_on() -> Iterator[int]:
    """Another server on a port of 127.0.0.1; the port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()

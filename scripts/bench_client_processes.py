"""The processes of ``bench_client.py``: the fake server, and the clients of ``bench_client_runs.py``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FAKE, RUNS = HERE.parent / "tests" / "fake_vllm" / "fast.py", HERE / "bench_client_runs.py"


def favour(pid: int) -> None:
    """Highest priority where that is allowed (root): clients are compared, not the neighbours they have.

    Of a process in a session of its own: Linux shares the CPU among sessions first.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, -20)
        Path(f"/proc/{pid}/autogroup").write_text("-20")


class Fake:
    """The fast server. A context: it is gone at the end."""

    def __init__(self, cpu: int | None) -> None:
        argv = [sys.executable, str(FAKE), *([] if cpu is None else ["--cpu", str(cpu)])]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
        favour(self.process.pid)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{json.loads(self.process.stdout.readline())['port']}"

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, path: str, body: Any = None) -> Any:
        """The JSON of a GET, or of a POST with a body."""
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.url + path, data, timeout=60) as answer:  # noqa: S310 our own
            return json.load(answer)


class Client:
    """One client process, kept for several runs. A context: it is gone at the end."""

    def __init__(self, name: str, cpu: int | None) -> None:
        self.name, self.spawned_ns = name, time.monotonic_ns()
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed in __exit__
        argv = [sys.executable, str(RUNS), name, *([] if cpu is None else [str(cpu)])]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=self.said, text=True, start_new_session=True
        )
        favour(self.process.pid)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.said.close()

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """One pass, and what the client says of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.said.seek(0)
            raise SystemExit(f"client {self.name} died:\n{self.said.read()[-3000:]}")
        return dict(json.loads(line))

"""One vLLM server: boot, identity, what it answers, and a teardown that leaves nothing.

The process runs in its own session under ``keeper``, behind a Unix socket in a private folder.
Synchronous on purpose: nothing here runs while requests are being measured. Never finds a process by
name; only what it started itself is touched.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kpad_bench.bootlog import classify, last_line
from kpad_bench.errors import HostError, ServerError
from kpad_bench.hostcpu import format_cpu_list
from kpad_bench.plan import MODEL_DIR, PORT, PYTHON, SOCKET

#: Variables a server may inherit; everything else is set by the harness or not there.
INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN",
    "SSL_CERT_FILE", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")
#: sun_path holds 108 bytes with its terminator (linux/un.h).
SOCKET_PATH_BYTES = 107
TERM_WAIT_S = 20.0
KILL_WAIT_S = 10.0
POLL_S = 0.1
LOG_TAIL_BYTES = 256_000


@dataclass(frozen=True)
class Launch:
    """What to start. ``argv`` and ``env`` as the plan wrote them, with its stand-ins still in."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    served_name: str
    log_path: Path
    models_dir: Path
    boot_timeout_s: float
    cpus: frozenset[int] | None = None
    port: int | None = None


@dataclass
class Server:
    """A running server. Use ``boot`` to make one and always ``stop`` it."""

    launch: Launch
    argv: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    socket_path: Path | None
    port: int | None
    affinity_by: str | None
    keeper: subprocess.Popen[bytes]
    pid: int
    log_start: int
    returncode: int | None = None
    is_ready: bool = False
    boot_s: float = 0.0
    _status: bytes = field(default=b"", repr=False)

    def poll(self) -> int | None:
        """Exit status of the API process, None while it runs."""
        stdout = self.keeper.stdout
        while stdout is not None and self.returncode is None and select.select([stdout], [], [], 0)[0]:
            data = os.read(stdout.fileno(), 4096)
            if not data:
                self.returncode = -signal.SIGKILL if self.keeper.poll() is not None else self.returncode
                break
            self._status += data
            self._read_status()
        return self.returncode

    def _read_status(self) -> None:
        *lines, self._status = self._status.split(b"\n")
        for line in lines:
            self.returncode = json.loads(line).get("rc", self.returncode)

    def get(self, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """(HTTP status, body). Raises OSError or http.client.HTTPException when nobody answers."""
        return self._request("GET", path, None, timeout_s)

    def post(self, path: str, body: Any, timeout_s: float = 60.0) -> tuple[int, bytes]:
        """(HTTP status, body) of a JSON post."""
        return self._request("POST", path, json.dumps(body).encode(), timeout_s)

    def _request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        connection = _connection(self.socket_path, self.port, timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def worker_call(self, method: str) -> list[dict[str, Any]] | None:
        """What every worker answers to a plugin method; None when the plugin is not there."""
        try:
            status, body = self.post("/collective_rpc", {"method": method})
            results = json.loads(body).get("results") if status == 200 else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        return results if isinstance(results, list) and all(isinstance(r, dict) for r in results) else None

    def metrics(self) -> str | None:
        """The text of ``/metrics``; None when it cannot be had."""
        try:
            status, body = self.get("/metrics")
        except (OSError, http.client.HTTPException):
            return None
        return body.decode("utf-8", "replace") if status == 200 else None

    def reset_prefix_cache(self) -> bool:
        """Ask for an empty prefix cache. 0.25.1 answers 200 either way: prefix_hits is the proof."""
        try:
            return self.post("/reset_prefix_cache", {})[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def log_text(self) -> str:
        """The end of this boot's own part of the log."""
        with contextlib.suppress(OSError), self.launch.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_start, size - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
        return ""

    def death(self) -> ServerError:
        """The error of a server that is no longer there, with its cause."""
        text = self.log_text()
        cause = classify(text, self.poll(), is_ready=self.is_ready)
        return self.error(cause.cause, cause.detail, text)

    def error(self, cause: str, detail: str, text: str | None = None) -> ServerError:
        """A ServerError of this server."""
        return ServerError(
            cause, detail, argv=self.argv, returncode=self.poll(), log_path=str(self.launch.log_path),
            log_tail=(self.log_text() if text is None else text)[-4000:],
        )  # fmt: skip

    def members(self) -> list[psutil.Process]:
        """Processes of the server's session that are not zombies."""
        return [process for process in psutil.process_iter() if _is_member(process, self.pid)]

    def cpu_seconds(self) -> tuple[float, float]:
        """CPU seconds so far of the API process, and of EngineCore and workers together."""
        front = engine = 0.0
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                if process.pid == self.pid:
                    front += times.user + times.system
                else:
                    engine += times.user + times.system
        return front, engine

    def cpus(self) -> str | None:
        """The CPU list of the API process, read back from it."""
        with contextlib.suppress(OSError):
            return format_cpu_list(os.sched_getaffinity(self.pid))
        return None

    def stop(self) -> None:
        """TERM, bounded wait, KILL, and proof that nothing is left. Raises HostError when something is."""
        try:
            self._signal(signal.SIGTERM)
            if not self._wait_empty(TERM_WAIT_S):
                self._signal(signal.SIGKILL)
                self._wait_empty(KILL_WAIT_S)
        finally:
            self._release_keeper()
            shutil.rmtree(self.folder, ignore_errors=True)
        left = [f"{process.pid}" for process in self.members()]
        if left:
            raise HostError(
                f"processes {', '.join(left)} of the server do not end; stop them, then run again"
            )

    def _signal(self, number: int) -> None:
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def _wait_empty(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _release_keeper(self) -> None:
        self.poll()
        if self.keeper.stdin is not None:
            self.keeper.stdin.close()
        try:
            self.keeper.wait(KILL_WAIT_S + 5)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        if self.keeper.stdout is not None:
            self.keeper.stdout.close()


def boot(launch: Launch) -> Server:
    """Start a server and wait until it is ready under its own name.

    Raises ServerError (nothing is left running) when it dies, hangs or is somebody else's, and
    HostError when it cannot even be started.
    """
    server = _start(launch)
    try:
        started = time.monotonic()
        _wait_ready(server, started + launch.boot_timeout_s)
        server.boot_s = time.monotonic() - started
    except BaseException:
        server.stop()
        raise
    server.is_ready = True
    return server


def _start(launch: Launch) -> Server:
    folder = Path(tempfile.mkdtemp(prefix="kpad-", dir=_runtime_dir()))
    socket_path = folder / "s" if launch.port is None else None
    if socket_path and len(os.fsencode(socket_path)) > SOCKET_PATH_BYTES:
        raise HostError(
            f"socket path {socket_path} is longer than {SOCKET_PATH_BYTES} bytes; set a shorter TMPDIR"
        )
    port = None if launch.port is None else _free_port(launch.port)
    argv = tuple(_fill(part, launch, socket_path, port) for part in launch.argv)
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(launch.env)
    affinity_by, prefix = _affinity(launch.cpus)
    launch.log_path.parent.mkdir(parents=True, exist_ok=True)
    launch.log_path.touch()
    log_start = launch.log_path.stat().st_size
    keeper = _spawn([*prefix, *argv], env, launch, folder, affinity_by)
    pid = _first_status(keeper, argv)
    return Server(launch, argv, env, folder, socket_path, port, affinity_by, keeper, pid, log_start)


def _spawn(
    argv: Sequence[str], env: Mapping[str, str], launch: Launch, folder: Path, affinity_by: str | None
) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("keeper.py")
    command = [sys.executable, "-I", "-S", str(script), str(launch.log_path.resolve()), "--", *argv]
    before = os.sched_getaffinity(0)
    try:
        if affinity_by == "sched_setaffinity" and launch.cpus:
            os.sched_setaffinity(0, launch.cpus)  # inherited by the child, taken back below
        return subprocess.Popen(  # noqa: S603 an argv list, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(env),
            cwd=folder,
            start_new_session=True,
        )
    finally:
        os.sched_setaffinity(0, before)


def _first_status(keeper: subprocess.Popen[bytes], argv: Sequence[str]) -> int:
    assert keeper.stdout is not None
    line = keeper.stdout.readline()
    told = json.loads(line) if line else {"error": "the keeper process did not start"}
    if "pid" not in told:
        keeper.wait()
        raise HostError(f"the server cannot be started: {told['error']}; check server.launcher ({argv[0]})")
    return int(told["pid"])


def _wait_ready(server: Server, deadline: float) -> None:
    while True:
        if server.poll() is not None:
            raise server.death()
        if _answers(server):
            return
        if time.monotonic() > deadline:
            text = server.log_text()
            seconds = f"{server.launch.boot_timeout_s:.0f} s"
            raise server.error(
                "boot_timeout", f"not ready after {seconds}; last line: {last_line(text)}", text
            )
        time.sleep(POLL_S)


def _answers(server: Server) -> bool:
    """``/health`` is 200 and ``/v1/models`` lists this boot's own name."""
    try:
        if server.get("/health", 5)[0] != 200:
            return False
        status, body = server.get("/v1/models", 5)
        found = [entry.get("id") for entry in json.loads(body).get("data", [])] if status == 200 else []
    except (OSError, http.client.HTTPException, ValueError):
        return False
    if found and server.launch.served_name not in found:
        raise server.error(
            "stranger", f"another server answers: it serves {found}, not {server.launch.served_name}"
        )
    return bool(found)


def _connection(socket_path: Path | None, port: int | None, timeout_s: float) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port or 80, timeout=timeout_s)
    if socket_path is not None:
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(str(socket_path))
    return connection


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise HostError(
                f"server.port: {wanted}: 127.0.0.1:{wanted} is taken ({error.strerror}); "
                "stop what listens there, give another port, or set it to null for a Unix socket"
            ) from None
        return int(probe.getsockname()[1])


def _fill(part: str, launch: Launch, socket_path: Path | None, port: int | None) -> str:
    filled = part.replace(PYTHON, sys.executable).replace(MODEL_DIR, str(launch.models_dir))
    return filled.replace(SOCKET, str(socket_path)).replace(PORT, str(port))


def _affinity(cpus: frozenset[int] | None) -> tuple[str | None, list[str]]:
    if not cpus:
        return None, []
    taskset = shutil.which("taskset")
    if taskset is None:
        return "sched_setaffinity", []
    return "taskset", [taskset, "-c", format_cpu_list(set(cpus))]


def _runtime_dir() -> str | None:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return runtime if runtime and os.access(runtime, os.W_OK) else None


def _is_member(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


def shown_env(env: Mapping[str, str]) -> list[str]:
    """NAME=value for a row or a dry run; the value of anything that may be a secret is left out."""
    hidden = {name for name in env if any(word in name.upper() for word in SECRET_WORDS)}
    return [f"{name}={'***' if name in hidden else value}" for name, value in sorted(env.items())]

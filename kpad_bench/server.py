"""One vLLM server: boot, identity, what it answers, and a teardown that leaves nothing.

The process runs in its own session under ``keeper``, behind a Unix socket in a private folder.
Synchronous on purpose: nothing here runs while requests are being measured. Never finds a process by
name; only what it started itself is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from kpad_bench import bootstage
from kpad_bench.affinity import Affinity, read_affinity
from kpad_bench.bootlog import classify, last_line
from kpad_bench.control import Endpoint
from kpad_bench.errors import HostError, ServerError
from kpad_bench.launch import Launch, free_port, runtime_dir, socket_in

TERM_WAIT_S = 20.0
#: Without its API process an EngineCore does not end by itself.
ORPHAN_WAIT_S = 2.0
KILL_WAIT_S = 10.0
POLL_S = 0.1
#: How often the log of a booting server is looked at for its stage.
LOOK_S = 1.0
#: What is read of a log: its beginning and its end. Both, where it is longer than the two.
LOG_PART_BYTES = 256_000
#: A keeper writes down what was printed at once, unless its disk hangs.
LOG_WAIT_S = 1.0


@dataclass
class Server:
    """A running server. Use ``boot`` to make one and always ``stop`` it."""

    launch: Launch
    endpoint: Endpoint
    argv: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    affinity_by: str | None
    keeper: subprocess.Popen[bytes]
    pid: int
    log_start: int
    returncode: int | None = None
    is_ready: bool = False
    is_dead: bool = False
    is_attached: bool = False
    started_s: float = field(default_factory=time.monotonic)
    boot_s: float = 0.0
    #: attempts at this boot that failed, and how many boots there were in all
    earlier: tuple[str, ...] = ()
    n_boots: int | None = 1
    _status: bytes = field(default=b"", repr=False)
    #: how often the keeper was asked to write down the log, and has said that it did
    _n_asked: int = field(default=0, repr=False)
    _n_written: int = field(default=0, repr=False)

    def poll(self) -> int | None:
        """Exit status of the API process, None while it runs."""
        while self._hear(0.0):
            pass
        if self.returncode is None and self.keeper.poll() is not None:
            self.returncode = -signal.SIGKILL
        return self.returncode

    def _hear(self, timeout_s: float) -> bool:
        """Take in what the keeper tells; whether it told anything in time."""
        stdout = self.keeper.stdout
        if stdout is None or stdout.closed or not select.select([stdout], [], [], timeout_s)[0]:
            return False
        data = os.read(stdout.fileno(), 4096)
        *lines, self._status = (self._status + data).split(b"\n")
        for told in map(json.loads, lines):
            self.returncode = told.get("rc", self.returncode)
            self._n_written += "log" in told
        return bool(data)

    def log_text(self) -> str:
        """This boot's own part of the log, without its middle where it is long."""
        self._wait_written()
        with contextlib.suppress(OSError), self.launch.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(self.log_start)
            head = log.read(LOG_PART_BYTES)
            log.seek(max(log.tell(), size - LOG_PART_BYTES))
            return (head + log.read()).decode("utf-8", "replace")
        return ""

    def _wait_written(self) -> None:
        """Until all that the server has printed so far is in its log, unless the keeper is gone."""
        stdin = self.keeper.stdin
        if stdin is None or stdin.closed:
            return
        try:
            os.write(stdin.fileno(), b"?")
        except BrokenPipeError:
            return
        self._n_asked += 1
        deadline = time.monotonic() + LOG_WAIT_S
        while self._n_written < self._n_asked and self._hear(max(0.0, deadline - time.monotonic())):
            pass

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

    def cpu_seconds(self) -> tuple[float, float] | None:
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

    def affinity(self) -> Affinity | None:
        """The CPUs of every thread of its processes, read back from them; None when none of them lives."""
        return read_affinity((process.pid for process in self.members()), self.launch.cpus)

    def stop(self) -> None:
        """TERM, bounded wait, KILL, and proof that nothing is left. Raises HostError when something is."""
        try:
            self._signal(signal.SIGTERM)
            if not self._wait_empty(TERM_WAIT_S if self.poll() is None else ORPHAN_WAIT_S):
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
        if os.path.lexists(self.folder):
            raise HostError(f"{self.folder}: the socket folder of the server cannot be removed; remove it")

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
        if self.keeper.stdin is not None:
            self.keeper.stdin.close()
        try:
            self.keeper.wait(KILL_WAIT_S + 5)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        self.poll()
        if self.keeper.stdout is not None:
            self.keeper.stdout.close()


def boot(launch: Launch) -> Server:
    """Start a server and wait until it is ready under its own name.

    Raises ServerError (nothing is left running) when it dies, hangs or is somebody else's, and
    HostError when it cannot even be started.
    """
    (found,) = boot_all([launch])
    if isinstance(found, ServerError):
        raise found
    return found


def boot_all(
    launches: Sequence[Launch], watch: Callable[[str], None] | None = None
) -> list[Server | ServerError]:
    """Boot servers beside each other; for one that does not come up its error, and nothing left of it.

    ``watch`` hears of the stages of the one that is waited for.

    Raises HostError, or what interrupts it, with nothing left of any.
    """
    with contextlib.ExitStack() as stack:
        servers = []
        for launch in launches:
            servers.append(_start(launch))
            stack.callback(servers[-1].stop)
        found = [_when_ready(server, watch) for server in servers]
        stack.pop_all()
    return found


def _when_ready(server: Server, watch: Callable[[str], None] | None) -> Server | ServerError:
    try:
        _wait_ready(server, server.started_s + server.launch.boot_timeout_s, watch)
    except ServerError as error:
        server.stop()
        return error
    server.boot_s = time.monotonic() - server.started_s
    server.is_ready = True
    return server


def _start(launch: Launch) -> Server:
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="kpad-", dir=runtime_dir()))
        return _start_in(folder, launch)
    except BaseException as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise HostError(f"{error.filename}: {error.strerror}; a server needs it to start") from error
        raise


def _start_in(folder: Path, launch: Launch) -> Server:
    socket_path = socket_in(folder) if launch.port is None else None
    port = None if launch.port is None else free_port(launch.port)
    argv, env = launch.filled_argv(socket_path, port), launch.full_env()
    affinity_by, prefix = launch.affinity()
    launch.log_path.parent.mkdir(parents=True, exist_ok=True)
    launch.log_path.touch()
    log_start = launch.log_path.stat().st_size
    keeper = _spawn([*prefix, *argv], env, launch, folder, affinity_by)
    pid = _first_status(keeper, argv)
    url = "http://localhost" if port is None else f"http://127.0.0.1:{port}"
    endpoint = Endpoint(launch.served_name, url, socket_path)
    return Server(launch, endpoint, argv, env, folder, affinity_by, keeper, pid, log_start)


def _spawn(
    argv: Sequence[str], env: Mapping[str, str], launch: Launch, folder: Path, affinity_by: str | None
) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("keeper.py")
    log_path = str(launch.log_path.resolve())
    command = [sys.executable, "-I", "-S", str(script), log_path, str(folder), "--", *argv]
    before = os.sched_getaffinity(0)
    try:
        if affinity_by == "sched_setaffinity" and launch.cpus:
            os.sched_setaffinity(0, launch.cpus)  # inherited by the child, taken back below
        return subprocess.Popen(
            command,
            bufsize=0,  # what is told after the first line is for ``poll``, not for a buffer
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
    try:
        line = keeper.stdout.readline()
        told = json.loads(line) if line else {"error": "the keeper process did not start"}
        if "pid" not in told:
            raise HostError(
                f"the server cannot be started: {told['error']}; check server.launcher ({argv[0]})"
            )
    except BaseException:
        with keeper:  # closes its stdin: it ends what it may have started
            raise
    return int(told["pid"])


def _wait_ready(server: Server, deadline: float, watch: Callable[[str], None] | None) -> None:
    look_at, stage = time.monotonic(), None
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
        if watch is not None and time.monotonic() >= look_at:
            look_at, before = time.monotonic() + LOOK_S, stage
            stage = bootstage.stage(server.log_text()) or stage
            if stage is not None and stage != before:
                watch(stage)
        time.sleep(POLL_S)


def _answers(server: Server) -> bool:
    """``/health`` is 200 and ``/v1/models`` lists this boot's own name."""
    if server.endpoint.health() != 200:
        return False
    found, own = server.endpoint.model_names(), server.launch.served_name
    if found and own not in found:
        raise server.error("stranger", f"another server answers: it serves {found}, not {own}")
    return bool(found)


def _is_member(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False

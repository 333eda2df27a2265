"""Who owns a results folder or a GPU: a lock that names its owner and that no crash leaves behind.

flock is the lock. The record in its file says who holds it, and decides where flock cannot: on a file
system without it, and between hosts that share one. The rules and their reasons: docs/decisions/0011.
Knows files and processes; nothing of runs, servers or configurations.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kpad_bench.disk import as_host_error
from kpad_bench.errors import HostError

#: How often an owner touches its file, and after how long without that another host takes it over. NFS
#: may show a file's times a minute late.
BEAT_S, STALE_S = 30.0, 600.0
#: The kernel closes the files of a killed process shortly after it has become a zombie.
DYING_S, TRY_S = 2.0, 0.02
#: Where the locks of GPUs lie unless ``KPAD_BENCH_LOCKS`` names a folder: one place for all users, shells
#: and timers of a host, so none that an environment moves (TMPDIR, XDG_RUNTIME_DIR).
_HOST_DIRS = ("/run/lock", "/tmp")  # noqa: S108 a file of ours in it is opened without following links
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock. ``started``: clock ticks from the boot of its host to its start."""

    pid: int
    started: int
    boot_id: str
    pid_namespace: int
    host: str
    at: str

    @classmethod
    def me(cls) -> Owner:
        """This process, from now on."""
        pid = os.getpid()
        started, now = _start_of(pid), datetime.now(UTC)
        assert started is not None
        return cls(
            pid, started, _boot_id(), _pid_namespace(), platform.node(), f"{now:%Y-%m-%d %H:%M:%S} UTC"
        )

    @property
    def is_alive(self) -> bool:
        """Whether its process is seen to live, which only processes of its own namespace can."""
        return self.is_of_this_host and _start_of(self.pid) == self.started

    @property
    def is_of_this_host(self) -> bool:
        """Whether its pid means something here: the same boot of the same host, and one namespace."""
        return (self.boot_id, self.pid_namespace) == (_boot_id(), _pid_namespace())

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host} since {self.at}"


@contextmanager
def ownership(path: Path, what: str, *, is_shared: bool = True) -> Iterator[None]:
    """Own ``what`` (like ``the run results/x``) until this ends; ``path`` is the file of its lock.

    ``is_shared``: other hosts may see the file. Raises HostError that names the owner where there is one,
    and where the file cannot be written.
    """
    with as_host_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _open(path)
    try:
        with as_host_error(path.parent):
            _take(file, path, what)
            _write(file, json.dumps(asdict(Owner.me())).encode())
        try:
            with _signs_of_life(file) if is_shared else ExitStack():
                yield
        finally:
            with suppress(OSError):
                os.ftruncate(file, 0)
    finally:
        os.close(file)


@contextmanager
def gpu_set(indices: Iterable[int | str]) -> Iterator[None]:
    """Own these GPUs of this host, by index as NVML counts them, whoever asks and for whatever results."""
    folder = lock_dir()
    with ExitStack() as stack:
        for name in sorted({str(index) for index in indices}):
            stack.enter_context(ownership(folder / f"gpu-{name}.lock", f"GPU {name}", is_shared=False))
        yield


def lock_dir() -> Path:
    """The folder for locks of this host, open to all its users. Raises HostError where there is none."""
    asked = os.environ.get("KPAD_BENCH_LOCKS")
    places = [asked] if asked else [f"{place}/kpad-bench" for place in _HOST_DIRS]
    for place in map(Path, places):
        with suppress(OSError):
            if not place.is_dir():
                place.mkdir(parents=True)
                place.chmod(0o777)
            if os.access(place, os.W_OK | os.X_OK):
                return place
    raise HostError(
        f"no folder for locks of GPUs: {', '.join(places)} cannot be written; set KPAD_BENCH_LOCKS to one "
        "that all users of this host may write to"
    )


def read_owner(path: Path) -> Owner | None:
    """Who is or was the owner, as the file says; None where it names nobody."""
    try:
        record = json.loads(path.read_bytes())
        return Owner(**record)
    except (OSError, ValueError, TypeError):
        return None


def _open(path: Path) -> int:
    is_new = not path.exists()
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    if is_new:
        with suppress(OSError):  # of another user, who was faster
            os.fchmod(file, 0o666)
    return file


def _take(file: int, path: Path, what: str) -> None:
    """Get the lock, or raise HostError that names the owner."""
    has_flock = _flock(file, path, what)
    owner = read_owner(path)
    if owner is None:
        return
    if owner.boot_id == _boot_id() and (has_flock or owner.pid_namespace == _pid_namespace()):
        # flock reaches every process of one kernel; a pid means something in one namespace alone.
        if owner.is_alive:
            raise HostError(_refusal(what, owner))
    elif owner.host != platform.node() or owner.boot_id == _boot_id():
        idle_s = _now_on(path.parent) - path.stat().st_mtime
        if idle_s < STALE_S:
            raise HostError(
                f"{_refusal(what, owner)}. Its last sign of life is {idle_s:.0f} s old; if {owner.host} is "
                f"down, run again when it is {STALE_S:.0f} s old, or delete {path}"
            )


def _flock(file: int, path: Path, what: str) -> bool:
    """False where the file system has no flock. A dying owner gets a moment to let go of it."""
    deadline = time.monotonic() + DYING_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = read_owner(path)
            if owner is None or owner.is_alive or time.monotonic() > deadline:
                raise HostError(_refusal(what, owner)) from None
            time.sleep(TRY_S)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return False
        else:
            return True


def _refusal(what: str, owner: Owner | None) -> str:
    who = owner or "which has not said who it is"
    return f"{what} is in use by another kpad-bench, {who}; let it end or stop it, then run again"


def _write(file: int, data: bytes) -> None:
    """In place: the lock is the file's, so it cannot be replaced by another one."""
    os.ftruncate(file, 0)
    os.pwrite(file, data, 0)


@contextmanager
def _signs_of_life(file: int) -> Iterator[None]:
    """Touch the file every ``BEAT_S`` seconds; its times are the file server's."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(BEAT_S):
            with suppress(OSError):
                os.utime(file)

    thread = threading.Thread(target=beat, name="kpad-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _now_on(folder: Path) -> float:
    """Now, by the clock that dates the files of a folder."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.write(file.fileno(), b"x")
        return os.fstat(file.fileno()).st_mtime


def _start_of(pid: int) -> int | None:
    """When a process started, clock ticks after boot (proc(5), stat, field 22); None for none or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino

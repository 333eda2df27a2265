"""One owner at a time, named to whoever else asks; no crash, reboot or dead host leaves a lock behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import until

from kpad_bench import locks
from kpad_bench.errors import HostError
from kpad_bench.locks import Owner, gpu_set, lock_dir, ownership, read_owner

HOLD = """
import sys
from pathlib import Path
from kpad_bench.locks import gpu_set, ownership
path, *gpus = sys.argv[1:]
with gpu_set(gpus) if gpus else ownership(Path(path), "the run x"):
    print("held", flush=True)
    sys.stdin.read()
"""
Holder = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / ".lock"


@pytest.fixture
def hold(path: Path) -> Iterator[Holder]:
    """Starts processes that hold the lock until their stdin closes."""
    with ExitStack() as stack:

        def start(*gpus: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", HOLD, str(path), *gpus],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            return process

        yield start


def leave(path: Path, owner: Owner, idle_s: float = 0.0) -> None:
    """The file of a lock as an owner that has gone, or is on another host, leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(owner)))
    then = path.stat().st_mtime - idle_s
    os.utime(path, (then, then))


def test_the_owner_is_named(path: Path, hold: Holder) -> None:
    """A second process is refused with exit 4, and told who holds it, where and since when."""
    process = hold()
    with pytest.raises(HostError) as caught, ownership(path, "the run x"):
        pass
    owner = read_owner(path)
    assert owner is not None
    assert (owner.pid, owner.host) == (process.pid, os.uname().nodename)
    assert str(caught.value) == (
        f"the run x is in use by another kpad-bench, pid {process.pid} on {owner.host} since {owner.at}; "
        "let it end or stop it, then run again"
    )
    assert caught.value.exit_code == 4


def test_a_refusal_leaves_the_owner_alone(path: Path, hold: Holder) -> None:
    """Being refused neither frees the lock nor takes its record."""
    hold()
    before = path.read_text()
    for _ in range(2):
        with pytest.raises(HostError, match="in use"), ownership(path, "x"):
            pass
    assert path.read_text() == before


def test_the_end_of_the_owner_frees_it(path: Path, hold: Holder) -> None:
    """After an orderly end the file names nobody, and the next one gets it."""
    hold().communicate("")
    assert read_owner(path) is None
    with ownership(path, "x"):
        assert read_owner(path) == replace(Owner.me(), at=read_owner(path).at)  # type: ignore[union-attr]
    assert path.read_text() == ""


def test_kill_9_frees_it(path: Path, hold: Holder) -> None:
    """Nothing is cleaned up after kill -9, and nothing needs to be."""
    process = hold()
    process.kill()
    process.wait()
    assert read_owner(path) is not None
    with ownership(path, "x"):
        pass


def test_a_zombie_owns_nothing(path: Path, hold: Holder) -> None:
    """A killed owner whose parent has not noticed yet is dead."""
    process = hold()
    os.kill(process.pid, signal.SIGKILL)
    until("zombie", lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes())
    with ownership(path, "x"):
        pass


def test_twice_in_one_process(path: Path) -> None:
    """The same process does not get it a second time either; an error in between frees it."""

    def fails() -> None:
        with ownership(path, "x"):
            with pytest.raises(HostError, match=f"pid {os.getpid()} "), ownership(path, "x"):
                pass
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    with ownership(path, "x"):
        pass


@pytest.mark.parametrize(
    "changes",
    [{"pid": 2**22 + 1}, {"started": 1}, {"boot_id": "another"}, {"boot_id": "another", "pid": 1}],
    ids=["pid gone", "pid given to another process", "host was booted again", "booted, and the pid lives"],
)
def test_a_record_without_its_process_is_free(path: Path, changes: dict[str, object]) -> None:
    """What a power cut leaves: a record, at whose age nobody looks, and no flock."""
    leave(path, replace(Owner.me(), **changes))  # type: ignore[arg-type]
    with ownership(path, "x"):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\0" * 40])
def test_what_is_no_record_is_free(path: Path, text: str) -> None:
    """A file that a crash left empty or torn names nobody."""
    path.parent.mkdir()
    path.write_text(text)
    with ownership(path, "x"):
        pass


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without flock (Lustre says ENOSYS, NFS without its lock daemon ENOLCK)."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_flock_the_record_decides(path: Path, hold: Holder, no_flock: None) -> None:
    """The owner's process is looked at: pid and start time."""
    process = hold()
    with pytest.raises(HostError, match=f"pid {process.pid} "), ownership(path, "x"):
        pass
    process.kill()
    process.wait()
    with ownership(path, "x"):
        pass


def test_another_container_without_flock_is_judged_by_its_signs_of_life(path: Path, no_flock: None) -> None:
    """Its pid says nothing here."""
    other = replace(Owner.me(), pid=2**22 + 1, pid_namespace=1)
    leave(path, other)
    with pytest.raises(HostError, match="last sign of life"), ownership(path, "x"):
        pass
    leave(path, other, locks.STALE_S + 1)
    with ownership(path, "x"):
        pass


def test_another_container_with_flock_is_gone(path: Path) -> None:
    """flock reaches every process of one kernel, so that no flock is no owner."""
    leave(path, replace(Owner.me(), pid_namespace=1))
    with ownership(path, "x"):
        pass


def test_another_host_is_judged_by_its_signs_of_life(path: Path) -> None:
    """flock may not reach over a shared file system: a fresh record is an owner, an old one is not."""
    other = replace(Owner.me(), host="dgx2", boot_id="another")
    leave(path, other, locks.STALE_S - 60)
    with pytest.raises(HostError, match=r"on dgx2 .* if dgx2 is down, .* or delete") as caught:
        ownership(path, "x").__enter__()
    assert str(path) in str(caught.value)
    leave(path, other, locks.STALE_S + 1)
    with ownership(path, "x"):
        pass


def test_an_owner_gives_signs_of_life(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is held the file's time moves; a GPU's, which no other host sees, does not."""
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    with ownership(path, "x"):
        os.utime(path, (1, 1))
        until("touched", lambda: path.stat().st_mtime > 1)
    with ownership(path, "x", is_shared=False):
        assert "kpad-lock" not in {thread.name for thread in locks.threading.enumerate()}


def test_a_lock_whose_owner_is_dead_but_whose_file_is_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dying process is waited for, and no longer than a moment."""
    path.parent.mkdir()
    monkeypatch.setattr(locks, "DYING_S", 0.1)
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        leave(path, replace(Owner.me(), started=1))
        with pytest.raises(HostError, match="in use"), ownership(path, "x"):
            pass
        monkeypatch.setattr(locks, "DYING_S", 30.0)
        monkeypatch.setattr(locks.time, "sleep", lambda _: fcntl.flock(other, fcntl.LOCK_UN))
        with ownership(path, "x"):
            pass


def test_children_do_not_keep_it(path: Path, hold: Holder) -> None:
    """A process that the owner has started does not inherit the lock."""
    with ownership(path, "x"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with ownership(path, "x"):
        pass
    child.communicate(b"\n")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A host error, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot be written"), ownership(tmp_path / "file" / ".lock", "x"):
        pass


@pytest.fixture
def gpu_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KPAD_BENCH_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


def test_gpus_are_owned_one_by_one(hold: Holder, gpu_locks: Path) -> None:
    """Sets that share a GPU exclude each other, whatever folder their results go to; others do not."""
    process = hold("0", "1")
    with pytest.raises(HostError, match=f"GPU 1 is in use by another kpad-bench, pid {process.pid}"):
        gpu_set([1, 2]).__enter__()
    with gpu_set([2, 3]):
        pass
    process.communicate("")
    with gpu_set([1, 2]):
        assert sorted(one.name for one in gpu_locks.iterdir()) == [f"gpu-{n}.lock" for n in range(4)]


def test_a_refused_set_holds_nothing(hold: Holder, gpu_locks: Path) -> None:
    """The GPUs that were got before the one that is taken are given back."""
    hold("7")
    with pytest.raises(HostError, match="GPU 7"), gpu_set([0, 7]):
        pass
    with gpu_set([0]):
        pass


def test_locks_of_a_host_are_open_to_all_its_users(gpu_locks: Path) -> None:
    """Whoever comes first makes folder and files that the others may write to."""
    before = os.umask(0o077)
    try:
        with gpu_set([0]):
            pass
    finally:
        os.umask(before)
    assert gpu_locks.stat().st_mode & 0o777 == 0o777
    assert (gpu_locks / "gpu-0.lock").stat().st_mode & 0o666 == 0o666


def test_the_place_of_gpu_locks_does_not_hang_on_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer without the variables of a login finds the same folder; without any there is a way out."""
    monkeypatch.setattr(locks, "_HOST_DIRS", (str(tmp_path / "none" / "x"), str(tmp_path)))
    (tmp_path / "none").write_text("")
    monkeypatch.delenv("KPAD_BENCH_LOCKS", raising=False)
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert lock_dir() == tmp_path / "kpad-bench"
    monkeypatch.setattr(locks, "_HOST_DIRS", (str(tmp_path / "none" / "x"),))
    with pytest.raises(HostError, match="set KPAD_BENCH_LOCKS"):
        lock_dir()

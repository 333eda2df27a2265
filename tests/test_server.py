"""One server: how it is started, what is told of its end, and that nothing of it is left."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import until
from fake_vllm.client import LAUNCHER, group_members

from kpad_bench import keeper, server
from kpad_bench.errors import HostError, ServerError
from kpad_bench.launch import Launch
from kpad_bench.server import Server, boot

Make = Callable[..., Launch]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A launch of the fake, or of another command."""
    (tmp_path / "run").mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    def launch(*command: str, timeout_s: float = 20, **env: str) -> Launch:
        fake = (*LAUNCHER, "--served-model-name", "kpad-b1", "--uds", "{socket}")
        log = tmp_path / "logs" / "b1.log"
        return Launch(command or fake, env, "kpad-b1", log, tmp_path, timeout_s)

    return launch


def test_its_folder_is_private_and_goes_with_it(make: Make) -> None:
    """The socket lies in a folder for the owner alone, which is gone after stop, as is every process."""
    running = boot(make())
    assert running.folder.stat().st_mode & 0o777 == 0o700
    assert running.endpoint.socket_path == running.folder / "s"
    assert len(running.members()) == 2
    assert running.boot_s > 0
    running.stop()
    assert not running.folder.exists()
    assert group_members(running.pid) == {}
    assert running.keeper.returncode == 0
    assert running.poll() == 0


def test_signals_are_not_ignored_by_inheritance(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server starts with INT, TERM and HUP as they are by default, whatever the harness does with them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(ServerError) as caught:
            boot(make("sh", "-c", "grep SigIgn /proc/self/status; exit 7"))
    finally:
        signal.signal(signal.SIGINT, before)
    ignored = int(caught.value.log_tail.split()[1], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert not ignored >> (number - 1) & 1
    assert caught.value.returncode == 7


def test_each_boot_reads_its_own_part_of_the_log(make: Make) -> None:
    """A log that a resumed sweep appends to does not give the cause of an earlier death."""
    with pytest.raises(ServerError) as first:
        boot(make("sh", "-c", "echo ValueError: num_gpu_blocks=0; exit 1"))
    with pytest.raises(ServerError) as second:
        boot(make("sh", "-c", "echo hello; exit 1"))
    assert (first.value.cause, second.value.cause) == ("kv_none", "unknown")
    assert second.value.log_tail == "hello\n"
    assert second.value.argv[0] == "sh"


def test_a_dead_keeper_is_noticed(make: Make) -> None:
    """Without its keeper a server counts as dead, and stop ends it all the same."""
    running = boot(make())
    running.keeper.kill()
    until("noticed", lambda: running.poll() is not None)
    running.stop()
    assert group_members(running.pid) == {}


def test_a_worker_in_a_session_of_its_own_is_ended(make: Make) -> None:
    """What left the server's session comes back to the keeper, which ends it."""
    code = (
        "import os, subprocess, sys, time; "
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "print(child.pid, flush=True); sys.exit(3)"
    )
    with pytest.raises(ServerError) as caught:
        boot(make(sys.executable, "-c", code))
    pid = int(caught.value.log_tail)
    assert not Path(f"/proc/{pid}").exists()


def test_a_process_that_cannot_be_ended_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """stop says which processes are left rather than going on beside them."""
    monkeypatch.setattr(server, "TERM_WAIT_S", 0.2)
    monkeypatch.setattr(server, "KILL_WAIT_S", 0.2)
    running = boot(make())
    members = running.members()
    monkeypatch.setattr(Server, "members", lambda self: members)
    with pytest.raises(HostError, match=f"{running.pid}.* do not end"):
        running.stop()


def test_a_log_that_cannot_be_written_is_the_hosts_fault(make: Make, tmp_path: Path) -> None:
    """Not a row: no cell of this sweep could do better."""
    (tmp_path / "logs").write_text("")
    with pytest.raises(HostError, match="logs"):
        boot(make())


def test_a_flooded_log_keeps_its_head_and_its_tail(make: Make, tmp_path: Path) -> None:
    """Of 16 MiB less than 7 stay: the boot, the death, and between them how much was cut."""
    script = tmp_path / "script.json"
    root = "ValueError: No available memory for the cache blocks."
    script.write_text(json.dumps({"default": {"log_mib": 16, "boot_fail": {"log": root, "rc": 1}}}))
    with pytest.raises(ServerError) as caught:
        boot(make(FAKE_VLLM_SCRIPT=str(script)))
    assert (caught.value.cause, caught.value.detail) == ("kv_none", root)
    log = (tmp_path / "logs" / "b1.log").read_bytes()
    assert len(log) < 7 * 2**20
    head, (n_cut,), tail = parts_of(log)
    assert head.startswith(b"Triton is installed")
    assert tail.endswith(b"%b\n" % root.encode())
    flood_begins = head.rindex(b"\n", 0, head.index(b"flood")) + 1
    assert len(head) - flood_begins + n_cut + tail.index(root.encode()) == 16 * 2**20


def parts_of(log: bytes) -> tuple[bytes, list[int], bytes]:
    """What stands above and below the only line that says how much was cut, and how much that was."""
    head, *numbers, tail = re.split(rb"\n\[\.\.\. (\d+) bytes of this log were cut out here \.\.\.\]\n", log)
    return head, [int(number) for number in numbers], tail


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper that keeps 40 bytes of the beginning and 20 to 40 of the end."""
    monkeypatch.setattr(keeper, "HEAD_BYTES", 40)
    monkeypatch.setattr(keeper, "TAIL_BYTES", 20)


@pytest.mark.parametrize("n_bytes", [1, 7, 19, 64])
@pytest.mark.parametrize("n_lines", [0, 1, 6, 7, 11, 12, 50, 1000])
def test_nothing_of_a_log_is_missing_uncounted(
    small: None, tmp_path: Path, n_bytes: int, n_lines: int
) -> None:
    """In whatever pieces it comes: beginning, count and end make up all of it, and the end begins a line."""
    path = tmp_path / "b1.log"
    path.write_bytes(b"of an earlier boot\n")
    text = b"".join(b"line %04d\n" % number for number in range(n_lines))
    log = keeper.Log(str(path))
    for at in range(0, len(text), n_bytes):
        log.write(text[at : at + n_bytes])
    os.close(log.file)
    written = path.read_bytes().removeprefix(b"of an earlier boot\n")
    if len(text) <= 80:
        assert written == text
        return
    head, (n_cut,), tail = parts_of(written)
    assert head == text[:40]
    assert text.endswith(tail)
    assert tail[:5] == b"line "
    assert 10 <= len(tail) <= 40
    assert len(head) + n_cut + len(tail) == len(text)


def test_a_long_line_is_cut_inside(small: None, tmp_path: Path) -> None:
    """Without a line's beginning in reach the newest bytes stay as they are."""
    log = keeper.Log(str(tmp_path / "b1.log"))
    log.write(b"x" * 500)
    os.close(log.file)
    assert parts_of((tmp_path / "b1.log").read_bytes()) == (b"x" * 40, [440], b"x" * 20)


def test_what_a_full_disk_refuses_is_counted(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server goes on while its log cannot be written, and the log tells how much it lacks."""
    log, pwrite, room = keeper.Log(str(tmp_path / "b1.log")), os.pwrite, iter([3, 0, 99, 99])

    def limited(file: int, data: bytes, place: int) -> int:
        if (n := next(room)) == 0:
            raise OSError(errno.ENOSPC, "full")
        return pwrite(file, data[:n], place)

    monkeypatch.setattr(os, "pwrite", limited)
    log.write(b"abcdef\n")
    log.write(b"g\n")
    os.close(log.file)
    assert (tmp_path / "b1.log").read_bytes() == b"abc\n[... the disk took no 4 bytes here ...]\ng\n"


def test_the_log_is_whole_when_it_is_read(make: Make) -> None:
    """What a server has printed when it answers is in the text, whoever has to write it down first."""
    running = boot(make())
    try:
        with open(f"/proc/{running.pid}/fd/1", "wb", buffering=0) as printed:
            for number in range(50):
                printed.write(b"word %d\n" % number)
                assert running.log_text().endswith(f"word {number}\n")
    finally:
        running.stop()
    assert running.log_text() == running.launch.log_path.read_text()


def test_cpu_seconds_are_split(make: Make) -> None:
    """The API process is the front end; all others are the engine."""
    running = boot(make())
    try:
        seconds = running.cpu_seconds()
        assert seconds is not None
        assert seconds[0] > 0
        assert seconds[1] >= 0
    finally:
        running.stop()

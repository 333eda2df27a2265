"""One server: how it is started, what is told of its end, and that nothing of it is left."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import until
from fake_vllm.client import LAUNCHER, group_members

from kpad_bench import server
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

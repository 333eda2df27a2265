"""CPU time of the host, and what of it others used."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kpad_bench import hostload
from kpad_bench.hostload import HostLoad, host_load, other_cpu_share

STAT = """\
cpu  1000 50 450 90000 700 30 20 11 400 40
cpu0 500 25 225 45000 350 15 10 6 200 20
cpu1 500 25 225 45000 350 15 10 5 200 20
intr 1 2 3
ctxt 5
"""


def test_processes_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """user, nice and system; not idle, waiting, interrupts or steal, and guests are in user already."""
    path = tmp_path / "stat"
    path.write_text(STAT)
    monkeypatch.setattr(hostload, "STAT", path)
    found = host_load()
    assert found is not None
    assert (found.busy_s * os.sysconf("SC_CLK_TCK"), found.n_cpus) == (1500, 2)


@pytest.mark.parametrize("text", [None, "", "cpu  1 2\n", "cpu  a b c\n"])
def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """No file, or another one: nothing is known."""
    path = tmp_path / "stat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(hostload, "STAT", path)
    assert host_load() is None


def at(seconds: float, busy_s: float, own_s: float) -> HostLoad:
    """A reading."""
    return HostLoad(round(seconds * 1e9), busy_s, 4, own_s)


@pytest.mark.parametrize(
    ("after", "server_s", "share"),
    [
        (at(20, 130, 6), 15, 1.4),
        (at(20, 121, 6), 20, 0.0),
        (at(20, 120.9, 6), 20, 0.0),
        (at(20, 130, 6), None, None),
        (at(20, 130, 6), -1, None),
        (at(10, 130, 6), 15, None),
        (None, 15, None),
    ],
    ids=["others", "nobody else", "ticks", "attached", "a process died", "no time", "not told"],
)
def test_what_others_used(after, server_s, share) -> None:
    """All that was used, less the client's and the server's, over the time between."""
    assert other_cpu_share(at(10, 100, 5), after, server_s) == pytest.approx(share)


def test_a_process_of_somebody_else_is_seen() -> None:
    """A real one that uses half a second of CPU time, however long that takes."""
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    before, started_s = host_load(), time.monotonic()
    subprocess.run([sys.executable, "-c", burn], check=True)
    share = other_cpu_share(before, host_load(), 0.0)
    assert share is not None
    assert share * (time.monotonic() - started_s) > 0.3

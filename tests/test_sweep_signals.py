"""Whatever ends the command, no server process is left, finished rows stand, and it resumes exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_S, Lab, until

VAN, PADDED = {"k": None}, {"k": 4}
#: What holds the second boot in each phase. Only its first attempt is slow.
SLOW = {
    "boot": {"boot_hang": True},
    "warm-up": {"stall_after_tokens": 1, "fault_requests": [1, 2]},
    "pass": {"stall_after_tokens": 1, "fault_requests": [5, 6]},
}
N_CALLS = {"boot": 0, "warm-up": 2, "pass": 6}


def start(lab: Lab, phase: str, *more: str, **env: str) -> subprocess.Popen[str]:
    """The command, once its second boot has come to the phase; one trial is finished by then."""
    lab.tell(({"argv": "kpad-", "boot": 2}, SLOW[phase]))
    lab.set(arms=["van", "kpad"], k=[4])
    process = lab.command(*more, **env)

    def is_there() -> bool:
        assert process.poll() is None, process.communicate()[1]
        boots = lab.boots()
        return len(boots) == 2 and in_phase(lab, boots[1], phase)

    until(f"second boot in {phase}", is_there)
    return process


def in_phase(lab: Lab, boot: dict[str, Any], phase: str) -> bool:
    calls = [call for call in lab.calls() if call["pid"] == boot["pid"] and call["prompt"]]
    # A hanging boot logs while it hangs.
    return len(calls) >= N_CALLS[phase] and (phase != "boot" or "shared memory broadcast" in lab.logs())


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    errors = process.communicate(timeout=DEADLINE_S)[1]
    return process.returncode, errors


def resumes(lab: Lab) -> None:
    """Nothing lives, one row is there, and only the other trial is run by running it again."""
    until("nothing left", lambda: not lab.living())
    (kept,) = lab.rows()
    assert kept["status"] == "ok"
    assert lab.sweep() == 0
    rows = lab.rows()
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert kept in rows
    assert len(lab.boots()) == 3
    assert lab.superseded() == []


@pytest.mark.parametrize("phase", SLOW)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_interrupted(lab: Lab, number: signal.Signals, phase: str) -> None:
    """Ctrl-C and TERM end it with 130 and without a traceback, its server before itself."""
    process = start(lab, phase)
    os.killpg(process.pid, number)  # as a terminal does: the whole foreground group
    code, errors = end(process)
    assert (code, lab.living()) == (130, {})
    assert "Traceback" not in errors
    resumes(lab)


def test_in_the_background(lab: Lab) -> None:
    """Started by nohup in the background it does not mind a hangup, and TERM still ends it."""
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGHUP)}
    try:
        process = start(lab, "pass")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    os.killpg(process.pid, signal.SIGHUP)
    os.killpg(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    os.killpg(process.pid, signal.SIGTERM)
    assert end(process)[0] == 130
    resumes(lab)


def test_second_interrupt_in_teardown(lab: Lab) -> None:
    """A server that ignores TERM while Ctrl-C comes twice is killed all the same."""
    lab.tell(ignore_term=True, stall_after_tokens=1)
    process = lab.command()
    until("pass", lambda: len(lab.calls()) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    until("TERM was sent", lambda: "[shutdown]" in lab.logs())
    os.killpg(process.pid, signal.SIGINT)
    code, errors = end(process)
    assert code == 130
    assert "Traceback" not in errors
    until("nothing left", lambda: not lab.living())


@pytest.mark.parametrize("phase", ["boot", "pass"])
def test_killed_harness(lab: Lab, phase: str) -> None:
    """kill -9 of the command: its keeper ends the server, its folder and itself."""
    # Short: a socket path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kt") as runtime:
        process = start(lab, phase, XDG_RUNTIME_DIR=runtime)
        assert len(list(Path(runtime).iterdir())) == 1
        process.kill()
        end(process)
        until("nothing left", lambda: not lab.living())
        assert list(Path(runtime).iterdir()) == []
    resumes(lab)


def test_two_sweeps_on_one_results_folder(lab: Lab) -> None:
    """The second is refused with exit 4 and disturbs nothing, with --fresh too."""
    process = start(lab, "pass")
    for more in ([], ["--fresh"]):
        code, errors = lab.finish(*more)
        assert code == 4
        assert "another kpad-bench" in errors
    assert len(lab.boots()) == 2
    os.killpg(process.pid, signal.SIGTERM)
    assert end(process)[0] == 130
    resumes(lab)

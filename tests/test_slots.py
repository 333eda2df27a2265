"""Slots: servers side by side, each with its own client process; whole blocks; rows that name neighbours."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import psutil
import pytest
from conftest import CORPORA, DEADLINE_S, Lab, until

from kpad_bench.errors import HostError, UsageError

TWO: list[dict[str, Any]] = [{"name": "a", "gpus": [0]}, {"name": "b", "gpus": [1]}]
OTHER = {"a": "b", "b": "a"}
#: The first boot waits in its pass, with two requests open.
HELD = ({"argv": "kpad-", "boot": 1}, {"stall_after_tokens": 1, "fault_requests": [5, 6]})


def slots(lab: Lab, **changes: Any) -> Lab:
    """Four blocks of two trials on two slots."""
    return lab.set(
        **{"slots": TWO, "corpora": list(CORPORA), "arms": ["van", "kpad"], "rounds": 2, **changes}
    )


def slots_of_blocks(lab: Lab) -> dict[str, set[str]]:
    """Where each block has run."""
    found: dict[str, set[str]] = {}
    for row in lab.rows():
        found.setdefault(row["block_id"], set()).add(row["slot"])
    return found


def held(lab: Lab) -> subprocess.Popen[str]:
    """The command while its first boot is in a pass that does not end, and all other blocks are done."""
    lab.tell(HELD)
    process = slots(lab).command()

    def in_pass() -> bool:
        assert process.poll() is None, process.communicate()[1]
        boots = lab.boots()
        calls = [call for call in lab.calls() if boots and call["pid"] == boots[0]["pid"] and call["prompt"]]
        return len(calls) >= 6 and len(list(lab.out.glob("*/*/trials/*.parquet"))) == 6

    until("held", in_pass)
    return process


def client_of(process: subprocess.Popen[str], boot: dict[str, Any]) -> psutil.Process:
    """The client process that has started a server."""
    return next(one for one in psutil.Process(boot["pid"]).parents() if one.ppid() == process.pid)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    errors = process.communicate(timeout=DEADLINE_S)[1]
    return process.returncode, errors


def resumes(lab: Lab) -> None:
    """Everything that was ok stays, the block that was cut is measured again as a whole, on one slot."""
    kept = [row for row in lab.rows() if row["status"] == "ok"]
    assert lab.sweep() == 0
    rows = lab.rows()
    assert [row["status"] for row in rows] == ["ok"] * 8
    whole = {row["block_id"] for row in kept if sum(r["block_id"] == row["block_id"] for r in kept) == 2}
    assert all(row in rows for row in kept if row["block_id"] in whole)
    assert {len(where) for where in slots_of_blocks(lab).values()} == {1}


def test_two_slots_side_by_side(lab: Lab) -> None:
    """Each block runs whole on one slot; a finished run has nothing left to do."""
    assert slots(lab).sweep() == 0
    assert [row["status"] for row in lab.rows()] == ["ok"] * 8
    where = slots_of_blocks(lab)
    assert len(where) == 4
    assert all(names in ({"a"}, {"b"}) for names in where.values())
    assert lab.sweep() == 0
    assert len(lab.boots()) == 8


def test_without_slots_a_trial_is_alone(lab: Lab) -> None:
    """One server at a time is the default: no slot, no neighbours, and the environment is left alone."""
    assert lab.sweep() == 0
    assert (lab.row()["slot"], lab.row()["neighbours"]) == (None, [])
    assert not [text for text in lab.row()["warnings"] or [] if "measured beside" in text]
    assert "CUDA_DEVICE_ORDER" not in lab.boots()[0]["env"]


def test_every_slot_has_its_own_gpus_cpus_and_caches(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told to the server, read back into the row, and whatever the shell says."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("needs a CPU for each slot")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/nowhere")
    given = {"a": {"gpus": [2, 3], "cpus": str(usable[0])}, "b": {"gpus": [0], "client_cpus": str(usable[1])}}
    for name, slot in given.items():
        slot |= {"name": name, "cache_dir": str(lab.path / f"caches-{name}")}
    slots(lab, slots=list(given.values()))
    assert lab.sweep() == 0
    before = os.sched_getaffinity(0)
    gpus = {"a": "2,3", "b": "0"}
    for row in lab.rows():
        name = row["slot"]
        env = dict(text.split("=", 1) for text in row["server_env"])
        assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == (gpus[name], "PCI_BUS_ID")
        assert env["VLLM_CACHE_ROOT"] == str(lab.path / f"caches-{name}" / "vllm")
        assert env["TRITON_CACHE_DIR"] == str(lab.path / f"caches-{name}" / "triton")
        if name == "a":
            assert row["server_cpus"] == str(usable[0])
        else:  # without a set of its own the server does not get the client's alone
            assert row["client_cpus"] == str(usable[1])
            assert row["server_cpus"] != str(usable[1])
    assert os.sched_getaffinity(0) == before
    assert (lab.path / "caches-a").is_dir()


def test_a_killed_client_costs_its_block(lab: Lab) -> None:
    """kill -9 of one slot's client: rows with the reason, no server left; all rows name their neighbours."""
    process = held(lab)
    boot = lab.boots()[0]
    client_of(process, boot).kill()
    code, errors = end(process)
    assert code == 3
    assert lab.living() == {}
    died = [row for row in lab.rows() if row["status"] != "ok"]
    assert [row["reason"] for row in died] == ["client_died"] * 2
    assert len({row["block_id"] for row in died}) == 1
    (name,) = {row["slot"] for row in died}
    assert f"the client process of slot {name} was killed by SIGKILL" in died[0]["detail"]
    assert died[0]["neighbours"] == [OTHER[name]]
    beside = [row for row in lab.rows() if row["slot"] == OTHER[name]]
    assert [(row["status"], row["neighbours"]) for row in beside] == [("ok", [name])] * 6
    doubt = f"measured beside {name}: servers side by side share the host"
    assert all(doubt in row["warnings"] for row in beside)
    assert "2 trials are not ok" in errors
    resumes(lab)
    assert len(lab.superseded()) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_interrupted(lab: Lab, number: signal.Signals) -> None:
    """Ctrl-C and TERM end clients and servers of all slots before the command ends with 130."""
    process = held(lab)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    code, errors = end(process)
    assert (code, lab.living()) == (130, {})
    assert "Traceback" not in errors
    until("no process left", lambda: not any(alive(one) for one in family))
    resumes(lab)


def test_killed_harness(lab: Lab) -> None:
    """kill -9 of the command: clients die with it, servers by their keepers; it resumes in whole blocks."""
    process = held(lab)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    end(process)
    until("no process left", lambda: not any(alive(one) for one in family) and not lab.living())
    resumes(lab)


def alive(process: psutil.Process) -> bool:
    """Zombies are gone."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_two_sweeps_on_one_gpu(lab: Lab) -> None:
    """Another results folder, a GPU in common: refused with exit 4, naming the owner, before any boot."""
    process = held(lab)
    n_boots, lab.out = len(lab.boots()), lab.path / "others"
    code, errors = lab.set(slots=[{"name": "x", "gpus": [5, 1]}]).finish()
    assert code == 4
    assert f"GPU 1 is in use by another kpad-bench, pid {process.pid} on" in errors
    assert not list(lab.out.glob("lab/*"))
    os.killpg(process.pid, signal.SIGTERM)
    assert end(process)[0] == 130
    assert len(lab.boots()) >= n_boots


def test_a_model_that_no_slot_has_room_for(lab: Lab) -> None:
    """Said before anything boots, with the way out, in a dry run too."""
    lab.config["define_models"]["tiny"]["tensor_parallel"] = 4
    slots(lab, slots=[{"name": "a", "gpus": [0, 1]}, {"name": "b", "gpus": [2]}])
    text = (
        r"model tiny needs 4 GPUs .* the largest slot, a, has 2: give it a slot of 4, .* or leave slots out"
    )
    with pytest.raises(UsageError, match=text):
        lab.sweep()
    assert lab.boots() == []


def test_a_larger_model_goes_to_the_slot_that_has_room(lab: Lab) -> None:
    """Never to the other one, whose blocks do not wait for it."""
    lab.config["define_models"]["big"] = {**lab.config["define_models"]["tiny"], "tensor_parallel": 2}
    slots(lab, models=["big", "tiny"], slots=[{"name": "a", "gpus": [0]}, {"name": "b", "gpus": [1, 2]}])
    lab.tell(({"argv": "--tensor-parallel-size 2"}, {"rank_count": 2}))
    assert lab.sweep() == 0
    for row in lab.rows():
        assert row["slot"] == "b" or row["model"] == "tiny"


def test_a_host_that_is_not_ready_ends_all_slots(lab: Lab) -> None:
    """What one client finds out ends the sweep with exit 4; nothing is left of the other."""
    slots(lab, thresholds={"low_disk_gb": 1e9})
    with pytest.raises(HostError, match="make room"):
        lab.sweep()
    assert lab.living() == {}


def test_a_bug_in_a_client_is_loud(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback is kept, and it is no failed row."""
    slots(lab)
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(lab.corpora))
    from kpad_bench import slotwork

    original = slotwork.Setup

    def broken(resolved: Any, *rest: Any) -> Any:
        return original(None, *rest)

    monkeypatch.setattr(slotwork, "Setup", broken)
    with pytest.raises(
        RuntimeError, match=r"(?s)the client of slot [ab] failed:\nTraceback .*AttributeError"
    ):
        lab.sweep()

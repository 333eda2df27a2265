"""Boots that are tried again, boots that are spared, by their cause; no clock, and mostly no process."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPORA, Lab

from kpad_bench import retry, server
from kpad_bench.config import BOOT_CAUSES, RetryRule
from kpad_bench.configfile import load_sweep
from kpad_bench.errors import ServerError, UsageError
from kpad_bench.launch import Launch
from kpad_bench.retry import SAME_EVERY_TIME, Booter, why_busy

BUSY = (
    "ValueError: Free memory on device cuda:0 (3.1/178.0 GiB) on startup is less than desired GPU memory "
    "utilization (0.85, 151.3 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
    "processes."
)
GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


class Up(server.Server):
    """A server that is up, without a process; ``stopped`` counts how often it was stopped."""

    def __init__(self) -> None:
        self.earlier, self.n_boots, self.stopped = (), 1, 0

    def stop(self) -> None:
        self.stopped += 1


def launch(name: str = "kpad-b1", *flags: str, **env: str) -> Launch:
    argv = ("vllm", "--served-model-name", name, *flags)
    return Launch(argv, env, name, Path("/logs/b1.log"), Path("/models"), 10.0)


class Script:
    """In the place of ``server.boot_all``: what each boot comes to, in order, and what was waited for."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.waits, self.said, self.n_boots = iter(outcomes), [], [], 0

    def boot_all(self, launches: Any, watch: Any = None) -> list[Any]:
        self.n_boots += len(launches)
        found = [next(self.outcomes) for _ in launches]
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, ServerError):
                raise one
        return found

    def booter(self, why: Any = lambda launch, error: None, **rules: RetryRule) -> Booter:
        return Booter(rules, self.waits.append, why)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def make(*outcomes: Any) -> Script:
        script = Script(*outcomes)
        monkeypatch.setattr(server, "boot_all", script.boot_all)
        return script

    return make


def failed(cause: str, detail: str = "why") -> ServerError:
    return ServerError(cause, detail)


def test_by_default_only_what_passes_is_tried_again(lab: Lab) -> None:
    """A full GPU and a taken address; nothing else, whatever it is."""
    rules = load_sweep(lab.config_path()).config.retry
    assert {cause: rule.attempts for cause, rule in rules.items()} == {"gpu_busy": 3, "address_in_use": 3}
    lab.set(retry={"boot_timeout": {"attempts": 2, "wait_s": 0}})
    assert list(load_sweep(lab.config_path()).config.retry) == ["boot_timeout"]
    lab.set(retry={"bad_luck": {}})
    with pytest.raises(
        UsageError, match=r"retry: .*no such cause: bad_luck; allowed: gpu_busy, address_in_use"
    ):
        load_sweep(lab.config_path())


@pytest.mark.parametrize("cause", BOOT_CAUSES)
def test_a_cause_without_a_rule_is_tried_once(scripted: Any, cause: str) -> None:
    """No rule, no wait, no second boot."""
    script = scripted(failed(cause))
    (found,) = script.booter().boot([launch()], script.said.append)
    assert (found.cause, found.n_boots, found.earlier) == (cause, 1, ())
    assert (script.n_boots, script.waits, script.said) == (1, [], [])


def test_a_second_attempt_that_works_tells_of_the_first(scripted: Any) -> None:
    """The wait is the rule's, and the server carries what went before it."""
    up = Up()
    script = scripted(failed("address_in_use", "OSError: [Errno 98]"), up)
    (found,) = script.booter(address_in_use=RetryRule(attempts=3, wait_s=5)).boot(
        [launch()], script.said.append
    )
    assert found is up
    assert (up.n_boots, up.earlier) == (2, ("attempt 1 of 3: address_in_use: OSError: [Errno 98]",))
    assert (script.waits, up.stopped) == ([5.0], 0)
    assert script.said == ["address_in_use: OSError: [Errno 98]; trying again in 5 s"]


def test_attempts_come_to_an_end(scripted: Any) -> None:
    """After the last attempt its own failure stands, with those before it."""
    script = scripted(*[failed("gpu_busy", f"try {n}") for n in (1, 2, 3)])
    (found,) = script.booter(gpu_busy=RetryRule(attempts=3, wait_s=60)).boot([launch()], script.said.append)
    assert (found.detail, found.n_boots, len(found.earlier)) == ("try 3", 3, 2)
    assert script.waits == [60.0, 60.0]


def test_another_cause_ends_the_attempts(scripted: Any) -> None:
    """Each failure is judged by its own cause."""
    script = scripted(failed("gpu_busy"), failed("kv_none"))
    (found,) = script.booter(gpu_busy=RetryRule()).boot([launch()], script.said.append)
    assert (found.cause, found.n_boots, len(found.earlier)) == ("kv_none", 2, 1)


def test_a_gpu_that_is_still_full_is_not_tried(scripted: Any) -> None:
    """The memory check comes before a boot: without room an attempt is spent without one."""
    answers = iter(["GPU 0 has 3.0 GiB free", None])
    up = Up()
    script = scripted(failed("gpu_busy", BUSY), up)
    booter = script.booter(lambda launch, error: next(answers), gpu_busy=RetryRule(attempts=3, wait_s=9))
    (found,) = booter.boot([launch()], script.said.append)
    assert found is up
    assert (script.n_boots, script.waits) == (2, [9.0, 9.0])
    assert up.n_boots == 2
    assert up.earlier[0].endswith("not tried again after 9 s: GPU 0 has 3.0 GiB free")


def test_servers_that_are_up_go_when_a_later_attempt_is_interrupted(scripted: Any) -> None:
    """Ctrl-C in a wait or a boot leaves none of the others of its group."""
    up = Up()
    script = scripted(up, failed("gpu_busy"), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        script.booter(gpu_busy=RetryRule()).boot([launch(), launch("kpad-b2")], script.said.append)
    assert up.stopped == 1


@pytest.mark.parametrize("cause", BOOT_CAUSES)
def test_what_lasts_is_found_out_once(scripted: Any, cause: str) -> None:
    """The same command under another name is spared after a lasting failure; another command is not."""
    script = scripted(*[failed(cause, "the line")] * 4)
    booter = script.booter()
    booter.boot([launch("kpad-b1", "--x", A="1")], script.said.append)
    (again,) = booter.boot([launch("kpad-b2", "--x", A="1")], script.said.append)
    assert again.cause == cause
    if cause in SAME_EVERY_TIME:
        assert script.n_boots == 1
        assert (again.n_boots, again.detail) == (
            0,
            "not booted, the same command has failed in this run: the line",
        )
    else:
        assert (script.n_boots, again.n_boots) == (2, 1)
    n_before = script.n_boots
    booter.boot([launch("kpad-b3", "--y", A="1"), launch("kpad-b4", "--x", A="2")], script.said.append)
    assert script.n_boots == n_before + 2


def fake_nvml(free_gib: float) -> Any:
    """NVML that knows two GPUs, the second with as much free memory as is said."""
    devices = [
        types.SimpleNamespace(index=0, uuid="GPU-a", memory_free=1 * retry.GIB),
        types.SimpleNamespace(index=1, uuid="GPU-b", memory_free=round(free_gib * retry.GIB)),
    ]
    holder = types.SimpleNamespace(gpu=1, pid=4242, name="python", used=0)
    return types.SimpleNamespace(devices=lambda: devices, holders=lambda indices: [holder])


@pytest.mark.parametrize("visible", ["1", "GPU-b", "1,0"])
def test_the_memory_check_asks_the_gpu_of_the_server(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    """Device 0 of a server is the first one that it sees; what it needs is in its own message."""
    where = launch(CUDA_VISIBLE_DEVICES=visible)
    monkeypatch.setattr(retry, "_nvml", lambda: fake_nvml(151.4))
    assert why_busy(where, failed("gpu_busy", BUSY)) is None
    monkeypatch.setattr(retry, "_nvml", lambda: fake_nvml(100.0))
    assert why_busy(where, failed("gpu_busy", BUSY)) == (
        "GPU 1 has 100.0 GiB free, 151.3 are needed; held by python (pid 4242)"
    )


def test_without_nvml_or_a_figure_there_is_no_memory_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then only a boot can tell."""
    monkeypatch.setattr(retry, "_nvml", lambda: None)
    assert why_busy(launch(), failed("gpu_busy", BUSY)) is None
    monkeypatch.setattr(retry, "_nvml", lambda: fake_nvml(0.0))
    assert why_busy(launch(), failed("gpu_busy", "Available memory on node 0 is less than desired")) is None


def test_a_boot_tried_again_is_told_in_its_row(lab: Lab) -> None:
    """gpu_busy, then ok: one row, ok, that names the attempt before it; the log holds both boots."""
    lab.tell(({"k": 4, "boot": 1}, {"boot_fail": {"log": f"{BUSY}\n{GENERIC}", "rc": 1}}))
    lab.set(arms=["van", "kpad"], retry={"gpu_busy": {"attempts": 2, "wait_s": 0}})
    assert lab.sweep() == 0
    rows = {row["arm"]: row for row in lab.rows()}
    assert (rows["kpad"]["status"], rows["kpad"]["boot_attempts"]) == ("ok", 2)
    assert rows["kpad"]["warnings"][0].startswith(
        "attempt 1 of 2: gpu_busy: ValueError: Free memory on device"
    )
    assert rows["van"]["boot_attempts"] == 1
    assert len(lab.boots()) == 3
    assert lab.logs().count("version 0.32.0") == 3


def test_a_sweep_whose_servers_all_die_alike_does_not_boot_every_round(lab: Lab) -> None:
    """A flag that vLLM does not have: one boot for each command, a row for each trial, exit 3."""
    log = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --speculativ-config"
    lab.tell(({"k": 4}, {"boot_fail": {"log": log, "rc": 2}}))
    lab.set(arms=["kpad"], k=[4], rounds=2, corpora=list(CORPORA))
    assert lab.sweep() == 3
    rows = lab.rows()
    assert [(row["status"], row["reason"]) for row in rows] == [("failed", "config_error")] * 4
    assert [row["boot_attempts"] for row in rows] == [1, 0, 0, 0]
    assert rows[3]["detail"].startswith("not booted, the same command has failed in this run: ")
    assert f"{rows[0]['boot_id']}.log" in rows[3]["detail"]
    assert (rows[0]["server_rc"], rows[3]["server_rc"]) == (2, None)
    assert len(lab.boots()) == 1

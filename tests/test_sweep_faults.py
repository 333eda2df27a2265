"""A fault is a row with its cause, the sweep goes on, and running it again does what is missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPORA, Lab

from kpad_bench import server, trial
from kpad_bench.config import Load
from kpad_bench.corpus import open_frozen

VAN_AND_PADDED: dict[str, Any] = {"arms": ["van", "kpad"], "k": [4]}
VAN, PADDED = {"k": None}, {"k": 4}


@pytest.fixture(autouse=True)
def _no_wait_for_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake's core never ends by itself."""
    monkeypatch.setattr(server, "ORPHAN_WAIT_S", 0.3)


@pytest.fixture
def no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests fail and the server is not going to die: no long wait for that."""
    monkeypatch.setattr(trial, "DEATH_S", 0.2)


def by_arm(lab: Lab) -> dict[str, dict[str, Any]]:
    return {row["arm"]: row for row in lab.rows()}


DEATHS = {
    "kv_none": "ValueError: No available memory for the cache blocks. Try more memory",
    "kv_too_small": "ValueError: To serve at least one request with max seq len 1024, 2.0 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (1.0 GiB).",
    "gpu_busy": "ValueError: Free memory on device cuda:0 (3/79 GiB) is less than desired GPU memory",
    "capture_oom": "Capturing CUDA graphs (decode, FULL): 40%\rtorch.OutOfMemoryError: CUDA out of memory.",
    "illegal_access": "RuntimeError: CUDA error: an illegal memory access was encountered",
}
GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def test_a_death_in_boot_is_a_row_with_its_cause(lab: Lab) -> None:
    """Each K that dies has its own cause, detail and log path; the others are measured; exit 3."""
    ks = dict(enumerate(DEATHS, start=4))
    rules = [({"k": k}, {"boot_fail": {"log": f"{DEATHS[c]}\n{GENERIC}", "rc": 1}}) for k, c in ks.items()]
    lab.tell(*rules)
    lab.set(arms=["kpad", "van"], k=list(ks))
    assert lab.sweep() == 3
    rows = {row["k"]: row for row in lab.rows()}
    assert rows.pop(None)["status"] == "ok"
    for k, row in rows.items():
        assert (row["status"], row["reason"]) == ("failed", ks[k])
        assert row["server_rc"] == 1
        assert row["output_tok_per_s"] is None
        assert DEATHS[ks[k]].rpartition("\r")[2][:60] in row["detail"]
        log = lab.run_path() / "logs" / f"{row['boot_id']}.log"
        assert f"(log: {log})" in row["detail"]
        assert GENERIC in log.read_text()


def test_running_again_redoes_only_what_failed(lab: Lab) -> None:
    """The fault is gone at the second boot: exit 0, one more boot, the earlier attempt kept."""
    lab.tell(({"k": 4, "boot": 1}, {"boot_fail": {"log": DEATHS["kv_none"], "rc": 1}}))
    lab.set(**VAN_AND_PADDED)
    assert lab.sweep() == 3
    first = by_arm(lab)
    assert first["kpad"]["reason"] == "kv_none"
    assert lab.sweep() == 0
    again = by_arm(lab)
    assert again["kpad"]["status"] == "ok"
    assert again["van"] == first["van"]
    assert len(lab.boots()) == 3
    assert [(row["status"], row["trial_id"]) for row in lab.superseded()] == [
        ("failed", again["kpad"]["trial_id"])
    ]
    assert lab.sweep() == 0
    assert len(lab.boots()) == 3


def test_killed_api_in_a_pass(lab: Lab) -> None:
    """kill -9 of the API process: the row says so, its EngineCore is gone too, the next cell is ok."""
    lab.tell((PADDED, {"die_after_requests": 4}))
    lab.set(**VAN_AND_PADDED)
    assert lab.sweep() == 3
    rows = by_arm(lab)
    assert (rows["kpad"]["status"], rows["kpad"]["reason"]) == ("failed", "server_killed")
    assert "SIGKILL" in rows["kpad"]["detail"]
    assert rows["kpad"]["server_rc"] == -9
    assert rows["van"]["status"] == "ok"
    assert lab.living() == {}


def test_killed_api_in_warm_up(lab: Lab) -> None:
    """A death before the pass is told from the same log and status."""
    lab.tell(die_after_requests=2)
    assert lab.sweep() == 3
    assert (lab.row()["status"], lab.row()["reason"]) == ("failed", "server_killed")


def test_dead_engine_behind_a_living_api(lab: Lab) -> None:
    """The API answers 503 and fails every request: failed with the engine's death, not invalid."""
    lab.tell((PADDED, {"die_core_after_requests": 4}))
    lab.set(**VAN_AND_PADDED)
    assert lab.sweep() == 3
    rows = by_arm(lab)
    assert (rows["kpad"]["status"], rows["kpad"]["reason"]) == ("failed", "engine_died")
    assert "log: " in rows["kpad"]["detail"]
    assert rows["van"]["status"] == "ok"


def test_a_dead_server_fails_the_rest_of_its_boot(lab: Lab) -> None:
    """With isolation reset the trials that shared the boot get rows with the same cause."""
    lab.tell(die_after_requests=9)
    lab.set(isolation="reset", corpora=list(CORPORA), repeats=2)
    assert lab.sweep() == 3
    assert [(row["status"], row["reason"]) for row in lab.rows()] == [
        ("ok", None),
        *[("failed", "server_killed")] * 3,
    ]
    lab.tell()
    assert lab.sweep() == 0
    assert len(lab.boots()) == 2


@pytest.mark.parametrize("faults", [{"boot_hang": True}, {"health_status": 503}], ids=["hang", "unhealthy"])
def test_a_boot_that_never_gets_ready(lab: Lab, faults: dict[str, Any]) -> None:
    """The deadline ends it: boot_timeout, with the last line of the log, and nothing lives on."""
    lab.tell(**faults)
    lab.config["define_models"]["tiny"]["boot_timeout_s"] = 2.5
    assert lab.sweep() == 3
    assert (lab.row()["status"], lab.row()["reason"]) == ("failed", "boot_timeout")
    assert "not ready after 2 s; last line: " in lab.row()["detail"]
    assert lab.living() == {}


def test_a_server_that_ignores_term_is_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial stands, and the server is gone after the bounded wait."""
    monkeypatch.setattr(server, "TERM_WAIT_S", 0.3)
    lab.tell(ignore_term=True)
    assert lab.sweep() == 0
    assert lab.living() == {}


def test_another_name_is_a_stranger(lab: Lab) -> None:
    """A server under another name than this boot's is never measured."""
    lab.tell(wrong_model_name="other")
    assert lab.sweep() == 3
    assert lab.row()["reason"] == "stranger"
    assert "['other']" in lab.row()["detail"]
    assert lab.calls() == []


@pytest.mark.parametrize(
    ("arm", "faults", "reason"),
    [
        ("kpad", {"no_plugin": True}, "no_marker"),
        ("van", {"no_plugin": True}, "no_marker"),
        ("kpad", {"k_ignored": True}, "k_not_applied"),
        ("van", {"metrics_backwards": True}, "counters_backwards"),
        ("van", {"counter_off_by": 3}, "tokens_not_reconciled"),
    ],
)
def test_a_number_that_cannot_be_believed_is_invalid(
    lab: Lab, arm: str, faults: dict[str, Any], reason: str
) -> None:
    """The pass worked, the row is invalid and says why, exit 3."""
    lab.tell(**faults)
    lab.set(arms=[arm], k=[8])
    assert lab.sweep() == 3
    assert (lab.row()["status"], lab.row()["reason"]) == ("invalid", reason)
    assert lab.row()["n_ok"] == 4


def test_every_rank_has_to_answer(lab: Lab) -> None:
    """With tensor_parallel 2, two workers' markers are ok, and one worker's is not."""
    lab.config["define_models"]["tiny"]["tensor_parallel"] = 2
    lab.tell(({"k": 4}, {"rank_count": 2}))
    lab.set(arms=["kpad"], k=[4, 8])
    assert lab.sweep() == 3
    rows = {row["k"]: row for row in lab.rows()}
    assert (rows[4]["status"], rows[4]["tensor_parallel"]) == ("ok", 2)
    assert (rows[8]["status"], rows[8]["reason"]) == ("invalid", "no_marker")


@pytest.mark.parametrize("faults", [{"no_metrics": True}, {"cut_metrics": True}], ids=["none", "cut"])
def test_missing_metrics_leave_nulls(lab: Lab, faults: dict[str, Any]) -> None:
    """Counters are null, not zero; speed and latency stand; the trial is ok."""
    lab.tell(step_s=0.002, **faults)
    lab.set(arms=["kpad"])
    assert lab.sweep() == 0
    row = lab.row()
    for name in ("tokens_reconciled", "acceptance_length", "chunk_merge_share"):
        assert row[name] is None
    for name in ("output_tok_per_s", "ttft_p50_s", "tpot_p50_s", "itl_p99_s", "e2e_p90_s"):
        assert row[name] > 0
    assert row["uniform_share_decode"] == 1.0
    assert any("/metrics was missing or cut" in text for text in row["warnings"])


@pytest.mark.usefixtures("no_death")
@pytest.mark.parametrize(
    ("faults", "reason", "text"),
    [
        ({"no_usage": True}, "all_requests_failed", "no_usage"),
        ({"error_400_all": "min_p is not supported"}, "all_requests_refused", "min_p is not supported"),
        ({"drop_connection_after_tokens": 3}, "all_requests_failed", "cut"),
        ({"stream_error_after_tokens": 3}, "all_requests_failed", "server_error"),
    ],
)
def test_a_pass_that_brings_nothing_is_failed(
    lab: Lab, faults: dict[str, Any], reason: str, text: str
) -> None:
    """Failed with the server's words, a row for each request that was sent, no throughput."""
    lab.set(load={"n_prompts": 16}).tell(**faults)
    assert lab.sweep() == 3
    row = lab.row()
    assert (row["status"], row["reason"]) == ("failed", reason)
    assert text in row["detail"]
    assert row["output_tok_per_s"] is None
    assert {request["status"] for request in lab.requests()} == {"failed"}
    if reason == "all_requests_refused":
        assert row["n_failed"] < 16, "stopped once the first ones had all failed"


@pytest.mark.usefixtures("no_death")
def test_a_stalled_pass_ends(lab: Lab) -> None:
    """Silence on all requests ends the pass as stalled, and the next cell is measured."""
    lab.tell((PADDED, {"stall_after_tokens": 3, "fault_requests": [3, 4, 5, 6]}))
    lab.set(**VAN_AND_PADDED, thresholds={"stalled_s": 1.5})
    assert lab.sweep() == 3
    rows = by_arm(lab)
    assert (rows["kpad"]["status"], rows["kpad"]["reason"]) == ("failed", "stalled")
    assert rows["van"]["status"] == "ok"


@pytest.mark.usefixtures("no_death")
def test_pings_are_no_tokens(lab: Lab) -> None:
    """/health is 200 and bytes come, but no token: stalled all the same."""
    lab.tell(stall_after_tokens=3, fault_requests=[3, 4, 5, 6], ping_s=0.05)
    lab.set(thresholds={"stalled_s": 1.0})
    assert lab.sweep() == 3
    assert (lab.row()["status"], lab.row()["reason"]) == ("failed", "stalled")
    assert "no token on any request for 1 s" in lab.row()["detail"]


def test_a_trial_ends_at_its_deadline(lab: Lab) -> None:
    """Tokens come, too slowly for the night: failed with the reason, and the next cell is measured."""
    lab.tell((PADDED, {"step_s": 0.5}))
    lab.set(**VAN_AND_PADDED, thresholds={"trial_deadline_s": 4.0})
    assert lab.sweep() == 3
    rows = by_arm(lab)
    assert (rows["kpad"]["status"], rows["kpad"]["reason"]) == ("failed", "deadline")
    assert "raise thresholds.trial_deadline_s" in rows["kpad"]["detail"]
    assert rows["van"]["status"] == "ok"


def test_the_deadline_of_a_trial_grows_with_its_load() -> None:
    """An hour; more where its requests take longer at 5 tokens a second: 12 waves of 8,192 tokens."""
    assert Load(concurrency=2, n_prompts=4, max_tokens=24, temperature=0).default_deadline_s == 3600
    long = Load(concurrency=32, n_prompts=256, n_primed=100, n_warmup=28, max_tokens=8192, temperature=0)
    assert long.default_deadline_s == 12 * 8192 / 5
    assert long.model_copy(update={"warm": True}).default_deadline_s == 20 * 8192 / 5


@pytest.mark.usefixtures("no_death")
@pytest.mark.parametrize(("share", "status"), [(0.7, "ok"), (0.99, "invalid")])
def test_the_success_share_decides(lab: Lab, share: float, status: str) -> None:
    """One failed request of four is a row of its own; its tokens do not count as throughput."""
    lab.tell(stream_error_after_tokens=3, fault_requests=[4])
    lab.set(thresholds={"success_share": share})
    assert lab.sweep() == (0 if status == "ok" else 3)
    row = lab.row()
    assert (row["status"], row["reason"]) == (status, None if status == "ok" else "low_success_share")
    assert (row["n_ok"], row["n_failed"], row["tokens_reconciled"]) == (3, 1, None)
    (failed,) = [request for request in lab.requests() if request["status"] == "failed"]
    assert "Internal server error" in failed["error"]
    good = [request["output_tokens"] for request in lab.requests() if request["status"] == "ok"]
    assert row["output_tokens"] == sum(good)


def test_prompts_that_do_not_fit_are_never_sent(lab: Lab) -> None:
    """prompt + max_tokens + 2K + 2 must fit with the largest K of the sweep, in every arm alike."""
    longest = max(len(p.text.split()) for p in open_frozen(CORPORA[0]).measured[:4]) + 5
    lab.set(**VAN_AND_PADDED | {"k": [8]})
    lab.set(server={"max_model_len": longest + 24 + 2 * 8 + 1})
    assert lab.sweep() == 3
    for row in lab.rows():
        assert (row["status"], row["reason"]) == ("invalid", "invalid_workload")
        assert f"has {longest} tokens" in row["detail"]
    assert [call for call in lab.calls() if call["prompt"]] == []
    lab.set(server={"max_model_len": longest + 24 + 2 * 8 + 2})
    assert lab.sweep() == 0


def test_a_full_disk_ends_the_sweep(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space left: a host error, the finished trials whole, no server left; it resumes."""
    from kpad_bench import store
    from kpad_bench.errors import HostError

    write, n_left = store.write_whole, [5]  # manifest; two snapshots, their twins

    def full(path: Path, *args: Any, **more: Any) -> None:
        if path.parent.name == "trials":
            n_left[0] -= 4
        if n_left[0] < 0:
            raise OSError(28, os.strerror(28), str(path))
        write(path, *args, **more)

    lab.set(**VAN_AND_PADDED)
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_whole", full)
        with pytest.raises(HostError, match="no space left"):
            lab.sweep()
    assert [row["status"] for row in lab.rows()] == ["ok"]
    assert lab.living() == {}
    assert lab.sweep() == 0
    assert len(lab.boots()) == 3

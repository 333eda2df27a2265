"""A whole sweep on fake servers: its rows agree with what the servers counted, and it resumes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPORA, Lab

from kpad_bench.configfile import load_sweep
from kpad_bench.corpus import open_frozen
from kpad_bench.counters import delta, snapshot
from kpad_bench.sweep import Options, run_sweep

TOKENS = "/v1/chat/completions"


class Whole:
    """One sweep of four arms on two corpora, run once for this file."""

    def __init__(self, lab: Lab, exit_code: int) -> None:
        self.lab, self.exit_code, self.rows = lab, exit_code, lab.rows()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, frozen: Path) -> Iterator[Whole]:
    """The sweep, with its rows and what the servers saw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KPAD_BENCH_CORPORA", str(frozen))
        lab = Lab(tmp_path_factory.mktemp("whole"), frozen)
        lab.set(corpora=list(CORPORA), arms=["van", "suf", "kpad"], k=[4, 8])
        try:
            yield Whole(lab, lab.sweep())
        finally:
            lab.close()


def raw(lab: Lab, trial_id: str, name: str) -> str:
    return gzip.decompress((lab.run_path() / "raw" / trial_id / f"{name}.gz").read_bytes()).decode()


def pid_of(lab: Lab, row: dict[str, Any]) -> int:
    """The process that served a row's boot."""
    (pid,) = [boot["pid"] for boot in lab.boots() if f"kpad-{row['boot_id']} " in boot["argv"]]
    return int(pid)


def test_every_cell_has_an_ok_row(whole: Whole) -> None:
    """Four arms on two corpora are eight ok rows, exit 0, and nothing lives on."""
    assert whole.exit_code == 0
    cells = [(row["corpus"], row["arm"], row["k"]) for row in whole.rows]
    arms = [("van", None), ("suf", 32), ("kpad", 4), ("kpad", 8)]
    assert sorted(cells, key=str) == sorted(((c, *arm) for c in CORPORA for arm in arms), key=str)
    assert [(row["status"], row["reason"], row["detail"]) for row in whole.rows] == [("ok", None, None)] * 8
    assert whole.lab.living() == {}


def test_a_finished_run_is_two_files_a_manifest_and_snapshots(whole: Whole) -> None:
    """Parts are compacted; manifest, logs and both snapshots of every trial are there."""
    path = whole.lab.run_path()
    assert {p.name for p in path.glob("*.parquet")} == {"trials.parquet", "requests.parquet"}
    assert list(path.glob("trials/*")) + list(path.glob("requests/*")) == []
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["run_id"] == path.name
    assert manifest["config"]["config"]["k"] == [4, 8]
    for row in whole.rows:
        assert (path / "logs" / f"{row['boot_id']}.log").stat().st_size > 0
        names = {p.name for p in (path / "raw" / row["trial_id"]).iterdir()}
        both = ("before", "after")
        assert names == {f"metrics_{w}.txt.gz" for w in both} | {f"status_{w}.json.gz" for w in both}


def test_rows_agree_with_the_servers_counters(whole: Whole) -> None:
    """Tokens, acceptance length, drafts and pads of each row are what its server counted in the pass."""
    for row in whole.rows:
        texts = [raw(whole.lab, row["trial_id"], f"metrics_{when}.txt") for when in ("before", "after")]
        counted = delta(*map(snapshot, texts))
        statuses = [raw(whole.lab, row["trial_id"], f"status_{when}.json") for when in ("before", "after")]
        before, after = (json.loads(text)[0]["counters"] for text in statuses)
        assert row["tokens_reconciled"] is True
        assert row["output_tokens"] == counted.generation_tokens > 0
        assert row["n_ok"] == counted.first_tokens == 4
        assert counted.decode_events
        assert row["acceptance_length"] == (row["output_tokens"] - 4) / counted.decode_events
        assert row["pad_tokens"] == after["pad_tokens"] - before["pad_tokens"]
        assert row["n_decode_steps"] == after["decode_steps"] - before["decode_steps"] > 0
        assert row["prefix_hits"] == 0
        assert row["output_tok_per_s"] == pytest.approx(row["output_tokens"] / row["duration_s"])


def test_only_padding_makes_steps_uniform(whole: Whole) -> None:
    """uniform_share_decode is 1 and pads are counted in padded arms; it is 0 without pads at K above 1."""
    for row in whole.rows:
        if row["arm"] == "kpad":
            assert row["uniform_share_decode"] == 1.0
            assert row["pad_tokens"] > 0
            assert row["draft_tokens"] == row["real_draft_tokens"] + row["pad_tokens"]
            assert row["acceptance_length"] > 1
        else:
            assert row["pad_tokens"] == 0
            assert row["uniform_share_decode"] == (0.0 if row["arm"] == "suf" else 1.0)
        assert row["cache_state"] == (None if row["arm"] == "van" else "cold")
        assert len(row["accepted_per_position"] or []) == (row["k"] or 0)
        assert (row["full_share"], row["full_share_reason"]) == (None, "no_graphs")


def test_each_server_saw_each_prompt_once_and_in_the_same_order(whole: Whole) -> None:
    """Warm-up prompts first, disjoint from the measured ones; the pass sends those in the frozen order."""
    for row in whole.rows:
        pid = pid_of(whole.lab, row)
        calls = [call for call in whole.lab.calls() if call["pid"] == pid]
        seen = [call["prompt"].removeprefix("user: ") for call in calls if call["path"] == TOKENS]
        frozen = open_frozen(row["corpus"])
        assert sorted(seen[:2]) == sorted(prompt.text for prompt in frozen.warmup[:2])
        assert sorted(seen[2:]) == sorted(prompt.text for prompt in frozen.measured[:4])
        assert len(set(seen)) == 6
        emptied = [call["path"] for call in calls].index("kpad_empty_cache")
        assert emptied == 2, "between warm-up and pass"
        mine = [r for r in whole.lab.requests() if r["trial_id"] == row["trial_id"]]
        by_issue = sorted(mine, key=lambda r: r["request_index"])
        assert [r["prompt_id"] for r in by_issue] == [prompt.prompt_id for prompt in frozen.measured[:4]]
        assert {r["status"] for r in by_issue} == {"ok"}


def test_all_arms_gave_the_same_text(whole: Whole) -> None:
    """The outputs of a prompt are equal in every arm, by their hashes."""
    texts: dict[str, set[str]] = {}
    for request in whole.lab.requests():
        texts.setdefault(request["prompt_id"], set()).add(request["output_sha256"])
    assert len(texts) == 8
    assert {len(hashes) for hashes in texts.values()} == {1}


def test_a_complete_sweep_boots_nothing(whole: Whole, capsys: pytest.CaptureFixture[str]) -> None:
    """Run again, it says that all is done, exits 0 and changes nothing."""
    n_boots = len(whole.lab.boots())
    assert whole.lab.sweep() == 0
    assert "all 8 trials" in capsys.readouterr().err
    assert len(whole.lab.boots()) == n_boots
    assert whole.lab.rows() == whole.rows


def test_fresh_starts_a_new_run(lab: Lab) -> None:
    """--fresh measures again in a run of its own and leaves the old one."""
    assert lab.sweep() == 0
    old = lab.run_path()
    assert lab.sweep(fresh=True) == 0
    assert lab.run_path() != old
    assert (old / "trials.parquet").exists()
    assert len(lab.boots()) == 2


def test_a_model_of_the_same_name_elsewhere_is_measured_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """./mine in two folders is two models, though the plans are alike; each has its own run to go on with."""
    lab.set(models=["./mine"])
    config = lab.config_path()
    for place in ("a", "b", "a"):
        (lab.path / place / "mine").mkdir(parents=True, exist_ok=True)
        (lab.path / place / "mine" / "config.json").write_text("{}")
        monkeypatch.chdir(lab.path / place)
        assert run_sweep(load_sweep(config), Options(out=lab.out)) == 0
    folders = [boot["argv"].partition("--model ")[2].split()[0] for boot in lab.boots()]
    assert folders == [str(lab.path / place / "mine") for place in ("a", "b")]


def test_the_newest_run_is_resumed(lab: Lab) -> None:
    """With two runs of one plan it is the newer one that is gone on with."""
    assert lab.sweep() == 0
    lab.tell(boot_fail={"log": "MemoryError", "rc": 1})
    assert lab.sweep(fresh=True) == 3
    lab.tell()
    assert lab.sweep() == 0
    assert lab.row()["status"] == "ok"
    assert len(lab.boots()) == 3


def test_isolation_reset_needs_one_boot_per_arm(lab: Lab) -> None:
    """Corpora and repeats share a boot; before each pass the caches are emptied, and each starts cold.

    The first trial of each corpus is warmed up, with prompts that its server gets only then.
    """
    lab.set(isolation="reset", corpora=list(CORPORA), arms=["suf", "kpad"], repeats=2)
    assert lab.sweep() == 0
    assert len(lab.boots()) == 2
    rows = lab.rows()
    assert [row["cache_state"] for row in rows] == ["cold"] * 8
    assert [row["prefix_hits"] for row in rows] == [0] * 8
    assert sorted({row["repeat"] for row in rows}) == [1, 2]
    for boot in lab.boots():
        paths = [call["path"] for call in lab.calls() if call["pid"] == boot["pid"]]
        later = ["kpad_empty_cache", "/reset_prefix_cache"] + [TOKENS] * 4
        assert paths == ([TOKENS] * 2 + later + later) * 2
        prompts = [call["prompt"] for call in lab.calls() if call["pid"] == boot["pid"] and call["prompt"]]
        warm = {f"user: {p.text}" for corpus in CORPORA for p in open_frozen(corpus).warmup[:2]}
        assert sum(prompt in warm for prompt in prompts) == len(warm) == 4
    for arm in ("suf", "kpad"):
        found = [row for row in rows if row["arm"] == arm and row["corpus"] == CORPORA[0]]
        assert found[0]["acceptance_length"] == found[1]["acceptance_length"]


def test_every_trial_is_a_part_before_the_next_one_starts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one trial failed the parts stay apart: one file for each trial in both tables."""
    lab.tell(({"k": 8}, {"boot_fail": {"log": "MemoryError", "rc": 1}}))
    lab.set(arms=["kpad"], k=[4, 8])
    assert lab.sweep() == 3
    names = {p.stem for p in (lab.run_path() / "trials").glob("*.parquet")}
    assert names == {row["trial_id"] for row in lab.rows()}
    assert len(names) == 2
    assert names == {p.stem for p in (lab.run_path() / "requests").glob("*.parquet")}


def test_a_primed_pass_follows_disjoint_answers(lab: Lab) -> None:
    """Priming prompts are answered between the emptying and the pass; the row has their number."""
    lab.set(arms=["kpad"], k=[4], load={**lab.config["load"], "n_primed": 3})
    assert lab.sweep() == 0
    row = lab.row()
    assert row["cache_state"] == "primed(3)"
    frozen = open_frozen(row["corpus"])
    calls = lab.calls()
    emptied = max(place for place, call in enumerate(calls) if call["path"] == "kpad_empty_cache")
    after = [call["prompt"].removeprefix("user: ") for call in calls[emptied:] if call["path"] == TOKENS]
    assert sorted(after[:3]) == sorted(prompt.text for prompt in frozen.priming[:3])
    assert sorted(after[3:]) == sorted(prompt.text for prompt in frozen.measured[: row["n_prompts"]])


def test_a_warm_pass_follows_one_over_the_same_prompts(lab: Lab) -> None:
    """Each measured prompt is answered once between the emptying and the pass; the row says warm."""
    lab.set(arms=["van", "kpad"], k=[4], load={**lab.config["load"], "warm": True})
    assert lab.sweep() == 0
    rows = {row["arm"]: row for row in lab.rows()}
    assert {arm: row["cache_state"] for arm, row in rows.items()} == {"van": None, "kpad": "warm"}
    calls = lab.calls()
    emptied = max(place for place, call in enumerate(calls) if call["path"] == "kpad_empty_cache")
    after = [call["prompt"].removeprefix("user: ") for call in calls[emptied:] if call["path"] == TOKENS]
    row = rows["kpad"]
    measured = [prompt.text for prompt in open_frozen(row["corpus"]).measured[: row["n_prompts"]]]
    assert sorted(after) == sorted(measured * 2)


def test_resident_servers_are_up_together_and_driven_in_turn(lab: Lab) -> None:
    """One that does not come up leaves its rows and takes no other with it; nothing lives afterwards."""
    lab.tell(({"k": 8}, {"boot_fail": {"log": "MemoryError", "rc": 1}}))
    lab.set(arms=["van", "kpad"], k=[4, 8], corpora=list(CORPORA), isolation="resident")
    assert lab.sweep() == 3
    rows = lab.rows()
    order = [(row["corpus"], row["arm"], row["k"]) for row in rows]
    assert [corpus for corpus, _, _ in order] == [CORPORA[0]] * 3 + [CORPORA[1]] * 3
    assert [found[1:] for found in order[:3]] == [found[1:] for found in order[3:]]
    assert {row["k"] for row in rows if row["status"] == "failed"} == {8}
    assert {row["status"] for row in rows if row["k"] != 8} == {"ok"}
    assert len(lab.boots()) == 3  # turns on two corpora, from one boot each: all were up
    assert not lab.living()

"""Export to the result files of ``vllm bench serve``: the keys and figures that vLLM itself would write."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from traces import passed, request
from trial_rows import ok, write_run

from kpad_bench.cli import app
from kpad_bench.counters import Deltas
from kpad_bench.errors import DataError, UsageError
from kpad_bench.export_vllm import SAME, TIMES, write_results
from kpad_bench.metrics import e2e_s, itl_s, request_rows, trial_columns, ttft_s

ROOT = Path(__file__).parent.parent
TRIAL = "m.c.kpad@8.1.r1.n1"


def the_pass():
    """Five requests: long ones, one of a single token, one that failed."""
    return passed(
        request(0, {1: 1, 2: 3, 4: 7}),
        request(0, {2: 1, 3: 4, 5: 6}, finish="length"),
        request(4, {5: 2, 8: 12}),
        request(5, {6: 1}),
        request(5, {6: 1, 9: 4}, error="cut: in the middle"),
    )


def exported(tmp_path, run, **options):
    """The files, by name, and what was said."""
    said = []
    write_results([run], tmp_path / "out", said.append, **options)
    return {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}, said


@pytest.fixture
def run(tmp_path):
    """A run with one trial as it is measured, and one that failed."""
    deltas = Deltas(n_drafts=10, draft_tokens=80, accepted_tokens=30, accepted_per_position=[20, 10])
    row = {
        **trial_columns(the_pass(), deltas, None, False), "trial_id": TRIAL, "status": "ok", "model": "m",
        "corpus": "c", "arm": "kpad", "k": 8, "concurrency": 2, "n_prompts": 5, "run_id": "night",
        "started_at": datetime(2026, 12, 1, 2, 0, tzinfo=UTC),
    }  # fmt: skip
    folder = write_run(tmp_path / "night", ("broken", {"status": "failed", "arm": "kpad", "k": 4}))
    folder.write_trial(row, request_rows(the_pass(), save_text=True))
    return folder


def test_the_figures_are_vllm_s_own(tmp_path, run):
    """Every count, rate and latency equals what vLLM's calculate_metrics makes of the same requests."""
    files, _ = exported(tmp_path, run.path)
    outputs = [
        {
            "success": one.is_ok, "latency": e2e_s(one), "output_tokens": one.completion_tokens,
            "ttft": ttft_s(one), "itl": itl_s(one), "prompt_len": one.prompt_tokens,
            "start_time": one.start_ns / 1e9,
        }
        for one in the_pass().requests
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("vllm_metrics.py"))],
        input=json.dumps({"duration": 10.0, "outputs": outputs}), env={**os.environ, "VLLM_PLUGINS": ""},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    expected = {
        name: theirs[name.replace("_tokens", "")]
        for name in ("completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
                     "output_throughput")
    } | {"total_token_throughput": theirs["total_token_throughput"]}  # fmt: skip
    for metric in TIMES.values():
        expected |= {f"p{q}_{metric}_ms": value for q, value in theirs[f"percentiles_{metric}_ms"]}
        expected[f"median_{metric}_ms"] = theirs[f"median_{metric}_ms"]
        if metric != "itl":
            expected |= {f"{name}_{metric}_ms": theirs[f"{name}_{metric}_ms"] for name in ("mean", "std")}
    ours = files[f"night.{TRIAL}.json"]
    assert {name: ours[name] for name in expected} == pytest.approx(expected)
    assert not any(name in ours for name in ("mean_itl_ms", "std_itl_ms"))


def test_the_keys_are_vllm_s_own(tmp_path, run):
    """Each key without kpad_ in front is one that the installed vLLM writes."""
    spec = importlib.util.find_spec("vllm")
    assert spec
    source = (Path(next(iter(spec.submodule_search_locations))) / "benchmarks" / "serve.py").read_text()
    files, _ = exported(tmp_path, run.path, is_detailed=True)
    ours = {name for name in files[f"night.{TRIAL}.json"] if not name.startswith("kpad_")}
    times = {
        name for name in ours if re.fullmatch(r"(mean|median|std|p90|p99)_(ttft|tpot|itl|e2el)_ms", name)
    }
    assert len(times) == 18
    assert {name for name in ours - times if f'"{name}"' not in source} == set()
    assert set(SAME.values()) <= ours


def test_speculation_by_vllm_s_formulas(tmp_path, run):
    """Acceptance rate in percent, length as 1 + accepted / drafts, and the rate of each position."""
    files, _ = exported(tmp_path, run.path)
    found = {name: value for name, value in files[f"night.{TRIAL}.json"].items() if "spec_decode" in name}
    assert found == {
        "spec_decode_acceptance_rate": 37.5, "spec_decode_acceptance_length": 4.0,
        "spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 80, "spec_decode_accepted_tokens": 30,
        "spec_decode_per_position_acceptance_rates": [2.0, 1.0],
    }  # fmt: skip


def test_the_setting(tmp_path, run):
    """A closed loop is an infinite rate under a limit; the date is its end, in UTC; the cell is in kpad_."""
    found = exported(tmp_path, run.path)[0][f"night.{TRIAL}.json"]
    shown = ("date", "backend", "endpoint_type", "label", "request_rate", "max_concurrency", "model_id")
    assert [found[name] for name in shown] == [
        "20261201-020010", "openai-chat", "openai-chat", "kpad@8", "inf", 2, "m",
    ]  # fmt: skip
    assert (found["kpad_arm"], found["kpad_k"], found["kpad_corpus"]) == ("kpad", 8, "c")
    assert None not in found.values()


def test_details_are_in_order_of_issue(tmp_path, run):
    """Lengths, times and texts of each request, null or 0 tokens for the one that failed."""
    assert "ttfts" not in exported(tmp_path, run.path)[0][f"night.{TRIAL}.json"]
    found = exported(tmp_path, run.path, is_detailed=True)[0][f"night.{TRIAL}.json"]
    assert found["output_lens"] == [7, 6, 12, 1, 0]
    assert found["start_times"] == [0.0, 0.0, 4.0, 5.0, 5.0]
    assert found["ttfts"][:4] == [1.0, 2.0, 1.0, 1.0]
    assert [bool(text) for text in found["errors"]] == [False] * 4 + [True]
    assert len(found["generated_texts"]) == 5


def test_trials_that_are_not_ok_are_left_out_and_said(tmp_path, run):
    """vLLM's files have no status: a failed trial would look like a measured one."""
    files, said = exported(tmp_path, run.path)
    assert list(files) == [f"night.{TRIAL}.json"]
    assert said == ["left out: 1 of 2 trials, which are not ok"]


def test_without_a_good_trial_there_is_nothing_to_write(tmp_path):
    """An error, and no folder."""
    run = write_run(tmp_path / "run", ("broken", {"status": "failed", "arm": "kpad", "k": 4}))
    with pytest.raises(DataError, match="no trial is ok"):
        exported(tmp_path, run.path)
    assert not (tmp_path / "out").exists()


def test_unmeasured_requests_keep_counters_out(tmp_path):
    """Fillers are in the server's counters and not among the requests: their keys are left out."""
    more = {"n_filler": 3, "n_drafts": 5, "draft_tokens": 10, "accepted_tokens": 1}
    run = write_run(tmp_path / "run", ("t", ok(8, 100.0, **more)))
    found = exported(tmp_path, run.path)[0]["run.t.json"]
    assert not any("spec_decode" in name for name in found)
    assert found["output_throughput"] == 100.0


def test_the_same_trial_twice_is_one_file(tmp_path, run):
    """A run named by folder and by file; other content under one name is refused."""
    write_results([run.path, run.path], tmp_path / "out", lambda _: None)
    assert len(list((tmp_path / "out").iterdir())) == 1
    other = write_run(tmp_path / "more" / "night", (TRIAL, ok(8, 1.0)))
    with pytest.raises(DataError, match=r"tell trial .* differently"):
        write_results([run.path, other.path], tmp_path / "out", lambda _: None)


def test_real_rows_of_a_gpu(tmp_path):
    """The reference rows, compacted and without requests: a file each, no mean, but every percentile."""
    files, _ = exported(tmp_path, ROOT / "results" / "reference" / "h200-2026-12-01")
    assert len(files) == 160
    assert all("median_itl_ms" in one and "mean_ttft_ms" not in one for one in files.values())
    drafted = {name.split("/")[0] for name, one in files.items() if "spec_decode_num_drafts" in one}
    assert {files[name]["kpad_arm"] for name in drafted} == {"kpad", "kfill", "suf", "suf-full"}


def test_the_command_needs_a_folder(run):
    """Usage: one file for each trial goes nowhere without --out; a format that is none is refused."""
    for words in (["--format", "vllm-bench"], ["--format", "csv"]):
        with pytest.raises(UsageError, match=r"--out FOLDER|allowed: vllm-bench, prometheus"):
            app(["export", str(run.path), *words], standalone_mode=False)


def test_the_page_names_every_key(tmp_path, run):
    """docs/export.md has each key that is written."""
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    found = exported(tmp_path, run.path, is_detailed=True)[0][f"night.{TRIAL}.json"]
    ends = {name: re.sub(r"^(mean|median|std|p90|p99)_", "", name) for name in found}
    assert [name for name in found if not name.startswith("kpad_") and f"`{ends[name]}`" not in page] == []

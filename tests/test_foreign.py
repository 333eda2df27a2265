"""Summaries of ``vllm bench sweep serve`` as foreign rows: marked, apart from ours, never established."""

from __future__ import annotations

import csv
import json

import pytest

from kpad_bench.errors import DataError, UsageError
from kpad_bench.foreign import SOURCE, SUMMARY_CSV, SUMMARY_JSON, is_summary
from kpad_bench.reduce import best_k, load_rows

RUN = {
    "backend": "openai-chat", "model_id": "org/m", "num_prompts": 64, "max_concurrency": 8, "duration": 10.0,
    "completed": 64, "failed": 0, "total_input_tokens": 640, "total_output_tokens": 5000,
    "request_throughput": 6.4, "output_throughput": 500.0, "median_ttft_ms": 20.0, "p99_ttft_ms": 50.0,
    "corpus": "humaneval", "arm": "kpad",
}  # fmt: skip


def record(k: int, speed: float, run: int = 0, **more) -> dict:
    """One run of the benchmark, with what ``--metadata`` may tell."""
    return {**RUN, "k": k, "output_throughput": speed, "run_number": run, **more}


def sweep(tmp_path, *records):
    """A folder as vLLM lays one out: one combination of parameters below, the table above."""
    top = tmp_path / "20261201_200000"
    for k in {one["k"] for one in records}:
        inner = top / f"SERVE--k={k}-BENCH--num_prompts=64"
        inner.mkdir(parents=True)
        (inner / SUMMARY_JSON).write_text(json.dumps([one for one in records if one["k"] == k]))
    with (top / SUMMARY_CSV).open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=sorted({name for one in records for name in one}))
        writer.writeheader()
        writer.writerows(records)
    return top


def test_a_sweep_of_vllm_is_reduced_and_nothing_is_established(tmp_path):
    """Two Ks, three runs each: a best K by the mean, told to be foreign."""
    speeds = {4: (500.0, 510.0, 505.0), 8: (700.0, 710.0, 705.0)}
    top = sweep(tmp_path, *(record(k, s, run) for k, many in speeds.items() for run, s in enumerate(many)))
    assert is_summary(top)
    rows = load_rows(top)
    assert len(rows) == 6
    (row,) = best_k(rows).to_dict("records")
    assert (row["model"], row["corpus"], row["arm"], row["best_k"]) == ("org/m", "humaneval", "kpad", 8)
    assert row["output_tok_per_s"] == pytest.approx(705.0)
    assert not row["established"]


def test_foreign_rows_are_marked_and_times_are_seconds(tmp_path):
    """``source`` names the tool; milliseconds become seconds; what it does not tell is null."""
    top = sweep(tmp_path, record(4, 500.0))
    from kpad_bench.foreign import read_summaries
    from kpad_bench.schema import TRIALS

    (row,) = read_summaries(top, TRIALS).rows
    assert row["source"] == SOURCE
    assert row["ttft_p50_s"] == pytest.approx(0.02)
    assert row.get("full_share_decode") is None
    assert row.get("cell_id") is None


def test_foreign_rows_are_not_pooled_with_ours(tmp_path):
    """Another tool's number of the same cell is another series."""
    from trial_rows import write_run

    top = sweep(tmp_path, record(4, 500.0))
    run = write_run(
        tmp_path / "ours" / "r1",
        (
            "t1",
            {
                "status": "ok",
                "model": "org/m",
                "corpus": "humaneval",
                "arm": "kpad",
                "k": 8,
                "output_tok_per_s": 1.0,
            },
        ),
    )
    with pytest.raises(UsageError, match="source"):
        best_k(load_rows([top, run.path]))


def test_a_run_that_failed_is_a_failed_row(tmp_path):
    """vLLM writes a throughput of 0 for a pass in which nothing ended well."""
    top = sweep(tmp_path, record(4, 0.0, completed=0, failed=64), record(8, 700.0))
    (row,) = best_k(load_rows(top)).to_dict("records")
    assert row["best_k"] == 8


def test_what_is_no_summary_is_told(tmp_path):
    """By its file."""
    path = tmp_path / "other.json"
    path.write_text("[{}]")
    with pytest.raises(DataError, match=r"other.json"):
        load_rows(path)

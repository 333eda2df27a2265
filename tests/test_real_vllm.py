"""The main job on real vLLM on the CPU with the real 135M model, its API process killed once on the way."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from kpad_bench.models import fetch

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(1200)]

CONFIG = """
sweep: real
models: [smollm2-135m]
corpora: [humaneval-a]
arms: [van, suf, kpad]
k: [4, 8]
load: {concurrency: 4, n_prompts: 8, n_warmup: 2, max_tokens: 48, temperature: 0}
server:
  vllm_version: "0.32.0"
  platform: cpu
  max_model_len: 1024
  max_num_seqs: 8
  dtype: float32
  extra_args: ["--enforce-eager"]
  env: {VLLM_CPU_KVCACHE_SPACE: "1"}
# A test machine may be slow and shared: how fast it is, is not what is tested here.
thresholds:
  {front_end_cpu_share: 99, client_cpu_share: 99, loop_lag_p99_ms: 1.0e+6, chunk_merge_share: 1}
"""
N_WARMUP = 2
BOOT_LIMIT_S, RUN_LIMIT_S = 300, 900
#: Where a vLLM server listens that is told nothing.
PORT = 8000


@dataclass
class Finished:
    """One ended command."""

    returncode: int
    stdout: str
    stderr: str


@dataclass
class Story:
    """What the module's one sweep went through: killed once, then run again, then reduced."""

    first: Finished
    killed_boot: str
    left_behind: list[str]
    rows_after_kill: list[dict]
    second: Finished
    rows: list[dict]
    requests: list[dict]
    table: Finished
    home: Path
    env: dict[str, str]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Sweep with a kill -9 of the first API process in its pass; the same command again; reduce."""
    fetch("smollm2-135m", print)
    home = tmp_path_factory.mktemp("real")
    (home / "real.yaml").write_text(CONFIG, encoding="utf-8")
    env = {**os.environ, "KPAD_BENCH_CORPORA": str(home / "corpora")}
    assert command(["corpora", "freeze", "humaneval-a"], home, env).returncode == 0
    sweep = ["sweep", "--config", "real.yaml", "--out", "results", "--progress", "plain"]
    first, killed_boot, left_behind = sweep_with_a_kill(sweep, home, env)
    rows_after_kill = read(home, "trials")
    second = command(sweep, home, env)
    table = command(["reduce", "results/real", "--format", "json"], home, env)
    return Story(
        first,
        killed_boot,
        left_behind,
        rows_after_kill,
        second,
        read(home, "trials"),
        read(home, "requests"),
        table,
        home,
        env,
    )


def command(arguments: list[str], home: Path, env: dict[str, str]) -> Finished:
    """Run the command line to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "kpad_bench.cli", *arguments],
        cwd=home, env=env, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def sweep_with_a_kill(
    arguments: list[str], home: Path, env: dict[str, str]
) -> tuple[Finished, str, list[str]]:
    """Run a sweep and kill -9 its first API process once it has taken a measured request."""
    out, err = home / "out.txt", home / "err.txt"
    with out.open("w") as stdout, err.open("w") as stderr:
        harness = subprocess.Popen(
            [sys.executable, "-m", "kpad_bench.cli", *arguments],
            cwd=home,
            env=env,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            log = wait_for(lambda: next(iter(home.glob("results/real/*/logs/*.log")), None), BOOT_LIMIT_S)
            wait_for(lambda: log.read_text(errors="replace").count("POST /v1/chat") > N_WARMUP, BOOT_LIMIT_S)
            api = next(p for p in psutil.Process(harness.pid).children(recursive=True) if is_api(p))
            group = list(session(api.pid))
            api.kill()
            wait_for(lambda: len(list(home.glob("results/real/*/logs/*.log"))) > 1, BOOT_LIMIT_S)
            left_behind = [str(p) for p in group if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            returncode = harness.wait(RUN_LIMIT_S)
        finally:
            harness.kill()
            harness.wait()
    return Finished(returncode, out.read_text(), err.read_text()), log.stem, left_behind


def is_api(process: psutil.Process) -> bool:
    """Whether a process is the API server itself: it leads its own session and was told the model."""
    return (
        os.getsid(process.pid) == process.pid
        and "--served-model-name" in process.cmdline()[1:20]
        and ("keeper.py" not in " ".join(process.cmdline()[:5]))
    )


def session(leader: int) -> Iterator[psutil.Process]:
    """Every process of a session."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                yield process
        except ProcessLookupError:
            continue


def wait_for(found: Callable[[], object], limit_s: float):
    """Poll until something is there; fail when it does not come."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError(f"nothing after {limit_s} s")


def read(home: Path, table: str) -> list[dict]:
    """Rows of the run, from its parts or from the compacted file."""
    (run,) = home.glob("results/real/*Z")
    compacted = run / f"{table}.parquet"
    files = sorted((run / table).glob("*.parquet")) or [compacted]
    return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


def test_a_killed_api_process_is_one_failed_row_and_the_next_cells_run(story: Story) -> None:
    """kill -9 of the API process fails its own trial with the signal, the other three are ok, exit 3."""
    assert story.first.returncode == 3, story.first.stderr
    failed = [row for row in story.rows_after_kill if row["status"] != "ok"]
    assert [(row["boot_id"], row["status"], row["reason"]) for row in failed] == [
        (story.killed_boot, "failed", "server_killed")
    ]
    assert "SIGKILL" in failed[0]["detail"]
    assert failed[0]["server_rc"] == -9
    assert len(story.rows_after_kill) == 4


def test_nothing_of_a_killed_server_is_left_when_the_next_one_boots(story: Story) -> None:
    """EngineCore and worker, which outlive their API process, are gone before the next boot."""
    assert story.left_behind == []


def test_running_again_redoes_the_killed_trial_alone(story: Story) -> None:
    """The same command resumes: one boot, exit 0, four ok rows."""
    assert story.second.returncode == 0, story.second.stderr
    assert story.second.stderr.count("boot ") == 1
    assert sorted((row["arm"], row["k"], row["status"]) for row in story.rows) == [
        ("kpad", 4, "ok"), ("kpad", 8, "ok"), ("suf", 32, "ok"), ("van", None, "ok"),
    ]  # fmt: skip


def test_padded_cells_are_uniform_and_unpadded_suffix_is_not(story: Story) -> None:
    """Above 0.9 of the decode-only steps that vLLM scheduled hold exactly 1+K tokens per request."""
    share = {(row["arm"], row["k"]): row["uniform_share_decode"] for row in story.rows}
    assert share["kpad", 4] > 0.9
    assert share["kpad", 8] > 0.9
    assert share["suf", 32] < 0.1


def test_counters_agree_with_each_other(story: Story) -> None:
    """Usage, vLLM's counters and the plugin's counters tell of the same tokens."""
    for row in story.rows:
        assert row["tokens_reconciled"] is True
        assert row["output_tokens"] == sum(
            r["output_tokens"]
            for r in story.requests
            if r["trial_id"] == row["trial_id"] and r["status"] == "ok"
        )
        if row["arm"] == "kpad":
            assert row["real_draft_tokens"] + row["pad_tokens"] == row["draft_tokens"]
            assert row["pad_tokens"] > 0
            assert row["draft_tokens"] == row["k"] * row["n_drafts"]
        if row["arm"] == "suf":
            assert row["real_draft_tokens"] == row["draft_tokens"]
            assert row["pad_tokens"] == 0
    assert {row["arm"]: row["acceptance_length"] > 1.2 for row in story.rows} == {
        "van": False, "suf": True, "kpad": True,
    }  # fmt: skip


def test_a_platform_without_graphs_is_null_with_a_reason(story: Story) -> None:
    """On the CPU full_share is null because of no_graphs, and no K is ineligible for it."""
    assert {(row["full_share"], row["full_share_reason"]) for row in story.rows} == {(None, "no_graphs")}


def test_caches_start_cold_and_prompts_are_the_same_in_every_arm(story: Story) -> None:
    """No prefix hits in any pass, the suffix tree empty, and the same prompts in the same order."""
    assert {row["prefix_hits"] for row in story.rows} == {0}
    assert {row["arm"]: row["cache_state"] for row in story.rows} == {
        "van": None,
        "suf": "cold",
        "kpad": "cold",
    }
    orders = {
        row["trial_id"]: tuple(r["prompt_id"] for r in story.requests if r["trial_id"] == row["trial_id"])
        for row in story.rows
    }
    assert len(set(orders.values())) == 1
    assert len(set(next(iter(orders.values())))) == 8


def test_padding_does_not_change_the_text(story: Story) -> None:
    """Greedy in float32: van, suf and kpad write the same text for every prompt."""
    texts: dict[str, set[str]] = {}
    for request in story.requests:
        texts.setdefault(request["prompt_id"], set()).add(request["output_sha256"])
    assert {prompt: len(found) for prompt, found in texts.items()} == dict.fromkeys(texts, 1)


def test_reduce_names_a_best_k_that_is_not_established(story: Story) -> None:
    """One trial per cell: a best K with both baselines beside it, pick_k equal to it, not established."""
    assert story.table.returncode == 0, story.table.stderr
    (row,) = json.loads(story.table.stdout)
    assert row["best_k"] in (4, 8)
    assert row["pick_k"] == row["best_k"]
    assert row["established"] is False
    assert row["van_tok_per_s"] > 0
    assert row["suf_tok_per_s"] > 0


def test_what_recommend_prints_starts_a_server_as_it_stands(story: Story) -> None:
    """The printed text, run by a shell unchanged, is a vLLM server that answers and pads."""
    asked = ["--model", "smollm2-135m", "--launcher", "module", "--platform", "cpu"]
    printed = command(["recommend", "results/real", *asked], story.home, story.env)
    assert printed.returncode == 0, printed.stderr
    assert port_is_free(), f"port {PORT} is taken: vLLM's default, which the line leaves as it is"
    script, log = story.home / "launch.sh", story.home / "launch.log"
    script.write_text(printed.stdout, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("w") as output:
        shell = subprocess.Popen(
            ["sh", str(script)], cwd=story.home, env={**story.env, "PATH": path},
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            models = wait_for(lambda: shell.poll() is not None or asks("/v1/models"), BOOT_LIMIT_S)
            assert shell.poll() is None, log.read_text()[-3000:]
            name = models["data"][0]["id"]
            assert name in printed.stdout
            answer = asks(
                "/v1/completions", {"model": name, "prompt": "1, 2, 3, 1, 2, 3, 1,", "max_tokens": 8}
            )
        finally:
            for process in list(session(shell.pid)):
                process.kill()
            shell.wait()
    assert answer["usage"]["completion_tokens"] == 8
    text = log.read_text(errors="replace")
    assert re.search(r"num_spec(ulative)?_tokens", text), text[-3000:]


def port_is_free() -> bool:
    """Whether a server could listen on vLLM's default port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", PORT))
        except OSError:
            return False
    return True


def asks(path: str, body: dict | None = None) -> dict | None:
    """What the server on vLLM's default port answers; None while nobody listens."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except (urllib.error.URLError, ConnectionError):
        if body is not None:
            raise
        return None

"""``verify`` on real vLLM on the CPU with the real 135M model, and a fault in vLLM's rejection sampler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kpad_bench.models import fetch

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(1800)]

CONFIG = """
sweep: real
define_arms:
  kpad-fault:
    speculation: suffix
    k: sweep
    pad: true
    env: {VLLM_PLUGINS: "kpad,kpad_fault", KPAD_FAULT_EVERY: "10"}
models: [smollm2-135m]
corpora: [humaneval-a]
arms: [kpad]
k: [8]
load: {concurrency: 4, n_prompts: 8, n_warmup: 2, max_tokens: 48, temperature: 0}
server:
  vllm_version: "0.32.0"
  platform: cpu
  max_model_len: 1024
  max_num_seqs: 8
  dtype: float32
  extra_args: ["--enforce-eager"]
  env: {VLLM_CPU_KVCACHE_SPACE: "1"}
"""
RUN_LIMIT_S = 1200


@dataclass
class Verified:
    """One ended verification."""

    returncode: int
    found: dict[str, Any]
    stderr: str


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration and the frozen prompts."""
    pytest.importorskip("vllm")
    fetch("smollm2-135m", print)
    folder = tmp_path_factory.mktemp("verify")
    (folder / "real.yaml").write_text(CONFIG, encoding="utf-8")
    done = command(folder, "corpora", "freeze", "humaneval-a")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def padded(home: Path) -> Verified:
    """kpad@8 against no speculation and unpadded suffix decoding: four boots."""
    return verify(home)


@pytest.fixture(scope="module")
def faulty(home: Path, padded: Verified) -> Verified:
    """The same with a rejection sampler that accepts too much: one boot, the unpadded answers are kept."""
    return verify(home, "--arm", "kpad-fault")


def command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end. Servers find the faulty plugin; only the fault's arm loads it."""
    found = os.pathsep.join(
        filter(None, [str(Path(__file__).parent / "kpad_fault"), os.getenv("PYTHONPATH")])
    )
    env = {**os.environ, "KPAD_BENCH_CORPORA": str(home / "corpora"), "PYTHONPATH": found}
    return subprocess.run(
        [sys.executable, "-m", "kpad_bench.cli", *arguments],
        cwd=home, env=env, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False,
    )  # fmt: skip


def verify(home: Path, *more: str) -> Verified:
    """``verify`` with its JSON read back."""
    done = command(home, "verify", "--config", "real.yaml", "--format", "json", "--out", "out", *more)
    assert done.stdout, done.stderr
    return Verified(done.returncode, json.loads(done.stdout), done.stderr)


def test_padded_output_is_unpadded_output_token_for_token(padded: Verified) -> None:
    """float32 on the CPU: every arm, every boot and every order write the same ids; exit 0."""
    assert padded.returncode == 0, padded.stderr
    assert padded.found["exact"] is True
    assert padded.found["must_be_exact"] is True
    (arm,) = padded.found["padded"]
    assert (arm["against_suf"]["n_equal"], arm["against_van"]["n_equal"], arm["n_not_greedy"]) == (8, 8, 0)
    assert [one["n_equal"] for one in padded.found["floor"]] == [8, 8]


def test_log_probabilities_agree_far_within_the_published_gate(padded: Verified) -> None:
    """On the same text they differ by rounding alone, padded as unpadded."""
    compared = [*padded.found["floor"], padded.found["padded"][0]["against_suf"]]
    assert max(one["max_dlogprob"]["value"] for one in compared) < 1e-3
    assert max(one["max_dperplexity"]["value"] for one in compared) < 1e-3


def test_the_padded_arm_was_padded_and_the_others_were_not(padded: Verified) -> None:
    """The worker's own counters: pads, and above 0.95 of the decode-only steps uniform."""
    padding = padded.found["padded"][0]["padding"]
    assert (padding["pads"], padding["k"]) == (True, 8)
    assert padding["pad_tokens"] > 0
    assert padding["uniform_share"] > 0.95
    assert padding["full_share"] is None
    assert [one["padding"]["pads"] for one in padded.found["unpadded"]] == [False, False, False]


def test_a_fault_in_the_rejection_sampler_is_found_with_its_place(faulty: Verified) -> None:
    """Exit 5; prompt, position and both tokens are told, and that the token is no greedy choice."""
    assert faulty.returncode == 5
    (arm,) = faulty.found["padded"]
    assert {"not_greedy", "suspicious_divergence", "not_exact"} <= set(arm["reasons"])
    places = arm["against_suf"]["divergences"]
    assert places
    for place in places:
        assert place["base_token"] != place["other_token"]
        assert place["own_behind"] > 0
        assert place["prompt_id"] in {slip["prompt_id"] for slip in arm["not_greedy"]}
    assert "kpad-fault@8" in faulty.stderr


def test_a_fault_costs_one_boot_when_the_other_answers_are_kept(faulty: Verified) -> None:
    """The unpadded arms answered before, under the same identity: only the faulty arm boots."""
    assert faulty.stderr.count("boot ") == 1
    assert faulty.stderr.count("kept ") == 3

"""``kpad-bench verify`` on fake servers: what it boots, what it concludes, and what it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_S, Lab

from kpad_bench.answers import read_answer
from kpad_bench.errors import HostError, ServerError, UsageError
from kpad_bench.verify import run_verify
from kpad_bench.verify_plan import Asked
from kpad_bench.verify_report import Report, as_json, as_table

TOKENS = "/v1/chat/completions"
FLOAT32 = {"dtype": "float32"}


def verify(lab: Lab, **asked: Any) -> Report:
    """Run in this process, on the lab's one model and corpus."""
    asked = {"config": str(lab.config_path()), "out": lab.out, **asked}
    return run_verify(Asked(**asked), lambda _message: None)


def record(report: Report) -> dict[str, Any]:
    """The JSON, read back."""
    return json.loads(as_json(report))


def command(lab: Lab, *more: str) -> tuple[int, str, str]:
    """The real command to its end: exit code, stdout, stderr."""
    argv = [sys.executable, "-m", "kpad_bench.cli", "verify", "--config", str(lab.config_path()), *more]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=4 * DEADLINE_S, check=False, cwd=lab.path
    )
    return done.returncode, done.stdout, done.stderr


def test_every_arm_is_booted_once_and_the_unpadded_one_twice(lab: Lab):
    """van, suf at the largest K, each padded K, and suf again, asked in reverse order; nothing is left."""
    report = verify(lab.set(server=FLOAT32), k=(4, 8))
    boots = [(boot["k"], boot["pads"]) for boot in lab.boots()]
    assert boots == [(None, False), (8, False), (4, True), (8, True), (8, False)]
    prompts = [
        [call["prompt"] for call in lab.calls() if call["pid"] == boot["pid"] and call["path"] == TOKENS]
        for boot in lab.boots()
    ]
    assert all(len(seen) == 4 for seen in prompts)
    assert all(set(seen) == set(prompts[0]) for seen in prompts)
    assert set(prompts[-1][:2]) == set(prompts[0][2:]), "the last two come first"
    assert lab.living() == {}
    assert report.is_same
    assert report.is_exact


def test_equal_arms_cannot_be_told_apart(lab: Lab):
    """The JSON holds counts, floor, padding evidence and verdict; the table says the same in words."""
    report = verify(lab.set(server=FLOAT32))
    found = record(report)
    assert (found["verdict"], found["exact"], found["must_be_exact"]) == ("same", True, True)
    assert (found["n_prompts"], found["max_tokens"], found["concurrency"]) == (4, 24, 2)
    (arm,) = found["padded"]
    assert (arm["arm"], arm["verdict"], arm["reasons"]) == ("kpad@4", "same", {})
    assert arm["padding"]["pads"] is True
    assert arm["padding"]["pad_tokens"] > 0
    assert arm["padding"]["uniform_share"] == 1.0
    for against, base in (("against_suf", "suf@4"), ("against_van", "van")):
        assert (arm[against]["base"], arm[against]["n_equal"], arm[against]["n_suspicious"]) == (base, 4, 0)
    assert [(one["base"], one["other"], one["n_equal"]) for one in found["floor"]] == [
        ("suf@4", "van", 4), ("suf@4", "suf@4 again", 4),
    ]  # fmt: skip
    text = as_table(report)
    assert text.endswith("padding cannot be told from noise: every arm wrote the same tokens")
    assert "kpad@4 against suf@4" in text


def test_a_wrong_token_in_a_padded_arm_is_found_with_its_place(lab: Lab):
    """One prompt that diverges where the unpadded arm was sure: prompt, position, tokens and gap are told."""
    lab.set(server=FLOAT32).tell(({"pads": True}, {"wrong_token_at": 5, "fault_requests": [2]}))
    report = verify(lab)
    (arm,) = record(report)["padded"]
    assert set(arm["reasons"]) == {"suspicious_divergence", "not_exact"}
    (place,) = arm["against_suf"]["divergences"]
    assert place["position"] == 5
    assert place["gap"] == pytest.approx(4.0)
    assert place["other_token"] == (place["base_token"] + 1) % 14
    assert arm["n_not_greedy"] == 0
    assert f"prompt {place['prompt_id']} position 5: token {place['base_token']} became" in as_table(report)


def test_a_slip_is_told_from_an_own_choice(lab: Lab):
    """A token that is not even its own server's likeliest one is counted as such: verification let it in."""
    lab.tell(({"pads": True}, {"wrong_token_at": 5, "is_own_choice": False}))
    report = verify(lab)
    (arm,) = record(report)["padded"]
    assert {"not_greedy", "suspicious_divergence"} <= set(arm["reasons"])
    assert arm["n_not_greedy"] > 0
    assert "no greedy choice" in as_table(report)


def test_near_ties_like_those_of_the_floor_are_noise(lab: Lab):
    """bfloat16: padded and unpadded arms diverge from the first at near ties alike, and pass."""
    near = {"token_gap": 0.1}
    lab.set(server={"dtype": "bfloat16"}).tell(
        ({"k": None}, {"wrong_token_at": 3}), ({"pads": True}, {"wrong_token_at": 4}), **near
    )
    report = verify(lab)
    (arm,) = record(report)["padded"]
    assert arm["verdict"] == "same"
    assert arm["against_suf"]["n_benign"] == 4
    assert not report.is_exact


def test_near_ties_are_no_excuse_where_the_floor_is_exact(lab: Lab):
    """float32 on the CPU with identical unpadded arms: a benign divergence fails too."""
    lab.set(server=FLOAT32).tell(({"pads": True}, {"wrong_token_at": 4}), token_gap=1e-4)
    (arm,) = record(verify(lab))["padded"]
    assert arm["against_suf"]["n_suspicious"] == 0
    assert "not_exact" in arm["reasons"]


def test_log_probabilities_beyond_gate_and_floor_fail(lab: Lab):
    """The same tokens with other log-probabilities: the published gate, on the same text."""
    lab.tell(({"pads": True}, {"logprob_off": -0.7}))
    (arm,) = record(verify(lab))["padded"]
    assert set(arm["reasons"]) == {"max_dlogprob_above_gate", "max_dperplexity_above_gate"}
    assert arm["against_suf"]["max_dlogprob"]["value"] == pytest.approx(0.7)


@pytest.mark.parametrize("then", [{"no_plugin": True}, {"k_ignored": True}])
def test_equality_without_padding_is_a_failure(lab: Lab, then: dict[str, Any]):
    """A padded arm whose server does not pad, or not to K, proves nothing: padding_not_applied."""
    lab.tell(({"pads": True}, then))
    (arm,) = record(verify(lab, k=(8,)))["padded"]
    assert arm["against_suf"]["n_equal"] == 4
    assert set(arm["reasons"]) == {"padding_not_applied"}


def test_answers_are_kept_and_asked_for_again_only_when_something_changed(lab: Lab):
    """The same --out boots only what is new; another number of tokens asks everything anew."""
    verify(lab.set(server=FLOAT32))
    n_boots = len(lab.boots())
    again = verify(lab)
    assert len(lab.boots()) == n_boots
    assert again.is_same
    verify(lab, arms=("kpad", "kfill"))
    assert len(lab.boots()) == n_boots + 1
    verify(lab, max_tokens=12)
    assert len(lab.boots()) == 2 * n_boots + 1


def test_a_server_that_does_not_boot_is_a_host_error_with_its_log(lab: Lab):
    """Exit 4: the arm, the cause and the log; nothing is left running."""
    fault = {"boot_fail": {"log": "ValueError: no room for the KV cache", "rc": 1}}
    lab.tell(({"pads": True}, fault))
    with pytest.raises(HostError, match=r"kpad@4: .*log: .*kpad@4\.log") as caught:
        verify(lab)
    assert caught.value.exit_code == 4
    assert "no room for the KV cache" in (lab.out / "logs" / "kpad@4.log").read_text()


def test_a_server_that_dies_while_it_is_asked_is_a_host_error(lab: Lab):
    """SIGKILL in the pass: the arm and how it died, and no traceback of the client."""
    lab.tell(({"pads": True}, {"die_after_requests": 2}))
    with pytest.raises(HostError, match="kpad@4: server_killed"):
        verify(lab)


def test_a_refusal_is_told_in_the_servers_words(lab: Lab):
    """A server that lives and refuses: the endpoint, the status and its message."""
    lab.tell(error_400_all="no chat template")
    with pytest.raises(HostError, match=r"answered 400: .*no chat template"):
        verify(lab)


def test_unpadded_arms_are_refused(lab: Lab):
    """--arm takes padded arms; the unpadded ones are there anyway."""
    with pytest.raises(UsageError, match="--arm: suf: not padded"):
        verify(lab, arms=("kpad", "suf"))


@pytest.mark.parametrize(
    ("asked", "text"), [({"model": "nope"}, "no such model"), ({"arms": ("nope",)}, "no such arm")]
)
def test_unknown_names_are_usage_errors(lab: Lab, asked: dict[str, Any], text: str):
    """Exit 2, before anything boots."""
    with pytest.raises(UsageError, match=text):
        verify(lab, **asked)
    assert lab.boots() == []


def test_the_strict_run_is_refused_on_a_cpu(lab: Lab):
    """Batch-invariant kernels are the GPU's."""
    with pytest.raises(UsageError, match="--strict"):
        verify(lab, strict=True)


def test_sampling_is_refused_on_a_cpu(lab: Lab):
    """vLLM's CPU build samples wrong tokens with speculation."""
    with pytest.raises(UsageError, match="--samples: vLLM's CPU build"):
        verify(lab, samples=10)


@pytest.mark.parametrize(("then", "reasons"), [({}, set()), ({"wrong_token_at": 2}, {"frequencies_differ"})])
def test_frequencies_at_temperature_1_are_compared_on_a_gpu(
    lab: Lab, then: dict[str, Any], reasons: set[str]
):
    """Beside the greedy check: the same tokens pass, other tokens fail, and no test is called not done."""
    # A request number above 4 is a sample: the greedy answers are right.
    lab.set(server={"platform": "cuda"}).tell(({"pads": True}, then), fault_requests=list(range(5, 90)))
    report = verify(lab, samples=40)
    (arm,) = record(report)["padded"]
    assert set(arm["reasons"]) == reasons
    assert len(arm["frequencies"]) == 6, "three positions of two prompts"
    assert report.not_done == ()
    assert "at temperature 1: 6 tests" in as_table(report)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"server": {"env": {"VLLM_PLUGINS": " kpad"}}}, "vLLM would not load kpad"),
        ({"define_arms": {"kpad": {"speculation": "suffix", "k": "sweep", "pad": True, "pad_token": -1}}},
         "vLLM's CPU build accepts it"),
    ],
)  # fmt: skip
def test_what_is_known_not_to_work_is_refused_before_a_boot(lab: Lab, changes: dict[str, Any], said: str):
    """As a sweep refuses it: not as a padding that was not applied, after four boots."""
    lab.set(**changes)
    with pytest.raises(UsageError, match=said):
        verify(lab)
    assert lab.boots() == []


def test_prompts_without_room_are_refused_before_the_pass(lab: Lab):
    """prompt + max_tokens + 2K + 2 must fit, or vLLM drops every draft near the end."""
    with pytest.raises(UsageError, match="do not fit"):
        verify(lab, max_tokens=1000)


@pytest.mark.parametrize("body", [{}, {"choices": [{"token_ids": None, "logprobs": None}]}, None])
def test_an_answer_without_ids_is_a_server_error(body: Any):
    """A server that knows neither return_token_ids nor logprobs cannot be verified, and says so."""
    with pytest.raises(ServerError, match="lacks token ids"):
        read_answer("p", body)


def test_the_command_exits_0_or_5_and_prints_either_way(lab: Lab):
    """Equal arms exit 0; a wrong token exits 5, with the whole JSON on stdout and the reason on stderr."""
    lab.set(server=FLOAT32)
    out = str(Path(lab.path) / "here")
    status, stdout, stderr = command(lab, "--format", "json", "--out", out)
    assert (status, json.loads(stdout)["verdict"]) == (0, "same"), stderr
    lab.tell(({"pads": True}, {"wrong_token_at": 5}))
    status, stdout, stderr = command(lab, "--k", "8", "--format", "json")
    assert (status, json.loads(stdout)["verdict"]) == (5, "differs")
    assert "kpad@8" in stderr
    assert command(lab, "--format", "xml")[0] == 2
    assert command(lab, "--model", "nope")[0] == 2

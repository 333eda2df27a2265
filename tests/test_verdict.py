"""The verdict on a trial: ok, failed or invalid, with the reason and the way out."""

from __future__ import annotations

import pytest
from traces import four, passed, request

from kpad_bench.config import Thresholds
from kpad_bench.counters import Deltas
from kpad_bench.steps import StepDeltas
from kpad_bench.stream import Stop
from kpad_bench.verdict import BOUNDS, Evidence, verdict

WORKER = {"marker": "kpad", "k": 4, "pads": True}
FINE = {
    "client_cpu_share": 0.5,
    "loop_lag_p99_ms": 2.0,
    "front_end_cpu_share": None,
    "tokens_reconciled": True,
}


def judged(columns=None, trace=None, **evidence):
    """Status and reason of a padded K=4 trial that differs from a good one in these."""
    seen = Evidence(**{"pads": True, "k": 4, "statuses": [WORKER], "steps": StepDeltas()} | evidence)
    found = verdict(FINE | (columns or {}), trace or four(), Thresholds(), seen)
    assert (found.status == "ok") == (found.reason is None) == (found.detail is None)
    return (found.status, found.reason)


def test_a_good_trial_is_ok():
    """Padded with its marker, unpadded with its own, attached and unpadded without one."""
    assert judged() == ("ok", None)
    assert judged(pads=False, k=None, statuses=[WORKER | {"k": None, "pads": False}]) == ("ok", None)
    assert judged(pads=False, k=None, statuses=[], is_attached=True) == ("ok", None)
    assert judged({"full_share_decode": 0.1}) == ("ok", None)
    assert judged({"uniform_share_decode": 0.8}) == ("ok", None)
    assert judged(pads=False, k=4, statuses=[WORKER | {"pads": False}], steps=None) == ("ok", None)


INVALID = {
    "no_marker": [
        {"statuses": []},
        {"statuses": [{"k": 4, "pads": True}]},
        {"n_workers": 2},
        {"statuses": [], "is_attached": True},
        {"statuses": [], "pads": False},
    ],
    "k_not_applied": [
        {"statuses": [WORKER | {"k": 8}]},
        {"statuses": [WORKER, WORKER | {"k": None}]},
        {"columns": {"accepted_per_position": [3, 2, 1]}},
    ],
    "padding_not_applied": [
        {"statuses": [WORKER | {"pads": False}]},
        {"pads": False},
        {"columns": {"uniform_share_decode": 0.2}},
    ],
    "not_counted": [{"steps": None}],
    "counters_backwards": [
        {"deltas": Deltas(backwards=("generation_tokens",))},
        {"steps": StepDeltas(backwards=("steps",))},
    ],
    "ranks_disagree": [{"steps": StepDeltas(disagree=("pad_tokens",))}],
    "tokens_not_reconciled": [
        {"columns": {"tokens_reconciled": False}, "deltas": Deltas(generation_tokens=46)}
    ],
    "affinity": [{"strays": ["pid 7 (VLLM::EngineCore) may run on CPUs 3"]}],
    "client_bound": [{"columns": {"client_cpu_share": 0.95}}, {"columns": {"loop_lag_p99_ms": 25.0}}],
    "front_end_bound": [{"columns": {"front_end_cpu_share": 1.4}}, {"columns": {"chunk_merge_share": 0.2}}],
}


@pytest.mark.parametrize(
    ("reason", "case"), [(reason, case) for reason, cases in INVALID.items() for case in cases]
)
def test_a_number_that_is_not_what_it_says_is_invalid(reason, case):
    """Each doubt about the server, the counts or the client has its reason."""
    assert judged(**case) == ("invalid", reason)


def many(n_ok, *errors):
    """A pass of n_ok good requests and these failures."""
    good = [request(0, {1: 1}) for _ in range(n_ok)]
    return passed(*good, *(request(0, {}, error=error) for error in errors))


def test_refused_and_failed_shares():
    """Over 5 % refused is the workload's fault; under 99 % ok is too few either way."""
    assert judged(trace=many(94, *["http_400: too long"] * 6)) == ("invalid", "invalid_workload")
    assert judged(trace=many(95, *["http_400: too long"] * 5)) == ("invalid", "low_success_share")
    assert judged(trace=many(98, "cut: reset", "stalled: no byte")) == ("invalid", "low_success_share")
    assert judged(trace=many(99, "cut: reset")) == ("ok", None)


def test_a_pass_that_did_not_work_is_failed():
    """Stopped early, all requests failed, or nothing came out: failed before anything else is asked."""
    stopped = passed(request(0, {1: 1}), n_prompts=5, stopped_early=Stop("server_died", "gone"))
    assert judged(trace=stopped, statuses=[]) == ("failed", "server_died")
    assert judged(trace=many(0, "http_400: no", "http_404: no")) == ("failed", "all_requests_refused")
    assert judged(trace=many(0, "http_400: no", "cut: reset")) == ("failed", "all_requests_failed")
    assert judged(trace=passed(request(0, {}))) == ("failed", "no_output")
    assert judged(trace=passed()) == ("failed", "no_requests")


@pytest.mark.parametrize("name", BOUNDS)
def test_at_its_limit_a_bound_is_kept(name):
    """Exactly 90 % of a core, 20 ms and a tenth of merged chunks are ok; a hair above is not."""
    limit = getattr(Thresholds(), name)
    assert limit == {"loop_lag_p99_ms": 20.0, "chunk_merge_share": 0.1}.get(name, 0.9)
    assert judged({name: limit}) == ("ok", None)
    assert judged({name: limit * 1.0001}) == ("invalid", BOUNDS[name][0])
    assert judged({name: None}) == ("ok", None)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_names_its_limit_and_the_way_out(name):
    """What was measured, the key of the limit with its value, and what to change."""
    seen = Evidence(pads=False, k=None, is_attached=True)
    detail = verdict({name: 0.3 if name == "chunk_merge_share" else 99.5}, four(), Thresholds(), seen).detail
    assert f"is above thresholds.{name} {getattr(Thresholds(), name):g}" in detail
    assert "99.5" in detail or "0.3" in detail
    assert "load.concurrency" in detail or "cpus.client" in detail
    assert verdict({name: 99.5}, four(), Thresholds(**{name: 100.0}), seen).status == "ok"


def test_shares_of_requests_name_their_limit():
    """The server's words, and the threshold that was missed."""
    seen = Evidence(pads=False, k=None, is_attached=True)
    refused = verdict({}, many(90, *["http_400: too long"] * 10), Thresholds(), seen).detail
    assert (
        refused == "10 of 100 requests were refused, above thresholds.refused_share 0.05: http_400: too long"
    )
    cut = verdict({}, many(90, *["cut: reset"] * 10), Thresholds(), seen).detail
    assert cut.startswith("90 of 100 requests ended well, below thresholds.success_share 0.99; ")
    assert cut.endswith("cut: reset")

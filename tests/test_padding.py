"""The plugin: the padding rule, the counters, and where both meet vLLM (played by small fakes)."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from kpad_bench.counters import parse_samples
from kpad_bench.padding import MARKER, PAD_ID_VARIABLE, PAD_VARIABLE, patch, register
from kpad_bench.padding.pads import PadToken, PadTokenRefused, choose_pad_token, pad_drafts
from kpad_bench.padding.patch import (
    UnknownVllm,
    check_signature,
    counted_dispatch,
    empty_cache,
    install,
    marked_execute,
    padded_propose,
    pads_here,
    status,
    wrap_engine,
)
from kpad_bench.padding.tally import FrontTally, Tally
from kpad_bench.steps import front_end_deltas

PLENTY = 10_000
LAST = PadToken(None, "last")


class Mode(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


# --- the padding rule


def test_every_draft_is_filled_up_to_k_with_the_last_sampled_token():
    """Empty drafts too: one unpadded request makes the whole step ragged."""
    padded = pad_drafts([[], [5], [5, 6, 7, 8]], [[3], [1, 9], [2]], 4, [PLENTY] * 3)
    assert padded == [[3, 3, 3, 3], [5, 9, 9, 9], [5, 6, 7, 8]]


def test_a_request_in_the_middle_of_its_prompt_stays_empty():
    """Nothing was sampled for it, so nothing is drafted."""
    assert pad_drafts([[], []], [[], [9]], 4, [PLENTY] * 2) == [[], [9, 9, 9, 9]]


@pytest.mark.parametrize(("room", "length"), [(9, 4), (4, 4), (3, 3), (1, 1), (0, 0), (-1, 0)])
def test_no_pad_goes_past_the_longest_sequence(room, length):
    """Near max_model_len there is room for fewer than K tokens, or for none."""
    assert pad_drafts([[]], [[7]], 4, [room]) == [[7] * length]


@pytest.mark.parametrize(
    ("policy", "platform", "fixed"),
    [
        ("auto", "cpu", None),
        ("auto", "cuda", None),
        ("last", "cuda", None),
        ("-1", "cuda", -1),
        ("0", "cpu", 0),
        ("49", "cpu", 49),
    ],
)
def test_a_pad_token_policy_gives_a_pad_and_its_reason(policy, platform, fixed):
    """None is the last sampled token of each request."""
    chosen = choose_pad_token(policy, 50, platform)
    assert chosen.fixed == fixed
    assert policy in chosen.reason


@pytest.mark.parametrize(
    ("policy", "platform", "why"),
    [
        ("-1", "cpu", "the CPU build accepts it"),
        ("50", "cuda", "outside the vocabulary of 50"),
        ("-2", "cuda", "outside the vocabulary"),
        ("eos", "cpu", "allowed: auto, last, -1 or a token id"),
        ("", "cpu", "allowed"),
    ],
)
def test_a_pad_token_that_cannot_be_is_refused(policy, platform, why):
    """The reason says what is allowed."""
    with pytest.raises(PadTokenRefused, match=why):
        choose_pad_token(policy, 50, platform)


def test_a_fixed_pad_stands_in_every_free_slot():
    """Whatever was sampled last."""
    assert pad_drafts([[], [5]], [[3], [1, 9]], 3, [PLENTY] * 2, fixed=-1) == [[-1, -1, -1], [5, -1, -1]]


REQUESTS = st.integers(1, 12).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(
            st.integers(-2, 2 * k).flatmap(
                lambda room: st.one_of(
                    st.tuples(st.just([]), st.just([]), st.just(room)),
                    st.tuples(
                        st.lists(st.integers(0, 99), max_size=max(0, min(k, room))),
                        st.lists(st.integers(0, 99), min_size=1, max_size=k + 1),
                        st.just(room),
                    ),
                )
            ),
            max_size=8,
        ),
    )
)


@given(REQUESTS)
def test_each_decoding_request_gets_exactly_what_fits(sweep):
    """min(K, room) tokens: the real draft first, then ids of the vocabulary; the inputs stay as they were."""
    k, requests = sweep
    drafts, sampled, room = (
        [list(column) for column in zip(*requests, strict=True)] if requests else [[], [], []]
    )
    before = copy.deepcopy((drafts, sampled, room))
    padded = pad_drafts(drafts, sampled, k, room)
    assert (drafts, sampled, room) == before
    assert len(padded) == len(drafts)
    for draft, ids, left, out in zip(drafts, sampled, room, padded, strict=True):
        assert len(out) == (max(0, min(k, left)) if ids else 0)
        assert out[: len(draft)] == draft
        assert all(token in ids for token in out[len(draft) :])


# --- the counters


def counted(tally: Tally, **changes) -> None:
    tally.step(
        **{
            "is_decode_only": True,
            "is_uniform": True,
            "mode": "FULL",
            "n_requests": 3,
            "padding": 2,
            **changes,
        }
    )


def test_only_decode_steps_count_as_uniform_full_or_requests():
    """A step with a prefill in it is a step, has a mode and padding, and nothing more."""
    tally = Tally()
    counted(tally)
    counted(tally, is_uniform=False, mode="PIECEWISE")
    counted(tally, is_decode_only=False, mode="PIECEWISE", padding=5)
    counts = tally.read()
    assert (counts["steps"], counts["decode_steps"], counts["uniform_decode_steps"]) == (3, 2, 1)
    assert (counts["full_decode_steps"], counts["decode_requests"]) == (1, 6)
    assert counts["graph_padding_tokens"] == 9
    assert (counts["mode_full"], counts["mode_piecewise"], counts["mode_none"]) == (1, 2, 0)


def test_a_read_is_a_copy_of_plain_integers():
    """What the harness holds does not change under it."""
    tally = Tally()
    counts = tally.read()
    counted(tally)
    assert counts["steps"] == 0
    assert all(type(value) is int for value in tally.read().values())


def test_verified_drafts_are_split_into_real_tokens_and_pads():
    """What the tree proposed is real, the rest of the draft is pads."""
    tally = Tally()
    tally.drafted(["a", "b", "c"], [[1, 2], [], [1, 2, 3, 4]])
    tally.verified({"a": [1, 2, 9, 9], "b": [7] * 4, "c": [1, 2, 3, 4]})
    assert (tally.real_draft_tokens, tally.pad_tokens) == (6, 6)


def test_a_draft_that_the_scheduler_trimmed_counts_as_scheduled():
    """Only tokens that go into verification are counted."""
    tally = Tally()
    tally.drafted(["a", "b"], [[1, 2], [1]])
    tally.verified({"a": [1], "b": [1, 9]})
    assert (tally.real_draft_tokens, tally.pad_tokens) == (2, 1)
    tally.sampled(["a", "b"], [[1, 5], [1]])
    assert tally.pad_hits == 0


def test_accepted_pads_are_pad_hits():
    """Accepted tokens beyond the real draft, the bonus token left out."""
    tally = Tally()
    tally.drafted(["a", "b", "c"], [[1, 2], [], [4]])
    tally.sampled(["a", "b", "c"], [[1, 2, 9, 9, 5], [7], [8]])
    assert tally.pad_hits == 2


def test_a_request_in_the_middle_of_its_prompt_has_no_pad_hits():
    """Nothing sampled, nothing accepted; and a request never drafted for is not counted."""
    tally = Tally()
    tally.drafted(["a"], [[]])
    tally.sampled(["a", "new"], [[], [3]])
    assert tally.pad_hits == 0


def test_a_request_that_sat_out_a_step_keeps_its_draft_s_real_length():
    """It leaves the batch and comes back with its draft: its pads are still pads."""
    tally = Tally()
    tally.drafted(["a", "b"], [[1], [2, 3]])
    tally.drafted(["b"], [[4]])
    tally.verified({"a": [1, 9, 9], "b": [4, 9, 9]})
    assert (tally.real_draft_tokens, tally.pad_tokens) == (2, 4)


def test_finished_requests_are_forgotten():
    """A night of requests leaves nothing behind; an id that is not known does no harm."""
    tally = Tally()
    tally.drafted(["a", "b"], [[1], [2]])
    tally.finished({"a", "never-seen"})
    assert set(tally.real_lengths) == {"b"}


# --- what is wrapped


def batch(ids, lengths):
    """The part of vLLM's input batch that the proposer's wrapper reads; arrays are longer than the batch."""
    padding = [0] * 3
    return SimpleNamespace(req_ids=ids, num_tokens_no_spec=np.array([*lengths, *padding]), num_reqs=len(ids))


class Proposer:
    """A suffix proposer that drafts what it was told to."""

    max_model_len = 100

    def __init__(self, drafts):
        self.drafts = drafts

    def propose(self, num_speculative_tokens, input_batch, sampled_token_ids, slot_mappings=None):
        return copy.deepcopy(self.drafts)


@pytest.mark.parametrize("pads", [False, True])
def test_the_proposer_counts_always_and_pads_where_it_is_told_to(pads):
    """Without the variable drafts are the tree's own; with it they are filled up to K or the limit."""
    tally = Tally()
    propose = padded_propose(Proposer.propose, tally, LAST if pads else None)
    inputs = batch(["a", "b", "c"], [10, 97, 20])
    found = propose(Proposer([[1], [], []]), 4, inputs, [[7], [8], []], slot_mappings=None)
    assert found == ([[1, 7, 7, 7], [8, 8], []] if pads else [[1], [], []])
    assert tally.real_lengths == {"a": 1, "b": 0, "c": 0}
    assert all(type(token) is int for draft in found for token in draft)


def test_pads_that_were_accepted_are_counted_before_the_next_draft():
    """The drafts that verification answered are the ones of the step before."""
    tally = Tally()
    propose = padded_propose(Proposer.propose, tally, LAST)
    propose(Proposer([[1]]), 4, batch(["a"], [10]), [[7]])
    propose(Proposer([[1, 2, 3]]), 4, batch(["a"], [13]), [[1, 7, 5]])
    assert tally.pad_hits == 1


def test_the_wrapped_proposer_still_looks_like_the_original():
    """A second look at its signature finds the known one."""
    check_signature(padded_propose(Proposer.propose, Tally(), LAST), patch.PROPOSE, exact=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, input_batch, sampled_token_ids: None,
        lambda self, num_speculative_tokens, input_batch, sampled_token_ids: None,
        lambda self, num_speculative_tokens, input_batch, sampled_token_ids, slot_mappings, more: None,
        lambda self, input_batch, num_speculative_tokens, sampled_token_ids, slot_mappings: None,
    ],
)
def test_another_signature_is_refused_loudly(function):
    """A vLLM that the plugin does not know must not run unpadded in silence."""
    with pytest.raises(
        UnknownVllm, match=r"kpad does not know this vLLM: .*Known: vLLM 0\.25\.1 and 0\.32\.0"
    ):
        check_signature(function, patch.PROPOSE, exact=True)


def test_further_parameters_are_fine_where_only_the_first_matter():
    """execute_model has more parameters in one version than in the other."""
    check_signature(lambda self, scheduler_output, more=None: None, patch.EXECUTE)
    with pytest.raises(UnknownVllm):
        check_signature(lambda self: None, patch.EXECUTE)


class Runner:
    """A V1 model runner: execute_model dispatches ``n_dispatches`` times, a dummy run once."""

    uniform_decode_query_len = 5

    def __init__(self, mode=Mode.FULL, n_dispatches=1, fails=False):
        self.mode, self.n_dispatches, self.fails = mode, n_dispatches, fails
        self.input_batch = SimpleNamespace(
            num_reqs=2, num_computed_tokens_cpu=np.array([9, 9, 0]), num_prompt_tokens=np.array([9, 3, 7])
        )

    def dispatch(self, num_tokens, num_reqs, num_scheduled_tokens_np, max_num_scheduled_tokens):
        return self.mode, SimpleNamespace(num_tokens=16)

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        for _ in range(self.n_dispatches):
            self.dispatch(10, 2, None, 5)
        if self.fails:
            raise RuntimeError("the engine broke")
        return "output"

    def dummy_run(self):
        return self.dispatch(10, 2, None, 5)


def wrapped(tally):
    """A runner class with the plugin's wrappers on it."""

    class Wrapped(Runner):
        kpad_tally = tally
        dispatch = counted_dispatch(Runner.dispatch, tally)
        execute_model = marked_execute(Runner.execute_model, tally)

    return Wrapped


def step(tokens, drafts=None, finished=()):
    """A scheduler's output."""
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens=drafts or {},
        finished_req_ids=set(finished),
    )


@pytest.mark.parametrize("n_dispatches", [1, 2, 3])
def test_a_step_is_counted_once_however_often_it_dispatches(n_dispatches):
    """One execute_model is one step."""
    tally = Tally()
    assert wrapped(tally)(n_dispatches=n_dispatches).execute_model(step({"a": 5, "b": 5})) == "output"
    assert tally.steps == tally.decode_steps == tally.uniform_decode_steps == tally.full_decode_steps == 1
    assert tally.graph_padding_tokens == 6


def test_dummy_runs_are_no_steps():
    """Capture and warm-up dispatch too, before, between and after real steps."""
    tally = Tally()
    runner = wrapped(tally)()
    runner.dummy_run()
    runner.execute_model(step({"a": 5, "b": 5}))
    runner.dummy_run()
    assert tally.steps == 1


def test_a_dummy_run_after_a_step_that_failed_before_dispatch_is_no_step():
    """The mark is taken away however execute_model ends."""
    tally = Tally()
    runner = wrapped(tally)(n_dispatches=0, fails=True)
    with pytest.raises(RuntimeError, match="the engine broke"):
        runner.execute_model(step({"a": 5}))
    runner.dummy_run()
    assert tally.steps == 0


def test_a_step_without_work_is_no_step_but_forgets_the_finished():
    """vLLM runs one when requests end and none is left."""
    tally = Tally()
    tally.drafted(["a"], [[1]])
    wrapped(tally)(n_dispatches=0).execute_model(step({}, finished=["a"]))
    assert (tally.steps, tally.real_lengths) == (0, {})


@pytest.mark.parametrize(
    ("computed", "tokens", "mode", "decode", "uniform"),
    [
        ([9, 3], {"a": 5, "b": 5}, Mode.FULL, 1, 1),
        ([9, 3], {"a": 5, "b": 1}, Mode.PIECEWISE, 1, 0),
        ([9, 3], {"a": 1, "b": 1}, Mode.PIECEWISE, 1, 0),
        ([9, 0], {"a": 5, "b": 3}, Mode.PIECEWISE, 0, 0),
        ([8, 3], {"a": 5, "b": 5}, Mode.PIECEWISE, 0, 0),
    ],
)
def test_decode_only_and_uniform_are_read_where_the_step_is_dispatched(
    computed, tokens, mode, decode, uniform
):
    """Past the prompt is what vLLM has computed by then; uniform is 1 + K tokens for every request."""
    tally = Tally()
    runner = wrapped(tally)(mode)
    runner.input_batch.num_computed_tokens_cpu = np.array([*computed, 0])
    runner.execute_model(step(tokens))
    assert (tally.steps, tally.decode_steps, tally.uniform_decode_steps) == (1, decode, uniform)


def test_an_eager_step_has_no_graph_padding():
    """Without a graph nothing is rounded up."""
    tally = Tally()
    wrapped(tally)(Mode.NONE).execute_model(step({"a": 5, "b": 5}, {"a": [1, 2, 3, 4]}))
    assert (tally.graph_padding_tokens, tally.modes["NONE"], tally.real_draft_tokens) == (0, 1, 4)


# --- step times, on a scripted clock


class Clock:
    """monotonic_ns that moves only when told to."""

    def __init__(self):
        self.now = 1_000

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The plugin's clock."""
    found = Clock()
    monkeypatch.setattr(patch.time, "monotonic_ns", found)
    return found


def run_steps(clock, tally, *steps):
    """Execute (milliseconds since the last one, scheduler output, mode) in turn."""
    kind = wrapped(tally)
    for elapsed_ms, output, mode in steps:
        clock.now += round(elapsed_ms * 1e6)
        kind(mode, n_dispatches=1 if output.num_scheduled_tokens else 0).execute_model(output)


def test_a_step_lasts_until_the_next_one_starts(clock):
    """Three starts time two steps; the time goes to the mode and kind of the step that ran."""
    tally, both = Tally(), {"a": 5, "b": 5}
    run_steps(
        clock, tally, (0, step(both), Mode.FULL), (3, step(both), Mode.NONE), (5, step(both), Mode.FULL)
    )
    assert (tally.timed_steps, tally.timed_ns) == (2, 8_000_000)
    assert tally.timed_modes == {"NONE": 5_000_000, "PIECEWISE": 0, "FULL": 3_000_000}
    assert (tally.read()["timed_full_ns"], tally.read()["timed_none_ns"]) == (3_000_000, 5_000_000)
    assert (tally.timed_decode_steps, tally.timed_decode_ns) == (2, 8_000_000)
    assert sum(tally.decode_bins.values()) == 2


def test_a_pause_after_the_last_request_is_no_step_time(clock):
    """When everything that ran has finished, the engine may have been idle: not timed."""
    tally = Tally()
    run_steps(
        clock, tally,
        (0, step({"a": 5, "b": 5}), Mode.FULL),
        (9_000, step({"c": 5, "d": 5}, finished=["a", "b"]), Mode.FULL),
        (4, step({"c": 5, "d": 5}), Mode.FULL),
    )  # fmt: skip
    assert (tally.timed_steps, tally.timed_ns) == (1, 4_000_000)


def test_a_step_without_work_ends_the_one_before_and_is_none_itself(clock):
    """The flush that tells of finished requests times nothing."""
    tally = Tally()
    run_steps(
        clock, tally,
        (0, step({"a": 5, "b": 5}), Mode.FULL),
        (2, step({}, finished=["a", "b"]), Mode.FULL),
        (7, step({"c": 5, "d": 5}), Mode.FULL),
    )  # fmt: skip
    assert (tally.steps, tally.timed_steps) == (2, 0)


# --- installed into a vLLM

CONFIG = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 50))


@pytest.fixture
def vllm(monkeypatch):
    """Modules of a vLLM as far as the plugin looks at it."""

    class WorkerBase:
        def __init__(self, vllm_config, rank):
            self.rank = rank

    class GPUModelRunner(Runner):
        _determine_batch_execution_and_padding = Runner.dispatch

    class SuffixDecodingProposer(Proposer):
        propose = Proposer.propose

    found = {
        "vllm.v1.worker.worker_base": {"WorkerBase": WorkerBase},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": GPUModelRunner},
        "vllm.v1.spec_decode.suffix_decoding": {"SuffixDecodingProposer": SuffixDecodingProposer},
    }
    found["vllm.platforms"] = {"current_platform": SimpleNamespace(is_cuda_alike=lambda: False)}
    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.spec_decode"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, values in found.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(worker=WorkerBase, runner=GPUModelRunner, proposer=SuffixDecodingProposer)


def test_registering_twice_changes_vllm_once(vllm):
    """vLLM may load a plugin several times in one process."""
    register()
    init = vllm.worker.__init__
    register()
    install()
    assert vllm.worker.__init__ is init
    assert (vllm.worker.kpad_status, vllm.worker.kpad_empty_cache) == (status, empty_cache)


def test_the_engine_is_wrapped_when_the_first_worker_starts(vllm, monkeypatch):
    """Importing and registering wrap nothing: the API process has no runner. A second worker adds nothing."""
    monkeypatch.setenv(PAD_VARIABLE, "1")
    install()
    before = vllm.proposer.propose
    assert not hasattr(vllm.runner, "kpad_tally")
    assert vllm.worker(CONFIG, 3).rank == 3
    propose, execute = vllm.proposer.propose, vllm.runner.execute_model
    assert propose is not before
    vllm.worker(CONFIG, rank=4)
    wrap_engine(CONFIG)
    assert (vllm.proposer.propose, vllm.runner.execute_model) == (propose, execute)
    assert vllm.proposer([[1]]).propose(3, batch(["a"], [5]), [[2]]) == [[1, 2, 2]]


def test_a_pad_token_outside_the_vocabulary_does_not_start(vllm, monkeypatch):
    """A server that could draft such an id is not measured at all."""
    monkeypatch.setenv(PAD_VARIABLE, "1")
    monkeypatch.setenv(PAD_ID_VARIABLE, "50")
    install()
    with pytest.raises(PadTokenRefused, match="vocabulary of 50"):
        vllm.worker(CONFIG, 0)


def test_a_vllm_with_another_interface_does_not_start(vllm):
    """Nothing is wrapped when one of the three functions is not the known one."""
    vllm.proposer.propose = lambda self, batch: None
    install()
    with pytest.raises(UnknownVllm):
        vllm.worker(CONFIG, 0)
    assert not hasattr(vllm.runner, "kpad_tally")


@pytest.mark.parametrize(
    ("value", "pads"), [("1", True), ("0", False), ("", False), ("true", False), (None, False)]
)
def test_it_pads_only_when_the_variable_is_1(monkeypatch, value, pads):
    """As in the published fork."""
    monkeypatch.delenv(PAD_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(PAD_VARIABLE, value)
    assert pads_here() is pads


# --- what workers answer


class Cache:
    """A suffix cache as arctic-inference's: made of two settings, holds requests."""

    def __init__(self, max_tree_depth, max_cached_requests):
        self.max_tree_depth, self.max_cached_requests = max_tree_depth, max_cached_requests
        self.cached_requests, self.active_requests = set(), set()


def worker(rank=0, world_size=1, k=8, runner=None, **changes):
    """A worker of a server that speculates with K, on a platform with CUDA graphs unless told otherwise."""
    cache = Cache(24, 10000)
    cache.cached_requests |= {"a", "b"}
    runner = runner or wrapped(Tally())()
    runner.drafter = SimpleNamespace(suffix_cache=cache)
    parallel = SimpleNamespace(tensor_parallel_size=2, world_size=world_size)
    config = SimpleNamespace(
        speculative_config=None if k is None else SimpleNamespace(num_speculative_tokens=k),
        compilation_config=SimpleNamespace(cudagraph_mode=Mode.FULL, cudagraph_capture_sizes=[18, 9]),
        parallel_config=parallel,
        cache_config=SimpleNamespace(num_gpu_blocks=77),
    )
    platform = SimpleNamespace(is_cuda_alike=lambda: changes.get("is_cuda", True))
    return SimpleNamespace(rank=rank, model_runner=runner, vllm_config=config, current_platform=platform)


def test_a_worker_says_what_it_is(monkeypatch):
    """Marker, K, graphs, versions and counters; commit and CUDA as torch and vLLM carry them."""
    monkeypatch.setenv(PAD_VARIABLE, "1")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda="12.9")))
    monkeypatch.setitem(sys.modules, "vllm._version", SimpleNamespace(__commit_id__="gabc123"))
    found = status(worker())
    assert (found["marker"], found["runner"], found["pads"], found["k"]) == (MARKER, "v1", True, 8)
    assert (found["platform"], found["has_graphs"], found["cudagraph_mode"]) == ("cuda", True, "FULL")
    assert (found["capture_sizes"], found["num_gpu_blocks"], found["cached_requests"]) == ([18, 9], 77, 2)
    assert (found["cuda_version"], found["vllm_commit"]) == ("12.9", "gabc123")
    assert found["counters"] == Tally().read()


def test_a_worker_on_the_cpu_has_no_graphs_and_no_cuda(monkeypatch):
    """Modes and capture sizes in the configuration are not used there; a release build has no commit."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(cuda=None)))
    monkeypatch.setitem(sys.modules, "vllm._version", SimpleNamespace(__commit_id__=None))
    found = status(worker(is_cuda=False))
    assert (found["platform"], found["has_graphs"], found["cudagraph_mode"]) == ("cpu", False, None)
    assert (found["capture_sizes"], found["cuda_version"], found["vllm_commit"]) == ([], None, None)


def test_versions_that_cannot_be_read_are_none(monkeypatch):
    """An older vLLM has no commit id, and a process may have no torch."""
    monkeypatch.setitem(sys.modules, "vllm._version", SimpleNamespace())
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = status(worker())
    assert (found["cuda_version"], found["vllm_commit"]) == (None, None)


def test_a_server_without_speculation_does_not_pad(monkeypatch):
    """The variable alone pads nothing."""
    monkeypatch.setenv(PAD_VARIABLE, "1")
    found = status(worker(k=None))
    assert (found["pads"], found["k"]) == (False, None)


def test_the_v2_runner_has_no_counters():
    """Not counted is null, not zero."""
    found = status(worker(runner=SimpleNamespace()))
    assert (found["runner"], found["counters"], found["marker"]) == ("v2", None, MARKER)


def test_two_ranks_answer_alike_and_one_is_the_output_rank():
    """Under tensor parallelism every rank drafts; the first of the last stage gives the output."""
    found = [status(worker(rank=rank, world_size=4)) for rank in range(4)]
    assert [answer["is_output_rank"] for answer in found] == [False, False, True, False]
    assert [answer["rank"] for answer in found] == [0, 1, 2, 3]
    assert len({str(answer["counters"]) for answer in found}) == 1


def test_emptying_replaces_the_cache_by_one_of_the_same_settings():
    """The next pass starts with what vLLM builds at boot."""
    target = worker()
    old = target.model_runner.drafter.suffix_cache
    assert empty_cache(target) == {"emptied": True, "cached_requests": 2, "active_requests": 0}
    new = target.model_runner.drafter.suffix_cache
    assert new is not old
    assert (new.max_tree_depth, new.max_cached_requests, new.cached_requests) == (24, 10000, set())
    assert status(target)["cached_requests"] == 0


@pytest.mark.parametrize("runner", [SimpleNamespace(), SimpleNamespace(drafter=SimpleNamespace())])
def test_without_a_suffix_cache_nothing_is_emptied(runner):
    """No speculation, or another kind of it."""
    found = empty_cache(SimpleNamespace(model_runner=runner))
    assert found == {"emptied": False, "cached_requests": None, "active_requests": None}


def test_importing_the_plugin_loads_nothing_else():
    """vLLM loads it in each of its processes: no third-party package and no other module of this one."""
    code = "import sys; before = set(sys.modules); import kpad_bench.padding; "
    code += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(done.stdout.split())
    assert {name for name in names if name.startswith("kpad_bench")} == {"kpad_bench", "kpad_bench.padding"}
    assert {name.split(".")[0] for name in names} - {"kpad_bench"} <= set(sys.stdlib_module_names)


# --- steps as the API process hears of them


def test_front_end_steps_are_decode_only_when_no_request_got_its_first_token():
    """Their time is the least gap of any request; a step with a prompt in it is a step and no more."""
    tally = FrontTally()
    tally.step(2, [], None)
    tally.step(0, [0.004, 0.009, 0.004], "FULL")
    tally.step(1, [0.020, 0.020], "PIECEWISE")
    tally.step(0, [], None)  # only requests that were aborted
    assert (tally.steps, tally.decode_steps, tally.decode_requests) == (4, 1, 3)
    assert (tally.timed_decode_steps, tally.timed_decode_ns) == (1, 4_000_000)
    assert tally.read()["mode_full"] == tally.read()["mode_piecewise"] == 1
    assert "mode_none" not in tally.read()


def test_the_step_logger_shows_its_counts_among_the_server_s_metrics(monkeypatch):
    """Named so that the harness finds them, one series per engine; a step without output is not told of."""
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = type("StatLoggerBase", (), {})
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    monkeypatch.delitem(sys.modules, "kpad_bench.padding.frontend", raising=False)
    frontend = importlib.import_module("kpad_bench.padding.frontend")
    registry = CollectorRegistry()
    monkeypatch.setattr(frontend, "REGISTRY", registry)
    one, two = frontend.StepLogger(None), frontend.StepLogger(None, engine_index=1)
    before = list(parse_samples(generate_latest(registry).decode()))
    stats = SimpleNamespace(time_to_first_tokens_iter=[], inter_token_latencies_iter=[0.002, 0.002])
    scheduler = SimpleNamespace(cudagraph_stats=SimpleNamespace(runtime_mode="FULL"))
    for logger in (one, one, two):
        logger.record(scheduler, stats, mm_cache_stats=None, engine_idx=0)
    one.record(scheduler, None)
    found = front_end_deltas(before, parse_samples(generate_latest(registry).decode()))
    assert (found.source, found.steps, found.decode_steps, found.decode_requests) == ("front_end", 3, 3, 6)
    assert (found.mode_full, found.mode_piecewise, found.timed_decode_ns) == (3, 0, 6_000_000)
    monkeypatch.delitem(sys.modules, "kpad_bench.padding.frontend")

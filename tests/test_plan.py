"""The plan: which cells, in which order, under which names, and with which command lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpad_bench.argv import server_argv, server_env, suffix_settings
from kpad_bench.config import Arm, Cpus, LoadConfig, ModelEntry, Resolved, Server, SweepConfig
from kpad_bench.configfile import find_config, load_arms, load_sweep, resolve
from kpad_bench.errors import UsageError
from kpad_bench.plan import MOST_ID_CHARS, make_plan, planned_doubts
from kpad_bench.store import _ID

ARMS = load_arms()
LOAD = LoadConfig(concurrency=4, n_prompts=8, max_tokens=64, temperature=0)
SERVER = Server(
    vllm_version="0.32.0",
    max_model_len=2048,
    gpu_memory_utilization=0.85,
    cudagraph_mode="FULL_AND_PIECEWISE",
)
MODEL = ModelEntry(hf_id="org/Tiny", family="tiny", tensor_parallel=2)
DIGESTS = {"humaneval": "d1", "mbpp": "d2"}


def resolved(models=None, arms=("van", "kpad"), **config) -> Resolved:
    """A sweep with these arms (shipped ones, name or name@K, unless given as a mapping)."""
    models = models or {"tiny": MODEL}
    named = arms if isinstance(arms, dict) else ARMS
    base = {
        "sweep": "s", "models": tuple(models), "corpora": ("humaneval", "mbpp"), "arms": tuple(arms),
        "k": (4, 8), "load": LOAD, "server": SERVER,
    }  # fmt: skip
    return resolve(SweepConfig(**{**base, **config}), models, named, "test")


def the_plan(digests=DIGESTS, **changes):
    return make_plan(resolved(**changes), digests)


def cell_ids(**changes) -> list[str]:
    return [cell.cell_id for cell in the_plan(**changes).cells]


# --- how many


@pytest.mark.parametrize(
    ("isolation", "n_boots", "n_blocks"), [("boot", 462, 77), ("reset", 66, 11), ("resident", 66, 11)]
)
def test_the_night_has_462_cells_a_round(isolation, n_boots, n_blocks):
    """77 blocks of one trial a boot with isolation boot, 11 of seven trials a boot with reset."""
    night = load_sweep(find_config("nightly-dgx-b200"), {"isolation": isolation, "rounds": 1})
    plan = make_plan(night, {})
    blocks = [block for block in plan.blocks if not block.is_sentinel]
    assert len(plan.cells) == sum(len(list(block.trials())) for block in blocks) == 462
    assert sum(len(block.boots) for block in blocks) == n_boots
    assert len(blocks) == n_blocks


def test_rounds_and_repeats_multiply_trials_and_only_rounds_boots():
    """A repeat is a further trial in the same boot."""
    plan = the_plan(rounds=3, repeats=2)
    assert len(plan.cells) == 2 * 3
    assert len(list(plan.boots())) == 2 * 3 * 3
    assert len(list(plan.trials())) == 2 * 3 * 3 * 2
    assert {len(boot.trials) for _, boot in plan.boots()} == {2}


# --- order


SWEEPS = st.builds(
    dict,
    arms=st.lists(st.sampled_from(["van", "van-v1", "suf", "kpad", "kfill"]), min_size=1, unique=True).map(
        tuple
    ),
    k=st.lists(st.integers(1, 31), min_size=1, max_size=3, unique=True).map(tuple),
    corpora=st.lists(st.sampled_from(["humaneval", "mbpp", "mix"]), min_size=1, unique=True).map(tuple),
    isolation=st.sampled_from(["boot", "reset", "resident"]),
    rounds=st.integers(1, 3),
    repeats=st.integers(1, 2),
    seed=st.integers(0, 9),
)


@settings(deadline=None, max_examples=60)
@given(SWEEPS)
def test_a_block_holds_every_variant_and_every_trial_is_there_once(changes):
    """Each cell has one trial for each round and repeat; a block has every (arm, K), each once."""
    plan = the_plan(**changes)
    trials = list(plan.trials())
    per_cell = Counter(trial.cell.cell_id for trial in trials)
    assert per_cell == dict.fromkeys((c.cell_id for c in plan.cells), changes["rounds"] * changes["repeats"])
    variants = {(cell.arm, cell.k) for cell in plan.cells}
    for block in plan.blocks:
        assert sorted(((b.arm, b.k) for b in block.boots), key=str) == sorted(variants, key=str)
        inside = {trial.cell.corpus for boot in block.boots for trial in boot.trials}
        assert len(inside) == (1 if changes["isolation"] == "boot" else len(changes["corpora"]))
        assert {trial.round for boot in block.boots for trial in boot.trials} == {block.round}
    assert [trial.order_index for trial in trials] == list(range(len(trials)))


@settings(deadline=None, max_examples=60)
@given(SWEEPS)
def test_ids_are_unique_and_safe_in_file_names(changes):
    """Trials, boots and blocks have their own ids, of letters, digits and . _ @ - only."""
    plan = the_plan(**changes)
    boots = list(plan.boots())
    for ids in (
        [trial.trial_id for trial in plan.trials()],
        [boot.boot_id for _, boot in boots],
        [block.block_id for block in plan.blocks],
        [cell.cell_id for cell in plan.cells],
    ):
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[A-Za-z0-9._@-]+", name) for name in ids)


@pytest.mark.parametrize("isolation", ["boot", "reset"])
@pytest.mark.parametrize("n_rounds", range(1, 9))
@pytest.mark.parametrize("k", [(4, 8), (4, 6, 8), (4, 6, 8, 12), (4, 6, 8, 12, 16)])
def test_the_order_is_balanced_over_any_number_of_rounds(isolation, n_rounds, k):
    """4 to 7 variants: each is first, second, ... in a block as often as any other, give or take one; with
    isolation reset so is each corpus in a boot.
    """
    corpora = ("humaneval", "mbpp", "mix")
    plan = the_plan(arms=("van", "suf", "kpad"), k=k, rounds=n_rounds, isolation=isolation, corpora=corpora)
    counts: dict[str, Counter] = {}
    for block in plan.blocks:
        kind = block.block_id.partition(".")[2]
        counts.setdefault(kind, Counter()).update(enumerate(boot.arm_at_k for boot in block.boots))
        for boot in block.boots if isolation == "reset" else ():
            inside = enumerate(trial.cell.corpus for trial in boot.trials)
            counts.setdefault(boot.arm_at_k, Counter()).update(inside)
    for found in counts.values():
        things = {thing for _, thing in found}
        times = [found[place, thing] for place in range(len(things)) for thing in things]
        assert max(times) - min(times) <= 1


def test_the_night_is_balanced():
    """Six variants over its three rounds: none is twice in one place."""
    plan = make_plan(load_sweep(find_config("nightly-dgx-b200")), {})
    places = Counter(
        (block.block_id.partition(".")[2], at, boot.arm_at_k)
        for block in plan.blocks
        if not block.is_sentinel
        for at, boot in enumerate(block.boots)
    )
    assert set(places.values()) == {1}


@settings(deadline=None, max_examples=40)
@given(SWEEPS)
def test_a_variant_stands_at_every_position_equally_often(changes):
    """Over as many rounds as there are variants, drift hits all of them alike."""
    n = len({(cell.arm, cell.k) for cell in the_plan(**changes).cells})
    places = Counter()
    for block in the_plan(**{**changes, "rounds": n}).blocks:
        where = block.block_id.partition(".")[2]
        places.update((where, boot.arm_at_k, at) for at, boot in enumerate(block.boots))
    assert set(places.values()) == {1}


def test_corpora_rotate_inside_a_boot_that_serves_several():
    """With isolation reset each corpus is first, second, ... in its turn."""
    plan = the_plan(isolation="reset", rounds=2, arms=("van",))
    orders = [[trial.cell.corpus for trial in boot.trials] for _, boot in plan.boots()]
    assert orders == [["humaneval", "mbpp"], ["mbpp", "humaneval"]]


def test_the_seed_changes_the_order_and_nothing_else():
    """Another seed is another order of the same boots, and another plan."""
    plans = [the_plan(seed=seed, arms=("van", "suf", "kpad", "kfill")) for seed in range(6)]
    orders = {tuple(boot.boot_id for _, boot in plan.boots()) for plan in plans}
    assert len({tuple(cell.cell_id for cell in plan.cells) for plan in plans}) == 1
    assert len(orders) > 1
    assert len({plan.digest for plan in plans}) == len(orders)


def test_the_same_inputs_give_the_same_plan_in_any_process():
    """Nothing of a process decides: two with other hash seeds print the plan digest of this one."""
    code = (
        "from kpad_bench.configfile import *; from kpad_bench.plan import make_plan;"
        "p = make_plan(load_sweep(find_config('nightly-dgx-b200')), {});"
        "print(p.digest, [b.boot_id for _, b in p.boots()][-1])"
    )
    plan = make_plan(load_sweep(find_config("nightly-dgx-b200")), {})
    expected = f"{plan.digest} {[boot.boot_id for _, boot in plan.boots()][-1]}"
    for seed in ("0", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_resident_servers_take_turns_on_each_corpus():
    """All arms on one corpus, then all on the next, in the order of the round; each still one boot."""
    changes = {"corpora": ("humaneval", "mbpp"), "k": (4, 8), "rounds": 2}
    plan = the_plan(isolation="resident", **changes)
    for block, beside in zip(plan.blocks, the_plan(isolation="reset", **changes).blocks, strict=True):
        arms = [boot.arm_at_k for boot in block.boots]
        assert arms == [boot.arm_at_k for boot in beside.boots]
        corpora = [trial.cell.corpus for trial in block.boots[0].trials]
        assert [(trial.cell.corpus, trial.cell.arm_at_k) for trial in block.trials()] == [
            (corpus, arm) for corpus in corpora for arm in arms
        ]


# --- sentinels and adaptive rounds

SENTINEL = {"model": "tiny", "corpus": "humaneval", "arm": "kpad@8", "times": 3}


@pytest.mark.parametrize("isolation", ["boot", "reset"])
@pytest.mark.parametrize("design", [3, "2..4"])
def test_sentinels_stand_at_the_start_between_blocks_and_at_the_end(isolation, design):
    """Each a block, a boot and a trial of its own; the middle one stands where rounds are sure to be run."""
    plan = the_plan(sentinel=SENTINEL, rounds=design, isolation=isolation)
    places = [place for place, block in enumerate(plan.blocks) if block.is_sentinel]
    n_certain = plan.design.least * (1 if isolation == "reset" else 2)
    assert places == [0, 1 + round(n_certain / 2), len(plan.blocks) - 1]
    blocks = [plan.blocks[place] for place in places]
    assert [[t.round for t in block.trials()] for block in blocks] == [[1], [2], [3]]
    assert {boot.arm_at_k for block in blocks for boot in block.boots} == {"kpad@8"}
    assert all(trial.is_sentinel for block in blocks for trial in block.trials())
    trials = list(plan.trials())
    assert [trial.order_index for trial in trials] == list(range(len(trials)))
    for ids in ([t.trial_id for t in trials], [b.boot_id for _, b in plan.boots()]):
        assert len(set(ids)) == len(ids)


def test_a_sentinel_changes_no_cell_of_the_sweep():
    """Nor is it one of them; it is the same cell whatever else is measured, and however boots are shared."""
    assert cell_ids(sentinel=SENTINEL) == cell_ids()
    found = set()
    for changes in (
        {},
        {"corpora": ("mbpp",)},
        {"arms": ("van", "kpad"), "rounds": 5},
        {"isolation": "reset"},
    ):
        plan = the_plan(sentinel=SENTINEL, **changes)
        found |= {trial.cell.cell_id for trial in plan.trials() if trial.is_sentinel}
    assert len(found) == 1


def test_a_sentinel_of_another_model_and_arm_is_captured_for():
    """Its K is under the common ceiling too, and its width is checked."""
    others = {"tiny": MODEL, "other": ModelEntry(hf_id="org/Other", family="o")}
    plan = the_plan(models={"tiny": MODEL}, sentinel={**SENTINEL, "arm": "suf@30"})
    wide = next(boot for _, boot in plan.boots() if boot.arm_at_k == "suf@30")
    assert "124" in wide.argv[wide.argv.index("--compilation-config") + 1]  # 4 x (1 + 30)
    config = SweepConfig(**{**resolved().config.model_dump(), "sentinel": {**SENTINEL, "model": "other"}})
    plan = make_plan(resolve(config, others, ARMS, "test"), DIGESTS)
    assert {block.boots[0].model for block in plan.blocks if block.is_sentinel} == {"other"}
    assert {cell.model for cell in plan.cells} == {"tiny"}


def test_adaptive_rounds_are_another_plan_than_the_most_of_them():
    """A run of eight fixed rounds is not gone on with as an adaptive one; its first blocks are the same."""
    plans = [the_plan(rounds=rounds) for rounds in (8, "3..8", "4..8")]
    assert len({plan.digest for plan in plans}) == 3
    assert {plan.blocks for plan in plans} == {plans[0].blocks}


# --- identity


ENTRY = MODEL.model_dump()
KPAD = ARMS["kpad"]


@pytest.mark.parametrize(
    "changes",
    [
        {"models": {"tiny": ModelEntry(**{**ENTRY, "hf_id": "org/Other"})}},
        {"models": {"tiny": ModelEntry(**{**ENTRY, "revision": "a" * 40})}},
        {"models": {"tiny": ModelEntry(**{**ENTRY, "tensor_parallel": 4})}},
        {"models": {"tiny": ModelEntry(**{**ENTRY, "extra_args": ("--x",)})}},
        {"models": {"tiny": ModelEntry(**{**ENTRY, "optional_args": ("--x",)})}},
        {"models": {"tiny": ModelEntry(**{**ENTRY, "env": {"A": "1"}})}},
        {"models": {"tiny": ModelEntry(**{**ENTRY, "trust_remote_code": True})}},
        {"k": (6,)},
        {"arms": {"kpad": KPAD.model_copy(update={"pad": False})}},
        {"arms": {"kpad": KPAD.model_copy(update={"env": {"A": "1"}})}},
        {"arms": {"kpad": KPAD.model_copy(update={"extra_args": ("--x",)})}},
        {"arms": {"kpad": KPAD.model_copy(update={"suffix": {"suffix_decoding_max_tree_depth": 30}})}},
        {"arms": {"kpad": KPAD.model_copy(update={"cudagraph_mode": "FULL"})}},
        {"load": LOAD.model_copy(update={"concurrency": 5})},
        {"load": LOAD.model_copy(update={"n_prompts": 9})},
        {"load": LOAD.model_copy(update={"max_tokens": 65})},
        {"load": LOAD.model_copy(update={"temperature": 0.5})},
        {"load": LOAD.model_copy(update={"seed": 1})},
        {"server": SERVER.model_copy(update={"max_model_len": 4096})},
        {"server": SERVER.model_copy(update={"gpu_memory_utilization": 0.9})},
        {"server": SERVER.model_copy(update={"dtype": "float32"})},
        {"server": SERVER.model_copy(update={"max_num_seqs": 9})},
        {"server": SERVER.model_copy(update={"cudagraph_mode": "PIECEWISE"})},
        {"server": SERVER.model_copy(update={"extra_args": ("--enforce-eager",)})},
        {"server": SERVER.model_copy(update={"env": {"A": "1"}})},
        {"digests": {"humaneval": "other", "mbpp": "d2"}},
        {"digests": {}},
        {"isolation": "reset"},
    ],
)
def test_a_cell_is_another_when_its_number_may_be(changes):
    """Model, arm, K, flags, environment, load, sampling and prompts are in a cell's id."""
    base = {"arms": {"kpad": KPAD}, "k": (4,), "corpora": ("humaneval",)}
    assert set(cell_ids(**base)).isdisjoint(cell_ids(**{**base, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "models": {
                "tiny": ModelEntry(**{**ENTRY, "boot_timeout_s": 5, "boot_estimate_s": 6, "stalled_s": 7})
            }
        },
        {"models": {"tiny": ModelEntry(**{**ENTRY, "size_b": 7, "kind": "moe"})}},
        {"arms": ("kpad", "van")},
        {"cpus": Cpus(server="0-1", client="2")},
        {"server": SERVER.model_copy(update={"port": 8001})},
        {"server": SERVER.model_copy(update={"launcher": ("vllm", "serve")})},
        {"rounds": 5},
        {"repeats": 2},
        {"seed": 9},
        {"k": (8, 4)},
        {"sweep": "another"},
    ],
)
def test_a_cell_stays_the_same_when_its_number_does(changes):
    """Ports, timeouts, estimates, CPU sets, counts and the order of things are in no cell's id."""
    assert sorted(cell_ids()) == sorted(cell_ids(**changes))


def test_an_unfrozen_corpus_has_a_null_digest():
    """A plan can be made before a corpus is frozen; the cell says so."""
    digests = {cell.corpus: cell.corpus_digest for cell in the_plan(digests={"mbpp": "d2"}).cells}
    assert digests == {"humaneval": None, "mbpp": "d2"}


# --- refusals and doubts


def test_an_arm_at_a_k_of_the_sweep_is_asked_for_twice():
    """kpad with K in 4, 8 and kpad@8 would be one variant measured twice."""
    with pytest.raises(UsageError, match="kpad@8 asked for twice"):
        the_plan(arms=("kpad", "kpad@8"))


def test_output_that_fills_the_context_is_refused():
    """max_tokens has to leave room for a prompt."""
    with pytest.raises(UsageError, match="max_tokens 2048 leaves no room for a prompt in max_model_len 2048"):
        the_plan(load=LOAD.model_copy(update={"max_tokens": 2048}))


def test_two_models_of_one_name_are_refused():
    """Folders of the same name would share block ids."""
    twins = {f"/{where}/tiny": ModelEntry(local=f"/{where}/tiny", family="t") for where in "ab"}
    with pytest.raises(UsageError, match="tiny: two models have this name"):
        the_plan(models=twins)


def test_a_name_outside_ascii_is_written_with_dashes():
    """Ids are file names on any disk."""
    plan = the_plan(models={"/m/modèle é": ModelEntry(local="/m/modèle é", family="t")})
    assert all(cell.cell_id.startswith("mod-le--.") for cell in plan.cells)


@pytest.mark.parametrize(
    ("tag", "name"), [("./", "-"), ("../", "-."), ("/m/.hidden", "-hidden"), ("", "-"), ("/m/a.b", "a.b")]
)
def test_ids_never_begin_with_a_dot(tag, name):
    """A trial of a hidden folder, or of ./, is a file that everybody sees."""
    plan = the_plan(models={tag: ModelEntry(local="/m/x", family="t")})
    assert all(cell.cell_id.startswith(f"{name}.") for cell in plan.cells)
    assert all(_ID.fullmatch(trial.trial_id) for trial in plan.trials())


def test_names_too_long_for_a_file_are_refused():
    """Before anything boots; the longest that is allowed can be stored."""
    room = MOST_ID_CHARS - max(len(t.trial_id) for t in the_plan(models=named("x")).trials())
    longest = the_plan(models=named("x" * (1 + room)))
    assert all(_ID.fullmatch(trial.trial_id) for trial in longest.trials())
    with pytest.raises(UsageError, match="ids of 201 characters; 200 are allowed"):
        the_plan(models=named("x" * (2 + room)))


def named(tag):
    """One model of this name."""
    return {tag: ModelEntry(hf_id="org/x", family="t")}


def test_doubts_about_a_variant_are_known_before_it_runs():
    """Each variant's once, however many corpora and rounds it has."""
    config = load_sweep(find_config("default"), {"arms": ["van", "suf", "kpad"], "k": [8, 16], "rounds": 3})
    plan = make_plan(config, {})
    doubts = sorted(doubt.partition(": a tree")[0] for doubt in planned_doubts(config, plan))
    assert doubts == ["kpad: k 16", "suf: k 32"]


def test_suffix_settings_are_the_ones_in_force():
    """What an arm does not set is vLLM's default; without speculation there is nothing."""
    assert suffix_settings(ARMS["kfill"]) == {
        "suffix_max_tree_depth": 24,
        "suffix_max_spec_factor": 8.0,
        "suffix_min_token_prob": 0.0,
        "suffix_max_cached_requests": 10000,
    }
    assert set(suffix_settings(ARMS["van"]).values()) == {None}


# --- command lines


def argv(arm: str, k: int | None, entry=MODEL, server=SERVER) -> str:
    return " ".join(server_argv("b1", entry, ARMS[arm], k, server))


HEAD = (
    "{python} -m vllm.entrypoints.openai.api_server --model org/Tiny --served-model-name kpad-b1 "
    "--uds {socket} --tensor-parallel-size 2 --max-model-len 2048 --generation-config vllm --seed 0 "
    "--gpu-memory-utilization 0.85 "
)
PUBLISHED = '--compilation-config {"cudagraph_mode":"FULL_AND_PIECEWISE"}'


@pytest.mark.parametrize(
    ("arm", "k", "tail"),
    [
        ("van", None, PUBLISHED),
        ("van-v1", None, PUBLISHED + " --no-async-scheduling"),
        ("suf", 32, PUBLISHED + ' --speculative-config {"method":"suffix","num_speculative_tokens":32}'),
        ("kpad", 8, PUBLISHED + ' --speculative-config {"method":"suffix","num_speculative_tokens":8}'),
        (
            "kfill",
            4,
            PUBLISHED + ' --speculative-config {"method":"suffix","num_speculative_tokens":4,'
            '"suffix_decoding_min_token_prob":0.0,"suffix_decoding_max_spec_factor":8.0}',
        ),
        (
            "suf-full",
            32,
            '--compilation-config {"cudagraph_mode":"FULL"} '
            '--speculative-config {"method":"suffix","num_speculative_tokens":32}',
        ),
    ],
)
def test_the_command_line_of_each_arm_is_the_published_one(arm, k, tail):
    """Whole command lines, to be read."""
    assert argv(arm, k) == HEAD + tail


def test_the_rest_of_a_command_line_comes_from_model_and_server():
    """Revision, local folder, port, data type and extra flags each in their place."""
    entry = ModelEntry(
        hf_id="o/m",
        revision="abc",
        family="f",
        trust_remote_code=True,
        extra_args=("--m",),
        optional_args=("--o",),
    )
    server = Server(
        vllm_version="0.32.0", max_model_len=9, port=8001, dtype="float32", max_num_seqs=3,
        extra_args=("--s",), launcher=("vllm", "serve"),
    )  # fmt: skip
    assert argv("van-v1", None, entry, server) == (
        "vllm serve --model o/m --revision abc --served-model-name kpad-b1 --host 127.0.0.1 --port {port} "
        "--tensor-parallel-size 1 --max-model-len 9 --generation-config vllm --seed 0 --max-num-seqs 3 "
        "--dtype float32 --trust-remote-code --s --m --o --no-async-scheduling"
    )
    local = ModelEntry(local="smol", revision="x", family="f")
    assert "--model {models}/smol --served" in argv("van", None, local)
    assert "--model /abs/smol --served" in argv("van", None, local.model_copy(update={"local": "/abs/smol"}))


FIXED = {
    "VLLM_PLUGINS": "kpad",
    "ARCTIC_INFERENCE_ENABLED": "0",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TZ": "UTC",
}


@pytest.mark.parametrize(
    ("arm", "more"),
    [
        ("van", {}),
        ("van-v1", {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        ("suf", {}),
        ("kpad", {"VLLM_SUFFIX_PAD_UNIFORM": "1"}),
        ("kfill", {"VLLM_SUFFIX_PAD_UNIFORM": "1"}),
        ("suf-full", {}),
    ],
)
def test_the_environment_of_each_arm(arm, more):
    """The plugin is in every arm; only padded ones pad; no boot asks the hub."""
    local = ModelEntry(local="smol", family="f")
    for entry in (MODEL, local):
        assert server_env(entry, ARMS[arm], SERVER) == {**FIXED, **more}


def test_the_arm_s_environment_wins_over_model_and_server():
    """What makes an arm what it is cannot be undone by accident."""
    server = SERVER.model_copy(update={"env": {"VLLM_SUFFIX_PAD_UNIFORM": "0", "A": "server"}})
    entry = MODEL.model_copy(update={"env": {"A": "model"}})
    env = server_env(entry, Arm(speculation="suffix", k=4, pad=True), server)
    assert (env["VLLM_SUFFIX_PAD_UNIFORM"], env["A"]) == ("1", "model")

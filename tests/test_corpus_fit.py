"""Models of a sweep against the locks of its corpora, before anything boots."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from conftest import Lab
from corpus_rows import MBPP, ROWS, TEMPLATE, chats, lines, tokenizer_folder

from kpad_bench import corpus, corpus_fit
from kpad_bench.config import ModelEntry
from kpad_bench.errors import HostError, UsageError


@pytest.fixture
def sets(tmp_path, unpinned, monkeypatch) -> Path:
    """Chats of which one has 9,000 characters, frozen with a tokenizer that counts them as few tokens."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "sets"))
    folder = tokenizer_folder(tmp_path / "toy", "{{ messages[0]['content'][:100] }}")
    texts = [f"Why {n}?" for n in range(40)]
    source = lines(tmp_path / "rows.jsonl", chats([*texts, "so " * 3000]))
    corpus.freeze("sharegpt", source, tokenizers=corpus_fit.named_tokenizers([str(folder)]))
    return tmp_path


def _resolved(lab: Lab, model: Path | None = None, **changes):
    from kpad_bench.configfile import load_sweep

    if model is not None:
        lab.set(define_models={"tiny": {"local": str(model), "family": "tiny"}})
    return load_sweep(lab.set(corpora=["sharegpt"], **changes).config_path())


def _check(resolved) -> None:
    corpus_fit.check_fit(resolved, corpus.open_together(resolved.corpora).values())


def test_a_model_whose_tokenizer_the_lock_names_is_taken(lab, sets, monkeypatch):
    """Known by the hash of tokenizer and template, whatever the model is called."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(sets / "sets"))
    _check(_resolved(lab, sets / "toy"))


def test_a_model_with_another_tokenizer_is_refused_with_the_command(lab, sets, monkeypatch):
    """A new model changes no digest silently: corpus, model and the way out are named; nothing boots."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(sets / "sets"))
    other = tokenizer_folder(sets / "other" / "toy", TEMPLATE)
    with pytest.raises(
        HostError,
        match=r"corpus sharegpt: .*tokenizer of tiny \(it names toy\).*longest prompt has 9000 bytes, .*7870 "
        r".*corpora freeze sharegpt --tokenizer toy --tokenizer tiny",
    ):
        _check(_resolved(lab, other))
    with pytest.raises(HostError, match="tokenizer of tiny"):
        lab.sweep()
    assert lab.boots() == []


def test_prompts_short_enough_for_any_tokenizer_suit_every_model(lab, unpinned, tmp_path, monkeypatch):
    """A set frozen by bytes names no tokenizer and needs none."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "sets"))
    corpus.freeze("sharegpt", lines(tmp_path / "rows.jsonl", chats([f"Why {n}?" for n in range(40)])))
    _check(_resolved(lab))


def test_a_model_that_is_not_on_this_host_goes_by_its_name(lab, sets, monkeypatch):
    """Its tokenizer cannot be hashed yet; the server counts the prompts once more before a pass."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(sets / "sets"))
    lab.set(define_models={"toy": {"local": "absent", "family": "t"}})
    _check(_resolved(lab, models=["toy"]))


def test_a_mix_names_the_tokenizers_that_counted_all_of_its_members(tmp_path, sets, unpinned, monkeypatch):
    """What only some members were counted with is no proof; then prompts of the mix are bound by bytes."""
    (unpinned / "mix.yaml").write_text(
        "name: mix\ndescription: ''\nrule: mix\nprofile: p\nmembers: {humaneval: 1, mbpp: 1}\nlicence: ''\n"
    )
    toy = corpus_fit.named_tokenizers([str(sets / "toy")])
    corpus.freeze("mbpp", lines(tmp_path / "m.jsonl", MBPP), tokenizers=toy)
    corpus.freeze("humaneval", lines(tmp_path / "h.jsonl", ROWS))
    assert corpus.freeze("mix").budget.tokenizers == {}
    corpus.freeze("humaneval", lines(tmp_path / "h.jsonl", ROWS), tokenizers=toy)
    lock = corpus.freeze("mix")
    assert {name: one.sha256 for name, one in lock.budget.tokenizers.items()} == {"toy": toy[0].sha256}
    assert lock.budget.longest_bytes > 0


@pytest.mark.parametrize(
    ("state", "setting", "load", "others"),
    [
        ("warm", "warm to true", {"warm": True}, [{}, {"n_primed": 2}]),
        ("primed", "n_primed to a number", {"n_primed": 2}, [{}, {"warm": True}, {"warm": True, "n_primed": 2}]),
    ],
)
def test_a_twin_that_would_be_measured_in_another_state_is_refused(
    lab, tmp_path, unpinned, monkeypatch, state, setting, load, others
):
    """Without that load it would be its cold twin under another name."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(tmp_path / "sets"))
    (unpinned / "twin.yaml").write_text(
        "name: twin\ndescription: ''\nrule: mix\nprofile: p\nmembers: {mbpp: 1}\nlicence: ''\n"
        f"cache_state: {state}\n"
    )
    corpus.freeze("mbpp", lines(tmp_path / "m.jsonl", MBPP))
    corpus.freeze("twin")
    opened = corpus.open_together(["twin"]).values()
    _resolved(lab)
    lab.set(corpora=["twin"])
    from kpad_bench.configfile import load_sweep

    for other in others:
        lab.set(load={"by_corpus": {"twin": other}})
        with pytest.raises(UsageError, match=f"twin is there to be measured {state}: .*twin.{setting}"):
            corpus_fit.check_fit(load_sweep(lab.config_path()), opened)
    lab.set(load={"by_corpus": {"twin": load}})
    corpus_fit.check_fit(load_sweep(lab.config_path()), opened)


# Names of tokenizers


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("no-such-tag", UsageError, r"'no-such-tag': no such model; allowed: .*smollm2-135m, a hub id"),
        ("./absent", HostError, "give a folder that is there"),
        ("smollm2-135m", HostError, "first: kpad-bench models fetch smollm2-135m"),
    ],
)
def test_a_tokenizer_that_cannot_be_had_says_how_to_get_it(tmp_path, monkeypatch, name, error, match):
    """Tag, folder and command are named."""
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path))
    with pytest.raises(error, match=match):
        corpus_fit.named_tokenizers([name])


def test_two_folders_of_one_name_cannot_be_told_apart_in_a_lock(tmp_path):
    """A lock holds the last part of a path, so that it is the same on every host."""
    folders = [str(tokenizer_folder(tmp_path / part / "toy")) for part in ("a", "b")]
    with pytest.raises(UsageError, match="toy: two of this name"):
        corpus_fit.named_tokenizers(folders)


def test_a_tokenizer_of_the_hub_is_fetched_at_its_revision_without_weights(tmp_path, monkeypatch):
    """Only the tokenizer's files are asked for; a sweep asks its cache alone."""
    folder, asked = tokenizer_folder(tmp_path / "toy"), []

    def snapshot_download(repo_id, **options):
        asked.append((repo_id, options))
        return str(folder)

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    (files,) = corpus_fit.named_tokenizers(["org/model"])
    assert files.name == "org/model"
    entry = ModelEntry(hf_id="org/model", revision="f" * 40, family="x")
    corpus_fit.entry_folder("tag", entry)
    assert [options["local_files_only"] for _, options in asked] == [False, True]
    assert asked[1][1]["revision"] == "f" * 40
    assert all("tokenizer.json" in options["allow_patterns"] for _, options in asked)
    assert all(options["token"] is False for _, options in asked)

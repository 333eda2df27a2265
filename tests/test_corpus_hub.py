"""Rows from the hub: what is asked for, and what is said where it cannot be had."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
from corpus_rows import chats, lines

from kpad_bench import corpus
from kpad_bench.corpus_hub import is_offline
from kpad_bench.errors import HostError


@pytest.fixture
def hub(monkeypatch):
    """Stand-ins for both libraries that record what they are asked; ``hub.answer`` may be an error."""
    asked = types.SimpleNamespace(calls=[], answer=[])

    def give(*args, **options):
        asked.calls.append((args, options))
        if isinstance(asked.answer, Exception):
            raise asked.answer
        return asked.answer

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=give))
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=give))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return asked


def test_splits_are_loaded_at_the_pinned_revision(tmp_path, unpinned, hub, monkeypatch):
    """Each split by name, at 40 hex digits, with the token of the environment alone."""
    hub.answer = [{"task_id": 1, "text": "Add.", "test_list": ["assert f()"]}]
    assert corpus.freeze("mbpp", out=tmp_path).read == 4
    splits = [options["split"] for _, options in hub.calls]
    assert splits == ["train", "test", "validation", "prompt"]
    args, options = hub.calls[0]
    assert args == ("google-research-datasets/mbpp", "full")
    assert (options["revision"], options["token"]) == ("4bb6404fdc6cacfda99d4ac4205087b89d32030c", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    corpus.freeze("mbpp", out=tmp_path)
    assert hub.calls[-1][1]["token"] == "hf_secret"


def test_a_file_is_fetched_and_its_hash_checked(tmp_path, unpinned, hub):
    """ShareGPT is one file; what the hub gives under its name is checked like any other."""
    path = tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json"
    path.write_text(json.dumps(chats(["hi"])))
    hub.answer = str(path)
    with pytest.raises(Exception, match="pinned is 35f0e213"):
        corpus.freeze("sharegpt", out=tmp_path)
    ((repo, name), options) = hub.calls[0]
    assert (repo, name) == ("anon8231489123/ShareGPT_Vicuna_unfiltered", path.name)
    assert options["repo_type"] == "dataset"
    assert options["revision"] == "192ab2185289094fc556ec8ce5ce1e8e587154ca"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "sharegpt",
            ["anon8231489123/ShareGPT_Vicuna", "192ab218", "ShareGPT_V3_unfiltered", "--source FILE"],
        ),
        ("wildchat", ["allenai/WildChat-1M", "7d6490e4", "--source FILE"]),
        ("swebench", ["princeton-nlp/SWE-bench_Lite", "6ec7bb89", "split test", "--source FILE"]),
    ],
)
@pytest.mark.parametrize("offline", [True, False])
def test_a_corpus_that_cannot_be_had_here_says_what_to_fetch(
    tmp_path, hub, monkeypatch, name, words, offline
):
    """Hub id, revision, file and option are named, and whether it was asked at all."""
    hub.answer = ConnectionError("no route\nto host")
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HostError) as error:
        corpus.freeze(name, out=tmp_path)
    text = str(error.value)
    why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be used (ConnectionError: no route to host)"
    assert [word for word in [*words, why] if word not in text] == []
    assert list(tmp_path.iterdir()) == []


def test_a_gated_set_without_a_token_names_page_and_variable(tmp_path, hub, monkeypatch):
    """Nothing is asked of the hub; with a token, and offline with a cache, it is."""
    with pytest.raises(
        HostError,
        match=r"lmsys is gated: accept the terms at https://\S+/datasets/lmsys/lmsys-chat-1m, set HF_TOKEN",
    ):
        corpus.freeze("lmsys", out=tmp_path)
    assert hub.calls == []
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        hub.answer = ValueError("401")
        monkeypatch.setenv(variable, "1")
        with pytest.raises(HostError, match=r"401.*accept the terms at .*set HF_TOKEN"):
            corpus.freeze("lmsys", out=tmp_path)
        monkeypatch.delenv(variable)
    assert len(hub.calls) == 2


def test_a_library_that_is_missing_is_named(tmp_path, hub, monkeypatch):
    """Without datasets a local file still works."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HostError, match=r"datasets.*--source FILE"):
        corpus.freeze("mbpp", out=tmp_path)


def test_what_is_frozen_works_offline(tmp_path, unpinned, hub, monkeypatch):
    """Freezing local rows, opening and verifying ask nobody."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert is_offline()
    corpus.freeze("wildchat", lines(Path(tmp_path / "rows.jsonl"), chats(["a", "b"])), tmp_path)
    assert corpus.verify(["wildchat"], tmp_path) == []
    assert hub.calls == []

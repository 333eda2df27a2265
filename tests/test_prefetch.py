"""Weights ahead of a night: the real ``huggingface_hub`` against a hub on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import types
from collections import namedtuple
from pathlib import Path

import pytest
import yaml
from hub_stand_in import COMMIT, LATER, Hub

from kpad_bench import cli, model_lock, models, prefetch, provenance
from kpad_bench.argv import server_argv
from kpad_bench.config import ModelEntry
from kpad_bench.configfile import load_sweep, model_lock_path, pinned_models
from kpad_bench.errors import HostError, UsageError
from kpad_bench.host import expected_vllm
from kpad_bench.hubcache import find_snapshot, hub_cache, known_sizes, missing_models

INDEX = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode()
FILES = {
    "config.json": b"{}",
    "model.safetensors.index.json": INDEX,
    "m-1.safetensors": b"1" * 4000,
    "m-2.safetensors": b"2" * 6000,
}
#: The same weights again, and those of another program.
EXTRA = {
    "pytorch_model.bin": b"x" * 9000,
    "original/consolidated.00.pth": b"y" * 9000,
    "original/params.json": b"{}",
}
WHOLE = sum(len(data) for data in FILES.values())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one model, and empty caches."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path / "kpad"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        running.add("org/one", FILES | EXTRA)
        yield running


def sweep_file(tmp_path: Path, **entries: dict) -> Path:
    """A sweep of these models."""
    data = {
        "sweep": "s", "models": list(entries), "corpora": ["humaneval"], "arms": ["van"], "k": [4],
        "define_models": {tag: {"family": "f", **entry} for tag, entry in entries.items()},
        "load": {"concurrency": 1, "n_prompts": 1, "n_warmup": 1, "max_tokens": 8, "temperature": 0},
        "server": {"vllm_version": "0.32.0", "platform": "cpu", "max_model_len": 64},
        "thresholds": {"low_disk_gb": 0},
    }  # fmt: skip
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


ONE = {"one": {"hf_id": "org/one"}}


@pytest.fixture
def go(tmp_path, hub):
    """Runs a prefetch of these models; gives the outcomes."""

    def run(entries=ONE, *, update=False, **asked):
        resolved = load_sweep(sweep_file(tmp_path, **entries), locked=not update)
        return prefetch.prefetch(resolved, prefetch.Asked(**asked), lambda line: None)

    return run


def snapshot(tmp_path: Path, commit: str = COMMIT, name: str = "one") -> Path:
    """Where the library puts a commit."""
    return tmp_path / "hub" / f"models--org--{name}" / "snapshots" / commit


def test_a_model_is_fetched_locked_and_known_to_be_whole(go, hub, tmp_path):
    """Main is found to be a commit, that commit is the cell's from then on, duplicates are left out."""
    (outcome,) = go()
    assert (outcome.state, outcome.commit, outcome.total_bytes, outcome.to_fetch_bytes) == (
        prefetch.FETCHED, COMMIT, WHOLE, WHOLE,
    )  # fmt: skip
    assert sorted(path.name for path in snapshot(tmp_path).rglob("*")) == sorted(FILES)
    assert model_lock.read(model_lock_path()) == {"org/one@main": COMMIT}
    resolved = load_sweep(sweep_file(tmp_path, **ONE))
    assert resolved.models["one"].revision == COMMIT
    argv = server_argv("b", resolved.models["one"], resolved.arms["van"], None, resolved.config.server)
    assert argv[argv.index("--revision") + 1] == COMMIT
    assert missing_models(resolved) == {}


def test_what_is_whole_is_not_asked_for_again(go, hub, monkeypatch):
    """Nor is the hub asked at all, so it works offline."""
    go()
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (outcome,) = go()
    assert (outcome.state, outcome.to_fetch_bytes, hub.asked) == (prefetch.HERE, 0, [])


def test_a_branch_that_moves_is_followed_only_when_asked(go, hub, tmp_path):
    """The lock holds; ``--update`` looks main up anew, and only what differs is fetched."""
    go()
    hub.add("org/one", FILES | {"m-2.safetensors": b"3" * 7000}, LATER)
    (outcome,) = go()
    assert (outcome.commit, outcome.state) == (COMMIT, prefetch.HERE)
    (outcome,) = go(update=True)
    assert (outcome.commit, outcome.state) == (LATER, prefetch.FETCHED)
    assert outcome.to_fetch_bytes < 8000
    assert model_lock.read(model_lock_path()) == {"org/one@main": LATER}
    assert load_sweep(sweep_file(tmp_path, **ONE)).models["one"].revision == LATER


def test_a_pinned_revision_is_taken_and_not_locked(go, hub):
    """models.yaml wins: an older commit stays the one."""
    hub.add("org/one", FILES, LATER)
    (outcome,) = go({"one": {"hf_id": "org/one", "revision": COMMIT}})
    assert (outcome.commit, outcome.state, outcome.note) == (COMMIT, prefetch.FETCHED, "")
    assert not model_lock_path().exists()


def test_a_dry_run_fetches_and_writes_nothing(go, hub, tmp_path):
    """It says what it would take."""
    (outcome,) = go(dry_run=True)
    assert (outcome.state, outcome.to_fetch_bytes) == (prefetch.WOULD, WHOLE)
    assert hub.downloads() == []
    assert not model_lock_path().exists()
    assert prefetch.exit_code([outcome]) == 0


def test_a_download_that_broke_off_goes_on(go, hub, tmp_path, monkeypatch):
    """Exit 3; the table says how; the next call fetches what is missing at the commit of the first."""
    no_wait = types.SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr("huggingface_hub.file_download.time", no_wait)
    hub.cut["m-2.safetensors"] = 1000
    (outcome,) = go()
    assert outcome.state == prefetch.FAILED
    assert "run this again" in outcome.note
    assert prefetch.exit_code([outcome]) == 3
    resolved = load_sweep(sweep_file(tmp_path, **ONE))
    assert "m-2.safetensors" in missing_models(resolved)["one"]
    hub.cut.clear()
    hub.add("org/one", FILES, LATER)
    before = len(hub.downloads())
    (outcome,) = go()
    assert (outcome.state, outcome.commit) == (prefetch.FETCHED, COMMIT)
    assert set(hub.downloads()[before:]) == {"m-2.safetensors"}
    assert outcome.to_fetch_bytes == 6000


def test_a_file_of_the_wrong_size_is_fetched_again(go, hub, tmp_path):
    """A library that finds a file takes it for whole; sizes are compared."""
    go()
    path = snapshot(tmp_path) / "m-1.safetensors"
    path.resolve().write_bytes(b"1" * 100)
    resolved = load_sweep(sweep_file(tmp_path, **ONE))
    assert "missing or cut: m-1.safetensors" in missing_models(resolved)["one"]
    (outcome,) = go()
    assert (outcome.state, path.read_bytes()) == (prefetch.FETCHED, FILES["m-1.safetensors"])


def test_an_offline_server_does_not_find_the_snapshot_incomplete(go, hub, tmp_path):
    """Though duplicates were left out: the library would refuse a folder that lacks files it has listed."""
    go()
    code = (
        "import huggingface_hub as h; "
        f"print(h.snapshot_download('org/one', revision='{COMMIT}', cache_dir=r'{tmp_path / 'hub'}'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env={"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stdout.strip() == str(snapshot(tmp_path)), done.stderr


def test_one_model_that_fails_does_not_stop_the_others(go, hub):
    """All are looked up first; each refusal is a line with its way out."""
    hub.add("org/gated", FILES)
    hub.gated["org/gated"] = {"hf_good"}
    found = go(
        {
            "gated": {"hf_id": "org/gated", "gated": True},
            "gone": {"hf_id": "org/gone"},
            "old": {"hf_id": "org/one", "revision": "c" * 40},
            "one": {"hf_id": "org/one"},
        }
    )
    assert [one.state for one in found] == [*[prefetch.REFUSED] * 3, prefetch.FETCHED]
    gated, gone, old, _ = (one.note for one in found)
    assert gated == f"gated: accept them and set HF_TOKEN: {hub.url}/org/gated"
    assert gone.startswith("no such model on the hub, or a private one (set HF_TOKEN)")
    assert old.startswith(f"revision '{'c' * 40}' is not on the hub")
    assert prefetch.exit_code(found) == 4


def test_access_is_checked_before_anything_is_fetched(go, hub, monkeypatch):
    """A token of another account is told; the right one opens the gate, and is shown nowhere."""
    hub.add("org/gated", FILES)
    hub.gated["org/gated"] = {"hf_good"}
    entries = {"one": {"hf_id": "org/one"}, "gated": {"hf_id": "org/gated"}}
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    found = go(entries, dry_run=True)
    assert found[1].note.startswith("gated: accept its terms with the account of HF_TOKEN")
    assert "hf_other" not in str(found)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    found = go(entries)
    assert [one.state for one in found] == [prefetch.FETCHED] * 2
    steps = [line for line in hub.asked if "auth-check" in line or "/resolve/" in line]
    assert all("auth-check" in line for line in steps[:4])  # two of the dry run
    assert all("/resolve/" in line for line in steps[4:])


def test_room_is_counted_before_anything_is_fetched(go, hub, monkeypatch):
    """For all models of a disk together; nothing is begun that cannot end."""
    hub.add("org/two", FILES)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 0, 2 * WHOLE - 1))
    entries = {"one": {"hf_id": "org/one"}, "two": {"hf_id": "org/two"}}
    found = go(entries)
    assert [one.state for one in found] == [prefetch.REFUSED] * 2
    assert "no room" in found[0].note
    assert "HF_HUB_CACHE" in found[0].note
    assert hub.downloads() == []
    assert not model_lock_path().exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 0, 2 * WHOLE))
    assert [one.state for one in go(entries)] == [prefetch.FETCHED] * 2


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_names_the_variable(go, hub, monkeypatch, variable):
    """The hub is not asked, and it is said what forbids it."""
    monkeypatch.setenv(variable, "1")
    (outcome,) = go()
    assert outcome.state == prefetch.REFUSED
    assert f"{variable}=1 forbids to ask the hub: unset it" in outcome.note
    assert hub.asked == []


def test_a_hub_that_does_not_answer_is_the_hosts(go, hub, monkeypatch):
    """Exit 4, with the variable that names the hub."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (outcome,) = go()
    assert outcome.state == prefetch.REFUSED
    assert "the hub cannot be used (Connect" in outcome.note
    assert "HF_ENDPOINT" in outcome.note


def test_models_in_folders_are_told(go, hub, tmp_path, monkeypatch):
    """One that is there, one that is not, and one that a PyPI package holds."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "config.json").write_text("{}")
    monkeypatch.setattr(prefetch, "FETCHABLE", {"small": ()})
    fetched = []
    monkeypatch.setattr(prefetch, "fetch", lambda tag, say: fetched.append(tag))
    found = go({"a": {"local": str(there)}, "b": {"local": "nowhere"}, "c": {"local": "small"}})
    assert [one.state for one in found] == [prefetch.HERE, prefetch.REFUSED, prefetch.FETCHED]
    assert str(models.models_dir() / "nowhere") in found[1].note
    assert fetched == ["small"]


def test_a_model_that_is_not_of_the_sweep_is_refused(go):
    """With those that are."""
    with pytest.raises(UsageError, match="--model: two: not of this sweep; allowed: one"):
        go(tags=("two",))


def test_the_command_prints_a_table_and_its_exit_code(hub, tmp_path, monkeypatch, capsys):
    """stdout is the table; JSON has everything; a hub id needs no entry."""
    path = sweep_file(tmp_path, one={"hf_id": "org/one"}, gone={"hf_id": "org/gone"})

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["kpad-bench", "models", "prefetch", "--config", str(path), *args])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code, capsys.readouterr().out

    code, out = run()
    assert code == 4
    lines = out.splitlines()
    assert lines[0].split() == ["model", "commit", "state", "size", "to", "fetch", "note"]
    assert lines[1].startswith("one    aaaaaaaaaaaa  fetched  0.0 MB")
    code, out = run("--format", "json", "--model", "org/one")
    assert code == 0
    assert [(one["model"], one["state"]) for one in json.loads(out)] == [("org/one", prefetch.HERE)]


def test_a_sweep_refuses_a_model_that_is_not_here(hub, tmp_path, monkeypatch):
    """Before anything boots (exit 4), with the command that fetches it."""
    monkeypatch.setattr(provenance, "installed_vllm", lambda: "0.32.0")
    resolved = load_sweep(sweep_file(tmp_path, **ONE))
    with pytest.raises(HostError, match=r"org/one at any commit.*models prefetch --model one"):
        expected_vllm(resolved, None)
    assert hub.asked == []


def test_the_hub_cache_is_the_servers(tmp_path):
    """By the variables that huggingface_hub reads, in its order."""
    assert hub_cache({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == Path("/a")
    assert hub_cache({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}) == Path("/b/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")
    assert hub_cache({}) == Path("~/.cache/huggingface/hub").expanduser()


def test_a_snapshot_that_others_fetched_is_judged_by_its_index(hub, tmp_path):
    """Every shard that the index names has to be there; without one, some weights."""
    entry = ModelEntry(hf_id="org/one", revision=COMMIT, family="f")
    folder = snapshot(tmp_path)
    folder.mkdir(parents=True)
    cache = tmp_path / "hub"
    assert find_snapshot(entry, cache).fault == "missing or cut: config.json, weights"
    for name in ("config.json", "m-1.safetensors"):
        (folder / name).write_bytes(FILES[name])
    assert find_snapshot(entry, cache).fault == ""
    (folder / "model.safetensors.index.json").write_bytes(INDEX)
    assert find_snapshot(entry, cache).fault == "missing or cut: m-2.safetensors"
    (folder / "m-2.safetensors").symlink_to(tmp_path / "blob-that-is-gone")
    assert find_snapshot(entry, cache).fault == "missing or cut: m-2.safetensors"
    (folder / "model.safetensors.index.json").write_text("[1]")
    assert find_snapshot(entry, cache).fault == "missing or cut: model.safetensors.index.json"
    assert known_sizes("org/one", COMMIT) == {}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("commits: {org/one@main: abc}", "must be 40 hex digits"),
        ("[1]", "expected the key 'commits'"),
        ("commits: [", "cannot be read"),
    ],
)
def test_a_lock_that_is_none_is_told(hub, text, what):
    """With its file and the way out (exit 2)."""
    model_lock_path().parent.mkdir(parents=True)
    model_lock_path().write_text(text)
    with pytest.raises(UsageError, match=rf"models\.lock\.yaml: .*{what}.*models prefetch"):
        pinned_models({})

"""Results behind a URL: a real S3 API on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import s3_server
import s3fs
from conftest import Lab
from trial_rows import write_run

from kpad_bench import arrow, claims, storage
from kpad_bench.arrow import run_table
from kpad_bench.claims import claim
from kpad_bench.errors import DataError, HostError, UsageError
from kpad_bench.locks import Owner
from kpad_bench.reduce import best_k, load_rows
from kpad_bench.schema import SCHEMA_VERSION, TRIALS
from kpad_bench.storage import place
from kpad_bench.store import RunFolder, find_runs

OK = {"status": "ok", "arm": "kpad", "k": 4, "output_tok_per_s": 100.0}


@pytest.fixture(scope="module")
def s3() -> Iterator[s3_server.S3]:
    with s3_server.running() as server:
        yield server


@pytest.fixture
def root(s3: s3_server.S3, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place in a bucket."""
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    return place(f"s3://{s3.bucket()}/results")


def keys(root: Path) -> list[str]:
    """Everything under a place, relative to it."""
    fs, top = storage._fs(root), storage._key(root)
    return sorted(key.removeprefix(f"{top}/") for key in fs.find(top))


def speeds(folder: RunFolder) -> dict[str, float]:
    """What counts in a run."""
    return {
        row["trial_id"]: row["output_tok_per_s"]
        for row in run_table(folder.path, "trials", TRIALS)[0].to_pylist()
    }


def swept(lab: Lab, out: Path, **options: bool) -> int:
    """The exit code of a sweep with its results there."""
    lab.out = out
    return lab.sweep(**options)


def test_a_url_is_a_place_and_anything_else_a_path(tmp_path):
    """Local paths stay paths, whatever they look like; a URL of an unknown kind is told."""
    assert place("results") == Path("results")
    assert place(tmp_path) == tmp_path
    assert not storage.is_remote(place("./s3:/x"))
    there = place("s3://bucket/some/where/")
    assert storage.is_remote(there)
    assert str(there) == "s3://bucket/some/where"
    with pytest.raises(UsageError, match="nope://x: Protocol not known: nope; give a folder, or a URL"):
        place("nope://x")


def test_a_run_is_written_resumed_and_compacted_behind_a_url(root):
    """Parts, requests and snapshots, a trial measured again, a broken part, one file at the end."""
    run = write_run(root / "lab" / "r1", ("m.c.kpad@4.x.r1", OK), ("m.c.kpad@8.x.r1", {**OK, "k": 8}))
    assert [one.run_id for one in find_runs(root / "lab")] == ["r1"]
    assert run.read_manifest() == {}
    with pytest.raises(ValueError, match="it is not measured twice"):
        run.write_trial({"trial_id": "m.c.kpad@4.x.r1", **OK}, [])
    run.supersede(["m.c.kpad@8.x.r1"])
    run.write_trial({"trial_id": "m.c.kpad@8.x.r1", **OK, "output_tok_per_s": 80.0}, [], {"after": b"raw"})
    storage.put(run.path / "trials" / "broken.parquet", b"PAR1 and no more")
    done, warnings = run.read_done()
    assert sorted(done) == ["m.c.kpad@4.x.r1", "m.c.kpad@8.x.r1"]
    assert len(warnings) == 1
    n_trials, _ = run.compact()
    assert n_trials == 2
    assert keys(run.path) == [
        "manifest.json", "raw/m.c.kpad@8.x.r1/after.gz", "requests.parquet",
        "set_aside/trials.broken.parquet", "superseded/m.c.kpad@8.x.r1.1/requests.parquet",
        "superseded/m.c.kpad@8.x.r1.1/trials.parquet", "trials.parquet",
    ]  # fmt: skip
    assert speeds(run) == {"m.c.kpad@4.x.r1": 100.0, "m.c.kpad@8.x.r1": 80.0}
    assert run.compact()[0] == 2


def test_runs_of_several_hosts_are_read_together(root):
    """Each host writes a run of its own; a sweep's folder is all of them."""
    for host, speed in (("r1", 100.0), ("r2", 110.0)):
        write_run(
            root / "lab" / host,
            *(
                (f"m.c.kpad@{k}.x", {**OK, "k": k, "output_tok_per_s": speed * k, "run_id": host})
                for k in (4, 8)
            ),
        )
    table = best_k(load_rows([root / "lab"]))
    assert table["best_k"].tolist() == [8]
    assert table["n_trials"].tolist() == [2]


def test_reduce_reads_the_trial_objects_and_little_more(s3, root):
    """No request rows, no snapshots; every part once; of a compacted run only the columns it needs."""
    run = RunFolder(root / "lab" / "r1")
    run.write_manifest({})
    many = [{"request_index": i, "prompt_id": f"p{i}", "status": "ok"} for i in range(200)]
    for number in range(60):
        run.write_trial(
            {"trial_id": f"m.c.kpad@4.x.r{number}", "model": "m", "corpus": "c", "round": number, **OK},
            many,
            {"after": b"x" * 10_000},
        )
    fs = storage._fs(root)
    size = sum(fs.size(key) for key in fs.find(f"{storage._key(run.path)}/trials"))
    s3.asked.clear()
    load_rows([root / "lab"])
    objects = [one for one in s3.asked if one.n_bytes and one.key.endswith(".parquet")]
    assert {one.key.split("/")[-2] for one in objects} == {"trials"}
    assert len(objects) == 60
    assert sum(one.n_bytes for one in s3.asked if one.method == "GET") <= 1.5 * size


def test_of_a_compacted_run_reduce_reads_the_columns_it_needs(s3, root):
    """Column pruning over the network: what is wide and not asked for stays where it is."""
    random = Random(1)
    rows = [
        {
            "schema_version": SCHEMA_VERSION, "trial_id": f"m.c.kpad@4.x.r{number}", "run_id": "r1",
            "model": "m", "corpus": "c", "round": number, **OK, "detail": random.randbytes(1000).hex(),
        }
        for number in range(400)
    ]  # fmt: skip
    path = root / "lab" / "r1" / "trials.parquet"
    storage.put(path, arrow.to_bytes(arrow.to_table(rows, TRIALS)))
    s3.asked.clear()
    assert len(load_rows([root / "lab"])) == 400
    assert sum(one.n_bytes for one in s3.asked) < 0.2 * path.stat().st_size


def test_one_writer_alone(root):
    """A second claimer is told who the first is, and gets it when that one is done."""
    path = root / "lab" / "r1" / ".lock"
    with claim(path, "the run r1") as held:
        with pytest.raises(HostError, match=r"the run r1 is in use by another kpad-bench, pid \d+ on .*"):
            claim(path, "the run r1").__enter__()
        before = held.tag
        held.beat()
        assert held.tag != before
        held.check()
    assert keys(root) == []
    with claim(path, "the run r1"):
        pass


def test_a_dead_claimer_is_noticed(root, monkeypatch):
    """On its own host by its process; on another by its silence, which the storage's clock measures."""
    path = root / ".lock"
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    dead_here = replace(Owner.me(), pid=gone.pid)
    storage.put(path, json.dumps(asdict(dead_here) | {"nonce": "1"}).encode())
    with claim(path, "it"):
        pass
    elsewhere = replace(Owner.me(), boot_id="another boot", host="another-host")
    storage.put(path, json.dumps(asdict(elsewhere) | {"nonce": "2"}).encode())
    with pytest.raises(HostError, match=r"on another-host since .*counts as dead"):
        claim(path, "it").__enter__()
    now = claims._now_at
    monkeypatch.setattr(claims, "_now_at", lambda path: now(path) + timedelta(seconds=claims.STALE_S + 1))
    with claim(path, "it") as held:
        assert json.loads(path.read_bytes())["host"] == Owner.me().host
        held.check()


def test_who_was_taken_over_writes_nothing_more(root):
    """A claimer that was silent for too long finds out at its next sign of life, and stops."""
    run = RunFolder(root / "r1")
    with run.lock():
        storage.put(run.path / ".lock", b"{}")
        assert run._claim is not None
        run._claim.beat()
        with pytest.raises(HostError, match="taken over by another kpad-bench"):
            run.write_trial({"trial_id": "t1", **OK}, [])
    assert keys(run.path) == [".lock"]


def test_of_many_claimers_one_wins(root):
    """All at once, on a free place and on a dead one's."""
    path = root / ".lock"
    for start in (None, b"not a record"):
        if start is not None:
            storage.put(path, start)
        barrier, won = threading.Barrier(6), []

        def race(barrier=barrier, won=won) -> None:
            barrier.wait()
            try:
                won.append(claims._take(path, "it"))
            except HostError:
                return

        threads = [threading.Thread(target=race) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == (1 if start is None else 0)
        storage.remove(path)


def test_what_a_storage_refuses_is_told_before_anything_boots(lab: Lab, root, monkeypatch):
    """No bucket, no credentials: exit 4 with the way out."""
    with pytest.raises(HostError, match=r"s3://no-such-bucket/x: .*check that the bucket exists"):
        swept(lab, place("s3://no-such-bucket/x"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(HostError, match="credentials"):
        swept(lab, place("s3://some-bucket/x"))
    assert lab.boots() == []


def test_a_part_that_cannot_be_read_is_named(root):
    """By its URL."""
    storage.put(root / "x.parquet", b"nothing")
    with pytest.raises(DataError, match=r"s3://.*/x.parquet: not a whole Parquet file"):
        arrow.read_table(root / "x.parquet", TRIALS)


def test_a_sweep_with_out_in_a_bucket(lab: Lab, root):
    """Sweep, resume, reduce, report and compare, as commands."""
    lab.set(arms=["van", "suf@8"])
    assert swept(lab, root) == 0
    (run,) = find_runs(root / "lab")
    assert not [key for key in keys(run.path) if key.startswith("trials/")]
    assert [key for key in keys(run.path) if key.startswith("logs/")]
    assert ".lock" not in keys(run.path)
    n_boots = len(lab.boots())
    assert swept(lab, root) == 0
    assert len(lab.boots()) == n_boots
    assert swept(lab, root, fresh=True) == 0
    (row,) = json.loads(command("reduce", str(root / "lab"), "--candidates", "suf", "--format", "json"))
    assert (row["best_k"], row["n_trials"]) == (8, 2)
    page = lab.path / "report.html"
    command("report", str(root / "lab"), "--out", str(page), "--candidates", "suf")
    assert "suf" in page.read_text()
    assert "tiny" in command("compare", *(str(one.path) for one in find_runs(root / "lab")))


def command(*arguments: str) -> str:
    """What the real command prints."""
    argv = [sys.executable, "-m", "kpad_bench.cli", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

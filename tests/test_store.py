"""One run on disk: parts are whole or absent, nothing is lost, nothing is counted twice."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import gzip
import os

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpad_bench import arrow, store
from kpad_bench.errors import DataError, HostError
from kpad_bench.schema import BEST_K, REQUESTS, TRIALS, names
from kpad_bench.store import RunFolder, find_runs

TRIAL = "m.humaneval.kpad@4.0a1b.r1.p1"
INT64 = st.integers(-(2**63), 2**63 - 1)
UTC_TIMES = st.datetimes(min_value=dt.datetime(1970, 1, 1), max_value=dt.datetime(2200, 1, 1))  # noqa: DTZ001 - the zone is added below
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = {
    "str": TEXT,
    "int": INT64,
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "time": UTC_TIMES.map(lambda time: time.replace(tzinfo=dt.UTC)),
    "strs": st.lists(TEXT, max_size=3),
    "ints": st.lists(INT64, max_size=3),
}


def row(trial_id=TRIAL, status="ok", **more):
    return {"trial_id": trial_id, "status": status, **more}


def requests(n=2):
    return [{"request_index": i, "prompt_id": f"p{i}", "status": "ok"} for i in range(n)]


def rows_of(folder, table="trials"):
    """Every row of a table of the run as it counts."""
    return arrow.run_table(folder.path, table, arrow.TABLES[table])[0].to_pylist()


def files(folder):
    return sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file())


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "2026-01-02T030405Z")


def rows_strategy(columns):
    fixed = {"schema_version", "run_id", "trial_id", "status"}
    optional = {c.name: st.none() | VALUES[c.kind] for c in columns if c.name not in fixed}
    return st.fixed_dictionaries({}, optional=optional)


@settings(max_examples=25, deadline=None)
@given(trial=rows_strategy(TRIALS), request=rows_strategy(REQUESTS))
def test_rows_come_back_as_they_were_written(tmp_path_factory, trial, request):
    """Nulls, Unicode, lists, times and every column of both tables survive the store."""
    run = RunFolder(tmp_path_factory.mktemp("run"))
    run.write_trial({**trial, **row()}, [request])
    ids = {"schema_version": 1, "run_id": run.run_id, "trial_id": TRIAL}
    assert rows_of(run) == [dict.fromkeys(names(TRIALS)) | trial | row() | ids]
    assert rows_of(run, "requests") == [dict.fromkeys(names(REQUESTS)) | request | ids]


@pytest.mark.parametrize("columns", [TRIALS, REQUESTS, BEST_K], ids=["trials", "requests", "best_k"])
def test_every_declared_column_has_an_arrow_type(columns):
    """The Arrow schema holds the declared columns in their order."""
    assert tuple(arrow.arrow_schema(columns).names) == names(columns)


def test_nan_and_infinity_are_stored_as_null(run):
    """A rate without a denominator is not measured, so it is null."""
    run.write_trial(row(acceptance_length=float("nan"), loop_share=float("inf")), [])
    assert [(r["acceptance_length"], r["loop_share"]) for r in rows_of(run)] == [(None, None)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tok_per_s": 1.0}, "unknown column tok_per_s"),
        ({"k": 3.5}, "column k: 3.5 is not int"),
        ({"k": True}, "column k: True is not int"),
        ({"model": 7}, "column model: 7 is not str"),
        ({"warnings": "one"}, "column warnings: 'one' is not a list of str"),
        ({"started_at": dt.datetime(2026, 1, 2)}, "column started_at"),  # noqa: DTZ001 - a naive time is the point
        ({"status": "done"}, "status 'done' is none of ok, failed, invalid"),
        ({"schema_version": 2}, "schema_version is 2, not 1"),
        ({"trial_id": "a/b"}, "trial_id 'a/b'"),
        ({"trial_id": ".hidden"}, "trial_id '.hidden'"),
        ({"trial_id": "é"}, "trial_id 'é'"),
        ({"trial_id": "x" * 201}, "cannot be part of a file name"),
        ({"trial_id": None}, "trial_id None"),
    ],
)
def test_rows_that_cannot_be_are_refused_before_anything_is_written(run, more, message):
    """A wrong column, value, status or id leaves no file behind."""
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        run.write_trial({**row(), **more}, [])
    assert not run.path.exists()


def test_requests_belong_to_the_trial_they_are_written_with(run):
    """A request row with another trial's id is refused."""
    with pytest.raises(ValueError, match="trial_id is 'other'"):
        run.write_trial(row(), [{"trial_id": "other"}])


def test_snapshots_are_kept_compressed_beside_the_row(run):
    """Raw bytes come back from raw/<trial_id>/<name>.gz; a name with a separator is refused."""
    run.write_trial(row(), [], {"metrics_before.txt": b"a 1\n"})
    assert gzip.decompress((run.path / "raw" / TRIAL / "metrics_before.txt.gz").read_bytes()) == b"a 1\n"
    with pytest.raises(ValueError, match="raw name 'a/b'"):
        run.write_trial(row("other"), [], {"a/b": b""})


def test_the_row_is_written_last(run, monkeypatch):
    """A crash before the trial's own part leaves a run in which that trial does not exist."""
    real = os.replace

    def crash(source, target):
        if target.parent.name == "trials":
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        run.write_trial(row(), requests(), {"a": b"1"})
    monkeypatch.undo()
    assert files(run) == [f"raw/{TRIAL}/a.gz", f"requests/{TRIAL}.parquet"]
    assert run.read_done() == ({}, [])
    run.write_trial(row(), requests(3), {"a": b"2"})
    assert len(rows_of(run, "requests")) == 3
    assert f"superseded/{TRIAL}.1/requests.parquet" in files(run)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_the_way_out_and_leaves_no_half_file(run, monkeypatch, code):
    """No space left is the host's fault: finished trials stay, the message says how to go on."""
    run.write_trial(row("first"), [])
    before = files(run)

    def full(_):
        raise OSError(code, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HostError, match=r"no space left on the disk.*run the same command again"):
        run.write_trial(row("second"), [])
    assert files(run) == before


def test_other_errors_of_the_disk_stay_what_they_are(run, monkeypatch):
    """An input/output error is not turned into advice about space."""

    def broken(_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken"):
        run.write_trial(row(), [])


def test_an_ok_trial_is_not_measured_twice(run):
    """A second write of an ok trial is refused, unless replacing was asked for; then the old one is kept."""
    run.write_trial(row(output_tok_per_s=1.0), requests(1), {"a": b"old"})
    with pytest.raises(ValueError, match="not measured twice"):
        run.write_trial(row(output_tok_per_s=2.0), [])
    run.write_trial(row(output_tok_per_s=2.0), requests(2), {"a": b"new"}, replace_ok=True)
    assert [r["output_tok_per_s"] for r in rows_of(run)] == [2.0]
    old = run.path / "superseded" / f"{TRIAL}.1"
    assert pq.read_table(old / "trials.parquet")["output_tok_per_s"].to_pylist() == [1.0]
    assert pq.read_table(old / "requests.parquet").num_rows == 1
    assert gzip.decompress((old / "raw" / "a.gz").read_bytes()) == b"old"


def test_failed_attempts_are_kept_but_not_counted(run):
    """Each attempt at a failed trial moves aside; the run holds the newest one only."""
    for number in range(3):
        run.write_trial(row(status="failed", reason=f"try {number}"), [])
    run.write_trial(row(), requests())
    assert [r["status"] for r in rows_of(run)] == ["ok"]
    kept = sorted((run.path / "superseded").glob("*/trials.parquet"))
    assert [pq.read_table(path)["reason"].to_pylist() for path in kept] == [
        ["try 0"],
        ["try 1"],
        ["try 2"],
    ]


def test_done_trials_come_with_status_and_provenance(run):
    """read_done gives ids, outcome, what must match, and the two figures that a decision rests on."""
    run.write_trial(row(vllm_version="0.32.0", output_tok_per_s=5.0, request_per_s=1.0), [])
    run.write_trial(row("b", status="failed", reason="boot_timeout"), [])
    done, warnings = run.read_done()
    assert set(done) == {TRIAL, "b"}
    assert done[TRIAL]["vllm_version"] == "0.32.0"
    assert done["b"]["reason"] == "boot_timeout"
    assert (done[TRIAL]["output_tok_per_s"], done[TRIAL]["full_share_decode"]) == (5.0, None)
    assert "request_per_s" not in done[TRIAL]
    assert warnings == []


def test_a_run_that_does_not_exist_yet_has_nothing_done(run):
    """Reading before the first write finds no trial and makes no folder."""
    assert run.read_done() == ({}, [])
    assert not run.path.exists()


def break_by_cutting(path):
    path.write_bytes(path.read_bytes()[:-40])


def break_by_emptying(path):
    path.write_bytes(b"")


def break_by_other_table(path):
    pq.write_table(arrow.pa.table({"x": [1]}), path)


def break_by_other_name(path):
    pq.write_table(arrow.to_table([{"schema_version": 1, "trial_id": "z", "status": "ok"}], TRIALS), path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (break_by_cutting, "not a whole Parquet file"),
        (break_by_emptying, "not a whole Parquet file"),
        (break_by_other_table, "not one of this tool's tables"),
        (break_by_other_name, "holds trial z, not the one it is named for"),
    ],
)
def test_a_part_that_is_not_ours_is_set_aside_never_deleted(run, spoil, why):
    """A truncated or foreign part moves to set_aside/ with a message, and its trial is measured again."""
    run.write_trial(row(), requests())
    run.write_trial(row("b"), [])
    part = run.path / "trials" / f"{TRIAL}.parquet"
    spoil(part)
    spoilt = part.read_bytes()
    done, warnings = run.read_done()
    assert set(done) == {"b"}
    aside = run.path / "set_aside" / f"trials.{TRIAL}.parquet"
    assert aside.read_bytes() == spoilt
    assert len(warnings) == 1
    assert why in warnings[0]
    run.write_trial(row(), requests())
    assert set(run.read_done()[0]) == {TRIAL, "b"}


def test_half_written_files_are_not_read(run):
    """The temporary file of a killed process is not taken for a part."""
    run.write_trial(row(), [])
    (run.path / "trials" / ".b.parquet.tmp").write_bytes(b"PAR1")
    (run.path / "trials" / ".b.parquet").write_bytes(b"PAR1")
    done, warnings = run.read_done()
    assert set(done) == {TRIAL}
    assert warnings == []


def test_rows_of_another_schema_version_are_not_read_as_ours(run, monkeypatch):
    """A part of a later version is named with its version."""
    run.write_trial(row(), [])
    monkeypatch.setattr(arrow, "SCHEMA_VERSION", 2)
    with pytest.raises(DataError, match="schema version 1; this kpad-bench reads 2 only"):
        arrow.read_table(run.path / "trials" / f"{TRIAL}.parquet", TRIALS)


def fill(run):
    run.write_trial(row("a", output_tok_per_s=1.0), requests(2))
    run.write_trial(row("b", status="failed", reason="oom"), [])
    run.write_trial(row("c", output_tok_per_s=3.0), requests(3))


def test_compaction_changes_no_row(run):
    """The compacted run reads exactly as before, and its parts are gone."""
    fill(run)
    before = rows_of(run), rows_of(run, "requests")
    assert run.compact() == (3, [])
    assert (rows_of(run), rows_of(run, "requests")) == before
    assert files(run) == ["requests.parquet", "trials.parquet"]
    assert run.compact() == (3, [])
    assert set(run.read_done()[0]) == {"a", "b", "c"}


@pytest.mark.parametrize("n_unlinks", [0, 1, 2, 3, 4, 5])
def test_an_interrupted_compaction_counts_nothing_twice(run, monkeypatch, n_unlinks):
    """Whichever parts were already removed when the process died, every trial counts once."""
    fill(run)
    before = rows_of(run), rows_of(run, "requests")
    real, calls = type(run.path).unlink, iter(range(100))

    def dying(path, *args, **kwargs):
        if next(calls) >= n_unlinks:
            raise KeyboardInterrupt
        real(path, *args, **kwargs)

    monkeypatch.setattr(type(run.path), "unlink", dying)
    with pytest.raises(KeyboardInterrupt):
        run.compact()
    monkeypatch.undo()
    again = rows_of(run), rows_of(run, "requests")
    assert [sorted(map(str, rows)) for rows in again] == [sorted(map(str, rows)) for rows in before]
    assert run.compact() == (3, [])
    assert len(rows_of(run, "requests")) == 5
    assert not (run.path / "superseded").exists()


def test_a_compacted_run_can_be_resumed(run):
    """A failed trial is measured again after compaction; an ok one is refused; the old row is kept."""
    fill(run)
    run.compact()
    with pytest.raises(ValueError, match="not measured twice"):
        run.write_trial(row("a"), [])
    run.write_trial(row("b", output_tok_per_s=2.0), requests(1))
    assert {t: r["status"] for t, r in run.read_done()[0].items()} == {"a": "ok", "b": "ok", "c": "ok"}
    assert len(rows_of(run)) == 3
    assert run.compact() == (3, [])
    assert len(rows_of(run, "requests")) == 6
    old = run.path / "superseded" / "b.1" / "trials.parquet"
    assert pq.read_table(old)["reason"].to_pylist() == ["oom"]


@pytest.mark.parametrize("is_compacted", [False, True], ids=["parts", "compacted"])
def test_trials_are_taken_out_of_a_run(run, is_compacted):
    """Their rows and requests move to superseded/, whole; the others stay; taking them out twice is once."""
    fill(run)
    before = {r["trial_id"]: r for r in rows_of(run)}
    if is_compacted:
        run.compact()
    for _ in range(2):
        run.supersede(["a", "c"])
        assert rows_of(run) == [before["b"]]
        assert {r["trial_id"] for r in rows_of(run, "requests")} <= {"b"}
    kept = sorted((run.path / "superseded").glob("*/trials.parquet"))
    assert [row for path in kept for row in pq.read_table(path).to_pylist()] == [before["a"], before["c"]]
    run.write_trial(row("a"), requests(1))
    assert run.compact()[0] == 2


def test_a_trial_with_an_old_row_in_the_compacted_file_is_taken_out_whole(run):
    """Neither its new part nor the row that the part replaced counts."""
    fill(run)
    run.compact()
    run.write_trial(row("b", output_tok_per_s=2.0), [])
    run.supersede(["b"])
    assert sorted(r["trial_id"] for r in rows_of(run)) == ["a", "c"]
    assert len(list((run.path / "superseded").glob("b.*/trials.parquet"))) == 2


@pytest.mark.parametrize("n_writes", range(5))
def test_taking_out_that_is_interrupted_loses_nothing(run, monkeypatch, n_writes):
    """After any write of it the row is in the run or in superseded/, and never in the run twice."""
    fill(run)
    run.compact()
    write, left = store.write_whole, iter([True] * n_writes)

    def broken(*args, **more):
        if not next(left, False):
            raise KeyboardInterrupt
        write(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_whole", broken)
        with contextlib.suppress(KeyboardInterrupt):
            run.supersede(["a"])
    ids = [r["trial_id"] for r in rows_of(run)]
    assert len(ids) == len(set(ids))
    kept = list((run.path / "superseded").glob("a.*/trials.parquet"))
    assert "a" in ids or kept
    run.supersede(["a"])
    assert sorted(r["trial_id"] for r in rows_of(run)) == ["b", "c"]
    assert {r["trial_id"] for r in rows_of(run, "requests")} <= {"b", "c"}


def test_reasons_of_earlier_attempts_are_known(run):
    """By trial; an attempt that was ok has none, and a broken file tells nothing."""
    assert run.read_superseded() == {}
    for reason in ("stalled", "oom", "stalled"):
        run.write_trial(row("a", status="failed", reason=reason), [])
    run.write_trial(row("b"), [])
    run.supersede(["a", "b"])
    (run.path / "superseded" / "c.1").mkdir()
    (run.path / "superseded" / "c.1" / "trials.parquet").write_bytes(b"PAR1")
    assert run.read_superseded() == {"a": {"stalled", "oom"}}


def test_compaction_sets_broken_parts_aside_first(run):
    """A truncated part does not get into the compacted file and is not removed."""
    fill(run)
    break_by_cutting(run.path / "trials" / "c.parquet")
    n_trials, warnings = run.compact()
    assert n_trials == 2
    assert (run.path / "set_aside" / "trials.c.parquet").exists()
    assert "set_aside" in warnings[0]


def test_compaction_that_cannot_be_read_back_keeps_the_parts(run, monkeypatch):
    """Parts go only when the new file holds the same rows."""
    fill(run)
    before = files(run)
    empty = arrow.to_bytes(arrow.to_table([], REQUESTS))
    monkeypatch.setattr(store.arrow, "to_bytes", lambda _: empty)
    with pytest.raises(DataError, match="the parts stay"):
        run.compact()
    assert files(run) == before


def test_a_folder_whose_name_is_not_utf8_is_as_good(tmp_path):
    """A file name is bytes: rows are written, read back, compacted and read again."""
    run = RunFolder.create(tmp_path / os.fsdecode(b"r\xe9sultats") / "r1")
    fill(run)
    done = run.read_done()
    assert done[0]
    run.compact()
    assert run.read_done() == done


def test_arrow_gets_no_file_object(run, monkeypatch):
    """It would let go of one in a thread of its own, and a process that ends meanwhile aborts."""
    fill(run)
    opened, original = [], arrow.pq.ParquetFile
    monkeypatch.setattr(
        arrow.pq, "ParquetFile", lambda source, **how: opened.append(source) or original(source, **how)
    )
    run.read_done()
    assert opened
    assert {type(source) for source in opened} == {str}


def test_a_broken_compacted_file_stops_the_reader(run):
    """Rows that were there are not silently measured again."""
    fill(run)
    run.compact()
    break_by_cutting(run.path / "trials.parquet")
    with pytest.raises(DataError, match=r"trials\.parquet: not a whole Parquet file"):
        run.read_done()


def test_manifest_comes_back(run):
    """The manifest is JSON and holds what was written."""
    run.write_manifest({"sweep": "s", "plan": {"n": 3}, "name": "é"})
    assert run.read_manifest() == {"sweep": "s", "plan": {"n": 3}, "name": "é"}


@pytest.mark.parametrize(
    ("text", "message"), [(None, "missing"), ("{", "not JSON"), ("[]", "not a JSON object")]
)
def test_a_manifest_that_is_none_is_named(run, text, message):
    """A missing or broken manifest is an error with its path."""
    run.path.mkdir()
    if text is not None:
        (run.path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=message):
        run.read_manifest()


def test_runs_are_found_in_order(tmp_path):
    """Folders that hold a run are listed by run_id, the newest last; others and files are not."""
    for name in ("2026-01-02", "2026-01-10", "2025-12-31"):
        RunFolder(tmp_path / name).write_manifest({})
    (tmp_path / "notes").mkdir()
    (tmp_path / "x.txt").write_text("")
    assert [run.run_id for run in find_runs(tmp_path)] == ["2025-12-31", "2026-01-02", "2026-01-10"]
    assert find_runs(tmp_path / "absent") == []


def test_a_new_run_never_takes_over_a_folder(tmp_path):
    """Creating a run makes its folder; a second one of that name is refused."""
    assert RunFolder.create(tmp_path / "s" / "a").path.is_dir()
    with pytest.raises(HostError, match="there already"):
        RunFolder.create(tmp_path / "s" / "a")


def test_two_writers_are_kept_apart(run):
    """While one holds the run, another is told so; afterwards the run is free."""
    with run.lock(), pytest.raises(HostError, match="another kpad-bench"), RunFolder(run.path).lock():
        pass
    with run.lock():
        pass


def test_server_logs_lie_in_the_run(run):
    """The log of a boot is logs/<boot_id>.log and its folder exists."""
    path = run.log_path("m.kpad@4.b1")
    assert path == run.path / "logs" / "m.kpad@4.b1.log"
    assert path.parent.is_dir()

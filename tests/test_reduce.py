"""Trial rows to a best-K table: definitions, refusals, footnotes, formats."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_rows import csv_file, frame, ok, only_row, write_run

from kpad_bench import arrow
from kpad_bench.errors import DataError, UsageError
from kpad_bench.reduce import best_k, footnotes, load_rows, render
from kpad_bench.schema import BEST_K, REQUESTS, TRIALS, names

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


# Renderings


@pytest.mark.parametrize(
    ("output_format", "name"),
    [("table", "small.table.txt"), ("md", "small.md"), ("csv", "small.best_k.csv"), ("json", "small.json")],
)
def test_renderings_are_as_they_were(output_format, name):
    """Each format of the small example equals its golden file; a missing one fails."""
    text = render(best_k(load_rows(GOLDEN / "small.csv")), output_format)
    if os.environ.get("KPAD_WRITE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_the_table_fits_a_hundred_columns():
    """Every line of the table and its footnotes has at most 100 characters."""
    for rows in (GOLDEN / "published_ksweep.csv", GOLDEN / "small.csv"):
        assert max(map(len, render(best_k(load_rows(rows))).splitlines())) <= 100


def test_json_is_a_list_of_best_k_rows():
    """Every column is there, null stays null, established is a boolean, lists are lists."""
    rows = json.loads(render(best_k(load_rows(GOLDEN / "small.csv")), "json"))
    assert all(tuple(row) == names(BEST_K) for row in rows)
    assert {type(row["established"]) for row in rows} == {bool}
    assert [row["tie_set"] for row in rows] == [[6, 8], [4], [8], [], [8]]
    assert [row["established"] for row in rows] == [False, False, True, False, False]
    assert rows[3]["best_k"] is None


def test_parquet_holds_the_declared_columns(tmp_path):
    """The Parquet form has the schema of the best-K table and reads back."""
    table = best_k(load_rows(GOLDEN / "small.csv"))
    (tmp_path / "best.parquet").write_bytes(render(table, "parquet"))
    read = pq.read_table(tmp_path / "best.parquet")
    assert read.schema.equals(arrow.arrow_schema(BEST_K))
    assert read["best_k"].to_pylist() == [6, 4, 8, None, 8]


def test_text_that_steers_a_terminal_is_defused():
    """A model name with an escape sequence cannot colour the table or break its lines."""
    text = render(best_k(frame(("kpad", 4, 1.0), model="m\x1b[31m\nx")))
    assert "\x1b" not in text
    assert "m [31m x" in text


def test_an_unknown_format_names_the_known_ones():
    """Another format is a usage error."""
    with pytest.raises(UsageError, match="table, md, csv, json, parquet"):
        render(best_k(frame(("kpad", 4, 1.0))), "xml")


def test_columns_are_exactly_the_declared_ones():
    """Names and order are those of the schema."""
    assert tuple(best_k(frame(("kpad", 4, 1.0))).columns) == names(BEST_K)


# Which K, and against what


def test_gains_are_against_the_published_baselines_and_the_best_one():
    """vs_suf means suf at K=32, vs_van no speculation, vs_best_baseline the best of all present."""
    row, _ = only_row(frame(("van", None, 100.0), ("suf", 32, 160.0), ("suf", 12, 180.0), ("kpad", 4, 200.0)))
    assert (row["van_tok_per_s"], row["suf_tok_per_s"]) == (100, 160)
    gains = [row["vs_van_pct"], row["vs_suf_pct"], row["vs_best_baseline_pct"]]
    assert gains == pytest.approx([100, 25, 100 / 9])


def test_suf_at_another_k_is_a_baseline_but_not_the_published_one():
    """Without K=32 vs_suf is null, while the best baseline counts what is there."""
    row, _ = only_row(frame(("suf", 8, 160.0), ("kpad", 4, 200.0)))
    assert pd.isna(row["vs_suf_pct"])
    assert pd.isna(row["vs_van_pct"])
    assert row["vs_best_baseline_pct"] == pytest.approx(25)


def test_a_k_without_an_ok_trial_is_left_out_with_its_reason():
    """A failed K is named with why; it is neither zero nor best."""
    row, text = only_row(
        frame(("kpad", 4, 1.0), ("kpad", 8, 9.0, {"status": "failed", "reason": "oom"}), status="ok")
    )
    assert (row["best_k"], row["not_eligible"]) == (4, ["8: oom"])
    assert "K=8 left out: oom" in text


def test_a_cell_in_which_nothing_worked_keeps_its_row():
    """No eligible K: a row with null best K and the reasons."""
    row, _ = only_row(
        frame(("kpad", 4, None), ("van", None, 5.0, {"status": "ok"}), status="failed", reason="boot_timeout")
    )
    assert pd.isna(row["best_k"])
    assert pd.isna(row["pick_k"])
    assert (row["not_eligible"], row["tie_set"], row["van_tok_per_s"]) == (["4: boot_timeout"], [], 5)


@pytest.mark.parametrize(
    ("share", "reason", "is_eligible", "word"),
    [
        (0.9, None, True, None),
        (0.8999, None, False, "full_share 0.89 < 0.9"),
        (0.42, None, False, "full_share 0.42 < 0.9"),
        (0.0, None, False, "full_share 0.00 < 0.9"),
        (None, "no_graphs", True, None),  # the CPU has none, so there is nothing to doubt
        (None, "not_counted", False, "full_share unknown (not_counted)"),
        (None, None, True, None),  # rows that say nothing of graphs, like a CSV's
    ],
)
def test_a_padded_k_must_have_run_in_full_graphs(share, reason, is_eligible, word):
    """A FULL share that is low, or unknown where there are graphs, leaves a K out with the reason."""
    more = {"full_share_decode": share, "full_share_reason": reason}
    row, text = only_row(frame(("kpad", 4, 1.0, {"full_share_decode": 1.0}), ("kpad", 8, 9.0, more)))
    assert (row["best_k"] == 8) == is_eligible
    assert word is None or word in text
    assert row["not_eligible"] == ([] if is_eligible else [f"8: {word}"])
    assert word is not None or "left out" not in text


def test_baselines_need_no_full_graphs():
    """Unpadded suffix never replays FULL graphs, and is a baseline all the same."""
    row, _ = only_row(
        frame(("suf", 32, 10.0), ("kpad", 4, 20.0, {"full_share_decode": 1.0}), full_share_decode=0.0)
    )
    assert row["vs_suf_pct"] == pytest.approx(100)


def test_rounds_are_averaged_after_the_repeats_inside_each():
    """A boot with three repeats weighs as much as one with a single pass."""
    rows = frame(
        ("kpad", 4, 10.0, {"round": 1, "repeat": 1}),
        ("kpad", 4, 20.0, {"round": 1, "repeat": 2}),
        ("kpad", 4, 30.0, {"round": 1, "repeat": 3}),
        ("kpad", 4, 40.0, {"round": 2}),
    )
    row, _ = only_row(rows)
    assert (row["output_tok_per_s"], row["n_trials"]) == (30, 4)


def test_unequal_numbers_of_trials_are_a_footnote():
    """Means over different rounds are compared, said to be, and establish nothing."""
    row, text = only_row(frame(("kpad", 4, 1.0), ("kpad", 4, 1.0, {"round": 2}), ("kpad", 8, 2.0), round=1))
    assert "not every K was measured in every round (2 of K=4, 1 of K=8)" in text
    assert (row["tie_basis"], row["established"], row["n_rounds"]) == ("assumed", False, 1)


def test_warnings_of_a_trial_become_footnotes_of_its_row():
    """A doubt travels with the number, is printed once and marks the rows it is about."""
    warned = {"warnings": ["tail_share 0.6"]}
    rows = pd.concat([frame(("kpad", 4, 1.0, warned), corpus=c) for c in "ab"] + [frame(("kpad", 4, 1.0))])
    table = best_k(rows)
    assert [text for text in footnotes(table) if "tail_share" in text] == ["2. kpad@4: tail_share 0.6"]
    marks = [line.split()[-1] for line in render(table).splitlines()[2:5]]
    assert marks == ["2", "2", "1"]


def test_candidates_choose_the_families():
    """One row per family that is asked for; a family nobody measured is a usage error naming the others."""
    rows = frame(("kpad", 4, 1.0), ("kfill", 8, 2.0), ("van", None, 1.0))
    assert list(best_k(rows, candidates=("kpad", "kfill"))["arm"]) == ["kfill", "kpad"]
    assert list(best_k(rows)["arm"]) == ["kpad"]
    with pytest.raises(UsageError, match="no trials of arm ghost; there are: kfill, kpad, van"):
        best_k(rows, candidates=("ghost",))


SPEED = st.floats(1, 1e5)
TRIAL = st.tuples(
    st.sampled_from(["m1", "m2"]),
    st.sampled_from(["c1", "c2"]),
    st.sampled_from(["kpad", "kpad", "suf", "van"]),
    st.sampled_from([4, 6, 8, 12, 32]),
    st.integers(1, 2),
    st.one_of(SPEED, st.none()),
)


def trials(tuples):
    keys = ["model", "corpus", "arm", "k", "round", "output_tok_per_s"]
    rows = [dict(zip(keys, t, strict=True)) for t in tuples] + [
        {"model": "m1", "corpus": "c1", "arm": "kpad", "k": 4, "round": 1, "output_tok_per_s": 50.0}
    ]
    for row in rows:
        failed = row["output_tok_per_s"] is None
        row |= {"status": "failed" if failed else "ok", "reason": "oom" if failed else None}
    return pd.DataFrame(rows)


@settings(max_examples=25, deadline=None)
@given(st.lists(TRIAL, max_size=25), st.randoms(use_true_random=False))
def test_order_of_rows_and_columns_is_irrelevant(tuples, random):
    """Shuffled rows and columns give the same table and the same footnotes, to the last bit."""
    rows = trials(tuples)
    shuffled = rows.sample(frac=1, random_state=random.randrange(2**32))
    shuffled = shuffled[random.sample(list(shuffled.columns), len(shuffled.columns))]
    assert render(best_k(shuffled), "json") == render(best_k(rows), "json")
    assert footnotes(best_k(shuffled)) == footnotes(best_k(rows))


@settings(max_examples=25, deadline=None)
@given(st.lists(TRIAL, max_size=25), TRIAL, st.sampled_from(["failed", "invalid"]))
def test_a_failed_trial_never_changes_a_number(tuples, extra, status):
    """Adding a trial that is not ok, whatever throughput it claims, leaves every figure as it was."""
    rows = trials(tuples)
    bad = trials([extra]).head(1).assign(status=status, reason="stalled", output_tok_per_s=1e9)
    before, after = (json.loads(render(best_k(r), "json")) for r in (rows, pd.concat([rows, bad])))
    kept = {(row["model"], row["corpus"]): row for row in after}
    for row in before:
        assert {**kept[row["model"], row["corpus"]], "not_eligible": None} == {**row, "not_eligible": None}


# What may be pooled


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("vllm_version", "0.25.1", "0.32.0"),
        ("driver", "570", "580"),
        ("driver", None, "580"),
        ("gpu_name", "A", "B"),
        ("cpu_model", "A", "B"),
        ("clock_policy", "free", "locked"),
        ("corpus_digest", "aa", "bb"),
        ("concurrency", 8, 32),
        ("max_tokens", 128, 256),
        ("n_prompts", 8, 16),
        ("temperature", 0.0, 0.7),
        ("isolation", "boot", "reset"),
    ],
)
def test_trials_that_are_not_alike_are_not_pooled(column, one, other):
    """A difference that can change the number is refused by name, with both values, unless allowed."""
    rows = frame(("kpad", 4, 1.0, {column: one}), ("kpad", 8, 2.0, {column: other}))
    with pytest.raises(UsageError, match=rf"m c: .*{column} is .*--allow-mixed {column}") as caught:
        best_k(rows)
    assert str(other) in str(caught.value)
    row, _ = only_row(rows, allow_mixed={column})
    assert row["best_k"] == 8


def test_every_difference_is_named_at_once():
    """Two differing columns are both in the message."""
    rows = frame(
        ("kpad", 4, 1.0, {"driver": "1", "concurrency": 8}),
        ("van", None, 2.0, {"driver": "2", "concurrency": 9}),
    )
    with pytest.raises(UsageError, match="--allow-mixed driver,concurrency"):
        best_k(rows)
    with pytest.raises(UsageError, match="--allow-mixed concurrency"):
        best_k(rows, allow_mixed={"driver"})


def test_another_cell_id_or_cache_state_is_not_the_same_k():
    """Passes with other server flags or another cache state are no further trials of one K."""
    for column in ("cell_id", "cache_state"):
        rows = frame(("kpad", 4, 1.0, {column: "x"}), ("kpad", 4, 2.0, {column: "y", "round": 2}), round=1)
        with pytest.raises(UsageError, match=rf"m c kpad 4: .*{column}"):
            best_k(rows)
        best_k(rows, allow_mixed={column})


def test_other_corpora_and_failed_trials_may_differ():
    """What must agree must agree inside a (model, corpus), among trials that count."""
    rows = pd.concat(
        [
            frame(("kpad", 4, 1.0), max_tokens=128, vllm_version="0.32.0", status="ok"),
            frame(("kpad", 8, None), max_tokens=128, vllm_version=None, status="failed"),
            frame(("kpad", 4, 1.0), max_tokens=256, corpus="d", vllm_version="0.25.1", status="ok"),
        ]
    )
    assert len(best_k(rows)) == 2


def test_only_known_columns_can_be_allowed_to_differ():
    """A misspelt allowance is not silently without effect."""
    with pytest.raises(UsageError, match="drivr: choose from vllm_version"):
        best_k(frame(("kpad", 4, 1.0)), allow_mixed={"drivr"})


def test_a_baseline_from_another_run_is_a_footnote():
    """Drift between runs is part of such a gain, and the table says so."""
    rows = frame(("kpad", 4, 2.0, {"run_id": "a"}), ("van", None, 1.0, {"run_id": "b"}))
    _, text = only_row(rows)
    assert "van was measured in another run than kpad" in text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("kpad", 4, -1.0), "output_tok_per_s -1.0"),
        (("kpad", 4, 0.0), "output_tok_per_s 0.0"),
        (("kpad", None, 1.0), "k null"),
        (("kpad", 0, 1.0), "k 0"),
        (("kpad", 2.5, 1.0), "column k"),
        (("kpad", 4, 1.0, {"status": "done"}), "status done"),
        (("kpad", 4, 1.0, {"model": None}), "model null"),
    ],
)
def test_rows_that_cannot_be_are_refused(row, message):
    """Zero, negative and other impossible values never get into a table."""
    with pytest.raises(DataError, match=message):
        best_k(frame(row))


def test_other_arms_without_speculation_need_no_k():
    """A second baseline without K stands in the rows and is not part of the table."""
    rows = frame(("kpad", 4, 2.0), ("van", None, 1.0), ("van-v1", None, 1.5))
    row, _ = only_row(rows)
    assert (row["best_k"], row["vs_van_pct"]) == (4, pytest.approx(100.0))


def test_a_baseline_on_another_runner_is_a_footnote():
    """vLLM's V2 runner with async scheduling is another engine: the gain over it says so."""
    rows = frame(("kpad", 4, 2.0, {"runner": "v1"}), ("van", None, 1.0, {"runner": "v2"}))
    assert "van ran on vLLM's V2 runner, kpad@4 on V1" in only_row(rows)[1]
    same = frame(("kpad", 4, 2.0, {"runner": "v1"}), ("van", None, 1.0, {"runner": "v1"}))
    assert "runner" not in only_row(same)[1]


def test_inflated_draft_counters_change_nothing():
    """Padding raises drafts and draft tokens at equal acceptance: no table ranks by them."""
    few = {"n_drafts": 124, "draft_tokens": 266, "accepted_tokens": 90, "acceptance_length": 1.7}
    many = {"n_drafts": 176, "draft_tokens": 704, "accepted_tokens": 90, "acceptance_length": 1.7}
    other = ("kpad", 8, 1.0, {**few, "acceptance_length": 9.0})
    tables = [best_k(frame(("kpad", 4, 2.0, counters), other)) for counters in (few, many)]
    assert render(tables[0], "csv") == render(tables[1], "csv")
    assert only_row(frame(("kpad", 4, 2.0, many), other))[0]["best_k"] == 4


def test_rows_need_the_four_columns():
    """A DataFrame without throughput is a usage error."""
    with pytest.raises(UsageError, match="output_tok_per_s"):
        best_k(pd.DataFrame({"model": ["m"], "corpus": ["c"], "k": [4]}))


# Reading


def test_a_run_and_a_sweep_of_runs_are_read(tmp_path):
    """A run folder gives its trials; a sweep folder those of all its runs, which it names."""
    write_run(tmp_path / "s" / "r1", ("a", ok(4, 10.0)), ("b", ok(8, 20.0)), ("v", ok(None, 5.0, "van")))
    write_run(tmp_path / "s" / "r2", ("a", ok(4, 14.0)), ("b", ok(8, 22.0)))
    row, _ = only_row(load_rows(tmp_path / "s" / "r1"))
    assert (row["best_k"], row["n_trials"], row["output_tok_per_s"], row["vs_van_pct"]) == (8, 1, 20, 300)
    row, text = only_row(load_rows(tmp_path / "s"))
    assert (row["n_trials"], row["output_tok_per_s"]) == (2, 21)
    assert "2 runs read: r1, r2" in text


def test_paths_that_are_not_utf8_are_read(tmp_path):
    """Runs and CSV files below a folder that was named in another encoding."""
    folder = tmp_path / os.fsdecode(b"r\xe9sultats")
    run = write_run(folder / "r1", ("a", ok(4, 10.0)), ("b", ok(8, 20.0)))
    run.compact()
    assert only_row(load_rows(run.path))[0]["best_k"] == 8
    (folder / "rows.csv").write_text("model,corpus,k,output_tok_per_s\nm,c,4,10\n", encoding="utf-8")
    assert only_row(load_rows(folder / "rows.csv"))[0]["best_k"] == 4


def test_a_compacted_run_gives_the_same_table(tmp_path):
    """Parts, the compacted file, and both at once reduce alike."""
    run = write_run(tmp_path / "r", ("a", ok(4, 10.0)), ("b", ok(8, 20.0)))
    before = render(best_k(load_rows(run.path)), "json")
    part = (run.path / "trials" / "a.parquet").read_bytes()
    run.compact()
    assert render(best_k(load_rows(run.path)), "json") == before
    (run.path / "trials" / "a.parquet").write_bytes(part)
    assert render(best_k(load_rows(run.path)), "json") == before
    assert render(best_k(load_rows(run.path / "trials.parquet")), "json") == before


def test_a_trial_measured_again_after_compaction_counts_as_it_is_now(tmp_path):
    """Its part is newer than its row in the compacted file."""
    run = write_run(tmp_path / "r", ("a", ok(4, 10.0)), ("b", ok(8, 9.0)))
    run.compact()
    run.write_trial(
        {"trial_id": "b", "model": "m", "corpus": "c", "round": 1, **ok(8, 20.0)}, [], replace_ok=True
    )
    row, text = only_row(load_rows(run.path))
    assert (row["best_k"], row["output_tok_per_s"], row["n_trials"]) == (8, 20, 1)
    assert "twice" not in text


def test_the_same_trial_read_twice_counts_once(tmp_path):
    """A run named twice, or beside its sweep, is counted once with a footnote."""
    write_run(tmp_path / "s" / "r", ("a", ok(4, 10.0, warnings=["w"])))
    rows = load_rows([tmp_path / "s", tmp_path / "s" / "r"])
    row, text = only_row(rows)
    assert row["n_trials"] == 1
    assert "1 rows read twice, counted once" in text


def test_a_trial_told_differently_by_two_files_is_refused(tmp_path):
    """Conflicting rows of one trial are an error naming both places and the difference."""
    write_run(tmp_path / "x" / "r", ("a", ok(4, 10.0)))
    write_run(tmp_path / "y" / "r", ("a", ok(4, 11.0)))
    with pytest.raises(
        DataError, match=r"x/r and .*y/r both hold trial a, with output_tok_per_s 10.0 and 11.0"
    ):
        load_rows([tmp_path / "x", tmp_path / "y"])


def test_a_broken_part_is_left_out_with_a_footnote_and_stays(tmp_path):
    """Reading changes nothing on disk; a truncated part is named below the table."""
    run = write_run(tmp_path / "r", ("a", ok(4, 10.0)), ("b", ok(8, 20.0)))
    part = run.path / "trials" / "b.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    row, text = only_row(load_rows(run.path))
    assert row["best_k"] == 4
    assert f"left out: {part}: not a whole Parquet file" in text
    assert part.exists()


def test_a_broken_file_given_by_name_is_an_error(tmp_path):
    """A Parquet file that is cut, foreign, of another table or version is a data error naming it."""
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(b"PAR1")
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(arrow.pa.table({"x": [1]}), foreign)
    newer = tmp_path / "newer.parquet"
    newer.write_bytes(arrow.to_bytes(arrow.to_table([{"schema_version": 9, "trial_id": "a"}], TRIALS)))
    other_type = tmp_path / "type.parquet"
    pq.write_table(arrow.pa.table({"schema_version": [1], "trial_id": ["a"], "k": ["four"]}), other_type)
    requests = tmp_path / "requests.parquet"
    requests.write_bytes(arrow.to_bytes(arrow.to_table([{"schema_version": 1, "trial_id": "a"}], REQUESTS)))
    for path, message in (
        (cut, "not a whole Parquet file"),
        (foreign, "not one of this tool's tables"),
        (newer, "schema version 9"),
        (other_type, "column k is string"),
    ):
        with pytest.raises(DataError, match=rf"{path.name}: .*{message}"):
            load_rows(path)
    with pytest.raises(DataError, match="model null"):
        best_k(load_rows(requests))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("output_tok_per_s", -5.0, "output_tok_per_s -5.0"),
        ("output_tok_per_s", float("inf"), "output_tok_per_s inf"),
        ("k", -4, "k -4"),
        ("k", None, "k null"),
        ("status", "fine", "status fine"),
        ("status", None, "status null"),
        ("arm", None, "arm null"),
    ],
)
def test_parquet_that_others_wrote_is_not_believed(tmp_path, column, value, message):
    """A value that cannot be is an error naming the file and the trial."""
    rows = [{**ok(k, 1.0), "schema_version": 1, "trial_id": str(k)} for k in (4, 8)]
    rows[1][column] = value
    path = tmp_path / "rows.parquet"
    shared = {"model": "m", "corpus": "c"}
    pq.write_table(arrow.pa.Table.from_pylist([{**row, **shared} for row in rows]), path)
    with pytest.raises(DataError, match=rf"rows\.parquet, trial 8: {message} cannot be"):
        best_k(load_rows(path))


def test_a_throughput_that_is_not_a_number_is_none(tmp_path):
    """NaN in a trial that says ok leaves that trial out, as null does."""
    rows = [{**ok(k, k / 1), "schema_version": 1, "trial_id": str(k)} for k in (4, 8)]
    rows[1]["output_tok_per_s"] = float("nan")
    path = tmp_path / "rows.parquet"
    shared = {"model": "m", "corpus": "c"}
    pq.write_table(arrow.pa.Table.from_pylist([{**row, **shared} for row in rows]), path)
    row, text = only_row(load_rows(path))
    assert (row["best_k"], row["not_eligible"]) == (4, ["8: no throughput"])
    assert "K=8 left out: no throughput" in text


def test_text_stored_as_something_else_is_read_or_refused(tmp_path):
    """Categories are text; a list is not, and is named with its type."""
    rows = [{**ok(4, 1.0), "schema_version": 1, "trial_id": "a", "model": "m", "corpus": "c"}]
    table = arrow.pa.Table.from_pylist(rows)
    place = table.schema.get_field_index("model")
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(table.set_column(place, "model", table["model"].dictionary_encode()), good)
    pq.write_table(table.set_column(place, "model", arrow.pa.array([["m"]])), bad)
    assert only_row(load_rows(good))[0]["best_k"] == 4
    with pytest.raises(DataError, match=r"bad\.parquet: column model is list<.*>, not string"):
        load_rows(bad)


def test_a_trial_twice_in_one_file_is_counted_once_or_refused(tmp_path):
    """Alike: once, with a footnote. Different: an error with the difference."""
    trial = {**ok(4, 1.0), "schema_version": 1, "trial_id": "a", "model": "m", "corpus": "c"}
    path = tmp_path / "rows.parquet"
    path.write_bytes(arrow.to_bytes(arrow.to_table([trial, trial], TRIALS)))
    row, text = only_row(load_rows(path))
    assert row["n_trials"] == 1
    assert "1 rows read twice, counted once" in text
    path.write_bytes(arrow.to_bytes(arrow.to_table([trial, {**trial, "output_tok_per_s": 2.0}], TRIALS)))
    with pytest.raises(DataError, match=r"both hold trial a, with output_tok_per_s 1\.0 and 2\.0"):
        load_rows(path)


def test_a_part_of_another_schema_version_is_left_out(tmp_path):
    """By name, with its version; in the compacted file it is an error."""
    run = write_run(tmp_path / "r", ("a", ok(4, 10.0)), ("b", ok(8, 20.0)))
    newer = arrow.to_bytes(arrow.to_table([{"schema_version": 9, "trial_id": "b"}], TRIALS))
    (run.path / "trials" / "b.parquet").write_bytes(newer)
    row, text = only_row(load_rows(run.path))
    assert row["best_k"] == 4
    assert "b.parquet: schema version 9; this kpad-bench reads 1 only" in text
    (run.path / "trials.parquet").write_bytes(newer)
    with pytest.raises(DataError, match=r"r/trials\.parquet: schema version 9"):
        load_rows(run.path)


def test_one_cut_run_among_many_is_named(tmp_path):
    """A night whose compacted file is cut stops the table, with the way out, and no other night is blamed."""
    for run_id in ("n1", "n2", "n3"):
        write_run(tmp_path / "s" / run_id, ("a", ok(4, 10.0))).compact()
    path = tmp_path / "s" / "n2" / "trials.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"{path}: not a whole Parquet file .*move it away to go on"):
        load_rows(tmp_path / "s")


def test_requests_are_never_read(tmp_path):
    """They are a thousand times as many rows, and no part of the table."""
    run = write_run(tmp_path / "r", ("a", ok(4, 10.0)), ("b", ok(8, 20.0)))
    run.compact()
    (run.path / "requests.parquet").write_bytes(b"not Parquet at all")
    assert only_row(load_rows(run.path))[0]["best_k"] == 8


def test_only_the_columns_that_are_used_are_read(tmp_path):
    """Nothing of latencies, clocks or command lines."""
    run = write_run(tmp_path / "r", ("a", ok(4, 10.0, server_argv=["vllm"], ttft_p50_s=0.1)))
    columns = set(load_rows(run.path).columns)
    assert {"output_tok_per_s", "driver", "design", "is_sentinel"} < columns
    assert not columns & {"server_argv", "server_env", "ttft_p50_s", "detail", "host", "boot_s"}
    assert len(columns) < len(TRIALS) / 3


def test_runs_of_before_a_column_was_added_are_read_with_the_others(tmp_path):
    """Its value is null there."""
    write_run(tmp_path / "s" / "n1", ("a", ok(4, 10.0, design="fixed(1)"))).compact()
    run = write_run(tmp_path / "s" / "n2", ("a", ok(4, 12.0)))
    run.compact()
    path = run.path / "trials.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["design", "is_sentinel"]), path)
    row, _ = only_row(load_rows(tmp_path / "s"))
    assert (row["n_rounds"], row["output_tok_per_s"]) == (2, 11.0)


def test_places_without_trials_are_named(tmp_path):
    """A missing path, an empty folder, a results folder one level too high, an empty run."""
    with pytest.raises(UsageError, match="no such file or folder"):
        load_rows(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no run in it"):
        load_rows(tmp_path / "empty")
    write_run(tmp_path / "results" / "s" / "r")
    with pytest.raises(UsageError, match=r"name one of .*results/s$"):
        load_rows(tmp_path / "results")
    with pytest.raises(DataError, match="no trials there yet"):
        load_rows(tmp_path / "results" / "s")


HEAD = "model,corpus,k,output_tok_per_s\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,corpus,k\nm,c,4\n", "no column output_tok_per_s; its first line is 'model,corpus,k'"),
        ("", "no column model, corpus, k, output_tok_per_s"),
        (HEAD, "no rows below its header"),
        ("model,corpus,k,k,output_tok_per_s\n", "line 1: column k is there twice"),
        (HEAD + "m,c,4,10\nm,c,6,-3\n", "line 3, column output_tok_per_s: '-3' is not a positive number"),
        (HEAD + "m,c,4,nan\n", "line 2, column output_tok_per_s: 'nan'"),
        (HEAD + "m,c,4,inf\n", "line 2, column output_tok_per_s: 'inf'"),
        (HEAD + "m,c,4,0\n", "line 2, column output_tok_per_s: '0'"),
        (HEAD + "m,c,4,\n", "line 2, column output_tok_per_s: ''"),
        (HEAD + "m,c,4,1 000\n", "line 2, column output_tok_per_s: '1 000'"),
        (HEAD + "m,c,4.5,10\n", "line 2, column k: '4.5' is not a positive whole number"),
        (HEAD + "m,c,four,10\n", "line 2, column k: 'four'"),
        (HEAD + "m,c,-4,10\n", "line 2, column k: '-4'"),
        (HEAD + "m,c,0,10\n", "line 2, column k: '0'"),
        (HEAD + "m,c,,10\n", "line 2, column k: ''"),
        (HEAD + "\n,c,4,10\n", "line 3, column model: ''"),
        (HEAD + "m,c,4\n", "line 2: 3 values for 4 columns"),
        (HEAD + 'm,"c,4,10\n', "not CSV"),
        ("arm," + HEAD + ",m,c,4,10\n", "line 2, column arm: ''"),
        ("arm," + HEAD + "suf@32,m,c,8,10\n", "line 2, column arm: 'suf@32' disagrees with k '8'"),
        ("status," + HEAD + "great,m,c,4,10\n", "line 2, column status: 'great'"),
        ("round," + HEAD + "0,m,c,4,10\n", "line 2, column round: '0'"),
        (HEAD + "m,c,4,10\nm,c,4,11\n", "line 2 and .*line 3 both hold trial m/c/kpad/4/r1/p1"),
    ],
)
def test_a_csv_that_is_not_what_it_must_be_is_explained(tmp_path, text, message):
    """File, line, column and value are named; no line is skipped in silence."""
    with pytest.raises(DataError, match=rf"rows\.csv.*{message}"):
        load_rows(csv_file(tmp_path, text))


def test_a_file_that_is_no_text_is_explained(tmp_path):
    """A binary file that is not called .parquet is an error, not a traceback."""
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xff\xfe\x00m")
    with pytest.raises(DataError, match="not UTF-8 text"):
        load_rows(path)


def test_csv_as_people_write_it(tmp_path):
    """Fine: byte order mark, CRLF, blank lines, spaces, 4.0 for 4, suf@32, van with k 0, marked_best."""
    text = (
        "\ufeffmodel, corpus,arm,k,output_tok_per_s,marked_best\r\n"
        "m,c,kpad, 4.0,200,1\r\n\r\n"
        "m,c,suf@32,,100,\r\n"
        "m,c,van,0,50,\r\n"
    )
    row, text = only_row(load_rows(csv_file(tmp_path, text)))
    assert (row["best_k"], row["vs_suf_pct"], row["vs_van_pct"]) == (4, 100, 300)
    assert "not read" not in text


def test_empty_cells_of_columns_that_may_be_empty_are_nothing(tmp_path):
    """No driver, no design, no steady window, no throughput of a failed trial: null, never zero."""
    text = (
        "model,corpus,arm,k,round,output_tok_per_s,status,reason,steady_output_tok_per_s,driver,design,run_id\n"
        "m,c,kpad,4,1,10,ok,,,,,\nm,c,kpad,8,1,20,ok,,,,,\nm,c,kpad,12,1,,failed,oom,,,,\nm,c,van,,1,5,ok,,,,,\n"
    )
    row, text = only_row(load_rows(csv_file(tmp_path, text)))
    assert (row["best_k"], row["not_eligible"], row["vs_van_pct"]) == (8, ["12: oom"], 300)
    assert pd.isna(row["steady_best_k"])
    assert "not read" not in text


def test_columns_of_a_csv_that_mean_nothing_here_are_named(tmp_path):
    """A hidden dimension is not dropped in silence."""
    text = "model,corpus,k,output_tok_per_s,rack\nm,c,4,10,7\n"
    _, text = only_row(load_rows(csv_file(tmp_path, text)))
    assert "column rack not read" in text


def test_a_csv_with_rounds_is_several_trials(tmp_path):
    """Rounds are trials: the mean counts them all."""
    text = "round," + HEAD + "1,m,c,4,10\n2,m,c,4,20\n1,m,c,8,5\n2,m,c,8,6\n"
    row, _ = only_row(load_rows(csv_file(tmp_path, text)))
    assert (row["best_k"], row["n_trials"], row["output_tok_per_s"]) == (4, 2, 15)


def test_results_readme_describes_every_column():
    """The documented schema is the declared one: name, kind and meaning, in order."""
    lines = (ROOT / "results" / "README.md").read_text().splitlines()
    rows = [
        tuple(cell.strip(" `") for cell in line.strip("|").split("|"))
        for line in lines
        if line.startswith("| `")
    ]
    declared = [(c.name, c.kind, c.doc) for table in (TRIALS, REQUESTS, BEST_K) for c in table]
    assert rows == declared

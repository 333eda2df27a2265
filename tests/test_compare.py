"""Two nights: what is called changed, what is refused, what is named as a cause, and how it is written."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_rows import csv_file, in_rounds, ok, write_run

from kpad_bench import cli
from kpad_bench.compare import COLUMNS, compare, parse_fail_on, regressions
from kpad_bench.compare_text import remarks, render
from kpad_bench.errors import UsageError
from kpad_bench.nights import CellPair, compare_nights
from kpad_bench.reduce import load_rows

SCRIPTS = Path(__file__).parent.parent / "scripts"
#: Rounds that vary by half a percent.
STEADY = (100.0, 100.5, 99.5)


# Statistics


def nights_of(rng, n_cells=77, regression=0.0):
    """Two nights of three rounds: 2 % apart, 0.5 % of variation by cell and night, 0.5 % by round."""

    def rounds(level, factor):
        level += rng.gauss(0, 0.005)
        return [factor * math.exp(level + rng.gauss(0, 0.005)) for _ in range(3)]

    factors = [1 - regression if i == 0 else 1.0 for i in range(n_cells)]
    return [CellPair(rounds(8, 1.0), rounds(8.02, factor)) for factor in factors]


def test_identical_nights_are_seldom_flagged():
    """Of 77 cells that differ by the whole night and luck alone, one is flagged in 5 % of tables."""
    rng = random.Random(1)
    tables = [compare_nights(nights_of(rng)) for _ in range(250)]
    flagged = sum(any(change.is_significant for change in table.changes) for table in tables)
    assert flagged <= 0.08 * len(tables)
    covered = sum(t.shift.low_pct <= 100 * math.expm1(0.02) <= t.shift.high_pct for t in tables)
    assert covered >= 0.9 * len(tables)


def test_a_regression_of_one_cell_is_found():
    """A cell that is truly 5 % slower is flagged in most tables, and nearly always alone."""
    rng = random.Random(2)
    tables = [compare_nights(nights_of(rng, regression=0.05)) for _ in range(100)]
    assert sum(table.changes[0].is_significant for table in tables) >= 85
    assert sum(any(change.is_significant for change in table.changes[1:]) for table in tables) <= 15


def test_a_night_is_no_different_from_itself():
    """The same values give no change anywhere, whatever they vary by."""
    found = compare_nights([CellPair(STEADY, STEADY, i) for i in range(8)])
    assert found.shift.pct == 0
    assert found.shift.low_pct < 0 < found.shift.high_pct
    assert not any(change.is_significant or change.pct for change in found.changes)
    assert found.n_tested == 8


def test_a_shift_of_all_cells_is_of_no_cell():
    """Where every cell is 10 % slower the night is, and no cell beyond it."""
    slower = [0.9 * value for value in STEADY]
    found = compare_nights([CellPair(STEADY, slower, i) for i in range(8)])
    assert found.shift.pct == pytest.approx(-10)
    assert found.shift.high_pct < -9
    assert [change.beyond_pct for change in found.changes] == pytest.approx([0] * 8)
    assert not any(change.is_significant for change in found.changes)


def moved(n_moved, n=20):
    """Cells of which some are 20 % slower."""
    rng = random.Random(3)
    cells = nights_of(rng, n)
    return [
        cell._replace(new=[0.8 * value for value in cell.new]) if i < n_moved else cell
        for i, cell in enumerate(cells)
    ]


def test_when_many_cells_moved_none_is_named():
    """Up to a quarter of the cells are named; with more of them moved the night is at fault."""
    few, many = compare_nights(moved(5)), compare_nights(moved(6))
    assert (few.n_moved, few.is_attributed) == (5, True)
    assert [change.is_significant for change in few.changes] == [True] * 5 + [False] * 15
    assert (many.n_moved, many.is_attributed) == (6, False)
    assert not any(change.is_significant for change in many.changes)


def test_a_single_trial_has_no_interval_and_is_never_significant():
    """A cell with one value on a night keeps its change; the others are tested without it."""
    cells = [CellPair(STEADY, STEADY, i) for i in range(8)]
    found = compare_nights([*cells, CellPair([100.0], STEADY, 9), CellPair(STEADY, [50.0], 10)])
    for change in found.changes[8:]:
        assert (change.low_pct, change.p_value, change.q_value) == (None, None, None)
        assert not change.is_significant
    assert found.changes[9].pct == pytest.approx(-50, abs=0.1)
    assert found.n_tested == 8


def test_a_few_cells_are_not_told_from_their_night():
    """With five cells nothing is tested and the night's effect is assumed; intervals are there."""
    found = compare_nights([CellPair(STEADY, [0.6 * value for value in STEADY])] * 5)
    assert (found.is_assumed, found.n_tested, found.cell_cv_pct) == (
        True,
        0,
        pytest.approx(100 * 0.005 * 2**0.5),
    )
    assert found.shift.high_pct < -39
    assert {change.q_value for change in found.changes} == {None}
    assert all(change.high_pct < -38 for change in found.changes)


def test_single_trials_of_many_cells_tell_the_shift():
    """Without rounds the spread over cells gives the whole night's interval, and few cells give none."""
    pairs = [CellPair([100.0], [95.0 + 0.1 * i]) for i in range(9)]
    many, few = compare_nights(pairs), compare_nights(pairs[:5])
    assert many.shift.low_pct < many.shift.pct < many.shift.high_pct < -3
    assert few.shift.low_pct is None


def test_cells_measured_together_count_once_for_the_shift():
    """Cells of one group share their luck: the interval of the shift is wider than of as many apart."""
    rng = random.Random(4)
    apart = nights_of(rng, 24)
    together = [cell._replace(group=i // 6) for i, cell in enumerate(apart)]
    one, other = compare_nights(apart).shift, compare_nights(together).shift
    assert one.pct == other.pct
    assert other.low_pct < one.low_pct < one.high_pct < other.high_pct


@given(
    st.lists(st.tuples(*[st.lists(st.floats(50, 200), min_size=1, max_size=3)] * 2), min_size=1, max_size=9)
)
@settings(max_examples=40, deadline=None)
def test_the_order_of_cells_is_irrelevant(values):
    """Cells given backwards have the same changes, and every interval holds its change."""
    cells = [CellPair(*pair) for pair in values]
    there, back = compare_nights(cells), compare_nights(cells[::-1])
    assert there.shift == back.shift
    assert there.changes == back.changes[::-1]
    for change in (*there.changes, there.shift):
        assert change.low_pct is None or change.low_pct <= change.pct <= change.high_pct


@pytest.mark.parametrize(
    "cells", [[], [CellPair([], [1.0])], [CellPair([1.0], [0.0])], [CellPair([1.0], [math.inf])]]
)
def test_what_is_no_throughput_is_refused(cells):
    """No cell, no value, zero and infinity are errors of the caller."""
    with pytest.raises(ValueError, match=r"cell|throughput"):
        compare_nights(cells)


def test_the_simulation_of_nights_runs(monkeypatch):
    """Percentages of two tables: all between 0 and 100, and a cell that fell by half is found."""
    monkeypatch.syspath_prepend(SCRIPTS)
    nights = importlib.import_module("simulate_nights")
    false, found, *held = nights.rates(nights.Case(n_cells=8, regression=0.5), 2, np.random.default_rng(1))
    assert (false, found) == (0, 100)
    assert all(0 <= share <= 100 for share in held)


# Rows


def night(factor=1.0, n_corpora=2, jump=1.0, **columns):
    """Rows of one night: four arms on some corpora, three rounds; ``jump`` is of kpad@8 on the first."""
    parts = []
    for i in range(n_corpora):
        at_8 = 1.2 * factor * (jump if i == 0 else 1.0)
        speeds = {"van": 0.5 * factor, "suf@32": 0.9 * factor, "kpad@4": factor, "kpad@8": at_8}
        rows = {label: [1000 * level * value / 100 for value in STEADY] for label, level in speeds.items()}
        parts.append(in_rounds(rows, corpus=f"c{i}", status="ok", sweep="s", run_id="r", **columns))
    return pd.concat(parts, ignore_index=True)


def test_every_cell_is_compared_with_itself():
    """One row for each model, corpus, arm and K, with both throughputs and the rounds behind them."""
    found = compare(night(), night(1.05))
    assert [cell.key for cell in found.cells] == [
        ("m", corpus, *arm)
        for corpus in ("c0", "c1")
        for arm in (("kpad", 4), ("kpad", 8), ("suf", 32), ("van", 0))
    ]
    first = found.cells[0]
    assert (first.base_tok_per_s, first.new_tok_per_s) == (pytest.approx(1000), pytest.approx(1050))
    assert (first.n_base, first.n_new) == (3, 3)
    assert first.change.pct == pytest.approx(5)
    assert found.nights.shift.pct == pytest.approx(5)


def test_repeats_inside_a_boot_are_one_value():
    """Two passes of one round are averaged before anything is computed from them."""
    rows = night()
    again = pd.concat([rows.assign(repeat=1, trial_id="a"), rows.assign(repeat=2, trial_id="b")])
    assert {(cell.n_base, cell.n_new) for cell in compare(rows, again).cells} == {(3, 3)}


def test_several_nights_on_one_side_count_as_nights():
    """Where a side holds several runs its unit is the run."""
    several = pd.concat([night(1 + i / 100).assign(run_id=f"r{i}") for i in range(4)])
    assert {(cell.n_base, cell.n_new) for cell in compare(several, night()).cells} == {(4, 3)}


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("corpus_digest", "d1", "d2"),
        ("concurrency", 32, 16),
        ("max_tokens", 8192, 4096),
        ("n_prompts", 64, 128),
        ("temperature", 0.0, 1.0),
        ("cache_state", "cold", "warm"),
        ("endpoint", "/v1/chat", "/v1/completions"),
    ],
)
def test_other_loads_are_refused(column, one, other):
    """Another corpus or load is no regression: refused, with cell, column and values; allowed by name."""
    base, new = night(**{column: one}), night(**{column: other})
    with pytest.raises(UsageError, match=rf"m c0 kpad@4: {column} is .*--allow-mixed {column}$"):
        compare(base, new)
    found = compare(base, new, {column})
    assert [cause.column for cause in found.cells[0].causes] == [column]


def test_a_load_that_one_side_does_not_tell_is_a_note():
    """A CSV without a digest is compared, and the note says what nobody checked."""
    found = compare(night(corpus_digest="d"), night())
    assert found.notes == ["known on one night only, not checked: corpus_digest"]


def test_a_column_that_nobody_may_allow_is_named():
    """--allow-mixed takes columns of the load and the provenance only."""
    with pytest.raises(UsageError, match=r"allow-mixed: speed: choose from vllm_version"):
        compare(night(), night(), {"speed"})


def test_other_versions_are_causes_and_not_refused():
    """What must match inside a night is what two nights are compared for."""
    base = night(
        vllm_version="0.31", driver="580", num_gpu_blocks=1000, full_share_decode=1.0, throttled=False
    )
    new = night(vllm_version="0.32", driver="590", num_gpu_blocks=900, full_share_decode=0.95, throttled=True)
    base["capture_sizes"], new["capture_sizes"] = [[1, 2]] * len(base), [[1, 4]] * len(base)
    texts = [str(cause) for cause in compare(base, new).cells[0].causes]
    assert texts == [
        *("vllm_version: 0.31 -> 0.32", "driver: 580 -> 590"),
        *("full_share_decode: 1 -> 0.95", "num_gpu_blocks: 1000 -> 900"),
        *("throttled: false -> true", "capture_sizes: 1 2 -> 1 4"),
    ]


def test_measures_that_differ_by_noise_are_no_causes():
    """An acceptance length that differs by half a percent explains nothing."""
    base, new = night(acceptance_length=4.0), night(acceptance_length=4.02)
    assert compare(base, new).cells[0].causes == []


def test_a_gpu_on_one_night_only_is_a_cause():
    """Null is "none" for the hardware where the rest was recorded, and "not told" where nothing was."""
    base, new = night(vllm_version="0.32"), night(vllm_version="0.32", gpu_name="H200")
    assert [str(cause) for cause in compare(base, new).cells[0].causes] == ["gpu_name: none -> H200"]
    assert compare(night(), night(gpu_name="H200")).cells[0].causes == []


def test_cells_of_one_night_are_listed_with_the_reason():
    """A cell that failed or was not asked for on the other night is listed, not compared."""
    new = night(n_corpora=1)
    is_failed = (new["arm"] == "kpad") & (new["k"] == 4)
    new.loc[is_failed, ["status", "reason", "output_tok_per_s"]] = ["failed", "out_of_memory", None]
    found = compare(night(), new)
    assert found.only_base[("m", "c0", "kpad", 4)] == "out_of_memory"
    assert found.only_base[("m", "c1", "van", 0)] == ""
    assert ("m", "c0", "kpad", 4) not in [cell.key for cell in found.cells]
    assert "m c0 kpad@4 (out_of_memory in the other)" in " ".join(render(found, "table").split())
    assert compare(new, night()).only_new == found.only_base


def test_an_arm_without_speculation_may_have_any_name():
    """An arm of a config of one's own that has no K is compared like van."""
    base, new = (night().assign(arm=lambda rows: rows["arm"].replace("van", "van-fp8")) for _ in range(2))
    assert ("m", "c0", "van-fp8", 0) in [cell.key for cell in compare(base, new).cells]


@pytest.mark.parametrize(
    ("base", "new", "change"),
    [
        ((1.0, 1.2), (1.0, 1.3), "no"),
        ((1.0, 1.2), (1.2, 1.0), "shown"),
        ((1.0, 1.2), (1.001, 1.0), "not shown"),
        ((1.0, 1.001), (1.001, 1.0), "not shown"),
        ((1.0, 1.006), (1.006, 1.0), "not shown"),  # by its rounds each is sure, but a night does as much
    ],
)
def test_a_best_k_changed_only_where_both_nights_say_so(base, new, change):
    """Each night has to have measured the other's best K as slower than its own."""

    def rows(levels):
        return in_rounds(
            {f"kpad@{k}": [v * level for v in STEADY] for k, level in zip((4, 8), levels, strict=True)}
        )

    assert compare(rows(base), rows(new)).best_ks["m", "c", "kpad"].change == change


def test_a_best_k_that_the_other_night_lacks_is_not_shown_to_change():
    """A K that was measured on one night only cannot be shown to be slower on the other."""
    base = in_rounds({"kpad@4": [100.0, 101.0, 100.0], "kpad@8": [200.0, 201.0, 202.0]})
    assert compare(base, base[base["k"] == 4]).best_ks["m", "c", "kpad"].change == "not shown"


def sentinel(factor):
    """Three turns of a sentinel."""
    turns = in_rounds({"suf@32": [factor * value for value in STEADY]}, corpus="c9", status="ok")
    return turns.assign(is_sentinel=True, sweep="s", run_id="r")


def test_sentinels_have_a_line_of_their_own():
    """They are compared with each other, and are no cell of the table."""
    base, new = (pd.concat([night(f), sentinel(f)], ignore_index=True) for f in (1.0, 0.95))
    found = compare(base, new)
    assert [cell.key for cell in found.sentinels] == [("m", "c9", "suf", 32)]
    assert found.sentinels[0].change.pct == pytest.approx(-5)
    assert len(found.cells) == 8
    assert "Sentinel m c9 suf@32 100 -> 95 tok/s, -5.0 %" in " ".join(render(found, "table").split())
    assert compare(base, night()).sentinels == []


def test_sentinels_of_other_loads_are_refused():
    """A sentinel with other prompts says nothing about the night."""
    base, new = (pd.concat([night(), sentinel(1.0).assign(corpus_digest=d)]) for d in ("d1", "d2"))
    with pytest.raises(UsageError, match="m c9 suf@32: corpus_digest is"):
        compare(base, new)


def test_nights_of_sentinels_alone_are_refused():
    """There is nothing to compare, and the message says on which side."""
    with pytest.raises(UsageError, match="NEW has no trial"):
        compare(night(), sentinel(1.0))


def test_nights_without_a_common_cell_are_refused():
    """The message shows what each side has."""
    with pytest.raises(UsageError, match=r"no cell .* is in both: BASE has m c0 kpad@4.*NEW has other c0"):
        compare(night(), night().assign(model="other"))


# --fail-on


def test_a_regression_has_to_be_shown_and_large():
    """A cell counts where it is significantly slower than its night and by more than the limit."""
    found = compare(night(n_corpora=3), night(n_corpora=3, jump=0.9))
    assert [line.partition(":")[0] for line in regressions(found, 3)] == ["m c0 kpad@8"]
    assert regressions(found, 12) == []
    assert regressions(compare(night(n_corpora=3), night(n_corpora=3, jump=1.1)), 3) == []


def test_a_slower_night_is_a_regression():
    """The whole night counts where its interval lies beyond the limit, also with few cells."""
    found = compare(night(n_corpora=1), night(0.9, n_corpora=1))
    assert [line.partition(":")[0] for line in regressions(found, 3)] == ["the whole night"]
    assert regressions(found, 10) == []


def test_a_cell_that_beats_its_slower_night_is_no_regression():
    """Slower than before by more than the limit, but significantly faster than its night: the night is it."""
    found = compare(night(n_corpora=3), night(0.8, n_corpora=3, jump=1.15))
    cell = next(cell for cell in found.cells if cell.change.is_significant)
    assert (cell.change.pct < -3, cell.change.beyond_pct > 10) == (True, True)
    assert [line.partition(":")[0] for line in regressions(found, 3)] == ["the whole night"]


@pytest.mark.parametrize(
    "text", ["regression", "regression:3", "regression:-3%", "speed:3%", "", "regression:100%"]
)
def test_an_unknown_fail_on_says_what_is_known(text):
    """Anything but a percentage of regression is refused."""
    with pytest.raises(UsageError, match=r"--fail-on: .*regression:3%"):
        parse_fail_on(text)


# Formats


def test_the_table_fits_a_hundred_columns():
    """Long names are cut in the middle, and no line is longer."""
    long = {"model": "org/" + "m" * 70, "vllm_version": "0.32.0"}
    base, new = night(**long), night(0.9, jump=0.7, **{**long, "vllm_version": "0.33.0"})
    for rows in (base, new):
        rows["corpus"] = rows["corpus"] + "x" * 60
        rows["arm"] = rows["arm"].replace("kpad", "kpad-with-a-long-name-of-its-own")
    text = render(compare(base, new), "table")
    assert max(map(len, text.splitlines())) <= 100
    assert "vllm_version: 0.32.0 -> 0.33.0" in text


def test_words_of_the_table_follow_the_data():
    """A cell that moved says yes and shows its causes; the others say no."""
    new = night(n_corpora=3, jump=0.7)
    new["full_share_decode"] = [
        0.95 if (k, c) == (8, "c0") else 1.0 for k, c in zip(new["k"], new["corpus"], strict=True)
    ]
    found = compare(night(n_corpora=3, full_share_decode=1.0), new)
    lines = render(found, "table").splitlines()
    row = next(line for line in lines if "kpad@8" in line)
    assert row.split()[:5] == ["c0", "kpad@8", "1200", "840", "-30.0%"]
    assert row.split()[6:] == ["-30.0%", "yes", "was", "1"]
    assert [line.split()[7] for line in lines[2:14]].count("no") == 11
    assert "1. cause to look at: full_share_decode: 1 -> 0.95" in lines
    assert "| m | c0 | kpad@8 | 1200 | 840 | -30.0% |" in render(found, "md")
    assert any("Best K changed: m c0 kpad 8 -> 4" in text for text in remarks(found))


@pytest.mark.parametrize(
    ("base", "new", "said"),
    [
        (night(n_corpora=1), night(n_corpora=1), "assumed: with fewer than 6 common cells"),
        (night(), night(), "there is no history of nights"),
        (night().query("round == 1"), night(), "8 of 8 cells have one trial on a night"),
    ],
)
def test_what_a_comparison_rests_on_is_said(base, new, said):
    """Assumed or measured, and single trials."""
    assert said in " ".join(remarks(compare(base, new)))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs ``compare`` on files in a folder of its own; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def command(*args):
        monkeypatch.setattr(sys, "argv", ["kpad-bench", "compare", *map(str, args)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    night(n_corpora=3).to_csv(tmp_path / "base.csv", index=False)
    night(n_corpora=3, jump=0.8).to_csv(tmp_path / "new.csv", index=False)
    return command


def test_stdout_is_exactly_the_data(run):
    """csv and json parse as they are; what people should know goes to stderr."""
    code, out, err = run("base.csv", "new.csv", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, len(rows), rows[1]["significant"], rows[0]["significant"]) == (0, 12, "true", "false")
    assert "Whole night: +0.0 %" in err
    code, out, err = run("base.csv", "new.csv", "--format", "json")
    data = json.loads(out)
    assert [cell["arm"] for cell in data["cells"] if cell["significant"]] == ["kpad"]
    assert (code, data["n_moved"], data["cell_by_night_basis"]) == (0, 1, "measured")
    assert list(rows[0]) == list(data["cells"][0])


def test_fail_on_decides_the_exit_status(run):
    """5 where a regression is shown, with the table all the same; 0 where none is that large."""
    code, out, err = run("base.csv", "new.csv", "--fail-on", "regression:3%")
    assert code == 5
    assert "kpad@8" in out
    assert "slower by more than 3 %:\n  m c0 kpad@8: -20.0 %" in err
    assert run("base.csv", "new.csv", "--fail-on", "regression:30%")[0] == 0
    assert run("new.csv", "base.csv", "--fail-on", "regression:3%")[0] == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("base.csv", "absent.csv"), "absent.csv: no such file"),
        (("base.csv", "empty.csv"), "empty.csv: no rows below its header"),
        (("base.csv", "failed.csv"), "NEW has no trial that went well"),
        (("base.csv", "new.csv", "--fail-on", "slow"), "--fail-on: 'slow': write regression:3%"),
        (("base.csv", "new.csv", "--format", "xml"), "--format: 'xml'"),
        (("base.csv", "new.csv", "--allow-mixed", "speed"), "--allow-mixed: speed: choose from"),
    ],
)
def test_bad_input_is_a_usage_error(run, tmp_path, args, said):
    """Exit 2 and one message, without a table."""
    csv_file(tmp_path, "model,corpus,k,output_tok_per_s\n", "empty.csv")
    csv_file(tmp_path, "model,corpus,k,output_tok_per_s,status\nm,c0,4,,failed\n", "failed.csv")
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert said in err


def test_run_folders_are_read_with_what_may_be_a_cause(tmp_path):
    """Columns that a best-K table does not need are there: KV blocks and capture sizes of a real layout."""
    for name, blocks, sizes in (("a", 1000, [1, 2]), ("b", 800, [1, 2, 4])):
        rows = [
            (f"t{i}", ok(4, 100.0 + i, round=i, num_gpu_blocks=blocks, capture_sizes=sizes)) for i in (1, 2)
        ]
        write_run(tmp_path / name, *rows)
    found = compare(*(load_rows(tmp_path / name, COLUMNS) for name in ("a", "b")))
    assert [str(cause) for cause in found.cells[0].causes] == [
        *("num_gpu_blocks: 1000 -> 800", "capture_sizes: 1 2 -> 1 2 4"),
    ]

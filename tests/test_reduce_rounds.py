"""The best-K table of several rounds and nights: what decides, what is compared, what is doubted."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_rows import csv_file, frame, in_rounds, nights, ok, only_row, write_run

from kpad_bench import stats
from kpad_bench.errors import DataError, UsageError
from kpad_bench.reduce import best_k, footnotes, load_rows, render

# K=8 leads by 3 %; rounds differ by far more than Ks inside one do.
CLEAR = {"kpad@4": [100, 110, 90, 105], "kpad@8": [103, 113.5, 92.6, 108.3]}
TIED = {"kpad@4": [100, 110, 90, 105], "kpad@8": [101, 109, 91.5, 104]}


def by_round(speeds):
    """The same rounds as ``stats.decide`` takes them."""
    ks = {int(label.partition("@")[2]): values for label, values in speeds.items()}
    return [dict(zip(ks, row, strict=True)) for row in zip(*ks.values(), strict=True)]


# Rounds


@pytest.mark.parametrize("speeds", [CLEAR, TIED])
def test_a_row_says_what_was_decided_from_its_rounds(speeds):
    """Every figure of the decision is in the row, under its name."""
    decision = stats.decide(by_round(speeds))
    row, text = only_row(in_rounds(speeds, run_id="r"))
    assert row["established"] == decision.is_established == (speeds is CLEAR)
    assert tuple(row["tie_set"]) == decision.tie_set
    for column, value in (
        ("best_k", decision.best_k),
        ("output_tok_per_s", decision.tok_per_s),
        ("ci_low", decision.ci_low),
        ("ci_high", decision.ci_high),
        ("n_rounds", 4),
        ("n_trials", 4),
        ("runner_up_k", decision.runner_up_k),
        ("margin_pct", decision.margin_pct),
        ("relevant", decision.is_relevant),
        ("p_value", decision.p_value),
        ("q_value", decision.p_value),  # one row: nothing to adjust for
        ("cv_pct", decision.cv_pct),
        ("detectable_pct", decision.detectable_pct),
        ("pick_k", decision.pick_k),
        ("regret_pct", decision.regret_pct),
    ):
        assert row[column] == pytest.approx(value, abs=1e-6), column
    assert row["tie_basis"] == "measured"
    assert [text.partition(":")[0] for text in row["regrets"]] == [str(k) for k in decision.tie_set]
    assert "the rounds of one run are the unit" in text


def test_only_rounds_that_hold_every_k_count():
    """A round without one K is left out of every K's figures, and a footnote says which."""
    speeds = {"kpad@4": [100, 110, 999, 105], "kpad@8": [103, 113.5, None, 108.3]}
    row, text = only_row(in_rounds(speeds))
    whole = {label: [v for i, v in enumerate(values) if i != 2] for label, values in speeds.items()}
    expected, _ = only_row(in_rounds(whole))
    for column in ("best_k", "output_tok_per_s", "ci_low", "p_value", "n_rounds", "n_trials"):
        assert row[column] == expected[column], column
    assert (row["best_k"], row["n_rounds"]) == (8, 3)
    assert "incomplete, and left out: 1 of 4 rounds (1 without K=8)" in text


def test_trials_in_rounds_that_do_not_count_are_not_counted():
    """n_trials is of the figure beside it; a gain may rest on such a round, if it holds the baseline."""
    speeds = {"kpad@4": [100, None, 90, 105], "kpad@8": CLEAR["kpad@8"], "van": [50, 56, 46, 54]}
    row, _ = only_row(in_rounds(speeds))
    assert (row["best_k"], row["n_rounds"], row["n_trials"]) == (8, 3, 3)
    expected = stats.gain(list(zip(speeds["kpad@8"], speeds["van"], strict=True)))
    assert row["vs_van_low_pct"] == pytest.approx(expected.low_pct, abs=1e-5)


def test_repeats_are_averaged_to_the_same_bit_in_any_order():
    """A sum of floats depends on its order; a table must not depend on that of its rows."""
    rows = frame(*(("kpad", 4, speed) for speed in (1.0, 1.0, 1.0, 1e16)), round=1)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        row, _ = only_row(rows.iloc[order])
        assert row["output_tok_per_s"] == sum([1.0, 1.0, 1.0, 1e16]) / 4


def test_a_failed_trial_makes_its_round_incomplete():
    """As a missing one does; its reason is told."""
    rows = in_rounds(CLEAR)
    failed = (rows["k"] == 8) & (rows["round"] == 2)
    rows["status"] = np.where(failed, "invalid", "ok")
    rows["reason"] = np.where(failed, "client_bound", None)
    row, text = only_row(rows)
    assert row["n_rounds"] == 3
    assert "1 of 4 rounds (1 without K=8)" in text
    assert "kpad@8, 1 of 4 trials left out: client_bound" in text


def test_a_lead_under_the_margin_is_established_but_not_relevant():
    """The wording says both; the table says small."""
    speeds = {"kpad@4": [1000, 1100, 900], "kpad@8": [1005, 1105.6, 904.4]}
    row, text = only_row(in_rounds(speeds))
    assert (row["established"], row["relevant"]) == (True, False)
    assert "established, not relevant: K=8 is ahead by less than 1 %" in text
    assert " small " in render(best_k(in_rounds(speeds)))
    row, text = only_row(in_rounds(CLEAR))
    assert (row["established"], row["relevant"]) == (True, True)
    assert "not relevant" not in text


def test_q_values_are_adjusted_over_the_whole_table():
    """Rows that have no p value do not count."""
    rows = pd.concat(
        [
            in_rounds(CLEAR, corpus="a"),
            in_rounds(TIED, corpus="b"),
            frame(("kpad", 4, 1.0), ("kpad", 8, 2.0), corpus="c", round=1),
        ]
    )
    table = best_k(rows)
    p = [None if pd.isna(value) else value for value in table["p_value"]]
    assert p[2] is None
    assert table["q_value"].tolist()[:2] == stats.q_values(p)[:2]
    assert table["q_value"][0] > table["p_value"][0]


# Designs


@pytest.mark.parametrize(
    ("design", "n_rounds", "stop", "note"),
    [
        ("fixed(4)", 4, None, None),
        ("fixed(6)", 4, None, "4 of 6 planned rounds are complete"),
        (None, 4, None, "the design is not stated, and taken as fixed(4)"),
        ("adaptive(3..8)", 4, "established", None),
        ("adaptive(3..8)", 2, "budget", "adaptive(3..8) ended after 2 complete rounds without a decision"),
    ],
)
def test_the_design_is_that_of_the_rows(design, n_rounds, stop, note):
    """It sets the level of the test and says why rounds ended; a CSV has none and is taken as fixed."""
    speeds = {label: values[:n_rounds] for label, values in CLEAR.items()}
    row, text = only_row(in_rounds(speeds, design=design))
    expected = stats.decide(by_round(speeds), stats.Design.parse(design) if design else None)
    assert row["p_value"] == expected.p_value
    assert row["stop_reason"] == stop
    assert ("design" in text or "planned" in text or "adaptive" in text) == (note is not None)
    assert note is None or note in text


def test_an_adaptive_design_is_tested_more_strictly_than_a_fixed_one():
    """Because it looked before."""
    p = {
        design: only_row(in_rounds(TIED, design=design))[0]["p_value"]
        for design in ("fixed(4)", "adaptive(3..8)")
    }
    assert p["adaptive(3..8)"] > p["fixed(4)"]


def test_rows_of_several_designs_are_decided_by_the_strictest():
    """A run that was resumed with another number of rounds."""
    rows = in_rounds(CLEAR)
    rows["design"] = np.where(rows["round"] < 3, "fixed(2)", "adaptive(3..8)")
    row, text = only_row(rows)
    assert row["p_value"] == only_row(in_rounds(CLEAR, design="adaptive(3..8)"))[0]["p_value"]
    assert "trials of several designs (adaptive(3..8), fixed(2)), decided as adaptive(3..8)" in text


def test_a_design_that_is_none_is_refused():
    """With the forms there are."""
    with pytest.raises(DataError, match=r"column design: 'often' is no design: .*fixed\(3\)"):
        best_k(in_rounds(CLEAR, design="often"))


# Nights


def test_several_nights_are_one_value_each():
    """The night is the unit: each is the mean of its complete rounds, whatever their number."""
    parts = [
        {"kpad@4": [100, 102], "kpad@8": [104, 105]},
        {"kpad@4": [90, 92, 94], "kpad@8": [93, 96, 97]},
        {"kpad@4": [110], "kpad@8": [114]},
    ]
    row, text = only_row(nights(*parts, design="adaptive(3..8)"))
    means = [{k: np.mean(part[f"kpad@{k}"]) for k in (4, 8)} for part in parts]
    expected = stats.decide(means)
    assert (row["n_rounds"], row["n_trials"], row["best_k"]) == (3, 6, 8)
    assert row["p_value"] == pytest.approx(expected.p_value)
    assert row["ci_low"] == pytest.approx(expected.ci_low, abs=1e-5)
    assert row["stop_reason"] is None
    assert "the night is the unit: each of 3 runs is one value per K" in text
    assert "rounds of one run" not in text


def test_what_holds_in_every_round_of_one_night_need_not_hold_over_nights():
    """Ks that change places between nights are tied, however sure each night was."""
    one = {"kpad@4": [100, 110, 90], "kpad@8": [103, 113.4, 92.7]}
    other = {"kpad@4": [103, 113.3, 92.8], "kpad@8": [100, 110, 90]}
    for alone in (one, other):
        assert only_row(in_rounds(alone))[0]["established"]
    row, _ = only_row(nights(one, other))
    assert not row["established"]
    assert row["tie_set"] == [4, 8]


def test_a_model_of_one_night_only_is_said_to_be():
    """Its rounds are the unit then; the other models keep the night as theirs."""
    both = nights(CLEAR, CLEAR)
    alone = in_rounds(CLEAR, sweep="s", run_id="n2", model="rare")
    table = best_k(pd.concat([both, alone]))
    about = {note["text"]: [cell[0] for cell in note["cells"]] for note in table.attrs["notes"]}
    assert about["measured in one of 2 runs only (n2): other nights may differ"] == ["rare"]
    assert next(cells for text, cells in about.items() if text.startswith("the night is")) == ["m"]
    assert dict(zip(table["model"], table["n_rounds"], strict=True)) == {"m": 2, "rare": 4}


def test_a_night_without_a_complete_round_is_left_out_by_name():
    """And what is left is one night, whose rounds decide."""
    row, text = only_row(nights(CLEAR, {"kpad@4": [100, 101]}))
    assert (row["n_rounds"], row["output_tok_per_s"]) == (4, pytest.approx(np.mean(CLEAR["kpad@8"])))
    assert "no round that holds every K, left out: n2" in text
    assert "the rounds of one run are the unit" in text
    assert "incomplete, and left out: 2 of 6 rounds (2 without K=8)" in text


def test_a_night_that_is_left_out_says_nothing_of_the_design():
    """Neither its own design nor its rounds are those of the night that decides."""
    tied = {label: values[:3] for label, values in TIED.items()}
    rows = nights(tied, {"kpad@4": [100.0] * 6})
    rows["design"] = np.where(rows["run_id"] == "n1", "adaptive(3..8)", "fixed(6)")
    row, text = only_row(rows)
    assert (row["n_rounds"], row["stop_reason"]) == (3, "budget")
    assert "several designs" not in text


def test_nights_on_disk_that_must_not_be_pooled_name_their_runs(tmp_path):
    """A driver that was updated between two nights: what differs, and where each value is from."""
    for run_id, driver in (("n1", "570"), ("n2", "580")):
        write_run(tmp_path / "s" / run_id, ("a", ok(4, 10.0)), ("b", ok(8, 11.0)), driver=driver)
    with pytest.raises(
        UsageError, match=r"driver is 570 \(.*s/n1\) and 580 \(.*s/n2\)\. .*--allow-mixed driver"
    ):
        best_k(load_rows(tmp_path / "s"))
    row, _ = only_row(load_rows(tmp_path / "s"), allow_mixed={"driver"})
    assert row["n_rounds"] == 2


def test_every_csv_file_is_a_run_of_its_own(tmp_path):
    """Two files with rounds of their own are two nights; one file with all the rounds is one."""
    head, lines = "model,corpus,k,round,output_tok_per_s\n", []
    for number, (four, eight) in enumerate(zip(*CLEAR.values(), strict=True), start=1):
        lines.append(f"m,c,4,{number},{four}\nm,c,8,{number},{eight}\n")
    files = [
        csv_file(tmp_path, head + "".join(lines[:2]), "a.csv"),
        csv_file(tmp_path, head + "".join(lines[2:]), "b.csv"),
    ]
    row, text = only_row(load_rows(files))
    assert row["n_rounds"] == 2
    assert "the night is the unit" in text
    row, text = only_row(load_rows(csv_file(tmp_path, head + "".join(lines))))
    assert row["n_rounds"] == 4
    assert "the rounds of one run are the unit" in text


# Gains


def test_gains_are_paired_inside_blocks():
    """Rounds that differ by a quarter leave the interval of a steady gain narrow."""
    speeds = {"van": [50, 55, 45], "suf@32": [80, 88.2, 71.9], "kpad@8": [100, 110.5, 90.2]}
    row, text = only_row(in_rounds(speeds))
    for name, base in (("van", "van"), ("suf", "suf@32"), ("best_baseline", "suf@32")):
        expected = stats.gain(list(zip(speeds["kpad@8"], speeds[base], strict=True)))
        got = [row[f"vs_{name}_{part}"] for part in ("pct", "low_pct", "high_pct")]
        assert got == pytest.approx(list(expected), abs=1e-5)
        assert got[2] - got[1] < 3
    assert "drift" not in text


def test_gains_over_nights_take_the_night_as_the_unit():
    """One pair for each night, of the rounds that hold both."""
    parts = [
        {"van": [50, None, 52], "kpad@8": [100, 101, 103]},
        {"van": [60, 61], "kpad@8": [121, 123]},
    ]
    row, text = only_row(nights(*parts))
    expected = stats.gain(
        [(np.mean([100, 103]), np.mean([50, 52])), (np.mean([121, 123]), np.mean([60, 61]))]
    )
    assert [row["vs_van_pct"], row["vs_van_low_pct"]] == pytest.approx(expected[:2], abs=1e-5)
    assert "of 5 rounds of kpad@8 the gains rest on 4 with van" in text


def test_a_baseline_measured_apart_has_a_gain_and_no_interval():
    """Another run shares no block: the gain is told, with the footnote, and is not tested."""
    rows = pd.concat([in_rounds(CLEAR, run_id="a"), in_rounds({"van": [50, 52, 51]}, run_id="b")])
    row, text = only_row(rows)
    assert row["vs_van_pct"] == pytest.approx(100 * (np.mean(CLEAR["kpad@8"]) / 51 - 1), abs=1e-5)
    assert pd.isna(row["vs_van_low_pct"])
    assert pd.isna(row["vs_van_high_pct"])
    assert "van was measured in another run than kpad: drift between runs is in the gain" in text


def test_the_best_baseline_may_be_suffix_at_another_k():
    """Its column is there when it says something that vs van and vs suf do not."""
    speeds = {**CLEAR, "van": [50] * 4, "suf@32": [80] * 4, "suf@12": [90, 99, 81, 95]}
    row, _ = only_row(in_rounds(speeds))
    expected = stats.gain(list(zip(CLEAR["kpad@8"], speeds["suf@12"], strict=True)))
    assert row["vs_best_baseline_pct"] == pytest.approx(expected.pct, abs=1e-5)
    assert row["vs_best_baseline_low_pct"] == pytest.approx(expected.low_pct, abs=1e-5)
    assert "vs best" in render(best_k(in_rounds(speeds)))
    del speeds["suf@12"]
    assert "vs best" not in render(best_k(in_rounds(speeds)))


def test_a_gain_that_may_be_none_is_marked():
    """A tilde, and the legend explains it."""
    speeds = {**CLEAR, "suf@32": [103, 112, 95, 107]}
    text = render(best_k(in_rounds(speeds)))
    assert "~-0.0%" in text
    assert "~: the interval of a gain reaches zero" in " ".join(text.split())


# Which trials, which Ks


def test_sentinels_are_no_part_of_a_best_k():
    """Not as candidates, not as baselines, not as failures; alone they are no trials."""
    rows = in_rounds({**CLEAR, "van": [50] * 4}, is_sentinel=False)
    extra = frame(("kpad", 4, 9999.0), ("van", None, 9999.0), round=9, is_sentinel=True)
    failed = frame(("kpad", 8, None), round=9, is_sentinel=True, status="failed", reason="stalled")
    with_sentinels = pd.concat([rows.assign(status="ok"), extra.assign(status="ok"), failed])
    assert render(best_k(with_sentinels), "json") == render(best_k(rows), "json")
    assert footnotes(best_k(with_sentinels)) == footnotes(best_k(rows))
    with pytest.raises(UsageError, match="no trials of arm kpad; there are: none"):
        best_k(extra)


def test_every_k_left_out_is_listed_with_its_reason():
    """Failed boot, bound by client or front end, too few successes, FULL share low or unknown."""
    padded = {"full_share_decode": 1.0}
    rows = frame(
        ("kpad", 4, 100.0, padded),
        ("kpad", 5, None, {"status": "failed", "reason": "kv_none"}),
        ("kpad", 6, 900.0, {"status": "invalid", "reason": "client_bound"}),
        ("kpad", 7, 900.0, {"status": "invalid", "reason": "front_end_bound"}),
        ("kpad", 8, 900.0, {"status": "invalid", "reason": "low_success_share"}),
        ("kpad", 9, 900.0, {"full_share_decode": 0.5}),
        ("kpad", 10, 900.0, {"full_share_reason": "not_counted"}),
        ("kpad", 11, 900.0, {"full_share": 0.9}),  # counted, but no step was decode-only
        status="ok",
    )
    row, text = only_row(rows)
    assert row["best_k"] == 4
    assert row["not_eligible"] == [
        "5: kv_none",
        "6: client_bound",
        "7: front_end_bound",
        "8: low_success_share",
        "9: full_share 0.50 < 0.9",
        "10: full_share unknown (not_counted)",
        "11: full_share unknown (no_decode_only_step)",
    ]
    assert all(f"K={k} left out: " in text for k in range(5, 12))


def test_a_k_whose_full_share_some_trials_know_may_win():
    """The others are a footnote."""
    rows = in_rounds(CLEAR, full_share_decode=1.0)
    unknown = (rows["k"] == 8) & (rows["round"] == 1)
    rows["full_share_decode"] = rows["full_share_decode"].mask(unknown)
    rows["full_share_reason"] = np.where(unknown, "not_counted", None)
    row, text = only_row(rows)
    assert (row["best_k"], row["not_eligible"]) == (8, [])
    assert "K=8: the share of FULL graphs is not known of 1 of 4 trials (not_counted)" in text


def test_one_trial_with_a_low_full_share_is_enough_to_leave_a_k_out():
    """The others do not make it up."""
    rows = in_rounds(CLEAR, full_share_decode=1.0)
    rows.loc[(rows["k"] == 8) & (rows["round"] == 2), "full_share_decode"] = 0.4
    row, _ = only_row(rows)
    assert (row["best_k"], row["not_eligible"]) == (4, ["8: full_share 0.40 < 0.9"])


def test_a_best_k_that_the_steady_window_does_not_confirm_is_not_established():
    """A footnote says which K it names; unknown for one K, it is not judged."""
    rows = in_rounds(CLEAR)
    assert only_row(rows)[0]["established"]
    rows["steady_output_tok_per_s"] = rows["output_tok_per_s"].where(rows["k"] == 8, 200.0)
    row, text = only_row(rows)
    assert (row["best_k"], row["steady_best_k"], row["established"]) == (8, 4, False)
    assert "the steady window says K=4, the whole pass K=8: not established" in text
    rows.loc[(rows["k"] == 4) & (rows["round"] == 2), "steady_output_tok_per_s"] = None
    row, text = only_row(rows)
    assert pd.isna(row["steady_best_k"])
    assert row["established"]
    assert "steady" not in text


def test_what_explains_a_throughput_stands_beside_it():
    """Acceptance length of the best K; R against van-v1, which the footnote names, and null without it."""
    speeds = {**CLEAR, "van-v1": [50, 55, 45, 52]}
    rows = in_rounds(speeds)
    rows["acceptance_length"] = np.where(rows["k"] == 8, 2.5, 1.0)
    rows["step_time_mean"] = np.where(rows["arm"] == "van-v1", 0.004, 0.005)
    row, text = only_row(rows)
    assert (row["acceptance_length"], row["step_time_ratio"]) == (2.5, pytest.approx(1.25))
    assert "R) is the mean step time of best_k over that of van-v1" in text
    assert pd.isna(row["vs_van_pct"])  # van-v1 explains; van is what users run
    rows.loc[rows["round"] == 1, "step_time_mean"] = 0.008  # a slow round; van-v1 is missing from another
    row, _ = only_row(rows[(rows["arm"] != "van-v1") | (rows["round"] != 4)])
    assert row["step_time_ratio"] == pytest.approx((8 + 5 + 5) / (8 + 4 + 4))
    row, text = only_row(rows[rows["arm"] != "van-v1"])
    assert pd.isna(row["step_time_ratio"])
    assert "step_time_ratio" not in text


def test_the_same_doubt_with_other_figures_is_told_once():
    """A year of nights must not have a thousand footnotes."""
    rows = in_rounds(CLEAR)
    rows["warnings"] = [[f"only {share}.1% of steps were uniform"] for share in range(80, 88)]
    _, text = only_row(rows)
    assert "kpad@4, kpad@8: only 80.1% of steps were uniform (and 7 more with other figures)" in text
    assert text.count("uniform") == 1


def test_doubts_come_in_the_same_order_whatever_the_order_of_the_rows():
    """Sorted by their text, like the arms before it."""
    rows = frame(("kpad", 8, 2.0, {"warnings": ["c", "a"]}), ("kpad", 4, 1.0, {"warnings": ["b", "e", "d"]}))
    _, text = only_row(rows)
    assert [line.partition(". ")[2] for line in text.splitlines()[1:]] == [
        "kpad@8: a",
        "kpad@4: b",
        "kpad@8: c",
        "kpad@4: d",
        "kpad@4: e",
    ]


# The table


def wide_table():
    """Two models on three corpora with every baseline and every kind of interval, and long footnotes."""
    speeds = {
        "van": [10000, 10700, 9400],
        "suf@32": [18000, 19300, 16900],
        "suf@12": [19500, 20800, 18300],
        **{f"kpad@{k}": [22000 + k, 23500 + 3 * k, 20700 - k] for k in (4, 6, 8, 12)},
    }
    return best_k(
        pd.concat(
            [in_rounds(speeds, model=m, corpus=c) for m in ("org/a", "org/b") for c in ("swebench", "mix")]
        )
    )


def test_a_table_with_every_column_stays_within_its_width():
    """Columns that can go are left out and named; Markdown has them all, with whole intervals."""
    text = render(wide_table())
    assert max(map(len, text.splitlines())) <= 100
    assert "Left out for want of width: vs van" in " ".join(text.split())
    head = text.splitlines()[0]
    assert all(title in head for title in ("±", "sure", "pick", "risk"))
    head = render(wide_table(), "md").splitlines()[0]
    assert all(
        f"| {title} |" in head for title in ("95 %", "lead", "van", "suf", "vs van", "vs suf", "vs best")
    )


@pytest.mark.parametrize("output_format", ["table", "md"])
def test_the_expectation_of_the_table_stands_beside_it(output_format):
    """How many cells chance alone would establish; only of those that were measured."""
    text = " ".join(render(wide_table(), output_format).split())
    assert "expect about 0.2 falsely established among 4 if all of them were exact ties, 0.04 if" in text
    alone = render(best_k(frame(("kpad", 4, 1.0), ("kpad", 8, 2.0))), output_format)
    assert "falsely" not in alone


def test_every_family_has_its_headline_count():
    """Cells in which it beats the better of van and suf, of those that have all three."""
    base = {"van": [50] * 3, "suf@32": [80] * 3}
    rows = pd.concat(
        [
            in_rounds({**base, "kpad@4": [90] * 3, "kfill@4": [70] * 3}, corpus="a"),
            in_rounds({**base, "kpad@4": [75] * 3, "kfill@4": [85] * 3}, corpus="b"),
            in_rounds({"van": [50] * 3, "kpad@4": [90] * 3, "kfill@4": [95] * 3}, corpus="c"),
        ]
    )
    text = " ".join(render(best_k(rows, candidates=("kpad", "kfill"))).split())
    assert "kfill beats the better of van and suf in 1 of 2 cells" in text
    assert "kpad beats the better of van and suf in 1 of 2 cells" in text
    assert text.count("In 1 of them both gains have an interval above zero.") == 2


def test_a_gain_within_the_noise_is_counted_apart():
    """It beats the baselines, and may not."""
    speeds = {"van": [50, 55, 45], "suf@32": [80, 88, 72], "kpad@4": [70, 100, 80]}
    text = " ".join(render(best_k(in_rounds(speeds))).split())
    assert "kpad beats the better of van and suf in 1 of 1 cells" in text
    assert "In 0 of them both gains have an interval above zero." in text


# The same from rows, parts and CSV


def rounds_on_disk(path, speeds):
    """A run on disk with these rounds."""
    rows = in_rounds(speeds).to_dict("records")
    trials = [
        (
            f"{row['arm']}{row['k']}r{row['round']}",
            ok(
                None if pd.isna(row["k"]) else int(row["k"]),
                row["output_tok_per_s"],
                row["arm"],
                round=row["round"],
            ),
        )
        for row in rows
    ]
    return write_run(path, *trials, sweep="s")


SPEEDS = st.lists(st.floats(50, 150), min_size=3, max_size=3)


@settings(max_examples=4, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(("van", "suf@32", "kpad@4", "kpad@6", "kpad@8"), SPEEDS)))
def test_a_long_csv_says_what_the_rows_of_a_run_say(tmp_path_factory, speeds):
    """Several rounds, every arm: the same table to the last bit."""
    folder = tmp_path_factory.mktemp("same")
    run = rounds_on_disk(folder / "r", speeds)
    rows = in_rounds(speeds)
    rows["k"] = rows["k"].astype("Int64")
    rows.to_csv(folder / "rows.csv", index=False)
    tables = [best_k(load_rows(path)) for path in (run.path, folder / "rows.csv")]
    assert render(tables[0], "json") == render(tables[1], "json")
    run.compact()
    assert render(best_k(load_rows(run.path)), "json") == render(tables[0], "json")


def test_json_has_booleans_and_nulls_where_rounds_were_measured():
    """established and relevant are booleans, numbers are finite, regrets are texts."""
    rows = json.loads(render(wide_table(), "json"))
    assert {type(row[name]) for row in rows for name in ("established", "relevant")} == {bool}
    assert all(isinstance(text, str) for row in rows for text in row["regrets"])
    assert all(row["stop_reason"] is None and row["n_rounds"] == 3 for row in rows)

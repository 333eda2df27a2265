"""The report as files: what is written and refused, and that every figure is one of ``reduce``."""

from __future__ import annotations

import importlib
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import browser
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_published import GOLDEN
from trial_rows import frame, in_rounds, ok, write_run

from kpad_bench.errors import DataError, UsageError
from kpad_bench.reduce import best_k, load_rows
from kpad_bench.report import Extra, write_report
from kpad_bench.report_data import Report, gather, state
from kpad_bench.report_figure import N_STEPS, colours, contrast, fitted, svg, ticks, width_of
from kpad_bench.report_figures import figures, sections
from kpad_bench.report_page import page
from kpad_bench.report_raster import png
from kpad_bench.report_tables import best_table, failures_table, headline, limits
from kpad_bench.report_text import markdown

ROOT = Path(__file__).resolve().parent.parent
H200 = ROOT / "results" / "reference" / "h200-2026-12-01"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def h200() -> Report:
    """What the rows measured on one H200 say."""
    return gather([H200])


@pytest.fixture(scope="module")
def published() -> Report:
    """What the published K sweep says."""
    return gather([GOLDEN / "published_ksweep.csv"])


def of_rows(tmp_path, rows) -> Report:
    """The report of a frame of rows."""
    path = tmp_path / "rows.csv"
    rows.to_csv(path, index=False)
    return gather([path])


def card(report, name):
    """The figure of one card of the headline."""
    return next(one.figure for one in headline(report) if one.name == name)


def command(*arguments):
    """The command as its own process."""
    argv = [sys.executable, "-m", "kpad_bench.cli", "report", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_every_row_is_the_one_of_reduce(h200):
    """The best-K table of the page is the best-K table: the same rows in the same order."""
    table = best_k(load_rows([H200]), candidates=("kpad", "kfill"))
    assert [
        (r["model"], r["corpus"], r["arm"], r["best_k"], r["output_tok_per_s"]) for r in h200.best
    ] == list(
        table[["model", "corpus", "arm", "best_k", "output_tok_per_s"]].itertuples(index=False, name=None)
    )
    assert len(h200.notes) == len(table.attrs["notes"])


def test_the_headline_of_measured_rows(tmp_path):
    """Wins, what is established, and the geometric mean with its interval over models."""
    parts = []
    for i, model in enumerate(("a", "b", "c")):
        speeds = {"van": [50, 51, 50], "suf@32": [80, 81, 80], "kpad@4": [100 + i, 101 + i, 100 + i]}
        parts.append(in_rounds({**speeds, "kpad@8": [60, 61, 60]}, model=model))
    report = of_rows(tmp_path, pd.concat(parts))
    assert card(report, "wins") == "3 of 3"
    assert card(report, "established") == "3 of 3"
    assert card(report, "gain-better") == "+26.1 %"
    text = next(one.text for one in headline(report) if one.name == "gain-better")
    assert re.search(r"3 cells; 95 % over 3 models: \+2\d\.\d to \+2\d\.\d %", text), text
    assert limits(report) == []


def test_states_from_the_surest_to_none(published, h200):
    """One word for how sure a row is, the same in the drawing and in the table."""
    assert {state(row) for row in published.mine} == {"one trial"}
    assert {state(row) for row in h200.mine} == {"tied"}
    assert [row[-2] for row in best_table(published).rows] == ["one trial"] * 77


def test_the_same_rows_give_the_same_page(tmp_path):
    """Byte for byte: a page can be compared, and kept in version control."""
    for name in ("a.html", "b.html"):
        write_report([H200], tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_report_writes_page_drawings_and_tables(tmp_path):
    """The command: a page, one file for each drawing in the format asked for, Markdown; no part left over."""
    out = tmp_path / "sub" / "report.html"
    done = command(H200, "--out", out, "--figures", tmp_path / "f", "--markdown", tmp_path / "r.md")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert f"{out}: 0." in done.stderr
    names = {figure.name for figure in figures(gather([H200]))}
    assert {path.stem for path in (tmp_path / "f").glob("*.svg")} == names
    assert len(names) == 10
    assert (tmp_path / "r.md").read_text().startswith("# kpad-bench: best K of smollm2-135m on 4 corpora\n")
    assert not list(tmp_path.rglob("*.part"))


def test_every_drawing_is_a_whole_svg_file(h200, published):
    """Parsed as XML: inside its own borders, with a name, a description and its own colours."""
    for figure in (*figures(h200), *figures(published)):
        root = ET.fromstring(svg(figure, is_file=True))
        assert root.tag == f"{SVG}svg"
        assert root.find(f"{SVG}title").text == figure.title
        assert root.find(f"{SVG}desc").text == figure.caption
        classes = {
            name for e in root.iter() for name in e.get("class", "").split() if name[:2] in ("f-", "s-")
        }
        style = root.find(f"{SVG}style").text
        assert all(f".{name}{{" in style for name in classes), figure.name


def test_every_drawing_is_a_png_of_twice_the_size(h200):
    """Width and height as the PNG's header states them."""
    for figure in figures(h200):
        data = png(figure)
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", data[16:24])
        assert (width, height) == (int(figure.width * 2), int(figure.height * 2)), figure.name


def test_markdown_has_every_table_and_no_markup_of_others(tmp_path, h200):
    """Names are escaped; each table has as many cells in each line."""
    rows = frame(("kpad", 4, 100.0), ("kpad", 8, 90.0), model="a|b <script> *c* [d](e)", corpus="`x`")
    text = markdown(of_rows(tmp_path, rows))
    assert r"a\|b \<script\> \*c\* \[d\](e)" in text
    assert "<script>" not in text
    for line in markdown(h200).splitlines():
        assert not line.startswith("|") or line.endswith("|")
    for part in sections(h200):
        assert f"## {part.title}" in markdown(h200)


def test_files_of_hostile_names_stay_in_their_folder(tmp_path):
    """A corpus named like a path gives a drawing named like a word."""
    rows = [
        frame(("kpad", 4, 100.0), ("suf", 32, 90.0), model=model, corpus=corpus)
        for model in ("m", "n")
        for corpus in ("../../x", "..\\y", "a b<c>", "mix")
    ]
    path = tmp_path / "rows.csv"
    pd.concat(rows).to_csv(path, index=False)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write_report([path], tmp_path / "r.html", Extra(figures=tmp_path / "deep" / "er"))
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.svg")}
    assert len(found) > 5
    assert all(re.fullmatch(r"deep/er/[A-Za-z0-9_-]+\.svg", name) for name in found), found


def test_an_old_page_survives_a_report_that_fails(tmp_path):
    """Paths without rows, an unknown arm: exit 2, and yesterday's page is as it was."""
    out = tmp_path / "r.html"
    out.write_text("yesterday")
    (tmp_path / "empty").mkdir()
    for arguments, text in (
        ((tmp_path / "absent",), "no such file or folder"),
        ((tmp_path / "empty",), "no run in it"),
        ((H200, "--candidates", "nonsense"), "--candidates: no trials of arm nonsense; there are: "),
        ((H200, "--figure-format", "gif"), "--figure-format: 'gif': allowed: svg, png"),
    ):
        done = command(*arguments, "--out", out)
        assert done.returncode == 2
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    assert out.read_text() == "yesterday"


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    """A folder in its place: the option and the path are named."""
    (tmp_path / "r.html").mkdir()
    with pytest.raises(UsageError, match=r"--out: .*r\.html: cannot be written"):
        write_report([H200], tmp_path / "r.html")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_runs_that_cannot_be_read_are_left_out_and_named(tmp_path):
    """A torn file and one of another schema version: the page is of the rest, and says so."""
    write_run(tmp_path / "s" / "good", ("a", ok(4, 100.0)), ("b", ok(8, 90.0)))
    for name in ("torn", "newer"):
        shutil.copytree(H200, tmp_path / "s" / name)
    (tmp_path / "s" / "torn" / "trials.parquet").write_bytes(b"PAR1 no more of it")
    table = pq.read_table(H200 / "trials.parquet")
    place = table.schema.get_field_index("schema_version")
    newer = table.set_column(place, "schema_version", pa.array([99] * table.num_rows))
    pq.write_table(newer, tmp_path / "s" / "newer" / "trials.parquet")
    report = gather([tmp_path / "s"])
    assert report.n_trials == 2
    told = limits(report)
    assert any("newer" in text and "schema version 99" in text for text in told)
    assert any("torn" in text for text in told)
    assert "schema version 99" in page(report)
    with pytest.raises(DataError, match="schema version 99"):
        gather([tmp_path / "s" / "newer"])


def test_rows_of_two_schema_versions_are_told(h200):
    """Where runs of several versions could be read together, the page says what that means."""
    runs = [{**h200.runs[0], "schema_version": "1"}, {**h200.runs[0], "schema_version": "2"}]
    assert any("schema versions 1, 2" in text for text in limits(h200._replace(runs=runs)))


def test_failures_are_told_with_their_reasons(tmp_path):
    """By arm, K and reason, the most frequent first; a cell's failures are of all its trials."""
    bad = {"status": "failed", "output_tok_per_s": None}
    rows = [(f"a{i}", {**ok(8, None), **bad, "reason": "kv_oom", "detail": "no blocks"}) for i in range(3)]
    rows += [("b", {**ok(4, 1.0), "status": "invalid", "reason": "front_end_bound"}), ("c", ok(4, 100.0))]
    write_run(tmp_path / "run", *rows)
    report = gather([tmp_path / "run"])
    assert failures_table(report).rows == [
        ["m", "c", "kpad@8", "failed", "kv_oom", "3 of 3", "no blocks"],
        ["m", "c", "kpad@4", "invalid", "front_end_bound", "1 of 2", "-"],
    ]
    assert card(report, "trials") == "1 of 5"


def test_cells_whose_trials_are_not_alike_are_left_out_alone(tmp_path):
    """Two drivers in one cell: that cell is refused by name, the others stay; --allow-mixed pools it."""
    rows = [(f"{c}{k}", {**ok(k, 100.0 + k), "corpus": c, "driver": "1"}) for c in "xy" for k in (4, 8)]
    rows[0][1]["driver"] = "2"
    write_run(tmp_path / "run", *rows)
    report = gather([tmp_path / "run"])
    assert [row["corpus"] for row in report.best] == ["y"]
    assert any("driver" in text for text in limits(report))
    assert len(gather([tmp_path / "run"], allow_mixed={"driver"}).best) == 2


def test_sentinels_are_drawn_in_order_of_time(tmp_path):
    """Relative to their mean; the last third over the first is the drift."""
    rows = [(f"s{i}", {**ok(4, 100.0 - i), "is_sentinel": True, "round": i}) for i in range(6)]
    write_run(tmp_path / "run", *rows, ("a", ok(4, 100.0)), ("b", ok(8, 90.0)))
    (one,) = gather([tmp_path / "run"]).sentinels
    assert [speed for _, speed in one.points] == [100.0, 99.0, 98.0, 97.0, 96.0, 95.0]
    assert one.drift_pct == pytest.approx(100 * (95.5 / 99.5 - 1))


def test_a_full_night_keeps_its_bounds(tmp_path, monkeypatch):
    """462 cells in six rounds: every section has its drawing, and the page is under 3 MB."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("bench_report")
    n = script.night(tmp_path / "night")
    assert n == 462 * 6 + 66
    found = script.cost(tmp_path / "night", tmp_path / "night.html")
    assert 0 < found.page_mb < script.BOUNDS["night"].page_mb
    report = gather([tmp_path / "night"])
    assert report.n_trials == n
    assert len(report.mine) == 77
    assert [part.name for part in sections(report) if not part.figures] == ["reversals", "acceptance"]


def test_a_cost_is_judged_by_time_and_size():
    """Over either bound is over; a bound of no size allows any."""
    script_path = str(ROOT / "scripts")
    sys.path.insert(0, script_path)
    try:
        script = importlib.import_module("bench_report")
    finally:
        sys.path.remove(script_path)
    night, year = script.BOUNDS["night"], script.BOUNDS["year"]
    assert script.Cost(4.9, 9.0, 100.0, 2.9).is_within(night)
    assert not script.Cost(5.1, 9.0, 100.0, 2.9).is_within(night)
    assert not script.Cost(4.9, 9.0, 100.0, 3.1).is_within(night)
    assert script.Cost(29.0, 9.0, 100.0, 30.0).is_within(year)


@pytest.mark.parametrize("scheme", [0, 1])
def test_every_shade_can_carry_its_text(scheme):
    """Text on each step of the ramp, and on paper, stands out at least 4.5 to 1 (WCAG 2 AA)."""
    found = colours()
    for i in range(N_STEPS):
        assert contrast(found[f"k{i}"][scheme], found[f"on-k{i}"][scheme]) >= 4.5, i
    for role in ("ink", "muted"):
        assert contrast(found[role][scheme], found["paper"][scheme]) >= 4.5
        assert contrast(found[role][scheme], found["pale"][scheme]) >= 4.5


def test_long_names_lose_their_middle():
    """Ends tell names of one family apart; short ones stay."""
    name = "organisation/model-of-a-very-long-name-indeed-70B-Instruct"
    short = fitted(name, 120)
    assert short.startswith("organ")
    assert short.endswith("struct")
    assert "…" in short
    assert width_of([short]) <= 120
    assert fitted("m", 120) == "m"
    assert fitted("漢字" * 20, 60).count("…") == 1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (-4, 185, [-50, 0, 50, 100, 150, 200]),
        (5, 5, [5]),
        (0.98, 1.02, [0.98, 0.99, 1.0, 1.01, 1.02]),
    ],
)
def test_ticks_are_round_and_span_the_values(low, high, expected):
    """No tick inside the values is missing, none is odd."""
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert found == expected


def test_no_two_drawings_share_a_name(h200, published):
    """A name is a file and an element."""
    for report in (h200, published):
        names = [figure.name for figure in figures(report)]
        assert len(names) == len(set(names))


def test_a_missing_browser_skips_here_and_fails_in_ci(monkeypatch):
    """So that a green CI has opened the page."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        browser.programs()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        browser.programs()


def test_ci_says_that_it_is_ci():
    """The run of CI exports what the tests ask for."""
    assert "\nexport CI=true\n" in (ROOT / ".ci" / "run").read_text()


def test_the_page_in_the_documents_is_of_its_rows(h200):
    """docs/report-h200.html and its drawings: the headline and the best Ks are those of the rows."""
    shown = (ROOT / "docs" / "report-h200.html").read_text()
    cards = re.findall(r'data-card="([a-z-]+)"><dt>[^<]*</dt><dd>([^<]*)</dd>', shown)
    assert cards == [(one.name, one.figure) for one in headline(h200)]
    drawn = ET.parse(ROOT / "docs" / "report-h200" / "heatmap.svg").getroot()
    cells = {e.get("data-corpus"): e.get("data-k") for e in drawn.iter() if e.get("data-k")}
    assert cells == {row["corpus"]: str(row["best_k"]) for row in h200.mine}
    names = {path.stem for path in (ROOT / "docs" / "report-h200").glob("*.svg")}
    assert names == {figure.name for figure in figures(h200)}

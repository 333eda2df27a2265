"""The evidence page against the rows that it rests on."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import statistics
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from kpad_bench.cli import main
from kpad_bench.reduce import best_k, load_rows
from kpad_bench.schema import OK

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence-h200.md"
REFERENCE = ROOT / "results" / "reference"
RUN = REFERENCE / "h200-2026-12-01"
CLAIM = re.compile(r"(?<![\d%])([+-]\d+ %)\**\s+(\[[+-]\d+, [+-]\d+\])")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evidence_tables", ROOT / "scripts" / "evidence_tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


evidence = script()


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> None:
    """The command, which has to end in 0."""
    monkeypatch.setattr(sys, "argv", ["kpad-bench", *args])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """Every table, from the rows."""
    tables: dict[str, str] = evidence.tables()
    return tables


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_tables_of_the_page_are_those_of_the_rows(made: dict[str, str], page: str) -> None:
    """To the letter, and none else is marked; `python scripts/evidence_tables.py --write` renews them."""
    assert evidence.filled(page, made) == page
    assert re.findall(r"<!-- end of ([\w-]+) -->", page) == list(made)


def test_a_table_without_a_place_in_the_page_is_named() -> None:
    """Nothing is dropped silently, whichever of the two marks is missing."""
    for text in ("", "<!-- engine -->\n", "<!-- end of engine -->"):
        with pytest.raises(ValueError, match="no place for the table engine"):
            evidence.filled(text, {"engine": "|"})


def test_reduce_prints_the_best_k_table_of_the_page(
    made: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that the page names gives its table, footnotes included."""
    runs = sorted(map(str, REFERENCE.glob("h200-*")))
    run(monkeypatch, "reduce", *runs, "--candidates", "kpad,kfill", "--format", "md")
    assert capsys.readouterr().out == made["best-k"]


def test_recommend_runs_on_the_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch line with the K that the table picks, and that it is not established."""
    run(monkeypatch, "recommend", str(RUN), "--model", "smollm2-135m", "--corpus", "humaneval")
    out = capsys.readouterr().out
    assert '"num_speculative_tokens":4}' in out
    assert "not established: K=4, K=6 are tied (3 rounds" in out


@pytest.mark.parametrize("name", ["docs/evidence-h200.md", "README.md"])
def test_figures_with_an_interval_stand_in_the_tables(made: dict[str, str], page: str, name: str) -> None:
    """What the page and the README claim with an interval is in a table of changes."""
    text = page if name.startswith("docs") else (ROOT / name).read_text(encoding="utf-8")
    claims = CLAIM.findall(text)
    assert len(claims) >= 3
    tables = made["gains"] + made["comparisons"] + made["steps"]
    for change, interval in claims:
        assert f"{change} {interval}" in tables, (change, interval)


def test_the_rows_establish_nothing_and_the_page_says_so(page: str) -> None:
    """Every trial is ok and reconciled, and no best K is established from these rounds."""
    rows = load_rows(RUN)
    assert len(rows) == 160
    assert set(rows["status"]) == {OK}
    table = best_k(rows, ["kpad", "kfill"])
    assert len(table) == 8
    assert not table["established"].any()
    assert "**No best K is established.**" in page


def test_whole_rounds_have_every_arm_on_every_corpus() -> None:
    """The fourth round, which was cut, is no part of a mean over corpora."""
    frame = evidence.trials(RUN)
    whole = evidence.whole_rounds(frame)
    assert set(frame["round"]) == {1, 2, 3, 4}
    assert set(whole["round"]) == {1, 2, 3}
    assert (whole.groupby("at").size() == 12).all()


@pytest.mark.parametrize(("arm", "base"), [("kpad@12", "suf@12"), ("kfill@8", "kpad@8"), ("van", "van-v1")])
def test_a_change_is_the_mean_log_ratio_of_rounds(made: dict[str, str], arm: str, base: str) -> None:
    """Recomputed from the Parquet file with nothing of this package; 4.303 is t at two degrees of freedom."""
    rows = pd.read_parquet(RUN / "trials.parquet")
    speed = {
        (row.round, row.corpus, row.arm if math.isnan(row.k) else f"{row.arm}@{row.k:.0f}"): (
            row.output_tok_per_s
        )
        for row in rows.itertuples()
    }
    corpora = sorted(set(rows["corpus"]))
    logs = [
        statistics.mean(math.log(speed[number, c, arm] / speed[number, c, base]) for c in corpora)
        for number in (1, 2, 3)
    ]
    half = 4.302653 * statistics.stdev(logs) / math.sqrt(3)
    ends = [100 * math.expm1(statistics.mean(logs) + step) for step in (0, -half, half)]
    assert "{:+.0f} % [{:+.0f}, {:+.0f}] (n=3)".format(*ends) in next(
        line for line in made["comparisons"].splitlines() if line.startswith(f"| {arm} over {base} |")
    )


def counters(archive: tarfile.TarFile, trial: str) -> dict[str, float]:
    """What vLLM's counters gained in a pass, summed over labels."""
    gained: dict[str, float] = {}
    for sign, name in ((-1, "metrics_before.txt"), (1, "metrics_after.txt")):
        file = archive.extractfile(f"{trial}/{name}")
        assert file
        for line in file.read().decode().splitlines():
            if line.startswith("vllm:"):
                key, value = line.split("{", 1)[0], float(line.rsplit(" ", 1)[1])
                gained[key] = gained.get(key, 0.0) + sign * value
    return gained


def test_rows_agree_with_the_raw_counters_beside_them() -> None:
    """Acceptance length and FULL share of the first trial of every arm, from what vLLM and plugin counted."""
    frame = evidence.trials(RUN).sort_values("order_index").drop_duplicates("at")
    assert len(frame) == 11
    with tarfile.open(RUN / "raw.tar.xz") as archive:
        for row in frame.itertuples():
            gained = counters(archive, str(row.trial_id))
            tokens = gained["vllm:generation_tokens_total"]
            first = gained["vllm:time_to_first_token_seconds_count"]
            pairs = gained["vllm:inter_token_latency_seconds_count"]
            assert row.output_tokens == tokens
            assert row.acceptance_length == pytest.approx((tokens - first) / pairs)
            if row.steps_source == "worker":
                before, after = (
                    json.load(file)[0]["counters"]
                    for when in ("before", "after")
                    if (file := archive.extractfile(f"{row.trial_id}/status_{when}.json"))
                )
                full, steps = (after[k] - before[k] for k in ("full_decode_steps", "decode_steps"))
                assert row.full_share_decode == pytest.approx(full / steps)


def test_reference_files_are_small_and_hold_no_folder_of_a_host() -> None:
    """Neither rows nor manifests nor raw counters name a folder of the host; all is under 2 MB."""
    paths = sorted(REFERENCE.glob("*/*"))
    assert sum(path.stat().st_size for path in paths) < 2_000_000
    for path in paths:
        texts = [path.read_bytes()]
        if path.name == "raw.tar.xz":
            with tarfile.open(path) as archive:
                texts = [file.read() for member in archive if (file := archive.extractfile(member))]
        for text in texts:
            assert not re.search(rb"(?<![\w/.])/(?:tmp|root|home|opt|work)/", text), path

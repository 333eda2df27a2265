"""The evidence page against the rows that it rests on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from kpad_bench.reduce import best_k, load_rows
from kpad_bench.schema import OK

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence-h200.md"
RUN = ROOT / "results" / "reference" / "h200-2026-12-01"


def blocks(text: str) -> dict[str, str]:
    """Generated tables by name."""
    return dict(re.findall(r"(?s)<!-- ([\w-]+) -->\n(.*?)<!-- end of \1 -->", text))


def test_the_tables_of_the_page_are_those_of_the_rows() -> None:
    """``scripts/evidence_tables.py`` prints every table of the page, to the letter."""
    command = [sys.executable, str(ROOT / "scripts" / "evidence_tables.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = blocks(printed)
    assert set(found) == {"engine", "comparisons", "best-k", "warm", "shape"}
    assert blocks(PAGE.read_text(encoding="utf-8")) == found


def test_figures_of_the_summary_stand_in_the_tables() -> None:
    """What the first paragraph claims with an interval is in the table of comparisons."""
    text = PAGE.read_text(encoding="utf-8")
    summary, table = text.split("## How it was run", maxsplit=1)[0], blocks(text)["comparisons"]
    claims = re.findall(r"(?<![\d%])([+-]\d+ %)\**\s+(\[[+-]\d+, [+-]\d+\])", summary)
    assert len(claims) >= 6
    for change, interval in claims:
        assert f"{change} {interval}" in table


def test_the_rows_establish_nothing_and_the_page_says_so() -> None:
    """Every trial is ok and reconciled, and no best K is established from these rounds."""
    rows = load_rows(RUN)
    assert set(rows["status"]) == {OK}
    table = best_k(rows, ["kpad", "kfill"])
    assert len(table) == 8
    assert not table["established"].any()
    assert "**No best K is established.**" in PAGE.read_text(encoding="utf-8")


def test_reference_rows_hold_no_folder_of_the_host_they_were_measured_on() -> None:
    """Neither in the rows nor in the manifests."""
    for path in sorted((ROOT / "results" / "reference").glob("*/*")):
        assert not re.search(rb"(?<![\w/.])/(?:tmp|root|home|opt|work)/", path.read_bytes()), path

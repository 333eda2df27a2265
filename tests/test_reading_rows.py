"""docs/reading-rows.md: every block of Python in it runs on real rows, and prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from trial_rows import ok, write_run

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reading-rows.md").read_text(encoding="utf-8")
#: Code, and what the page says that it prints, where it says so.
BLOCKS = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", PAGE, re.DOTALL)
SWEEP = "results/nightly-dgx-b200"
LIBRARIES = ("import pandas", "import duckdb", "import polars", "from kpad_bench")


def trial(k: int | None, speed: float, corpus: str, arm: str = "kpad"):
    """A trial as ``write_run`` takes it."""
    return f"m.{corpus}.{arm}@{k}", ok(k, speed, arm, corpus=corpus, is_sentinel=False)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder like a checkout: the reference rows, and a sweep of three nights: whole, old, open."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "results").mkdir()
    (root / "results" / "reference").symlink_to(ROOT / "results" / "reference")
    trials = [trial(k, 1000.0 + k, corpus) for corpus in ("mbpp", "humaneval") for k in (4, 8)]
    trials += [trial(None, 500.0, "mbpp", "van")]
    slow = [
        trial(4, 700.0, "mbpp"),
        ("m.broken", {"status": "failed", "reason": "died", "arm": "kpad", "k": 6}),
    ]
    for name, rows in (
        ("20261201T020000Z", trials),
        ("20261202T020000Z", slow),
        ("20261203T020000Z", trials),
    ):
        run = write_run(root / SWEEP / name, *rows, sweep="nightly-dgx-b200")
        row = {"trial_id": "m.mbpp.kpad@12", "model": "m", "corpus": "mbpp", "round": 1, **ok(12, 1007.0)}
        run.write_trial(row, [{"request_index": 0, "prompt_id": "mbpp/1", "status": "ok", "e2e_s": 2.5}])
        if name != "20261203T020000Z":
            run.compact()
    old = root / SWEEP / "20261202T020000Z" / "trials.parquet"
    pq.write_table(pq.read_table(old).drop_columns(["acceptance_length", "clock_policy"]), old)
    return root


@pytest.mark.parametrize(("code", "shown"), BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs(checkout, code, shown):
    """It ends well, prints something, and prints what the page shows below it."""
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=checkout, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    printed = [line.rstrip() for line in done.stdout.strip().splitlines()]
    assert printed
    if shown:
        assert printed == [line.rstrip() for line in shown.strip().splitlines()]


def test_every_library_is_shown():
    """pandas, DuckDB, Polars and the package's own reader are on the page."""
    code = "".join(block for block, _ in BLOCKS)
    assert [library for library in LIBRARIES if library not in code] == []

"""The benchmark of ``reduce``: its synthetic runs are whole, and the command is timed on what they hold."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from kpad_bench import arrow
from kpad_bench.schema import TRIALS

SCRIPT = Path(__file__).parent.parent / "scripts" / "bench_reduce.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("bench_reduce", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_synthetic_run_has_every_column_filled(script):
    """As a real one: only what an ok trial or an arm without speculation lacks is null."""
    table = script.run_rows(1)
    assert table.schema.equals(arrow.arrow_schema(TRIALS))
    assert table.num_rows == script.TRIALS_A_RUN
    assert 365 * script.TRIALS_A_RUN >= 1_000_000
    empty = {name for name in table.column_names if table[name].null_count == table.num_rows}
    assert empty == {"full_share_reason"}
    assert table["trial_id"].combine_chunks().unique().to_pylist() == table["trial_id"].to_pylist()


def test_the_command_is_timed_on_compacted_runs_and_on_parts(script, tmp_path):
    """Two nights of both layouts: all cells, the night as the unit, and figures of the process."""
    assert script.compacted(tmp_path / "compacted", 2) == 2 * script.TRIALS_A_RUN
    found = script.cost(tmp_path / "compacted")
    table = pd.read_csv(io.StringIO(found.out))
    assert len(table) == 77
    assert (table["n_rounds"] == 2).all()
    assert (table["tie_basis"] == "measured").all()
    assert found.wall_s > 0
    assert found.cpu_s > 0
    assert 20 < found.peak_mb < 2000
    assert script.in_parts(tmp_path / "parts", 24) == 24
    assert len(list((tmp_path / "parts").glob("*/trials/*.parquet"))) == 24
    assert len(pd.read_csv(io.StringIO(script.cost(tmp_path / "parts").out))) == 2

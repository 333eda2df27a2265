"""Whole nights on fake servers: twice in a row, within a budget, through faults."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from conftest import Lab

from kpad_bench.nightly import Asked, Tools, run_nightly
from kpad_bench.nightly_wait import Clock
from kpad_bench.store import find_runs

NIGHT = datetime(2026, 12, 1, 20, tzinfo=UTC)
#: By the estimates of the lab's configuration: two boots of 100 s and two passes.
BLOCK_S = 230.0


class NightLab:
    """Nights of a lab on a clock that moves by 100 s with every trial that has its row."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.said, self.day = lab, [], 0
        lab.set(arms=["van", "kpad"], rounds="2..3", isolation="reset")
        lab.config["define_models"]["tiny"]["boot_estimate_s"] = 100

    @property
    def folder(self):
        return self.lab.out / "lab"

    def seconds(self) -> float:
        return 100.0 * sum(1 for _ in self.folder.glob("*/raw/*"))

    def night(self, budget_s=36000.0, *, is_same_day=False, **changes):
        """One night; a day has passed since the last."""
        self.day += not is_same_day
        asked = Asked(str(self.lab.config_path()), self.lab.out, budget_s, progress="plain")
        asked = Asked(**{**asked.__dict__, **{k: v for k, v in changes.items() if k in asked.__dict__}})
        tools = {
            "say": self.said.append,
            "clock": Clock(self.seconds, lambda _: None),
            "now": lambda: NIGHT + timedelta(days=self.day),
            "gpu": None,
            "examine": lambda resolved, out: [],
        }
        tools |= {name: value for name, value in changes.items() if name in tools}
        return run_nightly(asked, Tools(**tools))

    def runs(self):
        return find_runs(self.folder)


@pytest.fixture
def nights(lab: Lab) -> NightLab:
    """A lab for nights: one model, one corpus, van and kpad@4."""
    return NightLab(lab)


def test_the_second_night_is_compared_with_the_first(nights: NightLab) -> None:
    """Two nights: each a run of its own with its page; the second pools, compares and says with what."""
    first = nights.night()
    assert (first.exit_code, first.n_ok, first.not_ok, first.not_measured) == (0, 4, [], [])
    assert first.comparisons == ["with nothing: no earlier night has a comparable cell"]
    second = nights.night()
    assert second.exit_code == 0
    one, two = nights.runs()
    assert second.run == str(two.path)
    assert second.comparisons[0].startswith(f"with {one.run_id}: 2 cells comparable; whole night ")
    assert second.not_compared == []
    assert second.table is not None
    assert "2 nights" in second.table
    assert {path.name for path in two.path.iterdir()} >= {
        "best_k.md", "best_k.csv", "best_k.json", "compare.md", "report.html", "summary.md", "summary.json",
    }  # fmt: skip
    record = json.loads((two.path / "summary.json").read_text())
    assert (
        record["text"] == (two.path / "summary.md").read_text() == (nights.folder / "summary.md").read_text()
    )
    assert len(record["text"].splitlines()) < 60

"""Slots: servers side by side, each with its own client process; whole blocks; rows that name neighbours."""

from __future__ import annotations

from conftest import CORPORA, Lab

TWO = [{"name": "a", "gpus": [0]}, {"name": "b", "gpus": [1]}]


def test_two_slots_side_by_side(lab: Lab) -> None:
    """Each block runs whole on one slot, every row names its slot and its neighbours."""
    lab.set(slots=TWO, corpora=list(CORPORA), arms=["van", "kpad"], rounds=2)
    assert lab.sweep() == 0
    by_block: dict[str, set[str]] = {}
    for row in lab.rows():
        by_block.setdefault(row["block_id"], set()).add(row["slot"])
        assert row["neighbours"] == [{"a": "b", "b": "a"}[row["slot"]]]
    assert len(by_block) == 4
    assert all(len(slots) == 1 for slots in by_block.values())

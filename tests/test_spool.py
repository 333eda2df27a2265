"""Bytes that leave the memory come back as they were, and stay in it where there is no room elsewhere."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpad_bench.spool import MOST_PIECES, Spool
from kpad_bench.stream import RawStream

PIECES = st.lists(st.binary(max_size=20), max_size=6)


def raw(*pieces):
    """A request that has brought these pieces."""
    return RawStream(0, "p0", "00", 0, pieces=list(pieces))


@given(st.lists(st.tuples(st.integers(0, 2), PIECES, st.integers(0, 3)), max_size=12))
def test_every_answer_comes_back_as_it_was(steps):
    """However the pieces of several answers took turns, and however many were held back each time."""
    raws = [raw(), raw(), raw()]
    came = [[], [], []]
    with Spool() as spool:
        for which, pieces, n_kept in steps:
            raws[which].pieces += pieces
            came[which] += pieces
            spool.put(raws[which], n_kept)
        for one, pieces in zip(raws, came, strict=True):
            spool.restore(one)
            assert one.pieces == pieces
            assert one.spooled == []


def test_what_was_taken_is_out_of_memory():
    """All but the newest, which the progress line reads."""
    one = raw(b"a", b"bc", b"d")
    with Spool() as spool:
        spool.put(one, n_kept=1)
        assert one.pieces == [b"d"]
        spool.put(one, n_kept=1)
        assert [list(sizes) for _, sizes in one.spooled] == [[1, 2]]
        spool.put(one)
        assert one.pieces == []
        spool.restore(one)
    assert one.pieces == [b"a", b"bc", b"d"]


def test_one_write_takes_no_more_than_the_system_does():
    """The rest waits for the next."""
    one = raw(*[b"x"] * (MOST_PIECES + 7))
    with Spool() as spool:
        spool.put(one)
        assert len(one.pieces) == 7
        spool.restore(one)
    assert one.pieces == [b"x"] * (MOST_PIECES + 7)


def no_space(*_):
    """A full disk."""
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("write", [no_space, lambda *_: 1])
def test_a_full_disk_costs_memory_and_nothing_else(monkeypatch, write):
    """A write that fails, or is cut short, leaves the pieces where they were; what was out comes back."""
    one = raw(b"a", b"bc")
    with Spool() as spool:
        spool.put(one)
        one.pieces += [b"d", b"ef"]
        monkeypatch.setattr(os, "pwritev", write)
        spool.put(one)
        assert one.pieces == [b"d", b"ef"]
        monkeypatch.undo()
        spool.put(one)
        spool.restore(one)
    assert one.pieces == [b"a", b"bc", b"d", b"ef"]


def test_without_a_folder_for_temporary_files(monkeypatch):
    """Nothing is taken."""

    def nowhere(**_):
        raise FileNotFoundError(2, "No usable temporary directory")

    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere)
    one = raw(b"a")
    with Spool() as spool:
        spool.put(one)
        spool.restore(one)
    assert one.pieces == [b"a"]

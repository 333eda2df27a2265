"""A trial that was throttled or disturbed is measured again, and an attempt without such a flag is kept.

Every attempt is stored before the next one begins, so that a crash in between loses none. Knows rows and
what measures and stores them; nothing of servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kpad_bench.schema import FAILED, OK

FLAGS = ("throttled", "disturbed")


class Measured(NamedTuple):
    """One attempt at a trial: its row, its request rows, its snapshots."""

    row: dict[str, Any]
    requests: Sequence[Mapping[str, Any]]
    raw: Mapping[str, bytes]

    def doubted(self, text: str) -> Measured:
        """With one more warning."""
        return self._replace(row=self.row | {"warnings": [*(self.row.get("warnings") or []), text]})


class Write(Protocol):
    """How an attempt is stored: ``RunFolder.write_trial``."""

    def __call__(
        self,
        row: Mapping[str, Any],
        requests: Sequence[Mapping[str, Any]],
        raw: Mapping[str, bytes] | None,
        *,
        replace_ok: bool,
    ) -> None: ...


def flags_of(row: Mapping[str, Any]) -> list[str]:
    """Flags of a trial that came to its end; a failed one has its reason instead."""
    return [] if row.get("status") == FAILED else [name for name in FLAGS if row.get(name)]


def keep_undisturbed(
    measure: Callable[[], Measured], write: Write, most_repeats: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure until an attempt has no flag, at most ``1 + most_repeats`` times; the row that is kept.

    It is that of the last attempt, unless that one went worse than the one before. The others move to
    ``superseded/``.
    """
    kept = measure()
    write(kept.row, kept.requests, kept.raw, replace_ok=False)
    for number in range(1, most_repeats + 1):
        flags = flags_of(kept.row)
        if not flags:
            break
        why = " and ".join(flags)
        say(f"{kept.row['trial_id']} was {why}; measuring it again ({number} of at most {most_repeats})")
        again = measure()
        is_worse = kept.row["status"] == OK != again.row["status"]
        if is_worse:
            fault = f"a further attempt did not count: {again.row['reason']}: {again.row.get('detail')}"
            kept = kept.doubted(fault)
        else:
            kept = again.doubted(f"attempt {number + 1}: attempt {number} was {why}, see superseded/")
        write(kept.row, kept.requests, kept.raw, replace_ok=True)
        if is_worse:
            break
    return kept.row

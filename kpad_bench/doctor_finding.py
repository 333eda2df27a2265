"""What doctor says: one line on one thing, with the way out where something is wrong.

Knows no check. An exception of a check becomes a line as well, so that one broken check hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kpad_bench.errors import KpadError

State = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """``name``: of the check. ``found``: what is the case. ``fix``: what to do; None where nothing is."""

    name: str
    state: State
    found: str
    fix: str | None = None


class Check(NamedTuple):
    """A check by the name that stands in its line if it breaks."""

    name: str
    look: Callable[[], Iterable[Finding]]


def ok(name: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(name, "ok", found)


def warning(name: str, found: str, fix: str) -> Finding:
    """A sweep runs; its figures or its comfort suffer."""
    return Finding(name, "warning", found, fix)


def failure(name: str, found: str, fix: str) -> Finding:
    """A sweep does not run, or not to its end."""
    return Finding(name, "failure", found, fix)


def of_error(name: str, error: KpadError, fix: str = "see the message") -> list[Finding]:
    """An expected error, line by line. Its messages end in the way out, after the last semicolon."""
    found = []
    for line in str(error).splitlines():
        what, has_way, way = line.rpartition("; ")
        found.append(failure(name, what, way) if has_way else failure(name, line, fix))
    return found


def run(checks: Iterable[Check]) -> list[Finding]:
    """All that the checks find, in their order."""
    return [finding for check in checks for finding in _looked(check)]


def _looked(check: Check) -> list[Finding]:
    try:
        return list(check.look())
    except KpadError as error:
        return of_error(check.name, error)
    except Exception as error:  # noqa: BLE001 whatever it is, the other checks have to be heard
        said = " ".join(str(error).split())[:200]
        return [
            failure(
                check.name,
                f"could not be checked: {type(error).__name__}: {said}",
                "check it by hand; if this host is an ordinary one, report this line",
            )
        ]

"""One page about one night: what ran, what it found, what is wrong, what comes next.

Takes plain data, gives Markdown and JSON. Decides nothing and reads no file.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: A section shows so many lines; a page that nobody reads to its end tells nothing.
MOST_LINES = 12
FINISHED, NOT_READY, INTERRUPTED, STOPPED = "finished", "not ready", "interrupted", "stopped"
_MOST_CHARS = 240


@dataclass
class Summary:
    """What people, a scheduler and a webhook are told of a night."""

    sweep: str
    host: str
    started_at: dt.datetime
    budget_s: float
    state: str = FINISHED
    exit_code: int = 0
    took_s: float = 0.0
    #: Why it ended before its time, where it did.
    why: str | None = None
    run: str | None = None
    resumed: bool = False
    #: What doctor warns of or refuses, a line each.
    findings: list[str] = field(default_factory=list)
    waited_s: float = 0.0
    measured: list[str] = field(default_factory=list)
    n_ok: int = 0
    not_ok: list[str] = field(default_factory=list)
    not_measured: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    table: str | None = None
    comparisons: list[str] = field(default_factory=list)
    regressions: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    disk: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    next_command: str | None = None

    def record(self) -> dict[str, Any]:
        """As JSON has it, with the page as ``text``, which is what chat tools show."""
        record = asdict(self) | {"started_at": self.started_at.isoformat()}
        return {"text": self.page(), **record}

    def page(self) -> str:
        """The page, as Markdown."""
        parts = [f"# {self._title()}", self._headline()]
        for title, lines in self._sections():
            if lines:
                parts += [f"## {title}", "\n".join(_capped(lines))]
        if self.next_command:
            parts += [f"Next: `{self.next_command}`"]
        return "\n\n".join(parts) + "\n"

    def _title(self) -> str:
        return f"Night of {self.started_at:%Y-%m-%d %H:%M} UTC: {self.sweep} on {self.host}"

    def _headline(self) -> str:
        what = f"{self.state.capitalize()} after {span(self.took_s)} of a budget of {span(self.budget_s)}"
        waited = f", {span(self.waited_s)} of them waiting for GPUs" if self.waited_s >= 1 else ""
        why = f": {self.why}" if self.why else ""
        counts = "" if self.run is None else f" {self.n_ok} trials ok, {len(self.not_ok)} not ok."
        went_on = " It goes on with a night that was interrupted." if self.resumed else ""
        where = f"\n\nRows: {self.run}" if self.run else ""
        return f"{what}{waited}{why}. Exit {self.exit_code}.{counts}{went_on}{where}"

    def _sections(self) -> Iterable[tuple[str, Sequence[str]]]:
        yield "Host", self.findings
        yield "Measured", self.measured
        yield "Failed or invalid", self.not_ok
        yield "Not measured tonight", self.not_measured
        yield "Still undecided", self.undecided
        yield "Best K", [*([self.table] if self.table else []), *self.changes]
        yield "Slower than before", self.regressions
        yield "Compared", self.comparisons
        yield "Not comparable", self.not_compared
        yield "Notes", self.notes
        yield "Disk", self.disk
        yield "Files", [", ".join(self.files)] if self.files else []


def span(seconds: float) -> str:
    """A duration as people say it: ``45 s``, ``12 min``, ``2 h 05 min``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def measured_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each model of a run's rows: corpora, rounds, trials."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows if not row["is_sentinel"]):
        mine = [row for row in rows if row["model"] == model and not row["is_sentinel"]]
        n_ok = sum(row["status"] == "ok" for row in mine)
        rounds, corpora = {row["round"] for row in mine}, {row["corpus"] for row in mine}
        what = f"{_count(len(corpora), 'corpus', 'corpora')}, {_count(len(rounds), 'round', 'rounds')}"
        lines.append(f"{model}: {what}, {n_ok} of {len(mine)} trials ok")
    n_sentinels = sum(bool(row["is_sentinel"]) for row in rows)
    return [*lines, *([f"sentinel: {_count(n_sentinels, 'trial', 'trials')}"] if n_sentinels else [])]


def bad_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each trial that is not ok, with its reason."""
    lines = []
    for row in rows:
        if row["status"] != "ok":
            arm = row["arm"] if row["k"] is None else f"{row['arm']}@{row['k']}"
            where = f"{row['model']} {row['corpus']} {arm} round {row['round']}"
            lines.append(f"{where}: {row['status']}, {row['reason']}: {_brief(row['detail'])}")
    return lines


def _brief(text: Any) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= _MOST_CHARS else f"{words[: _MOST_CHARS - 3]}..."


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _capped(lines: Sequence[str]) -> list[str]:
    shown = [f"- {line}" for line in lines[:MOST_LINES]]
    more = len(lines) - len(shown)
    return [*shown, *([f"- and {more} more: summary.json has all"] if more else [])]

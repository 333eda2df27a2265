"""A report as Markdown: the headline, what limits it, and every table. A ``Report`` in, text out."""

from __future__ import annotations

import re

from kpad_bench.report_data import Report
from kpad_bench.report_figure import Table
from kpad_bench.report_figures import sections
from kpad_bench.report_tables import (
    best_table,
    commands,
    failures_table,
    headline,
    limits,
    runs_table,
    same_facts,
    title_of,
    when,
)


def markdown(report: Report) -> str:
    """The whole report without its drawings, as GitHub and others show it."""
    parts = [f"# {_plain(title_of(report))}", _plain(when(report))]
    parts.append("\n".join(f"- **{card.figure}** {_plain(card.text)}" for card in headline(report)))
    parts += [f"> {_plain(text)}" for text in limits(report)]
    best = best_table(report)
    if best is not None:
        parts += ["## Best-K table", table(best)]
    for section in sections(report):
        parts.append(f"## {_plain(section.title)}")
        if not section.figures:
            parts.append(_plain(section.absent))
        for figure in section.figures:
            parts += [f"### {_plain(figure.title)}", table(figure.table)]
    bad = failures_table(report)
    parts += ["## Failures and invalid trials", "None." if bad is None else table(bad)]
    parts += ["## Provenance", "\n".join(f"- {n}: {_plain(v)}" for n, v in same_facts(report))]
    parts += [table(runs_table(report)), *(f"{what}:\n\n    {line}" for what, line in commands(report))]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(shown: Table) -> str:
    """One table as Markdown, its notes below."""
    lines = [shown.columns, ["---" if i in shown.words else "--:" for i in range(len(shown.columns))]]
    lines += [[_plain(text) for text in row] for row in shown.rows]
    notes = "\n".join(_plain(note) if note[:1].isdecimal() else f"{_plain(note)}\n" for note in shown.notes)
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{body}\n\n{notes}".strip()


def _plain(text: str) -> str:
    """Text that no renderer takes for markup: names are others'."""
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", " ".join(text.split()))

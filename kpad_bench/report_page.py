"""A report as one HTML file: no network, no inline handlers, nothing in it that is not escaped.

A ``Report`` in, text out. The page's own policy (CSP) lets its one style and its one script run, by their
digests, and nothing else: a name with markup in it is text even where an escape had been forgotten.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from importlib import resources

from kpad_bench import __version__
from kpad_bench.report_data import Report
from kpad_bench.report_figure import FONT, PALETTE, Figure, Table, style, svg
from kpad_bench.report_figures import Section, sections
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

#: Cells with more characters may wrap.
_LONG = 44


def page(report: Report) -> str:
    """The whole page. The same report gives the same page."""
    css, script = _style(), _asset("script.js")
    title = escape(title_of(report))
    policy = (
        f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = sections(report)
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=False)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title}</title><style>{css}</style></head>\n",
            '<body><a class="skip" href="#main">Skip to the figures</a>',
            f'<header><h1>{title}</h1><p class="muted">{escape(when(report))}; made by kpad-bench ',
            f"{escape(__version__)}</p>{_headline(report)}{_contents(parts)}</header>\n",
            f'<main id="main">{"".join(_body(report, parts))}</main>\n',
            "<footer>All intervals are 95 %. Words and rules: <code>docs/report.md</code>, ",
            "<code>docs/statistics.md</code> and <code>docs/metrics.md</code> of kpad-bench.</footer>\n",
            f'<div id="tip" role="status"></div><script>{script}</script></body></html>\n',
        )
    )


def _headline(report: Report) -> str:
    cards = "".join(
        f'<div class="card" data-card="{escape(card.name)}"><dt>{escape(card.text)}</dt>'
        f"<dd>{escape(card.figure)}</dd></div>"
        for card in headline(report)
    )
    texts = "".join(f"<li>{escape(text)}</li>" for text in limits(report))
    told = f'<ul class="limits" aria-label="What limits this page">{texts}</ul>' if texts else ""
    return f'<dl class="cards">{cards}</dl>{told}'


def _contents(parts: list[Section]) -> str:
    names = [(part.name, part.title) for part in parts]
    names[1:1] = [("table", "Best-K table")]
    names += [("failures", "Failures"), ("provenance", "Provenance")]
    links = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in names)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _body(report: Report, parts: list[Section]) -> Iterator[str]:
    first, *others = parts
    yield _section(first)
    best = best_table(report)
    shown = "<p>There is no row: no arm with a K was measured.</p>" if best is None else _table(best)
    yield _block("table", "Best-K table", shown)
    for part in others:
        yield _section(part)
    bad = failures_table(report)
    yield _block("failures", "Failures and invalid trials", "<p>None.</p>" if bad is None else _table(bad))
    yield _block("provenance", "Provenance, and how to get every figure again", _provenance(report, parts))


def _block(name: str, title: str, body: str) -> str:
    head = f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{escape(title)}</h2>'
    return f"{head}{body}</section>\n"


def _section(part: Section) -> str:
    body = "".join(map(_figure, part.figures)) or f'<p class="absent">{escape(part.absent)}</p>'
    if part.more:
        more = "".join(map(_figure, part.more))
        body += f"<details><summary>{len(part.more)} more: the other corpora</summary>{more}</details>"
    return _block(part.name, part.title, body + f'<p class="source">From: {escape(part.source)}.</p>')


def _figure(figure: Figure) -> str:
    name = escape(figure.name)
    title = f"<h3>{escape(figure.title)}</h3>"
    return (
        f'<figure id="figure-{name}"><figcaption>{title}<p class="caption" id="caption-{name}">'
        f'{escape(figure.caption)}</p></figcaption><div class="scroll">'
        f"{svg(figure)}</div><details><summary>The same as a "
        f"table</summary>{_table(figure.table)}</details></figure>"
    )


def _table(table: Table) -> str:
    name = escape(table.name)
    head = "".join(
        f'<th scope="col"{"" if i in table.words else _NUMBER}>{escape(title)}</th>'
        for i, title in enumerate(table.columns)
    )
    body = "".join(
        f"<tr>{''.join(_cell(text, i, is_word=i in table.words) for i, text in enumerate(row))}</tr>"
        for row in table.rows
    )
    notes = "".join(f"<li>{escape(_unnumbered(note))}</li>" for note in table.notes if _is_numbered(note))
    texts = "".join(
        f'<p class="caption">{escape(note)}</p>' for note in table.notes if not _is_numbered(note)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="table-{name}-c">'
        f'<table id="table-{name}">'
        f'<caption id="table-{name}-c">{escape(table.title)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{texts}" + (f'<ol class="notes">{notes}</ol>' if notes else "")
    )


_NUMBER = ' class="n"'


def _cell(text: str, place: int, *, is_word: bool) -> str:
    kind = ' class="long"' if len(text) > _LONG else "" if is_word else _NUMBER
    return f'<th scope="row"{kind}>{escape(text)}</th>' if place == 0 else f"<td{kind}>{escape(text)}</td>"


def _is_numbered(note: str) -> bool:
    return note.partition(". ")[0].isdecimal()


def _unnumbered(note: str) -> str:
    return note.partition(". ")[2]


def _provenance(report: Report, parts: list[Section]) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in same_facts(report))
    same = f'<h3>The same in every run</h3><dl class="facts">{facts}</dl>' if facts else ""
    lines = "".join(
        f"<dt>{escape(what)}</dt><dd><code>{escape(line)}</code></dd>" for what, line in commands(report)
    )
    sources = "".join(
        f"<dt>{escape(part.title)}</dt><dd>{escape(part.source)}</dd>" for part in parts if part.figures
    )
    columns = f'<h3>Columns behind each figure</h3><dl class="facts">{sources}</dl>' if sources else ""
    return f'{same}{_table(runs_table(report))}<h3>Again</h3><dl class="facts">{lines}</dl>{columns}'


def _style() -> str:
    """The page's style with the colours of both schemes; paper is light."""
    roots = [
        f":root{{--font:{FONT};{''.join(f'--{role}:{pair[i]};' for role, pair in PALETTE.items())}}}"
        for i in (0, 1)
    ]
    light, dark = (root + style(i) for i, root in enumerate(roots))
    return f"{light}{_asset('style.css')}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _asset(name: str) -> str:
    return resources.files("kpad_bench").joinpath("_page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

"""A best-K table as text for people (table, md) or data for programs (csv, json, parquet).

Takes rows and footnotes, gives text or bytes; decides nothing and reads nothing. A footnote is a doubt
about some rows: people's formats print its number beside them, data formats are exactly the data.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kpad_bench import arrow
from kpad_bench.errors import UsageError
from kpad_bench.schema import BEST_K, names

FORMATS = ("table", "md", "csv", "json", "parquet")
WIDTH = 100
_NOTHING = "-"
LEGEND = {
    "±": "half of the 95 % interval of tok/s",
    "95 %": "interval of tok/s",
    "lead": "over the next best K",
    "tied": "Ks not shown to be worse than the best",
    "sure": "established by measurement; small: established, but too small a lead to matter",
    "pick": "the K to run",
    "risk": "what the pick may lose",
    "van": "tok/s without speculation",
    "suf": "tok/s of unpadded suffix decoding at K=32",
    "vs van": "gain over no speculation",
    "vs suf": "gain over unpadded suffix decoding at K=32",
    "vs best": "gain over the best baseline measured, unpadded suffix at other Ks among them",
}
_UNSURE = "~: the interval of a gain reaches zero"
#: What a line of text can do without, the first first, where it would be longer than WIDTH.
_CAN_GO = ("vs van", "lead", "vs suf", "vs best", "±")


class Note(NamedTuple):
    """A footnote: the text, and the positions of the rows it is about (none: the whole table)."""

    text: str
    rows: tuple[int, ...] = ()


class View(NamedTuple):
    """A column that people see: its title, and how it shows a row."""

    title: str
    show: Callable[[Mapping[str, Any]], str]


def render(
    rows: Sequence[Mapping[str, Any]], summary: Sequence[str], notes: Sequence[Note], output_format: str
) -> str | bytes:
    """The table in one of ``FORMATS``; bytes for parquet. Raises UsageError for another format.

    ``summary`` are sentences about the whole table; people's formats have them below it.
    """
    if output_format == "table":
        return _plain(rows, summary, notes)
    if output_format == "md":
        return _markdown(rows, summary, notes)
    if output_format == "csv":
        return _csv(rows)
    if output_format == "json":
        return json.dumps(list(rows), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if output_format == "parquet":
        return arrow.to_bytes(arrow.to_table(rows, BEST_K))
    raise UsageError(f"format {output_format!r}: choose one of {', '.join(FORMATS)}")


def numbered(notes: Sequence[Note]) -> list[str]:
    """Footnotes with their numbers, one string each."""
    return [f"{number}. {printable(note.text)}" for number, note in enumerate(notes, 1)]


def _plain(rows: Sequence[Mapping[str, Any]], summary: Sequence[str], notes: Sequence[Note]) -> str:
    """Rows under a line with their model: model names are long, and 100 columns are few."""
    views, gone = people_see(rows), []
    cells = _cells(rows, views, notes)
    for title in _CAN_GO:
        if _width(cells) > WIDTH and any(view.title == title for view in views):
            gone.append(title)
            views = [view for view in views if view.title != title]
            cells = _cells(rows, views, notes)
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines, model = [aligned(cells[0], widths)], None
    for row, line in zip(rows, cells[1:], strict=True):
        if row["model"] != model:
            model = row["model"]
            lines.append(printable(model))
        lines.append(aligned(line, widths))
    left_out = [f"Left out for want of width: {', '.join(gone)}; --format md has all."] if gone else []
    for text in (*summary, " ".join([_legend(views, cells), *left_out])):
        lines += ["", *textwrap.wrap(text, WIDTH)]
    lines += [""] if notes else []
    for text in numbered(notes):
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="   ", break_long_words=False)
    return "\n".join(lines) + "\n"


def _cells(
    rows: Sequence[Mapping[str, Any]], views: Sequence[View], notes: Sequence[Note]
) -> list[list[str]]:
    cells = [["model / corpus", *(view.title for view in views), "notes" if notes else ""]]
    for row, marks in zip(rows, marks_of(len(rows), notes), strict=True):
        cells.append([f"  {printable(row['corpus'])}", *(view.show(row) for view in views), marks])
    return cells


def _width(cells: Sequence[Sequence[str]]) -> int:
    return sum(max(len(line[i]) for line in cells) + 2 for i in range(len(cells[0]))) - 2


def _legend(views: Sequence[View], cells: Sequence[Sequence[str]]) -> str:
    texts = [f"{view.title}: {LEGEND[view.title]}" for view in views if view.title in LEGEND]
    texts += [_UNSURE] if any(cell.startswith("~") for line in cells for cell in line) else []
    return ". ".join(texts) + "."


def aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table: names and notes to the left, figures to the right."""
    figures = [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)]
    return "  ".join([line[0].ljust(widths[0]), *figures, line[-1]]).rstrip()


def _markdown(rows: Sequence[Mapping[str, Any]], summary: Sequence[str], notes: Sequence[Note]) -> str:
    views = people_see(rows, is_wide=True)
    titles = ["model", "corpus", *(view.title for view in views), *(["notes"] if notes else [])]
    rule = ["---", "---", *("--:" for _ in views), *(["---"] if notes else [])]
    lines = [titles, rule]
    for row, marks in zip(rows, marks_of(len(rows), notes), strict=True):
        cells = [printable(row["model"]), printable(row["corpus"]), *(view.show(row) for view in views)]
        cells += [marks] if notes else []
        lines.append([cell.replace("|", r"\|") for cell in cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [table, *summary, _legend(views, lines)]
    return "\n\n".join([*parts, *(["\n".join(numbered(notes))] if notes else [])]) + "\n"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names(BEST_K))
    writer.writerows([csv_value(row[name]) for name in names(BEST_K)] for row in rows)
    return out.getvalue()


def csv_value(value: Any) -> str:
    """A value as a field of a CSV; null is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ("; " if any(isinstance(item, str) for item in value) else " ").join(map(str, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def people_see(rows: Sequence[Mapping[str, Any]], *, is_wide: bool = False) -> list[View]:
    """The columns people see, of those about which some row knows something; the arm where there are several.

    The wide form has intervals in full, and the throughputs of the baselines.
    """
    views = [
        View("best K", lambda row: _text(row["best_k"])),
        View("tok/s", lambda row: speed(row["output_tok_per_s"])),
        View("95 %", _interval) if is_wide else View("±", _half_width),
        View("lead", lambda row: _percent(row["margin_pct"])),
        View("tied", lambda row: ",".join(map(str, row["tie_set"] or [])) or _NOTHING),
        View("sure", _sure),
        View("pick", lambda row: _text(row["pick_k"])),
        View("risk", lambda row: _percent(row["regret_pct"])),
        *(_speed_view(title) for title in ("van", "suf") if is_wide),
        *(_gain_view(title, name, is_wide=is_wide) for title, name in _GAINS.items()),
    ]
    if len({row["arm"] for row in rows}) > 1:
        views.insert(0, View("arm", lambda row: printable(row["arm"])))
    always = ("arm", "best K", "tok/s", "lead", "tied", "sure", "pick", "risk")
    known = [view for view in views if view.title in always or any(view.show(r) != _NOTHING for r in rows)]
    return known if _tells_more(rows) else [view for view in known if view.title != "vs best"]


_GAINS = {"vs van": "vs_van", "vs suf": "vs_suf", "vs best": "vs_best_baseline"}


def _tells_more(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the best baseline of some row is another than van and suf, which have columns."""
    return any(
        row["vs_best_baseline_pct"] not in (row["vs_van_pct"], row["vs_suf_pct"], None) for row in rows
    )


def _speed_view(title: str) -> View:
    return View(title, lambda row: speed(row[f"{title}_tok_per_s"]))


def _gain_view(title: str, name: str, *, is_wide: bool) -> View:
    def show(row: Mapping[str, Any]) -> str:
        pct, low, high = (row[f"{name}_{part}"] for part in ("pct", "low_pct", "high_pct"))
        is_unsure = low is not None and low <= 0 <= high
        text = f"{'~' if is_unsure else ''}{_percent(pct, '+')}"
        return f"{text} ({low:+.1f}..{high:+.1f})" if is_wide and low is not None else text

    return View(title, show)


def _sure(row: Mapping[str, Any]) -> str:
    if not row["established"]:
        return "no"
    return "yes" if row["relevant"] else "small"


def _half_width(row: Mapping[str, Any]) -> str:
    if row["ci_low"] is None:
        return _NOTHING
    return f"{50 * (row['ci_high'] - row['ci_low']) / row['output_tok_per_s']:.1f}%"


def _interval(row: Mapping[str, Any]) -> str:
    return _NOTHING if row["ci_low"] is None else f"{speed(row['ci_low'])}..{speed(row['ci_high'])}"


def marks_of(n_rows: int, notes: Sequence[Note]) -> list[str]:
    """The numbers of the notes of each row, neighbours as a range."""
    marks: list[list[int]] = [[] for _ in range(n_rows)]
    for number, note in enumerate(notes, 1):
        for position in note.rows:
            marks[position].append(number)
    return [_ranges(numbers) for numbers in marks]


def _ranges(numbers: Sequence[int]) -> str:
    """``1 3-5 8 9`` for 1 3 4 5 8 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs)


def _text(value: Any) -> str:
    return _NOTHING if value is None else str(value)


def speed(value: float | None) -> str:
    """Tokens per second, for people."""
    if value is None:
        return _NOTHING
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(value: float | None, sign: str = "") -> str:
    return _NOTHING if value is None else f"{value:{sign}.1f}%"


def printable(text: Any) -> str:
    """Text on one line, without anything that steers a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text))

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
_LEGEND = (
    "lead: over the next best K. tied: Ks not shown to be worse than the best. sure: established by "
    "measurement. pick: the K to run. risk: what the pick may lose. van, suf: tok/s without speculation, "
    "and with unpadded suffix decoding at K=32. gain: over the best baseline measured."
)


class Note(NamedTuple):
    """A footnote: the text, and the positions of the rows it is about (none: the whole table)."""

    text: str
    rows: tuple[int, ...] = ()


class _View(NamedTuple):
    title: str
    show: Callable[[Mapping[str, Any]], str]


def render(rows: Sequence[Mapping[str, Any]], notes: Sequence[Note], output_format: str) -> str | bytes:
    """The table in one of ``FORMATS``; bytes for parquet. Raises UsageError for another format."""
    if output_format == "table":
        return _plain(rows, notes)
    if output_format == "md":
        return _markdown(rows, notes)
    if output_format == "csv":
        return _csv(rows)
    if output_format == "json":
        return json.dumps(list(rows), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if output_format == "parquet":
        return arrow.to_bytes(arrow.to_table(rows, BEST_K))
    raise UsageError(f"format {output_format!r}: choose one of {', '.join(FORMATS)}")


def numbered(notes: Sequence[Note]) -> list[str]:
    """Footnotes with their numbers, one string each."""
    return [f"{number}. {_printable(note.text)}" for number, note in enumerate(notes, 1)]


def _plain(rows: Sequence[Mapping[str, Any]], notes: Sequence[Note]) -> str:
    """Rows under a line with their model: model names are long, and 100 columns are few."""
    views = _views(rows)
    cells = [["model / corpus", *(view.title for view in views), "notes" if notes else ""]]
    for position, row in enumerate(rows):
        marks = _marks(position, notes)
        cells.append([f"  {_printable(row['corpus'])}", *(view.show(row) for view in views), marks])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines, model = [_aligned(cells[0], widths)], None
    for row, line in zip(rows, cells[1:], strict=True):
        if row["model"] != model:
            model = row["model"]
            lines.append(_printable(model))
        lines.append(_aligned(line, widths))
    lines += ["", *textwrap.wrap(_LEGEND, WIDTH)]
    for text in numbered(notes):
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="   ", break_long_words=False)
    return "\n".join(lines) + "\n"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    """Names and notes to the left, figures to the right."""
    figures = [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)]
    return "  ".join([line[0].ljust(widths[0]), *figures, line[-1]]).rstrip()


def _markdown(rows: Sequence[Mapping[str, Any]], notes: Sequence[Note]) -> str:
    views = _views(rows)
    titles = ["model", "corpus", *(view.title for view in views), *(["notes"] if notes else [])]
    rule = ["---", "---", *("--:" for _ in views), *(["---"] if notes else [])]
    lines = [titles, rule]
    for position, row in enumerate(rows):
        marks = [_marks(position, notes)] if notes else []
        cells = [_printable(row["model"]), _printable(row["corpus"]), *(view.show(row) for view in views)]
        lines.append([cell.replace("|", r"\|") for cell in (*cells, *marks)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([table, "", _LEGEND, *(["", *numbered(notes)] if notes else [])]) + "\n"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names(BEST_K))
    writer.writerows([_csv_value(row[name]) for name in names(BEST_K)] for row in rows)
    return out.getvalue()


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ("; " if any(isinstance(item, str) for item in value) else " ").join(map(str, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _views(rows: Sequence[Mapping[str, Any]]) -> list[_View]:
    """The columns people see; baselines only where some row has them, the arm where there are several."""
    views = [
        _View("best K", lambda row: _text(row["best_k"])),
        _View("tok/s", lambda row: _speed(row["output_tok_per_s"])),
        _View("lead", lambda row: _percent(row["margin_pct"])),
        _View("tied", lambda row: ",".join(map(str, row["tie_set"] or [])) or _NOTHING),
        _View("sure", lambda row: "yes" if row["established"] else "no"),
        _View("pick", lambda row: _text(row["pick_k"])),
        _View("risk", lambda row: _percent(row["regret_pct"])),
    ]
    for title, name in (("van", "van_tok_per_s"), ("suf", "suf_tok_per_s")):
        if any(row[name] is not None for row in rows):
            views.append(_View(title, lambda row, name=name: _speed(row[name])))  # type: ignore[misc]
    if any(row["vs_best_baseline_pct"] is not None for row in rows):
        views.append(_View("gain", lambda row: _percent(row["vs_best_baseline_pct"], "+")))
    if len({row["arm"] for row in rows}) > 1:
        views.insert(0, _View("arm", lambda row: _printable(row["arm"])))
    return views


def _marks(position: int, notes: Sequence[Note]) -> str:
    return " ".join(str(number) for number, note in enumerate(notes, 1) if position in note.rows)


def _text(value: Any) -> str:
    return _NOTHING if value is None else str(value)


def _speed(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _percent(value: float | None, sign: str = "") -> str:
    return _NOTHING if value is None else f"{value:{sign}.1f}%"


def _printable(text: Any) -> str:
    """Text on one line, without anything that steers a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text))

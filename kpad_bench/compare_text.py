"""A comparison of two nights as text for people (table, md) or data for programs (csv, json).

Takes a comparison, gives text; decides nothing.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kpad_bench.alike import Cause, label
from kpad_bench.bestrow import rounded
from kpad_bench.compare import NOT_SHOWN, SAME, SHOWN, BestK, Compared, Comparison, causes_of_all
from kpad_bench.nights import LEAST_CELLS, MOST_MOVED
from kpad_bench.tables import WIDTH, Note, aligned, csv_value, marks_of, numbered, printable, speed

FORMATS = ("table", "md", "csv", "json")
_NOTHING = "-"
_N_NAMED = 6
_NAME_WIDTH, _ARM_WIDTH = 20, 16
_TITLES = ("arm", "base", "new", "change", "95 %", "beyond", "moved", "best K")
_LEGEND = (
    "base, new: tok/s. 95 %: interval of the change, with what a night does to single cells. beyond: change "
    "beyond the whole night's. moved: significantly beyond it (q <= 5 % over the table); -: not tested. "
    "best K: of its family on both nights; was, now: on one; ?: not shown to differ."
)


def render(found: Comparison, output_format: str) -> str:
    """The comparison in one of ``FORMATS``."""
    if output_format == "json":
        return json.dumps(_record(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if output_format == "csv":
        return _csv([_cell_record(found, cell) for cell in found.cells])
    return _markdown(found) if output_format == "md" else _plain(found)


def remarks(found: Comparison) -> list[str]:
    """What holds for the whole comparison and its doubts: for stderr where the format is exactly the data."""
    return [printable(text) for text in (*_summary(found), *found.notes)]


def _plain(found: Comparison) -> str:
    notes = _notes(found)
    lines = [["model / corpus", *_TITLES, "notes" if notes else ""]]
    for cell, line in zip(found.cells, _lines(found, notes), strict=True):
        lines.append([f"  {_cut(cell.key[1], _NAME_WIDTH)}", _cut(line[0], _ARM_WIDTH), *line[1:]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text, model = [aligned(lines[0], widths)], None
    for cell, line in zip(found.cells, lines[1:], strict=True):
        if cell.key[0] != model:
            model = cell.key[0]
            text.append(_cut(model, WIDTH))
        text.append(aligned(line, widths))
    for paragraph in (*_summary(found), _LEGEND):
        text += ["", *textwrap.wrap(printable(paragraph), WIDTH)]
    text += [""] if notes else []
    for note in numbered(notes):
        text += textwrap.wrap(note, WIDTH, subsequent_indent="   ")
    return "\n".join(text) + "\n"


def _markdown(found: Comparison) -> str:
    notes = _notes(found)
    titles = ["model", "corpus", *_TITLES, *(["notes"] if notes else [])]
    lines = [titles, ["---", "---", "---", *("--:" for _ in _TITLES[1:]), *(["---"] if notes else [])]]
    for cell, line in zip(found.cells, _lines(found, notes), strict=True):
        texts = [printable(cell.key[0]), printable(cell.key[1]), *(line if notes else line[:-1])]
        lines.append([text.replace("|", r"\|") for text in texts])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [table, *(printable(text) for text in _summary(found)), _LEGEND]
    return "\n\n".join([*parts, *(["\n".join(numbered(notes))] if notes else [])]) + "\n"


def _lines(found: Comparison, notes: Sequence[Note]) -> Iterator[list[str]]:
    """What the table says of each cell, the marks of its notes last."""
    for cell, marks in zip(found.cells, marks_of(len(found.cells), notes), strict=True):
        _, _, arm, k = cell.key
        change = cell.change
        is_tested = change.q_value is not None and found.nights.is_attributed
        yield [
            printable(f"{arm}@{k}" if k else arm),
            speed(cell.base_tok_per_s),
            speed(cell.new_tok_per_s),
            f"{_signed(change.pct)}%",
            _interval(change.low_pct, change.high_pct),
            f"{_signed(change.beyond_pct)}%",
            ("yes" if change.is_significant else "no") if is_tested else _NOTHING,
            _best(found.best_ks.get(cell.key[:3]), k),
            marks,
        ]


def _best(best: BestK | None, k: int) -> str:
    if best is None or k not in (best.base_k, best.new_k):
        return ""
    if best.change == SAME:
        return "best"
    return ("was" if k == best.base_k else "now") + ("?" if best.change == NOT_SHOWN else "")


def _summary(found: Comparison) -> Iterator[str]:
    shift, n = found.nights.shift, len(found.cells)
    interval = (
        "no interval: too few cells of one trial each"
        if shift.low_pct is None
        else f"95 %: {_interval(shift.low_pct, shift.high_pct)}"
    )
    cells = f"the median over {n} cells" if n > 1 else "the one cell that both have"
    yield f"Whole night: {_signed(shift.pct)} % ({interval}), {cells}."
    for cell in found.sentinels:
        yield f"Sentinel {_change(cell)}, from {cell.n_base} and {cell.n_new} values."
    yield from _moved(found)
    for state, words in ((SHOWN, "Best K changed"), (NOT_SHOWN, "Best K differs, not shown to have changed")):
        changed = [
            f"{' '.join(family)} {best.base_k} -> {best.new_k}"
            for family, best in found.best_ks.items()
            if best.change == state
        ]
        if changed:
            yield f"{words}: {_listed(changed)}."
    common = causes_of_all(found.cells)
    if common:
        yield f"Causes to look at first, in every cell: {'; '.join(map(str, common))}."
    if not any(cell.causes for cell in found.cells):
        yield "Nothing that both nights recorded differs between them."
    for side, only in (("BASE", found.only_base), ("NEW", found.only_new)):
        if only:
            told = [label(key) + (f" ({why} in the other)" if why else "") for key, why in only.items()]
            yield f"In {side} only, not compared, {len(only)}: {_listed(told)}."
    single = sum(cell.change.low_pct is None for cell in found.cells)
    if single:
        yield f"{single} of {n} cells have one trial on a night: no interval, and never significant."


def _moved(found: Comparison) -> Iterator[str]:
    """Which cells moved, and by what measure."""
    nights = found.nights
    if all(cell.change.low_pct is None for cell in found.cells):
        return
    effect = f"What a night does to single cells, {nights.cell_cv_pct:.2g} % of a change, is"
    if nights.is_assumed:
        yield (
            f"{effect} assumed: with fewer than {LEAST_CELLS} common cells none can be told from its night, "
            "and none is called significant."
        )
        return
    how = f"{effect} taken from the median and MAD over these cells: there is no history of nights."
    if not nights.is_attributed:
        yield (
            f"{nights.n_moved} of {nights.n_tested} tested cells moved, more than {100 * MOST_MOVED:.0f} %: "
            f"the nights differ as a whole, and nothing is attributed to single cells. {how}"
        )
        return
    moved = sorted((cell for cell in found.cells if cell.change.is_significant), key=_least_change)
    named = f": {_listed([_change(cell) for cell in moved])}" if moved else ""
    yield f"{len(moved)} of {nights.n_tested} tested cells moved beyond the whole night{named}. {how}"


def _notes(found: Comparison) -> list[Note]:
    """Causes that some cells have, and the doubts about the whole."""
    common = {str(cause) for cause in causes_of_all(found.cells)}
    by_column: dict[str, list[tuple[int, Cause]]] = {}
    for position, cell in enumerate(found.cells):
        for cause in cell.causes:
            if str(cause) not in common:
                by_column.setdefault(cause.column, []).append((position, cause))
    notes = [
        Note(_of_some(found.cells, causes), tuple(position for position, _ in causes))
        for causes in by_column.values()
    ]
    return [*notes, *(Note(text) for text in found.notes)]


def _of_some(cells: Sequence[Compared], causes: Sequence[tuple[int, Cause]]) -> str:
    """One column in which some cells differ between the nights, shown by the cell that changed most."""
    position, most = min(causes, key=lambda item: cells[item[0]].change.pct)
    texts = {str(cause) for _, cause in causes}
    if len(texts) == 1:
        return f"cause to look at: {most}"
    return f"cause to look at: {most} in {label(cells[position].key)}; other values in {len(causes) - 1} more"


def _change(cell: Compared) -> str:
    change = cell.change
    interval = "" if change.low_pct is None else f" ({_interval(change.low_pct, change.high_pct)})"
    speeds = f"{speed(cell.base_tok_per_s)} -> {speed(cell.new_tok_per_s)} tok/s"
    return f"{label(cell.key)} {speeds}, {_signed(change.pct)} %{interval}"


def _least_change(cell: Compared) -> float:
    return cell.change.pct


def _interval(low: float | None, high: float | None) -> str:
    return _NOTHING if low is None or high is None else f"{_signed(low)}..{_signed(high)}"


def _signed(pct: float) -> str:
    return f"{round(pct, 1) + 0.0:+.1f}"  # no -0.0


def _listed(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - _N_NAMED} more" if len(texts) > _N_NAMED else ""
    return "; ".join(texts[:_N_NAMED]) + more


def _cut(text: str, width: int) -> str:
    """The text in so many columns: the end tells names apart, so the middle goes."""
    text = printable(text)
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _csv(records: Iterable[dict[str, Any]]) -> str:
    out = io.StringIO()
    rows = list(records)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([csv_value(value) for value in row.values()] for row in rows)
    return out.getvalue()


def _record(found: Comparison) -> dict[str, Any]:
    nights = found.nights
    shift = {f"shift_{name}": rounded(value) for name, value in nights.shift._asdict().items()}
    return {
        **shift,
        "cell_by_night_pct": rounded(nights.cell_cv_pct),
        "cell_by_night_basis": "assumed" if nights.is_assumed else "measured",
        "n_tested": nights.n_tested,
        "n_moved": nights.n_moved,
        "is_attributed": nights.is_attributed,
        "sentinels": [_cell_record(found, cell) for cell in found.sentinels],
        "cells": [_cell_record(found, cell) for cell in found.cells],
        "only_base": {label(key): why for key, why in found.only_base.items()},
        "only_new": {label(key): why for key, why in found.only_new.items()},
        "notes": found.notes,
    }


def _cell_record(found: Comparison, cell: Compared) -> dict[str, Any]:
    """One cell as plain data. Percentages compare throughputs; null is not known."""
    model, corpus, arm, k = cell.key
    best, change = found.best_ks.get((model, corpus, arm)), cell.change
    return {
        "model": model, "corpus": corpus, "arm": arm, "k": k or None,
        "base_tok_per_s": rounded(cell.base_tok_per_s), "new_tok_per_s": rounded(cell.new_tok_per_s),
        "n_base": cell.n_base, "n_new": cell.n_new,
        "change_pct": rounded(change.pct), "low_pct": rounded(change.low_pct),
        "high_pct": rounded(change.high_pct), "beyond_shift_pct": rounded(change.beyond_pct),
        "p_value": change.p_value, "q_value": change.q_value, "significant": change.is_significant,
        "base_best_k": best and best.base_k, "new_best_k": best and best.new_k,
        "best_k_changed": best and best.change,
        "causes": [str(cause) for cause in cell.causes],
    }  # fmt: skip

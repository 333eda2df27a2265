"""A long CSV of throughputs, read into rows like those of the trials table.

One line is one trial: model, corpus, k and output_tok_per_s, and optionally any other column of that
table (arm, round, status, ...). Knows CSV and columns; decides nothing. Every error names the file,
the line, the column and the value.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kpad_bench.errors import DataError
from kpad_bench.schema import OK, STATUSES, Column

REQUIRED = ("model", "corpus", "k", "output_tok_per_s")
#: The published K sweep marks its own argmax; it is computed here, so the mark is passed over in silence.
_PASSED_OVER = ("marked_best",)
#: A line without an arm is about padded speculation; these arms have no K.
DEFAULT_ARM, NO_SPECULATION = "kpad", ("van", "van-v1")
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class CsvRows(NamedTuple):
    """Rows, the place of each ("file, line n"), and the columns that were not read."""

    rows: list[dict[str, Any]]
    places: list[str]
    unread: list[str]


def read_long_csv(path: Path, columns: Sequence[Column]) -> CsvRows:
    """Rows of a long CSV; ``columns`` are the ones to read where it has them.

    ``arm`` may carry its K (``suf@32``). Raises DataError for anything that is not what it must be.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = _header(next(lines, []), path)
            known = {column.name: column for column in columns if column.kind not in ("strs", "ints", "time")}
            found = CsvRows([], [], [name for name in header if name not in (*known, *_PASSED_OVER)])
            for row, line in _records(lines, header, path):
                found.places.append(f"{path}, line {line}")
                found.rows.append(_row(row, known, found.places[-1]))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); is it a CSV file?") from error
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: not CSV: {error}") from error
    if not found.rows:
        raise DataError(f"{path}: no rows below its header")
    return found


def _header(cells: list[str], path: Path) -> list[str]:
    header = [cell.strip() for cell in cells]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; its first line is {','.join(header)[:200]!r}"
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path}, line 1: column {', '.join(twice)} is there twice")
    return header


def _records(lines: Any, header: list[str], path: Path) -> Iterator[tuple[dict[str, str], int]]:
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}, line {lines.line_num}: {len(cells)} values for {len(header)} columns")
        yield dict(zip(header, (cell.strip() for cell in cells), strict=True)), lines.line_num


def _row(cells: dict[str, str], known: dict[str, Column], place: str) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": DEFAULT_ARM, "status": OK, "round": 1, "repeat": 1}
    arm, _, k_of_arm = cells.get("arm", "").partition("@")
    if k_of_arm and cells["k"] not in ("", k_of_arm):
        raise DataError(f"{place}, column arm: {cells['arm']!r} disagrees with k {cells['k']!r}")
    cells = {**cells, "k": cells["k"] or k_of_arm}
    if "arm" in cells:
        cells["arm"] = arm
    for name, column in known.items():
        if name in cells:
            row[name] = _value(cells[name], column, place)
    if row["status"] not in STATUSES:
        raise DataError(f"{place}, column status: {row['status']!r} is none of {', '.join(STATUSES)}")
    row["k"] = None if row["arm"] in NO_SPECULATION else row["k"]
    needed = ["model", "corpus", "arm", "round", "repeat"]
    needed += ["k"] if row["arm"] not in NO_SPECULATION else []
    needed += ["output_tok_per_s"] if row["status"] == OK else []
    for name in needed:
        if row[name] is None:
            raise DataError(f"{place}, column {name}: {cells.get(name, '')!r} is not {_wanted(known[name])}")
    ids = (row["model"], row["corpus"], row["arm"], row["k"], f"r{row['round']}", f"p{row['repeat']}")
    return {**row, "trial_id": row.get("trial_id") or "/".join(str(part) for part in ids)}


def _value(text: str, column: Column, place: str) -> Any:
    """The value of one field by its column; empty is null."""
    if not text:
        return None
    try:
        return _PARSERS.get(column.name, _PARSERS[column.kind])(text)
    except (ValueError, KeyError, OverflowError) as error:
        raise DataError(f"{place}, column {column.name}: {text!r} is not {_wanted(column)}") from error


def _wanted(column: Column) -> str:
    return _WANTED.get(column.name, _WANTED[column.kind])


def _whole(text: str) -> int:
    """An integer, also as the ``4.0`` that a data frame with gaps writes."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _positive(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_positive(text: str) -> Any:
        value = parse(text)
        if value <= 0:
            raise ValueError(text)
        return value

    return parse_positive


def _k(text: str) -> int | None:
    """K; 0 is how some tables write "no speculation"."""
    value = _whole(text)
    if value < 0:
        raise ValueError(text)
    return value or None


_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _whole,
    "float": _finite,
    "bool": lambda text: _BOOLS[text.lower()],
    "k": _k,
    "round": _positive(_whole),
    "repeat": _positive(_whole),
    # A run that failed has no throughput: a 0 here is some tool's way of hiding it.
    "output_tok_per_s": _positive(_finite),
}
_WANTED = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "k": "a positive whole number",
    "round": "a positive whole number",
    "repeat": "a positive whole number",
    "output_tok_per_s": "a positive number (leave a failed trial empty, with status failed)",
}

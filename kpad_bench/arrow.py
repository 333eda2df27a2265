"""The tables as Arrow: schemas from the declared columns, rows to Parquet, and the files of a run folder.

Knows columns and files, nothing of what the numbers mean. A run folder holds a table in two places:
one part per trial in ``<table>/``, and after compaction ``<table>.parquet``. A part is always the newer.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kpad_bench import storage
from kpad_bench.errors import DataError
from kpad_bench.schema import REQUESTS, SCHEMA_VERSION, TRIALS, Column

MANIFEST = "manifest.json"
#: The tables of a run folder, by the name of their folder of parts.
TABLES = {"trials": TRIALS, "requests": REQUESTS}

_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "strs": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
}
_ENCODED = pa.dictionary(pa.int32(), pa.string())


class Problem(NamedTuple):
    """A file that is not a table of ours, and why."""

    path: Path
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def arrow_schema(columns: Iterable[Column], *, is_encoded: bool = False) -> pa.Schema:
    """Arrow schema of declared columns, in their order; text as dictionaries where ``is_encoded``."""
    types = {**_TYPES, "str": _ENCODED} if is_encoded else _TYPES
    return pa.schema([pa.field(column.name, types[column.kind]) for column in columns])


def to_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """Rows as an Arrow table with exactly these columns: missing ones and NaN become null.

    Raises ValueError for a column nobody declared and for a value of another kind, naming it.
    """
    known = {column.name for column in columns}
    unknown = sorted({name for row in rows for name in row} - known)
    if unknown:
        raise ValueError(f"unknown column {', '.join(unknown)}: declare it in kpad_bench/schema.py")
    arrays = [
        pa.array([_checked(row.get(column.name), column) for row in rows], _TYPES[column.kind])
        for column in columns
    ]
    return pa.table(arrays, schema=arrow_schema(columns))


def to_bytes(table: pa.Table) -> bytes:
    """A table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    # Read twice as fast as zstd, and no more than a tenth larger: pages of a run's tables are small.
    pq.write_table(table, buffer, compression="snappy")
    return buffer.getvalue()


def read_table(
    path: Path, columns: Sequence[Column], *, is_encoded: bool = False, data: bytes | None = None
) -> pa.Table:
    """These columns of a Parquet file, or of its bytes where they have been read; the ones it lacks are null.

    ``is_encoded`` leaves text as the dictionaries that it is stored in: half of the time, less than half of
    the memory. Raises DataError, naming the file, where it is not whole, not one of our tables
    (schema_version and trial_id are in all of them), of another schema version, or holds a column of
    another type.
    """
    schema = arrow_schema(columns, is_encoded=is_encoded)
    try:
        # Arrow takes no path that is not UTF-8, and may drop a file object of Python's in a thread of its own
        # while the interpreter ends, which aborts the process.
        with io.BytesIO(data) if data is not None else storage.reader(path) as source:
            is_here = data is None and not storage.is_remote(path)
            raw, present = _raw(f"/proc/self/fd/{source.fileno()}" if is_here else source, schema)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path}: not a whole Parquet file ({_first_line(error)}); move it away to go on without its rows"
        ) from error
    lacking = [name for name in ("schema_version", "trial_id") if name not in present]
    if lacking:
        raise DataError(f"{path}: not one of this tool's tables: it has no column {', '.join(lacking)}")
    versions = raw.column("schema_version").unique().to_pylist()
    if versions not in ([], [SCHEMA_VERSION]):
        found = ", ".join(str(version) for version in versions)
        raise DataError(f"{path}: schema version {found}; this kpad-bench reads {SCHEMA_VERSION} only")
    return pa.table([_cast(raw, field, path) for field in schema], schema=schema)


def _raw(source: str | BinaryIO, schema: pa.Schema) -> tuple[pa.Table, set[str]]:
    """The columns of a schema as they are stored, with schema_version, and the names of all there are."""
    texts = [field.name for field in schema if field.type == _ENCODED]
    # Buffering ahead and threads pay for large files far away; for a run's table they cost half of the time.
    try:
        file = pq.ParquetFile(source, read_dictionary=texts, pre_buffer=not isinstance(source, str))
    except KeyError:  # it lacks one of them, or has it as something else: opened as it is, which is slower
        file = pq.ParquetFile(source)
    with file:
        stored = set(file.schema_arrow.names)
        wanted = ["schema_version", *(field.name for field in schema if field.name in stored)]
        return file.read(wanted, use_threads=False), stored


def is_run(folder: Path) -> bool:
    """Whether a folder is laid out like one run of a sweep."""
    return any((folder / name).exists() for name in (MANIFEST, "trials", "trials.parquet"))


def part_files(folder: Path, table: str) -> list[Path]:
    """The parts of a run's table, by name; half-written ones (dot files) are not among them."""
    if storage.is_remote(folder):
        return storage.children(folder / table, ".parquet")
    return sorted(path for path in (folder / table).glob("*.parquet") if not path.name.startswith("."))


def read_part(path: Path, columns: Sequence[Column], data: bytes | None = None) -> pa.Table:
    """These columns of one part; trial_id must be among them.

    Raises DataError as ``read_table`` does, and where the part holds another trial than its name says.
    """
    table = read_table(path, columns, data=data)
    held = [trial_id for trial_id in table.column("trial_id").unique().to_pylist() if trial_id != path.stem]
    if held:
        raise DataError(f"{path}: holds trial {held[0]}, not the one it is named for")
    return table


def run_table(
    folder: Path, table: str, columns: Sequence[Column], *, is_encoded: bool = False
) -> tuple[pa.Table, list[Problem]]:
    """These columns (trial_id among them) of a run's table, each trial once, and the parts left out.

    A trial that has a part and is in the compacted file too was compacted a moment ago or measured
    again since: the part counts. Raises DataError where the compacted file itself cannot be read.
    """
    parts: dict[str, pa.Table] = {}
    problems = []
    for path, data in _with_data(part_files(folder, table)):
        try:
            parts[path.stem] = read_part(path, columns, data)
        except DataError as error:
            problems.append(Problem(path, str(error).removeprefix(f"{path}: ")))
    tables = [arrow_schema(columns, is_encoded=is_encoded).empty_table()]
    compacted = folder / f"{table}.parquet"
    if compacted.exists():
        old = read_table(compacted, columns, is_encoded=is_encoded)
        tables.append(old.filter(pc.invert(_among(old.column("trial_id"), parts))) if parts else old)
    if parts:  # as one piece: a thousand tables of one row take 60 MB
        new = pa.concat_tables(parts.values()).combine_chunks()
        tables.append(encoded(new, columns) if is_encoded else new)
    return pa.concat_tables(tables), problems


def _with_data(parts: Sequence[Path]) -> Iterable[tuple[Path, bytes | None]]:
    """Parts with their bytes where they are far away: many are fetched at a time."""
    if parts and storage.is_remote(parts[0]):
        return storage.read_all(parts)
    return ((path, None) for path in parts)


def encoded(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """The same table with its text as dictionaries."""
    return table.cast(arrow_schema(columns, is_encoded=True))


def _among(column: pa.ChunkedArray, values: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(column.cast(pa.string()), pa.array(values, pa.string()))


def _cast(raw: pa.Table, field: pa.Field, path: Path) -> pa.ChunkedArray:
    if field.name not in raw.schema.names:
        return pa.chunked_array([pa.nulls(raw.num_rows, field.type)])
    column = raw.column(field.name)
    if column.type == field.type:
        return column
    wanted = pa.string() if field.type == _ENCODED else field.type
    try:
        return column.cast(wanted).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{path}: column {field.name} is {column.type}, not {wanted}") from error


def _checked(value: Any, column: Column) -> Any:
    """The value where it is of the column's kind; Arrow by itself would cut 3.5 to the integer 3."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if column.kind in ("strs", "ints"):
        items = list(value) if isinstance(value, list | tuple) else [value]
        if not isinstance(value, list | tuple) or not all(_is_kind(v, column.kind[:-1]) for v in items):
            raise ValueError(f"column {column.name}: {value!r} is not a list of {column.kind[:-1]}")
        return items
    if not _is_kind(value, column.kind):
        raise ValueError(f"column {column.name}: {value!r} is not {column.kind}")
    return value


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "time":  # in UTC or convertible to it: a naive time would be read as some zone's by somebody
        return isinstance(value, datetime) and value.tzinfo is not None
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, {"str": str, "int": Integral, "float": Real, "bool": bool}[kind])


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

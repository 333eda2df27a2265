"""Rows from local files and installed packages, one at a time. Knows nothing of what a row means.

JSON array, JSON lines and Parquet, the first two also gzipped. A file that is cut or damaged is
refused, with the byte where it breaks and how many whole rows precede: a prefix of a corpus is
another corpus. Byte offsets in gzipped files count unpacked bytes.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import importlib.metadata
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from kpad_bench.errors import DataError, HostError, UsageError

Row = dict[str, Any]
_BLOCK_BYTES = 1 << 20
#: A JSON error this close to the end of what was read may be cured by reading on (a split literal).
_SPLIT_CHARS = 16
_SUFFIXES = (".json", ".jsonl", ".gz", ".parquet")


class CutError(DataError):
    """A file that ends before its rows do. ``n_whole`` of them came whole."""

    def __init__(self, message: str, n_whole: int) -> None:
        super().__init__(message)
        self.n_whole = n_whole


def source_files(source: Path) -> list[Path]:
    """The file itself, or the data files of a folder by name. Raises UsageError when there is none."""
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.name.endswith(_SUFFIXES))
        if not files:
            raise UsageError(f"{source}: no file ending in {', '.join(_SUFFIXES)} in this folder")
        return files
    if not source.exists():
        raise UsageError(f"{source}: no such file; give --source an existing file or folder")
    return [source]


def file_sha256(path: Path) -> str:
    """Hash of the bytes of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def package_file(distribution: str, name: str) -> Path:
    """A data file of an installed package, found without importing the package."""
    try:
        found = importlib.metadata.distribution(distribution).locate_file(name)
    except importlib.metadata.PackageNotFoundError:
        raise HostError(
            f"the Python package {distribution} is not installed: pip install {distribution}, "
            "or give the rows with --source FILE"
        ) from None
    path = Path(str(found))
    if not path.is_file():
        raise HostError(f"{path}: missing from the installed package {distribution}: install it again")
    return path


def read_rows(path: Path) -> Iterator[Row]:
    """Each row of one file, in file order. Raises DataError at the first fault, CutError where it is cut."""
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
            stream.seek(0)
            if magic == b"PAR1":
                yield from _parquet_rows(path)
            elif magic[:2] == b"\x1f\x8b":
                with gzip.open(stream) as unpacked:
                    yield from _JsonRows(path, cast(BinaryIO, unpacked)).rows()
            else:
                yield from _JsonRows(path, stream).rows()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as source, pq.ParquetFile(f"/proc/self/fd/{source.fileno()}") as file:
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a whole Parquet file ({error}); fetch it again") from None


class _JsonRows:
    """Objects of a JSON array or of JSON lines, one at a time; holds about one row and one block."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        self._stream = stream
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0  # next character in _text
        self._text_offset = 0  # bytes before _text
        self._n_bytes = 0  # bytes read
        self._n_rows = 0
        self._is_ended = False
        self._damage = ""
        self._is_cut = True  # and not damaged in another way

    def rows(self) -> Iterator[Row]:
        """Every row. Raises DataError where the text stops being rows."""
        self._read_on()
        if self._text.startswith("\ufeff"):
            self._at = 1
        if not self._next_char() and not self._damage:
            raise DataError(f"{self._path}: empty; give a file with rows")
        is_array = self._take("[")
        while not self._is_after_last(is_array):
            if is_array and self._n_rows and not self._take(","):
                raise self._fault(self._at, f"expected ',' or ']', found {self._next_char()!r}")
            yield self._object()
            self._n_rows += 1

    def _is_after_last(self, is_array: bool) -> bool:
        if is_array and self._take("]"):
            if self._next_char():
                raise self._fault(self._at, f"text after the end of the array: {self._next_char()!r}")
            is_array = False
        if self._next_char():
            return False
        if is_array or self._damage:
            raise self._cut()
        return True

    def _object(self) -> Row:
        if self._next_char() not in ("{", ""):
            raise self._fault(self._at, f"expected an object, found {self._next_char()!r}")
        while True:
            try:
                row, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
                return cast(Row, row)
            except json.JSONDecodeError as error:
                is_open = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _SPLIT_CHARS
                if not is_open:
                    raise self._fault(error.pos, error.msg) from None
                if self._is_ended:
                    raise self._cut() from None
                self._read_on()
            except (ValueError, RecursionError) as error:
                raise self._fault(self._at, str(error)) from None

    def _next_char(self) -> str:
        """The next character that is not white space, not consumed; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_ended:
                return ""
            self._read_on()

    def _take(self, char: str) -> bool:
        is_next = self._next_char() == char
        self._at += is_next
        return is_next

    def _read_on(self) -> None:
        """Forget what was consumed and add a block, at least doubling, so that retries stay linear."""
        self._text_offset += len(self._text[: self._at].encode())
        self._text = self._text[self._at :]
        self._at = 0
        block = self._block(max(_BLOCK_BYTES, len(self._text)))
        n_pending = len(self._utf8.getstate()[0])
        try:
            self._text += self._utf8.decode(block)
        except UnicodeDecodeError as error:
            byte = self._n_bytes - n_pending + error.start
            raise DataError(
                f"{self._path}: byte {byte} is not UTF-8 ({error.reason}); save the file as UTF-8"
            ) from None
        self._n_bytes += len(block)
        if self._is_ended and self._utf8.getstate()[0]:
            self._damage = self._damage or "its last character is cut"

    def _block(self, n_bytes: int) -> bytes:
        parts: list[bytes] = []
        left = n_bytes
        try:
            while left and (part := self._stream.read1(left)):  # type: ignore[attr-defined]
                parts.append(part)
                left -= len(part)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            self._damage = f"its gzip stream is cut or damaged: {error}"
            self._is_cut = isinstance(error, EOFError)
        self._is_ended = left > 0
        return b"".join(parts)

    def _byte(self, char: int) -> int:
        return self._text_offset + len(self._text[:char].encode())

    def _fault(self, char: int, what: str) -> DataError:
        return DataError(
            f"{self._path}: byte {self._byte(char)}: not JSON rows: {what}; "
            f"whole rows before it: {self._n_rows}"
        )

    def _cut(self) -> DataError:
        end = self._byte(len(self._text))
        why = f"; {self._damage}" if self._damage else ""
        where = (
            f"{self._path}: cut at byte {end}, in or before row {self._n_rows + 1}, which starts at byte "
            f"{self._byte(self._at)}; whole rows before it: {self._n_rows}{why}. Fetch the file again"
        )
        if not self._is_cut:
            return DataError(where)
        return CutError(f"{where}; or freeze its whole rows with --lenient, which is recorded", self._n_rows)

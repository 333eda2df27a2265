"""Reading rows: every file layout, and every fault with its place."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpad_bench import corpus_files
from kpad_bench.corpus_files import read_rows
from kpad_bench.errors import DataError, HostError, UsageError

ROWS = [
    {"task_id": 1, "text": "one"},
    {"task_id": 2, "text": "zwei ä \u2028 é"},
    {"task_id": 3, "text": "three"},
]


def _file(tmp_path: Path, data: bytes, name: str = "rows.json") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def _array(**options) -> bytes:
    return json.dumps(ROWS, **options).encode()


def _lines(end: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in ROWS).encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_array(), "a JSON array on one line"),
        (_array(indent=2, ensure_ascii=False), "a JSON array over many lines"),
        (_lines(), "JSON lines, U+2028 inside a string"),
        (_lines().rstrip(), "JSON lines without a last line end"),
        (_lines("\r\n"), "CR LF line ends"),
        (_lines("\n\n"), "empty lines"),
        (b"\xef\xbb\xbf" + _lines(), "a byte order mark"),
        (b"\xef\xbb\xbf" + _array(), "a byte order mark before an array"),
        (gzip.compress(_lines(), mtime=0), "gzipped JSON lines"),
        (gzip.compress(_array(), mtime=0), "a gzipped array"),
    ],
)
def test_reads_every_layout_of_the_same_rows(tmp_path, data, why):
    """Layout, line ends, compression and byte order mark do not change the rows."""
    assert list(read_rows(_file(tmp_path, data))) == ROWS, why


def test_reads_parquet(tmp_path):
    """Parquet is known by its content, whatever the name of the file."""
    path = tmp_path / "rows.json"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert list(read_rows(path)) == ROWS


@pytest.mark.parametrize("block", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("data", [_array(ensure_ascii=False, indent=1), _array(), _lines("\r\n")])
def test_the_size_of_the_blocks_read_is_irrelevant(tmp_path, monkeypatch, block, data):
    """A row, a character or an escape split between two blocks comes out whole."""
    monkeypatch.setattr(corpus_files, "_BLOCK_BYTES", block)
    assert list(read_rows(_file(tmp_path, data))) == ROWS


@settings(max_examples=200)
@given(data=st.data())
def test_a_cut_file_is_refused_with_its_place(tmp_path_factory, data):
    """Wherever an array is cut, the error has the file, its length and the number of whole rows before."""
    whole = _array(ensure_ascii=False)
    at = data.draw(st.integers(1, len(whole) - 1))
    path = _file(tmp_path_factory.mktemp("cut"), whole[:at])
    starts = [whole.index(json.dumps(row, ensure_ascii=False).encode()) for row in ROWS]
    n_whole = sum(
        start + len(json.dumps(row, ensure_ascii=False).encode()) <= at
        for start, row in zip(starts, ROWS, strict=True)
    )
    with pytest.raises(DataError) as error:
        list(read_rows(path))
    text = str(error.value)
    assert str(path) in text
    assert f"whole rows before it: {n_whole}" in text
    end = len(whole[:at].decode(errors="ignore").encode())  # of the last whole character
    assert f"cut at byte {end}" in text


def test_an_array_that_lost_its_last_40_bytes(tmp_path):
    """Three rows, the end cut off: refused, with the byte and the whole rows before it."""
    data = _array()[:-40]
    with pytest.raises(DataError, match=rf"cut at byte {len(data)}, in or before row 2, .*before it: 1"):
        list(read_rows(_file(tmp_path, data)))


def test_a_cut_last_line_is_refused(tmp_path):
    """A last line that ends in mid-row is a cut file, not a short corpus."""
    with pytest.raises(DataError, match=r"cut at byte .* row 3, .*before it: 2"):
        list(read_rows(_file(tmp_path, _lines().rstrip()[:-3])))


def test_a_cut_gzip_file_is_refused_with_the_rows_before(tmp_path):
    """The whole rows before the end of a cut gzip stream are counted, never returned as the corpus."""
    many = b"".join(
        json.dumps({"n": n, "noise": random.Random(n).random()}).encode() + b"\n" for n in range(3000)
    )
    packed = gzip.compress(many, mtime=0)
    path = _file(tmp_path, packed[: len(packed) // 2], "rows.jsonl.gz")
    with pytest.raises(DataError, match=r"gzip stream is cut or damaged") as error:
        list(read_rows(path))
    n_whole = int(str(error.value).split("before it: ")[1].split(";")[0])
    assert 0 < n_whole < 3000


def test_a_damaged_gzip_file_never_gives_other_rows(tmp_path):
    """Whichever byte of a gzip stream is flipped: refused, or (in unused bits) the same rows."""
    packed = bytearray(gzip.compress(_lines(), mtime=0))
    n_refused = 0
    for at in range(10, len(packed)):
        packed[at] ^= 0x10
        try:
            assert list(read_rows(_file(tmp_path, bytes(packed)))) == ROWS
        except DataError:
            n_refused += 1
        packed[at] ^= 0x10
    assert n_refused >= len(packed) - 11


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b" \n\t ", "empty"),
        (_lines() + b'{"task_id": 4, "text": "\xff"}\n', "byte 1.. is not UTF-8"),
        ("\ufeff".encode("utf-16-le") + '{"a": 1}'.encode("utf-16-le"), "byte 0 is not UTF-8"),
        (_lines()[:30] + b"\0" * 200, "byte 30: not JSON rows: expected an object, found '.x00'"),
        (b'{"text": "a\0b"}\n' + _lines(), "Invalid control character.*before it: 0"),
        (b'[{"a": 1} {"a": 2}]', "byte 10: .*expected ',' or ']', found '{'.*before it: 1"),
        (b'[{"a": 1}] trailing', "text after the end of the array"),
        (b'[{"a": 1}, 17]', "expected an object, found '1'"),
        (b'"just a text"', "expected an object"),
        (b'{"a": nonsense}' + b" " * 40, "byte 6: .*Expecting value"),
        (b"[" * 100 + b"]" * 100, "expected an object"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "recursion"),
        (b"PAR1 not a parquet file", "not a whole Parquet file"),
    ],
)
def test_what_is_not_rows_is_refused_with_file_and_place(tmp_path, data, match):
    """Damage of every kind: refused, with the file and, where there is one, the byte."""
    path = _file(tmp_path, data)
    with pytest.raises(DataError, match=match) as error:
        list(read_rows(path))
    assert str(error.value).startswith(str(path))


def test_a_cut_parquet_file_is_refused(tmp_path):
    """Parquet without its footer gives nothing."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a whole Parquet file"):
        list(read_rows(path))


def test_source_files_of_a_folder_are_its_data_files(tmp_path):
    """A folder stands for its data files by name; one without any, or a missing path, is refused."""
    for name in ("b.jsonl", "a.jsonl.gz", "README.md"):
        _file(tmp_path, b"{}", name)
    assert [path.name for path in corpus_files.source_files(tmp_path)] == ["a.jsonl.gz", "b.jsonl"]
    (tmp_path / "none").mkdir()
    for missing in (tmp_path / "none", tmp_path / "absent.json"):
        with pytest.raises(UsageError, match=r"no (such )?file"):
            corpus_files.source_files(missing)


def test_a_missing_package_says_what_to_install():
    """The package is named, and the way without it."""
    with pytest.raises(HostError, match=r"pip install no-such-distribution-here, or .*--source FILE"):
        corpus_files.package_file("no-such-distribution-here", "x")
    with pytest.raises(HostError, match="missing from the installed package"):
        corpus_files.package_file("pytest", "no/such/file")

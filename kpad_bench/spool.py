"""Where the bytes of a pass wait to be read: a file without a name, out of the client's memory.

A pass of 256 answers of 8,192 tokens brings some 600 MB. Their pieces are written in batches, beside the
pass (by a task of ``drive``) and never by the code that takes them in, and come back one answer
at a time when it is over. Without room for the file they stay in memory: the pass is worth more than it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from array import array
from typing import IO

from kpad_bench.stream import RawStream

#: Buffers of one write. Linux takes 1,024 (IOV_MAX).
MOST_PIECES = 1000


class Spool:
    """Pieces of many answers in one file. A context: the file is gone at its end."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0
        with contextlib.suppress(OSError):  # no folder for temporary files
            self._file = tempfile.TemporaryFile(prefix="kpad-bench-", buffering=0)  # noqa: SIM115 closed in __exit__

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, raw: RawStream, n_kept: int = 0) -> None:
        """Take what has come of an answer, but for its last ``n_kept`` pieces, in one write."""
        pieces = raw.pieces[: min(MOST_PIECES, len(raw.pieces) - n_kept)]
        if self._file is None or not pieces:
            return
        sizes = array("i", map(len, pieces))
        n_bytes = sum(sizes)
        try:
            is_written = os.pwritev(self._file.fileno(), pieces, self._end) == n_bytes
        except OSError:
            is_written = False
        if not is_written:  # the disk is full
            return
        raw.spooled.append((self._end, sizes))
        self._end += n_bytes
        del raw.pieces[: len(pieces)]

    def restore(self, raw: RawStream) -> None:
        """Bring an answer back, whole."""
        pieces: list[bytes] = []
        for start, sizes in raw.spooled:
            assert self._file is not None
            data = os.pread(self._file.fileno(), sum(sizes), start)
            at = 0
            for size in sizes:
                pieces.append(data[at : at + size])
                at += size
        raw.pieces, raw.spooled = pieces + raw.pieces, []

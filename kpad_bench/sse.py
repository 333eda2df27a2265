"""Server-sent events (WHATWG HTML, section 9.2) out of bytes split anywhere. Sans-IO."""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"


class EventReader:
    """Events out of bytes.

    Line ends may be LF, CR LF or CR. Comments and fields other than ``data`` are dropped, and so is
    an event that is never ended by an empty line.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._skips_lf = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that these bytes complete."""
        if not self._tail and _is_one_event(data):  # as nearly all pieces are
            self._skips_lf = self._at_start = False
            return [data[6:-2]]
        blocks = (self._tail + self._with_lf(data)).split(b"\n\n")
        self._tail = blocks.pop()
        if self._at_start and blocks:
            self._at_start = False
            blocks[0] = blocks[0].removeprefix(BOM)
        return [found for block in blocks if (found := event_data(block)) is not None]

    def _with_lf(self, data: bytes) -> bytes:
        if self._skips_lf and data:
            data = data.removeprefix(b"\n")
            self._skips_lf = False
        if b"\r" not in data:
            return data
        self._skips_lf = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_one_event(data: bytes) -> bool:
    """A line of data with LF, an empty line, and nothing else."""
    n = len(data) - 2
    return data.startswith(b"data: ") and data.find(b"\n") == n and data.endswith(b"\n") and b"\r" not in data


def event_data(block: bytes) -> bytes | None:
    """The ``data`` lines of one event joined by LF; None when it has none."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    fields = [line.partition(b":") for line in block.split(b"\n")]
    values = [value.removeprefix(b" ") for name, _, value in fields if name == b"data"]
    return b"\n".join(values) if values else None

"""The three standard streams, whatever state somebody started us with."""

from __future__ import annotations

import os
import sys

from kpad_bench.errors import HostError


def mend() -> None:
    """Make the streams usable: closed ones lead nowhere, and output is UTF-8 in every locale.

    A descriptor left closed would be given to the next file that is opened, and to a server's log with it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 for as long as we live
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def write_out(data: str | bytes) -> None:
    """Results to stdout, text with a line end. Raises HostError where they cannot go, and BrokenPipeError."""
    if sys.stdout is None:
        raise HostError("stdout is closed, and the result goes there; open it, or redirect it to a file")
    try:
        if isinstance(data, bytes):
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(data if data.endswith("\n") else data + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_rest()
        raise HostError(f"stdout: {error.strerror}; the result is not whole") from None


def drop_rest() -> None:
    """The interpreter flushes stdout once more at exit: let it write to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

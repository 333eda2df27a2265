"""What every command of the command line does alike: checks its options, writes results and messages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from kpad_bench import stdio
from kpad_bench.errors import UsageError

#: What a shell reports for a program that its reader has left (128 + SIGPIPE).
EXIT_READER_GONE = 141


def parse_ks(text: str) -> list[int]:
    """Ks as ``--k`` takes them. Raises UsageError for what is none."""
    from kpad_bench.configfile import positive_k  # noqa: PLC0415 pydantic is slow to load

    return [positive_k(part.strip(), "--k") for part in text.split(",")]


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise UsageError unless the value of an option is one of these."""
    if value not in allowed:
        raise UsageError(f"{option}: {value!r}: allowed: {', '.join(allowed)}")


def words(text: str) -> list[str]:
    """The entries of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def emit(data: str | bytes) -> None:
    """Results to stdout. Quiet when nobody reads any more, as in ``| head``."""
    try:
        stdio.write_out(data)
    except BrokenPipeError:
        stdio.drop_rest()
        raise typer.Exit(EXIT_READER_GONE) from None


def say(message: str) -> None:
    """A message for people, to stderr."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def plain(value: Any) -> dict[str, Any]:
    """A row object as a dict."""
    if hasattr(value, "model_dump"):
        return dict(value.model_dump(mode="json"))
    return dict(value._asdict() if hasattr(value, "_asdict") else value)


def aligned(rows: list[dict[str, Any]]) -> str:
    """Rows as text in columns, under their names."""
    if not rows:
        return ""
    lines = [[str(name) for name in rows[0]]]
    lines += [["-" if value is None else str(value) for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def write(data: str | bytes, out: Path | None, output_format: str) -> None:
    """Results to a file, or to stdout. Raises UsageError where they cannot be written there."""
    if out is not None:
        try:
            out.write_bytes(data if isinstance(data, bytes) else data.encode())
        except OSError as error:
            raise UsageError(f"--out: {out}: cannot be written ({error.strerror})") from None
    elif isinstance(data, bytes) and sys.stdout.isatty():
        raise UsageError(f"--format {output_format} is binary: give --out FILE, or redirect stdout")
    else:
        emit(data)

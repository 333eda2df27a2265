"""``kpad-bench report``: rows to one HTML page, and its drawings and tables as files where asked for.

Writes files; what they hold is worked out by ``report_data`` and laid out by ``report_page``,
``report_raster`` and ``report_text``. Imported by commands alone: pandas is slow to load.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from kpad_bench.errors import UsageError
from kpad_bench.report_data import Report, gather
from kpad_bench.report_figure import svg
from kpad_bench.report_figures import figures
from kpad_bench.report_page import page
from kpad_bench.report_tables import limits
from kpad_bench.report_text import markdown

FIGURE_FORMATS = ("svg", "png")


class Extra(NamedTuple):
    """What else is written: a folder for the drawings in a format, a file for the tables."""

    figures: Path | None = None
    figure_format: str = "svg"
    markdown: Path | None = None


def write_report(
    paths: Sequence[Path],
    out: Path,
    extra: Extra | None = None,
    *,
    candidates: Sequence[str] = (),
    allow_mixed: Collection[str] = frozenset(),
) -> list[str]:
    """Write the page of these rows to ``out``; gives what limits it, one sentence each.

    ``paths``: runs, sweeps, Parquet files of trials, long CSVs. A file is replaced only when its successor
    is whole. Raises UsageError or DataError for paths without rows and for files that cannot be written.
    """
    extra = extra or Extra()
    report = gather(paths, candidates, allow_mixed)
    _write(out, page(report).encode(), "--out")
    if extra.markdown is not None:
        _write(extra.markdown, markdown(report).encode(), "--markdown")
    if extra.figures is not None:
        _write_figures(report, extra.figures, extra.figure_format)
    return limits(report)


def _write_figures(report: Report, folder: Path, figure_format: str) -> None:
    if figure_format not in FIGURE_FORMATS:
        raise UsageError(f"--figure-format: {figure_format!r}: allowed: {', '.join(FIGURE_FORMATS)}")
    for figure in figures(report):
        if figure_format == "png":
            from kpad_bench.report_raster import png  # noqa: PLC0415 matplotlib is slow to load

            data = png(figure)
        else:
            data = svg(figure, is_file=True).encode()
        _write(folder / f"{figure.name}.{figure_format}", data, "--figures")


def _write(path: Path, data: bytes, option: str) -> None:
    """All of it or nothing: a half-written page is worse than yesterday's."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"{option}: {path}: cannot be written ({error.strerror})") from None

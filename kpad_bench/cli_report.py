"""The command ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kpad_bench.cli_tools import one_of, say, words
from kpad_bench.storage import place


def report(  # noqa: PLR0913, PLR0917 one parameter per option
    paths: Annotated[
        list[Path], typer.Argument(parser=place, help="Runs, or a CSV with model,corpus,k,output_tok_per_s.")
    ],
    out: Annotated[Path, typer.Option(help="The page; an older one is replaced.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="Folder for the drawings as files.")] = None,
    figure_format: Annotated[str, typer.Option("--figure-format", help="Of --figures: svg or png.")] = "svg",
    markdown: Annotated[Path | None, typer.Option(help="File for the tables as Markdown.")] = None,
    candidates: Annotated[
        str, typer.Option(help="Arms that compete for best K, the first in the figures. Default: kpad,kfill.")
    ] = "",
    allow_mixed: Annotated[str, typer.Option(help="Columns that may differ between pooled rows.")] = "",
) -> None:
    """One HTML page of figures and tables: what is best, how sure that is, and why.

    The page needs no network and no server. What limits it is said on it, and on stderr.
    """
    one_of("--figure-format", figure_format, ("svg", "png"))
    from kpad_bench.report import Extra, write_report

    told = write_report(
        paths,
        out,
        Extra(figures, figure_format, markdown),
        candidates=words(candidates),
        allow_mixed=frozenset(words(allow_mixed)),
    )
    for text in told:
        say(text)
    say(f"{out}: {out.stat().st_size / 1e6:.2f} MB")

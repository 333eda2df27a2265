"""The command ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kpad_bench.cli_tools import emit, one_of
from kpad_bench.errors import EXIT_HOST
from kpad_bench.storage import place


def doctor(
    config: Annotated[str, typer.Option(help="YAML file, or the name of a shipped one.")] = "default",
    out: Annotated[Path, typer.Option(parser=place, help="Results folder of the sweep.")] = Path("results"),
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """What this host lacks for a sweep, before anything boots: ok, warning or failure, each with its fix.

    Exit 4 with a failure; warnings let a sweep run.
    """
    one_of("--format", output_format, ("text", "json"))
    from kpad_bench.configfile import find_config, load_sweep
    from kpad_bench.doctor import as_json, as_text, examine

    found = examine(load_sweep(find_config(config)), out)
    emit(as_json(found) if output_format == "json" else as_text(found))
    if any(one.state == "failure" for one in found):
        raise typer.Exit(EXIT_HOST)

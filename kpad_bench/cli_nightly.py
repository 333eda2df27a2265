"""The command ``nightly``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, cast

import typer

from kpad_bench.cli_tools import emit, one_of, say
from kpad_bench.errors import UsageError

_SPAN = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


def nightly(
    config: Annotated[str, typer.Option(help="YAML file, or the name of a shipped one.")],
    budget: Annotated[str, typer.Option(help="Time from start to end: 10h, 90m, 1h30m.")] = "10h",
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("results"),
    keep: Annotated[
        int, typer.Option(min=1, help="Nights that keep logs, snapshots and requests; rows stay for ever.")
    ] = 14,
    gpu_wait: Annotated[
        str, typer.Option("--gpu-wait", help="How long to wait for GPUs that others hold.")
    ] = "1h",
    progress: Annotated[str, typer.Option(help="auto, rich, plain or none.")] = "auto",
) -> None:
    """One unattended night: doctor, sweep within a budget, reduce, compare, report, retain; a page about it.

    Exit 0: all trials ok, or the budget is used up; 3: some trials failed; 4: the host is not ready;
    130: interrupted, and the same command goes on. KPAD_BENCH_WEBHOOK: a URL that gets the summary as JSON.
    """
    one_of("--progress", progress, ("auto", "rich", "plain", "none"))
    budget_s, wait_s = seconds("--budget", budget), seconds("--gpu-wait", gpu_wait)
    from kpad_bench.nightly import Asked, Tools, run_nightly
    from kpad_bench.progress import Style

    asked = Asked(config, out, budget_s, keep, wait_s, cast(Style, progress))
    summary = run_nightly(asked, Tools(say))
    emit(summary.page())
    raise typer.Exit(summary.exit_code)


def seconds(option: str, text: str) -> float:
    """Seconds of ``10h``, ``90m``, ``1h30m`` or ``45s``. Raises UsageError for anything else."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise UsageError(f"{option}: {text!r}: write it like 10h, 90m, 1h30m or 45s")
    hours, minutes, secs = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + secs

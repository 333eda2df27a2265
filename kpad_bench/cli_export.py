"""The command ``export``: rows in the words of other tools.

As in ``cli``, nothing heavy is imported before it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kpad_bench.cli_tools import emit, one_of, say, words
from kpad_bench.errors import UsageError
from kpad_bench.storage import place

FORMATS = ("vllm-bench", "prometheus")


def export(
    paths: Annotated[
        list[Path], typer.Argument(parser=place, help="Runs, or a CSV with model,corpus,k,output_tok_per_s.")
    ],
    output_format: Annotated[str, typer.Option("--format", help="vllm-bench or prometheus.")],
    out: Annotated[
        Path | None,
        typer.Option(
            parser=place, help="vllm-bench: a folder. prometheus: a .prom file; without one, stdout."
        ),
    ] = None,
    detailed: Annotated[
        bool, typer.Option("--detailed", help="vllm-bench: lengths and times of every request, too.")
    ] = False,
    candidates: Annotated[
        str, typer.Option(help="prometheus: arms that compete for best K, like kpad,kfill.")
    ] = "kpad",
    allow_mixed: Annotated[
        str, typer.Option(help="prometheus: columns that may differ between pooled rows.")
    ] = "",
) -> None:
    """Rows for other tools: result files of vllm bench serve, or metrics for Prometheus.

    vllm-bench writes one JSON file for each ok trial. prometheus writes the best-K table as gauges, for the
    textfile collector of node_exporter, in one step.
    """
    one_of("--format", output_format, FORMATS)
    if output_format == "vllm-bench":
        from kpad_bench.export_vllm import write_results

        if out is None:
            raise UsageError("--format vllm-bench writes a file for each trial: give --out FOLDER")
        say(f"{out}: {write_results(paths, out, say, is_detailed=detailed)} files")
        return
    from kpad_bench import export_prometheus

    text = export_prometheus.export(paths, words(candidates), words(allow_mixed), say)
    if out is None:
        emit(text)
    else:
        export_prometheus.write(text, out)

"""The command line: options in, one call, exit code out.

stdout carries results, stderr everything meant for people. Nothing heavy is imported before a command
needs it: ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from kpad_bench import (
    __version__,
    cli_complete,
    cli_corpora,
    cli_doctor,
    cli_export,
    cli_models,
    cli_nightly,
    cli_report,
    stdio,
)
from kpad_bench.cli_guide import FIRST_STEPS, InOrder, guide
from kpad_bench.cli_tools import emit, one_of, parse_ks, say, words, write
from kpad_bench.errors import EXIT_INTERRUPTED, EXIT_OK, KpadError, UsageError
from kpad_bench.storage import place

app = typer.Typer(
    name="kpad-bench",
    help="Measure which padded draft length K makes vLLM's suffix decoding fastest.",
    epilog=FIRST_STEPS,
    cls=InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_models.app, name="models")
app.add_typer(cli_corpora.app, name="corpora")
app.command(epilog=guide("doctor"))(cli_doctor.doctor)
app.command(epilog=guide("report"))(cli_report.report)
app.command(epilog=guide("nightly"))(cli_nightly.nightly)
app.command(epilog=guide("export"))(cli_export.export)


def main() -> NoReturn:
    """Entry point. Exit codes: see kpad_bench.errors; a bug keeps its traceback and ends in 1."""
    stdio.mend()
    try:
        app()
    except KpadError as error:
        sys.stderr.write(f"kpad-bench: {error}\n")
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    raise SystemExit(EXIT_OK)


def _version(value: bool) -> None:
    if value:
        print(f"kpad-bench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


@app.command(epilog=guide("sweep"))
def sweep(  # noqa: PLR0913, PLR0917 one parameter per option
    model: Annotated[
        list[str] | None,
        typer.Option(autocompletion=cli_complete.models, help="Tag, hub id or ./folder; repeat for more."),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(autocompletion=cli_complete.corpora, help="Frozen prompt set; repeat for more."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(autocompletion=cli_complete.arms, help="Server variant, or name@K; repeat for more."),
    ] = None,
    k: Annotated[str | None, typer.Option("--k", help="Ks of the padded arms, like 4,6,8,12.")] = None,
    config: Annotated[
        str,
        typer.Option(autocompletion=cli_complete.configs, help="YAML file, or the name of a shipped one."),
    ] = "default",
    rounds: Annotated[
        str | None, typer.Option(help="Blocks of every cell: 3; or 3..8, as many as its decision needs.")
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(help="boot: a server per trial. reset: per arm and K. resident: these side by side."),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests kept open.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Output limit of a request.")] = None,
    n_prompts: Annotated[int | None, typer.Option(help="Prompts of a pass.")] = None,
    out: Annotated[
        Path, typer.Option(parser=place, help="Results folder, or a URL such as s3://bucket/prefix.")
    ] = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, start nothing.")] = False,
    cell: Annotated[str | None, typer.Option(help="With --dry-run: one cell's argv and environment.")] = None,
    output_format: Annotated[str, typer.Option("--format", help="Of --dry-run: table or json.")] = "table",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="A new run, even where one could be resumed.")
    ] = False,
    attach: Annotated[str | None, typer.Option(help="URL of a running server; unpadded arms only.")] = None,
    executor: Annotated[
        str, typer.Option(help="local: this host. ray: the hosts of a Ray cluster, a block at a time.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="Cluster of --executor ray. Default: RAY_ADDRESS, or the one here.")
    ] = None,
    ray_resource: Annotated[
        str | None, typer.Option(help="Custom resource that its hosts have, if not all of them.")
    ] = None,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or none.")] = "auto",
    save_text: Annotated[
        bool, typer.Option("--save-text", help="Keep output text in the request rows.")
    ] = False,
) -> None:
    """Measure every cell: boot vLLM, drive it, write one Parquet part per trial. Run again to resume."""
    one_of("--progress", progress, ("auto", "rich", "plain", "none"))
    one_of("--executor", executor, ("local", "ray"))
    if executor == "local" and (ray_address is not None or ray_resource is not None):
        raise UsageError("--ray-address and --ray-resource go with --executor ray")
    if executor == "ray" and attach is not None:
        raise UsageError("--attach: that server is one place; leave --executor ray out")
    one_of("--format", output_format, ("table", "json"))
    given: dict[str, Any] = {
        "models": model, "corpora": corpus, "arms": arm, "k": None if k is None else parse_ks(k),
        "rounds": rounds, "isolation": isolation, "load.concurrency": concurrency,
        "load.max_tokens": max_tokens, "load.n_prompts": n_prompts,
    }  # fmt: skip
    from kpad_bench.configfile import find_config, load_sweep

    resolved = load_sweep(
        find_config(config), {key: value for key, value in given.items() if value is not None}
    )
    if dry_run or cell is not None:
        from kpad_bench.dryrun import describe

        emit(describe(resolved, cell, output_format, out))
        return
    from kpad_bench.progress import Style
    from kpad_bench.raycluster import Asked
    from kpad_bench.sweep import Options, run_sweep

    style = cast(Style, progress)
    asked = Asked(ray_address, ray_resource) if executor == "ray" else None
    options = Options(out=out, fresh=fresh, attach=attach, progress=style, save_text=save_text, ray=asked)
    raise typer.Exit(run_sweep(resolved, options))


@app.command(epilog=guide("reduce"))
def reduce(
    paths: Annotated[
        list[Path], typer.Argument(parser=place, help="Runs, or a CSV with model,corpus,k,output_tok_per_s.")
    ],
    output_format: Annotated[
        str, typer.Option("--format", help="table, md, csv, json or parquet.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="File to write instead of stdout.")] = None,
    candidates: Annotated[str, typer.Option(help="Arms that compete for best K, like kpad,kfill.")] = "kpad",
    allow_mixed: Annotated[str, typer.Option(help="Columns that may differ between pooled rows.")] = "",
) -> None:
    """Rows to a best-K table."""
    one_of("--format", output_format, ("table", "md", "csv", "json", "parquet"))
    from kpad_bench.reduce import best_k, footnotes, load_rows, render

    if not words(candidates):
        raise UsageError(f"--candidates: {candidates!r}: name at least one arm, like kpad")
    allowed = frozenset(words(allow_mixed))
    rows = load_rows(paths)
    table = best_k(rows, candidates=tuple(words(candidates)), allow_mixed=allowed)
    write(render(table, output_format), out, output_format)
    for note in footnotes(table) if output_format not in ("table", "md") else ():
        say(note)


@app.command(epilog=guide("recommend"))
def recommend(  # noqa: PLR0913, PLR0917 one parameter per option
    paths: Annotated[
        list[Path], typer.Argument(parser=place, help="Runs, or a CSV with model,corpus,k,output_tok_per_s.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=cli_complete.models,
            help="As the rows name it. Without one: a table of what to do for which.",
        ),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=cli_complete.corpora,
            help="Traffic, as name or name=weight; repeat to mix. Default: all.",
        ),
    ] = None,
    arm: Annotated[
        str, typer.Option(autocompletion=cli_complete.arms, help="Family of arms whose Ks compete.")
    ] = "kpad",
    concurrency: Annotated[
        int | None, typer.Option(help="Where several were measured; else the highest.")
    ] = None,
    launcher: Annotated[str | None, typer.Option(help="serve or module; by the platform by default.")] = None,
    platform: Annotated[str | None, typer.Option(help="gpu or cpu; the one measured by default.")] = None,
    output_format: Annotated[
        str, typer.Option("--format", help="text (a shell script), json or yaml.")
    ] = "text",
    allow_mixed: Annotated[str, typer.Option(help="Columns that may differ between pooled rows.")] = "",
) -> None:
    """The server's launch line for the K that pays most, why, how sure, and what it may cost.

    Without --model: the decision table, which lever to pull for which family and kind of model.
    """
    one_of("--launcher", launcher or "serve", ("serve", "module"))
    one_of("--platform", platform or "gpu", ("gpu", "cpu"))
    one_of("--format", output_format, ("text", "json", "yaml"))
    from kpad_bench import decision_table
    from kpad_bench.recommend import recommend as decide
    from kpad_bench.recommend_text import render
    from kpad_bench.reduce import load_rows
    from kpad_bench.traffic import Asked

    asked = Asked(
        model or "", tuple(corpus or ()), arm, concurrency, launcher, platform, frozenset(words(allow_mixed))
    )
    if model is None:
        levers = decision_table.decision_table(load_rows(paths, decision_table.COLUMNS), asked)
        emit(decision_table.render(levers, output_format))
    else:
        emit(render(decide(load_rows(paths), asked), output_format))


@app.command(epilog=guide("compare"))
def compare(
    base: Annotated[
        Path, typer.Argument(parser=place, help="The night before: a run, a sweep, Parquet or a long CSV.")
    ],
    new: Annotated[Path, typer.Argument(parser=place, help="The night to judge, as one of the same.")],
    output_format: Annotated[str, typer.Option("--format", help="table, md, csv or json.")] = "table",
    fail_on: Annotated[
        str | None, typer.Option(help="regression:3%: exit 5 when something is shown to be that much slower.")
    ] = None,
    allow_mixed: Annotated[str, typer.Option(help="Columns in which trials and loads may differ.")] = "",
) -> None:
    """What changed between two nights, how sure that is, and the causes to look at first."""
    one_of("--format", output_format, ("table", "md", "csv", "json"))
    from kpad_bench.compare import COLUMNS, parse_fail_on, regressions
    from kpad_bench.compare import compare as compare_rows
    from kpad_bench.compare_text import remarks, render
    from kpad_bench.errors import CheckFailed
    from kpad_bench.reduce import load_rows

    limit_pct = None if fail_on is None else parse_fail_on(fail_on)
    before, after = (load_rows(path, COLUMNS) for path in (base, new))
    found = compare_rows(before, after, frozenset(words(allow_mixed)))
    emit(render(found, output_format))
    for text in remarks(found) if output_format in ("csv", "json") else ():
        say(text)
    slower = [] if limit_pct is None else regressions(found, limit_pct)
    if slower:
        raise CheckFailed("\n  ".join([f"slower by more than {limit_pct:g} %:", *slower]))


@app.command(epilog=guide("verify"))
def verify(  # noqa: PLR0913, PLR0917 one parameter per option
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=cli_complete.models, help="Tag, hub id or ./folder; else the config's first."
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(autocompletion=cli_complete.corpora, help="Frozen prompt set; else the config's first."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(autocompletion=cli_complete.arms, help="Padded arm, or name@K; repeat for more."),
    ] = None,
    k: Annotated[str | None, typer.Option("--k", help="Ks of the padded arms, like 4,8.")] = None,
    config: Annotated[
        str,
        typer.Option(autocompletion=cli_complete.configs, help="YAML file, or the name of a shipped one."),
    ] = "default",
    n_prompts: Annotated[int | None, typer.Option(min=1, help="Prompts; the config's, at most 32.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer; the config's, at most 256.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests kept open.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="VLLM_BATCH_INVARIANT=1: any difference counts. GPU only.")
    ] = False,
    samples: Annotated[
        int, typer.Option(min=0, help="Answers at temperature 1, for the frequency of tokens. GPU only.")
    ] = 0,
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    out: Annotated[
        Path | None, typer.Option(help="Folder of logs and answers; answers there are not asked again.")
    ] = None,
) -> None:
    """Compare padded output with unpadded, beside the noise floor; exit 5 when it can be told apart."""
    one_of("--format", output_format, ("table", "json"))
    from kpad_bench.errors import CheckFailed
    from kpad_bench.verify import run_verify
    from kpad_bench.verify_plan import Asked
    from kpad_bench.verify_report import as_json, as_table

    asked = Asked(
        config=config, model=model, corpus=corpus, arms=tuple(arm or ["kpad"]),
        k=None if k is None else tuple(parse_ks(k)), n_prompts=n_prompts, max_tokens=max_tokens,
        concurrency=concurrency, strict=strict, samples=samples, out=out,
    )  # fmt: skip
    report = run_verify(asked, say)
    emit(as_json(report) if output_format == "json" else as_table(report))
    if not report.is_same:
        raise CheckFailed(report.summary())


if __name__ == "__main__":
    main()

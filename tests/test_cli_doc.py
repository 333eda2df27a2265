"""docs/cli.md is what the command line says, and every --help teaches: an example, and what comes next."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from kpad_bench import cli_guide
from kpad_bench.cli import app

ROOT = Path(__file__).parent.parent


def script():
    spec = importlib.util.spec_from_file_location("make_cli_doc", ROOT / "scripts" / "make_cli_doc.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = script()
COMMANDS = dict(maker.commands(get_command(app)))


def test_the_page_is_what_the_command_line_says():
    """A stale page fails; `python scripts/make_cli_doc.py` makes it anew."""
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == maker.render()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_teaches(path):
    """What it does, an example with real options, what comes next, and a word on every option."""
    command = COMMANDS[path]
    assert command.help
    example = re.search(r"^Example: (.+)$", command.epilog or "", re.MULTILINE)
    assert example, f"{' '.join(path)}: no line Example: in its epilog; see kpad_bench/cli_guide.py"
    assert "\nNext: " in command.epilog, f"{' '.join(path)}: no line Next:; see kpad_bench/cli_guide.py"
    words = shlex.split(example[1])
    assert words[: len(path) + 1] == ["kpad-bench", *path]
    options = {option for param in command.params for option in param.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert [param.name for param in command.params if not getattr(param, "help", "")] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_what_comes_next_is_a_command(path):
    """The commands that a --help sends on to are there."""
    named = re.findall(r"kpad-bench ((?:corpora |models )?[a-z]+)", COMMANDS[path].epilog or "")
    assert {name for name in named if tuple(name.split()) not in COMMANDS} == set()


def test_commands_come_in_the_order_of_a_first_measurement():
    """Prompts before the sweep, the sweep before its tables; in --help as on the page."""
    group = get_command(app)
    names = [name for name in group.list_commands(None) if name in cli_guide.ORDER]
    assert set(names) >= {"corpora", "sweep", "reduce", "recommend"}
    assert names == [name for name in cli_guide.ORDER if name in names]


def test_the_first_steps_keep_their_lines(run_help):
    """The commands of a first measurement stand one below the other, in the terminal too."""
    lines = [line.strip() for line in run_help.splitlines()]
    assert "kpad-bench sweep --model MODEL --corpus humaneval --arm van --arm kpad" in lines


@pytest.fixture
def run_help(capsys):
    """The first page of help."""
    with pytest.raises(SystemExit) as ended:
        app(["--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out

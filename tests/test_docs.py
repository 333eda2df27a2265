"""What the documents point to exists: links, make targets, commands, shipped configurations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from kpad_bench.cli import app
from kpad_bench.configfile import find_config, shipped_sweeps

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not {".venv", "node_modules", ".git"} & set(path.relative_to(ROOT).parts)
)
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    """Each link to a file of the project names one that is there."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_commands_of_the_readme_exist() -> None:
    """`kpad-bench WORD` in the README is a command of the command line."""
    named = set(re.findall(r"^kpad-bench (\w+)", README, re.MULTILINE))
    assert named
    assert named <= set(get_command(app).commands)  # type: ignore[attr-defined]


def test_make_targets_of_the_documents_exist() -> None:
    """`make WORD` in README and CONTRIBUTING is a target."""
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^\s*|`)make ([a-z-]+)", text, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"quickstart", "test"} <= named <= targets


def test_configurations_of_the_readme_are_shipped() -> None:
    """`--config NAME` in the README is a file of configs/."""
    named = set(re.findall(r"--config ([\w-]+)", README))
    assert named
    assert named <= set(shipped_sweeps())
    assert all(find_config(name).is_file() for name in named)

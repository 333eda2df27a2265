"""What the documents point to exists: links, make targets, commands, shipped configurations."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.main import get_command

from kpad_bench import bootlog, drive, raylanes, release, server, slotwork, verdict
from kpad_bench.cli import app
from kpad_bench.config import BOOT_CAUSES
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


def reasons_given() -> set[str]:
    """Every reason that the code can put into a row: of a verdict, a log, a stop or an error."""
    found = {*BOOT_CAUSES, *(cause for cause, _ in bootlog.CAUSES)}
    found |= {reason for reason, _ in verdict.BOUNDS.values()}
    callers = {"ServerError", "Stop", "Cause", "error", "_end_all", "_rows"}
    for module in (verdict, bootlog, drive, server, slotwork, raylanes, release):
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                found |= constants(node.value.elts[:1])
            elif isinstance(node, ast.Call) and name_of(node.func) in callers:
                found |= constants(node.args)
    return {word for word in found if re.fullmatch(r"[a-z]+(_[a-z]+)*", word)}


def constants(nodes: list[ast.expr]) -> set[str]:
    """The texts among them."""
    return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def name_of(node: ast.expr) -> str:
    """What is called, without what it is of."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_every_reason_has_its_way_out() -> None:
    """docs/troubleshooting.md has a line for each, once, with what it means and what to do."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", text, re.MULTILINE)
    named = [reason for reason, *_ in lines]
    assert len(named) == len(set(named))
    missing = reasons_given() - set(named)
    assert not missing, f"no line for {sorted(missing)}"
    assert {"stalled", "client_bound", "affinity", "boot_timeout", "server_killed"} <= reasons_given()

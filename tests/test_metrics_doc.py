"""docs/metrics.md is made from one declaration, and every measured column is in it."""

from __future__ import annotations

import importlib.util
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_metrics_doc", ROOT / "scripts" / "make_metrics_doc.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = script()
DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "metrics.yaml").read_text(encoding="utf-8"))


def test_the_page_is_what_the_declaration_makes() -> None:
    """A page that is stale or edited by hand fails; `python scripts/make_metrics_doc.py` makes it anew."""
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == maker.render(DOCUMENT)


def changed(section: str, drop: str | None = None, **more: Any) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    if drop is not None:
        del document[section][drop]
    document[section] |= more
    return document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (changed("speed", drop="tail_share"), "speed: measured and without an entry: tail_share"),
        (changed("steps", nonsense={"unit": "s"}), "steps: no column: nonsense"),
        (
            changed("speed", **{"ttft_p50_s ttft_p90_s": {"unit": "s"}}),
            "speed: twice: ttft_p50_s, ttft_p90_s",
        ),
        (changed("host", boot_s={"unit": "s", "beter": "smaller"}), "host: with unknown keys: boot_s"),
        (changed("host", boot_s={}), "host: with unknown keys: boot_s"),
    ],
)
def test_a_declaration_that_does_not_fit_the_schema_is_named(document: dict[str, Any], said: str) -> None:
    """A new column without an entry, an entry without a column, a column twice, a misspelt key."""
    with pytest.raises(maker.StaleError, match=said):
        maker.render(document)


def test_a_line_of_the_page() -> None:
    """Unit, direction, formula, when null, and the others' names as code; a dash where there is none."""
    entry = {"unit": "s", "better": "smaller", "vllm": "~ a_ms, b_ms (mean)", "null": "never seen"}
    assert maker.row(("x_s", "y_s"), entry, "the meaning") == (
        "| `x_s`, `y_s` | s | smaller | the meaning | never seen | ~ `a_ms`, `b_ms` (mean) | - | - |"
    )
    assert maker.row(("n",), {"unit": "steps", "formula": "a / b"}, "the meaning") == (
        "| `n` | steps | - | a / b | never | - | - | - |"
    )
    lines = maker.render(DOCUMENT).splitlines()
    assert {line.count("|") for line in lines if line.startswith("|")} == {9}

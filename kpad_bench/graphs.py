"""vLLM's own table of graph replays (``--cudagraph-metrics``), read from a log. Pure: text in, counts out.

Printed every VLLM_LOG_STATS_INTERVAL seconds and then reset, so a window holds several tables, which add
up. The header shows the configuration before the backend had its say: only rows are trusted. It is the
cross-check of the plugin's counters, not their source.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

#: | unpadded tokens | padded tokens | paddings | mode | count | (CUDAGraphLogging, 0.25.1 and 0.32.0)
_ROW = re.compile(r"\|\s*(\d+)\s*\|\s*(\d+)\s*\|\s*(\d+)\s*\|\s*([A-Z_]+)\s*\|\s*(\d+)\s*\|")


class Replay(NamedTuple):
    """One kind of step: tokens before and after padding to a captured size, and the mode it ran in."""

    n_tokens: int
    n_padded_tokens: int
    mode: str


def graph_table(log: str) -> Counter[Replay] | None:
    """Steps by kind, over all tables in the text; None when there is none, which is not zero.

    Lines may end in CR LF, carry a log prefix, and have other lines between them.
    """
    rows: Counter[Replay] = Counter()
    for n_tokens, n_padded, _, mode, count in _ROW.findall(log):
        rows[Replay(int(n_tokens), int(n_padded), mode)] += int(count)
    return rows or None


def steps_by_mode(table: Counter[Replay]) -> dict[str, int]:
    """Steps in each mode."""
    modes: Counter[str] = Counter()
    for replay, count in table.items():
        modes[replay.mode] += count
    return dict(modes)

"""The table of graph replays in a log: rows alone count, wherever and however often they are printed."""

from __future__ import annotations

from kpad_bench.graphs import Replay, graph_table, steps_by_mode

PREFIX = "(APIServer pid=7) INFO 01-02 03:04:05 [cuda_graph.py:9] "
HEADER = (
    "**CUDAGraph Config Settings:**\r\n\r\n- Mode: FULL_AND_PIECEWISE\r\n"
    "- Capture sizes: [9, 18, 288]\r\n\r\n"
    "**CUDAGraph Stats:**\r\n\r\n"
    "| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |\r\n"
    "|-----------------|---------------|--------------|--------------|-------|\r\n"
)


def table(*rows: tuple[int, int, str, int]) -> str:
    """One printed table."""
    lines = [f"| {a:<15} | {b:<13} | {b - a:<12} | {mode:<12} | {n:<5} |" for a, b, mode, n in rows]
    return "\r\n".join(PREFIX + line for line in (HEADER + "\r\n".join(lines)).split("\r\n")) + "\r\n"


def test_tables_add_up_and_other_lines_do_not_matter() -> None:
    """Two intervals with an access log line inside the first: the same kind of step is one key."""
    first = table((288, 288, "FULL", 300), (40, 45, "PIECEWISE", 4))
    first = first.replace("FULL ", "FULL ", 1) + 'INFO: 127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK\r\n'
    found = graph_table(first + table((288, 288, "FULL", 15), (1100, 1100, "NONE", 2)))
    assert found == {
        Replay(288, 288, "FULL"): 315,
        Replay(40, 45, "PIECEWISE"): 4,
        Replay(1100, 1100, "NONE"): 2,
    }
    assert found is not None
    assert steps_by_mode(found) == {"FULL": 315, "PIECEWISE": 4, "NONE": 2}


def test_the_header_is_not_believed() -> None:
    """It names the mode that was asked for, before any downgrade."""
    found = graph_table(table((9, 9, "PIECEWISE", 1)))
    assert found is not None
    assert steps_by_mode(found) == {"PIECEWISE": 1}


def test_no_table_is_none_and_not_zero() -> None:
    """Flag missing, V2 on 0.25.1, statistics off, idle, or killed before the interval."""
    assert graph_table("") is None
    assert graph_table(PREFIX + "Application startup complete.\n" + HEADER) is None

"""Throughput against K: one figure for each model, one panel for each corpus.

A ``Report`` in, ``Figure``s out; works out no figure of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kpad_bench.report_cells import Panel, Point
from kpad_bench.report_data import Report, mix_last
from kpad_bench.report_figure import (
    Dot,
    Figure,
    Line,
    Mark,
    Rect,
    Scale,
    Shape,
    Table,
    Text,
    fitted,
    scale,
)
from kpad_bench.tables import speed

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _ACROSS = 160, 140, 112, 66, 4
#: Least distance between the names of two levels.
_APART = 10.5
#: Colours of the families, in the report's order; further ones share the last.
_TONES = ("ours", "other", "muted")
#: Levels that are drawn; the others stand in the table.
_LEVELS = ("van", "suf@32", "suf@12", "suf-full@32")


def curves(report: Report) -> Iterator[Figure]:
    """One figure for each model that has a curve."""
    models = dict.fromkeys(panel.model for panel in report.panels)
    for number, model in enumerate(models, start=1):
        mine = [panel for panel in report.panels if panel.model == model and panel.curves]
        if mine:
            order = mix_last([panel.corpus for panel in mine])
            yield _figure(report, sorted(mine, key=lambda panel: order.index(panel.corpus)), number)


def _figure(report: Report, panels: Sequence[Panel], number: int) -> Figure:
    model, across = panels[0].model, min(_ACROSS, len(panels))
    top, left = 66, 58
    marks: list[Mark | Shape] = [*_legend(report, panels)]
    for i, panel in enumerate(panels):
        x = left + (_WIDTH + _GAP_X) * (i % across)
        y = top + (_HEIGHT + _GAP_Y) * (i // across)
        marks += _panel(report, panel, x, y)
    n_rows = -(-len(panels) // across)
    return Figure(
        f"curves-{number}",
        f"Throughput against K: {model}",
        "Mean output tokens per second at each K. A bar is the 95 % interval of the difference to the "
        "fastest K of its arm (ringed), paired by round: where it stays below the ring, that K is slower. "
        "Without a bar there is one trial. Scales differ and do not begin at zero.",
        max(left + (_WIDTH + _GAP_X) * across - 44, 640),
        top + (_HEIGHT + _GAP_Y) * n_rows - 40,
        marks,
        _table(report, panels, number),
    )


def _legend(report: Report, panels: Sequence[Panel]) -> Iterator[Shape]:
    x = 58.0
    for i, family in enumerate(report.families):
        tone = _TONES[min(i, 2)]
        yield Line(((x, 14), (x + 22, 14)), tone, 2)
        yield Dot(x + 11, 14, 3.5, tone)
        yield Text(x + 28, 18, fitted(family, 120), 11.5)
        x += 52 + 7 * min(len(family), 18)
    for label in _LEVELS:
        if any(label in panel.levels for panel in panels):
            yield Line(((x, 14), (x + 22, 14)), "base", 1.5, _LEVELS.index(label) != 0)
            yield Text(x + 28, 18, label, 11.5)
            x += 48 + 7 * len(label)


def _panel(report: Report, panel: Panel, x: float, y: float) -> Iterator[Mark | Shape]:
    points = [point for curve in panel.curves.values() for point in curve]
    levels = {label: panel.levels[label] for label in _LEVELS if label in panel.levels}
    ends = [v for p in points for v in (p.tok_per_s, p.low, p.high) if v is not None]
    vertical, lines = scale([*ends, *levels.values()], y + _HEIGHT, y, 4)
    ks = sorted({point.k for point in points})
    places = {k: x + _WIDTH * (i + 0.5) / len(ks) for i, k in enumerate(ks)}
    yield Text(x, y - 12, fitted(panel.corpus, _WIDTH), 12.5, is_bold=True)
    for value in lines:
        yield Line(((x, vertical(value)), (x + _WIDTH, vertical(value))), "grid")
        yield Text(x - 6, vertical(value) + 4, speed(value), 10, "muted", "end")
    for k in ks:
        yield Text(places[k], y + _HEIGHT + 15, f"K={k}", 10.5, "muted", "middle")
    yield from _levels(panel, levels, vertical, x)
    for i, family in enumerate(report.families):
        if family in panel.curves:
            yield from _curve(panel, family, places, vertical, i)


def _levels(panel: Panel, levels: dict[str, float], vertical: Scale, x: float) -> Iterator[Mark]:
    beside = -math.inf
    for label, value in sorted(levels.items(), key=lambda level: -level[1]):
        height = vertical(value)
        beside = max(height + 3, beside + _APART)
        line = Line(((x, height), (x + _WIDTH, height)), "base", 1.5, _LEVELS.index(label) != 0)
        name = Text(x + _WIDTH + 4, beside, label, 9.5, "muted")
        yield Mark((line, name), f"{panel.model}, {panel.corpus}: {label} {speed(value)} tok/s")


def _curve(
    panel: Panel, family: str, places: dict[int, float], vertical: Scale, number: int
) -> Iterator[Mark | Shape]:
    points, tone = panel.curves[family], _TONES[min(number, 2)]
    shift = 5.0 * number
    yield Line(tuple((places[p.k] + shift, vertical(p.tok_per_s)) for p in points), tone, 2)
    fastest = max(points, key=lambda p: (p.k == panel.best_k and number == 0, p.tok_per_s))
    for point in points:
        at = places[point.k] + shift, vertical(point.tok_per_s)
        shapes: list[Shape] = [Rect(at[0] - 9, at[1] - 9, 18, 18, "clear")]
        if point.low is not None and point.high is not None:
            shapes.append(Line(((at[0], vertical(point.low)), (at[0], vertical(point.high))), tone, 1.5))
        if point is fastest and len(points) > 1:
            shapes.append(Dot(*at, 7, "", tone))
        shapes.append(Dot(*at, 3.5, tone))
        yield Mark(
            tuple(shapes),
            f"{panel.model}, {panel.corpus}, {family}@{point.k}: {_in_words(point)}",
            {"model": panel.model, "corpus": panel.corpus, "arm": family, "k": str(point.k)},
        )


def _in_words(point: Point) -> str:
    trials = "one trial" if point.n_ok == 1 else f"{point.n_ok} trials"
    bar = "" if point.low is None or point.high is None else f" [{speed(point.low)}, {speed(point.high)}]"
    return f"{speed(point.tok_per_s)}{bar} tok/s, {trials}"


def _table(report: Report, panels: Sequence[Panel], number: int) -> Table:
    rows = []
    for panel in panels:
        for family in report.families:
            for point in panel.curves.get(family, ()):
                bar = (
                    "-"
                    if point.low is None or point.high is None
                    else f"{speed(point.low)}..{speed(point.high)}"
                )
                rows.append(
                    [panel.corpus, family, str(point.k), speed(point.tok_per_s), bar, str(point.n_ok)]
                )
        rows += [[panel.corpus, label, "-", speed(value), "-", "-"] for label, value in panel.levels.items()]
    return Table(
        f"curves-{number}",
        f"Throughput of every arm and K: {panels[0].model}",
        ["corpus", "arm", "K", "tok/s", "95 % against the fastest", "trials"],
        rows,
        frozenset({0, 1}),
    )

"""The figures of gains: over the baselines per model, and where unpadded suffix decoding loses.

A ``Report`` in, ``Figure``s out; works out no figure of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kpad_bench.report_cells import Reversal, gain_of
from kpad_bench.report_data import BASES, ONE_TRIAL, Report, main_corpus, state
from kpad_bench.report_figure import (
    NAME_WIDTH,
    Figure,
    Line,
    Mark,
    Rect,
    Scale,
    Shape,
    Table,
    Text,
    fitted,
    name_at,
    scale,
    width_of,
)
from kpad_bench.stats import Gain

NAMES = {
    "suf": "unpadded suffix decoding (suf)",
    "van": "no speculation (van)",
    "better": "the better of the two",
}
SHORT = {"suf": "over suf", "van": "over van", "better": "over the better of the two"}


def gain_bars(report: Report, name: str, by: str = "corpus") -> Figure | None:
    """The gain of the best K over suf, over van and over the better of them: per model on one corpus, or,
    ``by`` model, per corpus on one model."""
    rows = [row for row in report.mine if row[by] == name and any(gain_of(row, b) for b in BASES)]
    if not rows:
        return None
    each = "model" if by == "corpus" else "corpus"
    labels = [row[each] for row in rows]
    left, width, gap, top, pitch = width_of(labels, 12, NAME_WIDTH) + 14, 190, 90, 46, 30
    marks: list[Mark | Shape] = []
    bottom = top + pitch * len(rows)
    for j, row in enumerate(rows):
        marks.append(name_at(row[each], left - 10, top + pitch * j + 19))
    for i, base in enumerate(BASES):
        start = left + (width + gap) * i
        gains = [(row, gain) for row in rows if (gain := gain_of(row, base))]
        marks.append(Text(start, 16, SHORT[base], 13, is_bold=True))
        if not gains:
            marks.append(Text(start, top + 18, "not measured", 11, "muted"))
            continue
        axis, lines = scale(
            [0.0, *(end for _, gain in gains for end in gain if end is not None)], start, start + width, 4
        )
        marks += _gain_axis(axis, lines, top - 6, bottom)
        for row, gain in gains:
            y = top + pitch * rows.index(row)
            marks.append(_gain_bar(row, gain, base, axis, y))
    is_main = by == "model" or name == main_corpus(report)
    return Figure(
        "gains" if is_main else f"gains-{name}",
        f"Gain of the best K of {report.family} on {name}",
        "Gain in output tokens per second of each best K, with 95 % intervals over rounds. A hollow bar is "
        "one trial and has no interval; red is a loss. Each panel has its own scale.",
        left + width * 3 + gap * 2 + 90,
        bottom + 24,
        marks,
        _gain_table("gains", rows, f"Gains on {name}, with 95 % intervals"),
    )


def _gain_axis(axis: Scale, lines: Sequence[float], top: float, bottom: float) -> Iterator[Shape]:
    for value in lines:
        x = axis(value)
        yield Line(((x, top), (x, bottom)), "axis" if value == 0 else "grid")
        yield Text(x, bottom + 15, f"{value:+g}%" if value else "0", 10.5, "muted", "middle")


def _gain_bar(row: Mapping[str, Any], gain: Gain, base: str, axis: Scale, y: float) -> Mark:
    tone, pale = ("bad", "palebad") if gain.pct < 0 else ("ours", "pale")
    low, high = sorted((axis(0), axis(gain.pct)))
    shapes: list[Shape] = [
        Rect(low, y + 7, max(high - low, 1), 16, tone if gain.low_pct is not None else pale, tone)
    ]
    end = max(axis(gain.pct), axis(0))
    if gain.low_pct is not None and gain.high_pct is not None:
        ends = axis(gain.low_pct), axis(gain.high_pct)
        shapes += _whisker(ends, y + 15)
        end = max(end, *ends)
    single = " 1 trial" if state(row) == ONE_TRIAL else ""
    shapes.append(Text(end + 5, y + 19, f"{gain.pct:+.1f}%{single}", 11.5 if not single else 10.5, "ink"))
    facts = {
        "model": row["model"],
        "corpus": row["corpus"],
        "base": base,
        "gain": f"{gain.pct:.2f}",
        "state": state(row),
    }
    title = f"{row['model']}, {row['corpus']}: K={row['best_k']} over {NAMES[base]}: {in_words(gain)}"
    return Mark(tuple(shapes), f"{title} ({state(row)})" if gain.low_pct is None else title, facts)


def _whisker(ends: tuple[float, float], y: float) -> list[Shape]:
    caps = [Line(((x, y - 4), (x, y + 4)), "ink", 1.5) for x in ends]
    return [Line(((ends[0], y), (ends[1], y)), "ink", 1.5), *caps]


def in_words(gain: Gain | None) -> str:
    """A gain with its interval, or that it has none."""
    if gain is None:
        return "-"
    if gain.low_pct is None or gain.high_pct is None:
        return f"{gain.pct:+.1f}%"
    return f"{gain.pct:+.1f}% [{gain.low_pct:+.1f}, {gain.high_pct:+.1f}]"


def _gain_table(name: str, rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    return Table(
        name,
        title,
        ["model", "corpus", "best K", *(SHORT[base] for base in BASES), "state"],
        [
            [
                *(row["model"], row["corpus"], str(row["best_k"])),
                *(in_words(gain_of(row, base)) for base in BASES),
                state(row),
            ]
            for row in rows
        ],
        frozenset({0, 1, 6}),
    )


def reversal_chart(report: Report) -> Figure | None:
    """The cells where unpadded suffix decoding loses to no speculation, and what padding makes of them."""
    found: list[Reversal] = report.reversals[:40]
    if not found:
        return None
    labels = [f"{one.model}, {one.corpus}" for one in found]
    left, width, top, pitch = width_of(labels, 12, NAME_WIDTH + 60) + 14, 420, 46, 40
    bottom = top + pitch * len(found)
    ends = [end for one in found for gain in (one.suf, one.padded) if gain for end in gain if end is not None]
    axis, lines = scale([0.0, *ends], left, left + width, 6)
    marks: list[Mark | Shape] = [
        Rect(left, 8, 12, 12, "base"), Text(left + 17, 18, "suf, unpadded", 11.5),
        Rect(left + 120, 8, 12, 12, "ours"), Text(left + 137, 18, f"{report.family} at its best K", 11.5),
        *_gain_axis(axis, lines, top - 8, bottom),
    ]  # fmt: skip
    for j, one in enumerate(found):
        y = top + pitch * j
        shown = fitted(labels[j], NAME_WIDTH + 60)
        marks.append(Mark((Text(left - 10, y + 22, shown, 12, anchor="end"),), labels[j]))
        for offset, gain, tone, name in (
            (2, one.suf, "base", "suf@32"),
            (18, one.padded, "ours", f"{report.family}@{one.best_k}"),
        ):
            if gain is not None:
                marks.append(_reversal_bar(one, gain, tone, name, axis, y + offset))
    return Figure(
        "reversal",
        "Where unpadded suffix decoding is slower than no speculation",
        "Throughput over no speculation (van) at zero. Grey: unpadded suffix decoding, slower here by its "
        "mean; coloured: padded. Whiskers are 95 % intervals over rounds; without one it is one trial. An "
        "interval that reaches zero shows no loss.",
        left + width + 80,
        bottom + 24,
        marks,
        Table(
            "reversal",
            "Gain over no speculation",
            ["model", "corpus", "suf@32", f"{report.family} at its best K", "best K"],
            [
                [one.model, one.corpus, in_words(one.suf), in_words(one.padded), str(one.best_k or "-")]
                for one in report.reversals
            ],
            frozenset({0, 1}),
        ),
    )


def _reversal_bar(one: Reversal, gain: Gain, tone: str, name: str, axis: Scale, y: float) -> Mark:
    low, high = sorted((axis(0), axis(gain.pct)))
    shapes: list[Shape] = [Rect(low, y, max(high - low, 1), 14, tone)]
    end = high
    if gain.low_pct is not None and gain.high_pct is not None:
        ends = axis(gain.low_pct), axis(gain.high_pct)
        shapes += _whisker(ends, y + 7)
        end = max(high, ends[1])
    shapes.append(Text(end + 5, y + 11, f"{gain.pct:+.1f}%", 11))
    facts = {
        "model": one.model,
        "corpus": one.corpus,
        "arm": name.partition("@")[0],
        "gain": f"{gain.pct:.2f}",
    }
    return Mark(tuple(shapes), f"{one.model}, {one.corpus}: {name} over van: {in_words(gain)}", facts)

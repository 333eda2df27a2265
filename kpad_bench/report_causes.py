"""The figures that explain: graphs and pads, acceptance against step time, steady windows, sentinels.

A ``Report`` in, ``Figure``s out; works out no figure of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from kpad_bench.report_data import Report, mix_last
from kpad_bench.report_figure import (
    NAME_WIDTH,
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
    name_at,
    scale,
    step,
    width_of,
)
from kpad_bench.report_trials import Mechanism, Sentinel
from kpad_bench.tables import speed

#: Dots that have their names beside them; more would hide each other.
_MOST_NAMED = 8
#: Sentinels that are drawn; the others stand in the table.
_MOST_SENTINELS = 6


def graph_shares(report: Report) -> Figure | None:
    """FULL share and pad share of every arm at every K: mean over cells, least and most."""
    by_arm: dict[str, list[Mechanism]] = {}
    for one in report.mechanisms:
        by_arm.setdefault(one.at.label, []).append(one)
    shares = {
        arm: (
            [v for one in mine if (v := one.means["full_share_decode"]) is not None],
            [one.pad_share for one in mine if one.pad_share is not None],
        )
        for arm, mine in by_arm.items()
    }
    shares = {arm: pair for arm, pair in shares.items() if any(pair)}
    if not shares:
        return None
    arms = sorted(shares, key=lambda arm: (arm.partition("@")[0], int(arm.partition("@")[2] or 0)))
    left, width, gap, top, pitch = width_of(arms, 12, NAME_WIDTH) + 14, 250, 60, 40, 26
    bottom = top + pitch * len(arms)
    marks: list[Mark | Shape] = [name_at(arm, left - 10, top + pitch * j + 17) for j, arm in enumerate(arms)]
    for i, title in enumerate(("decode-only steps in FULL graphs", "draft tokens that are pads")):
        axis = Scale(0, 1, left + (width + gap) * i, left + (width + gap) * i + width)
        marks.append(Text(axis.start, 16, title, 12.5, is_bold=True))
        for value in (0, 0.25, 0.5, 0.75, 1):
            marks.append(
                Line(((axis(value), top - 4), (axis(value), bottom)), "axis" if not value else "grid")
            )
            marks.append(Text(axis(value), bottom + 15, f"{100 * value:g}%", 10.5, "muted", "middle"))
        for j, arm in enumerate(arms):
            if shares[arm][i]:
                marks.append(_range(arm, title, shares[arm][i], axis, top + pitch * j + 13))
    return Figure(
        "shares",
        "FULL graphs and pads",
        "A dot is the mean over models and corpora, the bar spans the least and the most. Padding is there "
        "to bring the left figure to 100 %; the right one is what it pays with.",
        left + width * 2 + gap + 40,
        bottom + 24,
        marks,
        Table(
            "shares",
            "FULL share and pad share: mean (least to most) over models and corpora",
            ["arm", "FULL share of decode-only steps", "pads of draft tokens"],
            [[arm, *(_spread(values) for values in shares[arm])] for arm in arms],
        ),
    )


def _range(arm: str, title: str, values: Sequence[float], axis: Scale, y: float) -> Mark:
    mean = math.fsum(values) / len(values)
    shapes = (
        Rect(
            axis(min(values)),
            y - 4,
            max(axis(max(values)) - axis(min(values)), 1),
            8,
            "pale",
            "ours",
            radius=2,
        ),
        Dot(axis(mean), y, 4.5, "ours"),
    )
    return Mark(shapes, f"{arm}, {title}: {_spread(values)} over {len(values)} cells", {"arm": arm})


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = math.fsum(values) / len(values)
    return f"{100 * mean:.1f}% ({100 * min(values):.1f} to {100 * max(values):.1f})"


def acceptance(report: Report) -> Figure | None:
    """Acceptance length against R, one mark for each best K: what explains its throughput."""
    rows = [r for r in report.mine if r["acceptance_length"] is not None and r["step_time_ratio"] is not None]
    if not rows:
        return None
    left, top, width, height = 58, 34, 470, 300
    horizontal, across = scale([1.0, *(r["step_time_ratio"] for r in rows)], left, left + width)
    vertical, up = scale([1.0, *(r["acceptance_length"] for r in rows)], top + height, top)
    marks: list[Mark | Shape] = []
    for value in across:
        marks.append(Line(((horizontal(value), top), (horizontal(value), top + height)), "grid"))
        marks.append(Text(horizontal(value), top + height + 16, f"{value:g}", 10.5, "muted", "middle"))
    for value in up:
        marks.append(Line(((left, vertical(value)), (left + width, vertical(value))), "grid"))
        marks.append(Text(left - 7, vertical(value) + 4, f"{value:g}", 10.5, "muted", "end"))
    low, high = max(horizontal.low, vertical.low), min(horizontal.high, vertical.high)
    if low < high:
        marks.append(
            Line(tuple((horizontal(v), vertical(v)) for v in (low, high)), "axis", 1.5, is_dashed=True)
        )
    marks.append(Text(left, 16, "output tokens per request and decode step", 12, is_bold=True))
    marks.append(
        Text(
            left + width,
            top + height + 34,
            "R: step time over that of van-v1",
            12,
            anchor="end",
            is_bold=True,
        )
    )
    for row in rows:
        tone = step(report.ks.index(row["best_k"]), len(report.ks))
        at = horizontal(row["step_time_ratio"]), vertical(row["acceptance_length"])
        shapes: list[Shape] = [Dot(*at, 7, f"k{tone}", "ink")]
        if len(rows) <= _MOST_NAMED:
            shapes.append(Text(at[0] + 11, at[1] + 4, fitted(row["corpus"], 80, 10.5), 10.5, "muted"))
        marks.append(
            Mark(
                tuple(shapes),
                f"{row['model']}, {row['corpus']}: K={row['best_k']}, {row['acceptance_length']:.2f} tokens "
                f"a step, R {row['step_time_ratio']:.2f}",
                {"model": row["model"], "corpus": row["corpus"]},
            )
        )
    return Figure(
        "acceptance",
        f"Acceptance length and R of the best K of {report.family}",
        "Above the dashed line a request gets more tokens from a step than the step costs more. With equal "
        "batches, height over distance is the throughput over no speculation on the same runner (van-v1): it "
        "explains a result and predicts none. Darker (on a dark page: brighter) is a larger K.",
        left + width + 90,
        top + height + 46,
        marks,
        Table(
            "acceptance",
            "Acceptance length and R",
            ["model", "corpus", "best K", "tokens per request and step", "R"],
            [
                [
                    r["model"],
                    r["corpus"],
                    str(r["best_k"]),
                    f"{r['acceptance_length']:.3f}",
                    f"{r['step_time_ratio']:.3f}",
                ]
                for r in rows
            ],
            frozenset({0, 1}),
        ),
    )


def steady(report: Report) -> Figure | None:
    """Throughput of the steady window over that of the whole pass, at the best K of every cell."""
    best = {(r["model"], r["corpus"]): r for r in report.mine if r["best_k"] is not None}
    found = {
        (one.at.model, one.at.corpus): (one, ratio)
        for one in report.mechanisms
        if one.at.arm == report.family
        and best.get(one.at[:2], {}).get("best_k") == one.at.k
        and (ratio := one.steady_over_whole) is not None
    }
    if not found:
        return None
    models, corpora = list(dict.fromkeys(m for m, _ in found)), mix_last(list({c for _, c in found}))
    left, width, top, pitch = width_of(models, 12, NAME_WIDTH) + 14, 470, 26, 34
    bottom = top + pitch * len(models)
    axis, lines = scale([0.98, 1.02, *(ratio for _, ratio in found.values())], left, left + width)
    marks: list[Mark | Shape] = []
    for value in lines:
        marks.append(Line(((axis(value), top), (axis(value), bottom)), "axis" if value == 1 else "grid"))
        marks.append(Text(axis(value), bottom + 15, f"{value:g}x", 10.5, "muted", "middle"))
    for j, model in enumerate(models):
        marks.append(name_at(model, left - 10, top + pitch * j + 21))
        for i, corpus in enumerate(corpora):
            if (model, corpus) in found:
                _, ratio = found[model, corpus]
                y = top + pitch * j + 5 + (pitch - 10) * (i + 0.5) / len(corpora)
                marks.append(_steady_dot(best[model, corpus], ratio, axis(ratio), y))
    return Figure(
        "steady",
        "Steady window against the whole pass",
        "Throughput inside the steady window over that of the whole pass, at the best K; a dot is a corpus. "
        "Far from 1 the pass was mostly start and tail. Red: the steady window has another best K, and none "
        "is established.",
        left + width + 30,
        bottom + 24,
        marks,
        _steady_table(report, best, found),
    )


def _steady_dot(row: dict[str, object], ratio: float, x: float, y: float) -> Mark:
    differs = row["steady_best_k"] not in (None, row["best_k"])
    more = f"; the steady window's best K is {row['steady_best_k']}" if differs else ""
    title = f"{row['model']}, {row['corpus']}: {ratio:.2f} times the whole pass at K={row['best_k']}{more}"
    return Mark((Dot(x, y, 4.5, "bad" if differs else "ours", "paper"),), title, {"model": str(row["model"])})


def _steady_table(
    report: Report,
    best: dict[tuple[str, str], dict[str, object]],
    found: dict[tuple[str, str], tuple[Mechanism, float]],
) -> Table:
    rows = []
    for place, (one, ratio) in found.items():
        shares = (one.means["steady_share"], one.means["tail_share"])
        whole, inside = one.means["output_tok_per_s"], one.means["steady_output_tok_per_s"]
        shown = ["-" if share is None else f"{100 * share:.0f}%" for share in shares]
        steady_k = best[place]["steady_best_k"]
        rows.append(
            [
                *place,
                str(one.at.k),
                "-" if steady_k is None else str(steady_k),
                speed(whole),
                speed(inside),
                f"{ratio:.3f}",
                *shown,
            ]
        )
    titles = [
        "model",
        "corpus",
        "best K",
        "steady best K",
        "tok/s",
        "steady tok/s",
        "ratio",
        "steady share",
        "tail share",
    ]
    return Table("steady", f"Steady window of the best K of {report.family}", titles, rows, frozenset({0, 1}))


def drift(report: Report) -> Figure | None:
    """Throughput of the sentinels over the night, relative to their mean."""
    found = [one for one in report.sentinels if len(one.points) > 1]
    if not found:
        return None
    drawn = found[:_MOST_SENTINELS]
    left, width, height, top = 64, 640, 110, 30
    marks: list[Mark | Shape] = []
    for i, one in enumerate(drawn):
        marks += _drift_panel(one, left, top + (height + 56) * i, (width, height))
    return Figure(
        "drift",
        "Drift of the sentinel",
        "One cell, measured again and again between the blocks: its throughput relative to its mean. What it "
        "does, the machine does: drift inside a round cancels between arms, drift between rounds is in the "
        "intervals.",
        left + width + 30,
        top + (height + 56) * len(drawn) - 8,
        marks,
        Table(
            "drift",
            "Sentinels",
            ["model", "corpus", "arm", "points", "variation", "last third over first"],
            [_sentinel_row(one) for one in report.sentinels],
            frozenset({0, 1, 2}),
        ),
    )


def _sentinel_row(one: Sentinel) -> list[str]:
    return [
        one.at.model,
        one.at.corpus,
        one.at.label,
        f"{len(one.points)}{' runs' if one.by_run else ''}",
        "-" if one.cv_pct is None else f"{one.cv_pct:.2f}%",
        "-" if one.drift_pct is None else f"{one.drift_pct:+.2f}%",
    ]


def _drift_panel(one: Sentinel, x: float, y: float, size: tuple[float, float]) -> Iterator[Mark | Shape]:
    mean = math.fsum(speed_ for _, speed_ in one.points) / len(one.points)
    relative = [100 * (value / mean - 1) for _, value in one.points]
    vertical, lines = scale([-1.0, 1.0, *relative], y + size[1], y, 4)
    first, last = one.points[0][0], one.points[-1][0]
    across = Scale(first, last if last > first else first + 1, x, x + size[0])
    name = f"{one.at.model}, {one.at.corpus}, {one.at.label}"
    yield Mark((Text(x, y - 10, fitted(name, size[0] - 160), 12, is_bold=True),), name)
    for value in lines:
        yield Line(((x, vertical(value)), (x + size[0], vertical(value))), "axis" if value == 0 else "grid")
        yield Text(x - 6, vertical(value) + 4, f"{value:+g}%" if value else "0", 10, "muted", "end")
    yield Line(
        tuple((across(t), vertical(v)) for (t, _), v in zip(one.points, relative, strict=True)), "ours", 1.5
    )
    for (time, value), pct in zip(one.points, relative, strict=True):
        when = (
            f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"
            if one.has_times
            else f"number {time + 1:g}"
        )
        yield Mark(
            (Dot(across(time), vertical(pct), 3.5, "ours"),), f"{when}: {speed(value)} tok/s ({pct:+.2f}%)"
        )
    for time, anchor in ((first, "start"), (last, "end")):
        when = f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}" if one.has_times else f"{time + 1:g}"
        yield Text(across(time), y + size[1] + 16, when, 10, "muted", anchor)

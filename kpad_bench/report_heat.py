"""The figures of cells: the best K of every model and corpus, and the price of one fixed K.

A ``Report`` in, ``Figure``s out; works out no figure of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kpad_bench.report_cells import Price
from kpad_bench.report_data import ESTABLISHED, NO_K, ONE_TRIAL, SMALL, Report, mix_last, state
from kpad_bench.report_figure import (
    NAME_WIDTH,
    Figure,
    Mark,
    Rect,
    Shape,
    Table,
    Text,
    fitted,
    name_at,
    step,
    width_of,
)
from kpad_bench.tables import speed

_CELL_WIDTH, _CELL_HEIGHT = 92, 46
#: Bold text of size 12 is as wide as plain text of this size.
_BOLD_SIZE = 13.2


def heatmap(report: Report) -> Figure | None:
    """Model x corpus: the best K, shaded by K, with what is tied and what is established."""
    rows = report.mine
    if not rows:
        return None
    by_place = {(row["model"], row["corpus"]): row for row in rows}
    models, corpora = (list(dict.fromkeys(row[name] for row in rows)) for name in ("model", "corpus"))
    corpora = mix_last(corpora)
    left = width_of(models, 12, NAME_WIDTH) + 14
    marks: list[Mark | Shape] = [
        _corpus_name(corpus, left + _CELL_WIDTH * (i + 0.5)) for i, corpus in enumerate(corpora)
    ]
    for j, model in enumerate(models):
        y = 28 + _CELL_HEIGHT * j
        marks.append(name_at(model, left - 10, y + _CELL_HEIGHT / 2 + 4))
        for i, corpus in enumerate(corpora):
            row = by_place.get((model, corpus))
            if row is not None:
                marks.append(_heat_cell(row, left + _CELL_WIDTH * i, y, report.ks))
    bottom = 28 + _CELL_HEIGHT * len(models)
    marks += _heat_legend(report, left, bottom + 14)
    return Figure(
        "heatmap",
        f"Best K of {report.family} by model and corpus",
        "The large figure is the K with the highest mean throughput, shaded by K. ≈ lists the Ks that are "
        "not shown to be slower; a framed cell with ✓ is established by measurement.",
        max(left + _CELL_WIDTH * len(corpora) + 4, left + 330),
        bottom + 48,
        marks,
        Table(
            "heatmap",
            "Best K by model and corpus",
            ["model", *corpora],
            [[model, *(_in_words(by_place.get((model, corpus))) for corpus in corpora)] for model in models],
        ),
    )


def _corpus_name(corpus: str, x: float) -> Mark:
    shown = fitted(corpus, _CELL_WIDTH - 4, _BOLD_SIZE)
    return Mark((Text(x, 18, shown, 12, anchor="middle", is_bold=True),), corpus)


def _heat_cell(row: Mapping[str, Any], x: float, y: float, ks: Sequence[int]) -> Mark:
    how, k = state(row), row["best_k"]
    facts = {"model": row["model"], "corpus": row["corpus"], "k": "" if k is None else str(k), "state": how}
    if k is None:
        box = Rect(x + 1.5, y + 1.5, _CELL_WIDTH - 3, _CELL_HEIGHT - 3, "", "grid", radius=4)
        none = Text(x + _CELL_WIDTH / 2, y + 28, "none", 11, "muted", "middle")
        why = "; ".join(row["not_eligible"]) or "no trial went well"
        return Mark((box, none), f"{row['model']}, {row['corpus']}: no K may win ({why})", facts)
    tone = step(ks.index(k), len(ks))
    is_sure = how in (ESTABLISHED, SMALL)
    inset = 3.0 if is_sure else 1.5
    box = Rect(
        x + inset, y + inset, _CELL_WIDTH - 2 * inset, _CELL_HEIGHT - 2 * inset, f"k{tone}",
        "ink" if is_sure else "", 2.5, 4,
    )  # fmt: skip
    shapes: list[Shape] = [
        box,
        Text(x + _CELL_WIDTH / 2, y + 22, str(k), 17, f"on-k{tone}", "middle", is_bold=True),
    ]
    if how == ONE_TRIAL:
        shapes.append(Text(x + _CELL_WIDTH - 6, y + 13, "1 trial", 8, f"on-k{tone}", "end"))
    below = "✓" if is_sure else _ties(row) or ("" if how == ONE_TRIAL else how)
    shapes.append(
        Text(x + _CELL_WIDTH / 2, y + 38, fitted(below, _CELL_WIDTH - 8, 10.5), 10.5, f"on-k{tone}", "middle")
    )
    return Mark(tuple(shapes), f"{row['model']}, {row['corpus']}: {_in_words(row)}", facts)


def _ties(row: Mapping[str, Any]) -> str:
    others = [str(k) for k in row["tie_set"] if k != row["best_k"]]
    return f"≈ {', '.join(others)}" if others else ""


def _in_words(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    how = state(row)
    if how == NO_K:
        return "none"
    others = _ties(row).removeprefix("≈ ")
    tied = f"; not told from {others}" if others else ""
    sure = how if how in (ESTABLISHED, SMALL) else f"{how}, not established"
    return f"K={row['best_k']}, {speed(row['output_tok_per_s'])} tok/s ({sure}{tied})"


def _heat_legend(report: Report, x: float, y: float) -> Iterator[Shape]:
    for i, k in enumerate(report.ks):
        tone = step(i, len(report.ks))
        yield Rect(x + 46 * i, y, 40, 16, f"k{tone}", radius=3)
        yield Text(x + 46 * i + 20, y + 12, f"K={k}", 10.5, f"on-k{tone}", "middle")
    states = [state(row) for row in report.mine]
    n_sure = sum(how in (ESTABLISHED, SMALL) for how in states)
    n_known = sum(how != NO_K for how in states)
    text = f"{n_sure} of {n_known} established"
    if n_known and all(how in (ONE_TRIAL, NO_K) for how in states):
        text += ": one trial per cell and K"
    yield Text(x, y + 31, f"{text}.  ≈ not told from the best", 11, "muted")


def price_chart(report: Report) -> Figure | None:
    """Model x K: what one fixed K loses when the corpus is not known."""
    prices: list[Price] = report.prices
    if not prices:
        return None
    ks = sorted({k for price in prices for k in price.losses})
    left, width, height = width_of([p.model for p in prices], 12, NAME_WIDTH) + 14, 118, 44
    marks: list[Mark | Shape] = [
        Text(left + width * (i + 0.5), 18, f"K={k}", 12, anchor="middle", is_bold=True)
        for i, k in enumerate(ks)
    ]
    for j, price in enumerate(prices):
        y = 28 + height * j
        marks.append(name_at(price.model, left - 10, y + height / 2 + 4))
        least = min(price.losses.values())
        for i, k in enumerate(ks):
            if k in price.losses:
                marks.append(
                    _price_cell(price, k, price.losses[k] == least, left + width * i, y, (width, height))
                )
    return Figure(
        "price",
        f"What one fixed K of {report.family} costs when the corpus is not known",
        "Percent behind every corpus's own best K: geometric mean over the corpora, and below it the corpus "
        "that loses most. The framed K of each model loses least.",
        left + width * len(ks) + 4,
        28 + height * len(prices) + 6,
        marks,
        Table(
            "price",
            "Loss of one fixed K, percent behind every corpus's own best",
            ["model", *(f"K={k}" for k in ks), *(f"K={k}, worst corpus" for k in ks)],
            [
                [
                    price.model,
                    *(f"{price.losses[k]:.1f}%" if k in price.losses else "-" for k in ks),
                    *(
                        f"{price.worst[k][1]:.1f}% on {price.worst[k][0]}" if k in price.worst else "-"
                        for k in ks
                    ),
                ]
                for price in prices
            ],
        ),
    )


def _price_cell(price: Price, k: int, is_least: bool, x: float, y: float, size: tuple[float, float]) -> Mark:
    loss, (corpus, most) = price.losses[k], price.worst[k]
    # The shade says how much: none at no loss, the darkest from 20 % on.
    tone = min(7, round(loss / 20 * 7))
    inset = 3.0 if is_least else 1.5
    box = Rect(
        x + inset,
        y + inset,
        size[0] - 2 * inset,
        size[1] - 2 * inset,
        f"k{tone}",
        "ink" if is_least else "",
        2.5,
        4,
    )
    shapes = (
        box,
        Text(x + size[0] / 2, y + 20, _less(loss), 14, f"on-k{tone}", "middle", is_bold=True),
        Text(
            x + size[0] / 2,
            y + 35,
            fitted(f"{_less(most)} {corpus}", size[0] - 8, 10),
            10,
            f"on-k{tone}",
            "middle",
        ),
    )
    rounds = "" if price.is_paired else "; means of single trials are compared"
    title = (
        f"{price.model}, K={k}: {loss:.1f} % behind every corpus's own best over {', '.join(price.corpora)}; "
        f"most on {corpus}, {most:.1f} %{rounds}"
    )
    return Mark(shapes, title, {"model": price.model, "k": str(k), "loss": f"{loss:.2f}"})


def _less(loss: float) -> str:
    return "0%" if loss < 0.05 else f"-{loss:.1f}%"

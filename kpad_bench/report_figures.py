"""Every section of a report in its order: its drawings, or why there is none, and where they come from.

A ``Report`` in, ``Section``s out; knows no HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kpad_bench import report_bars, report_causes, report_curves, report_heat
from kpad_bench.report_data import Report, main_corpus, mix_last
from kpad_bench.report_figure import Figure


class Section(NamedTuple):
    """One part of the page. ``absent`` is what it says where there is no drawing."""

    name: str
    title: str
    figures: list[Figure]
    absent: str
    #: Columns and rules behind its figures.
    source: str
    #: Drawings that stand behind the others, for those who ask.
    more: Sequence[Figure] = ()


def sections(report: Report) -> list[Section]:
    """The sections with drawings."""
    return [_heat(report), _gains(report), *_others(report)]


def figures(report: Report) -> list[Figure]:
    """Every drawing of the report, in the order of the page."""
    return [figure for section in sections(report) for figure in (*section.figures, *section.more)]


def _heat(report: Report) -> Section:
    return Section(
        "best-k",
        "Best K by model and corpus",
        _there(_for_each_family(report, report_heat.heatmap)),
        "No best K: no arm with a K has a trial that counts.",
        "best_k, tie_set and established of reduce; the rule is in docs/statistics.md",
    )


def _gains(report: Report) -> Section:
    models = {row["model"] for row in report.mine}
    corpora = mix_last(list({row["corpus"] for row in report.mine}))
    by = "model" if len(models) == 1 else "corpus"
    first = models.pop() if by == "model" else main_corpus(report)
    found = (
        [] if first is None else _for_each_family(report, lambda one: report_bars.gain_bars(one, first, by))
    )
    others = [report_bars.gain_bars(report, name) for name in corpora if by == "corpus" and name != first]
    return Section(
        "gains",
        "Gains over the baselines",
        _there(found) or _there(others),
        "Neither suf (unpadded suffix decoding at K=32) nor van (no speculation) was measured beside a "
        "padded arm, so there is no gain to show. Add them to the sweep: --arm van --arm suf.",
        "vs_suf_pct and vs_van_pct of reduce: geometric means of ratios inside rounds, Student's t over "
        "rounds",
        _there(others) if any(found) else (),
    )


def _others(report: Report) -> list[Section]:
    return [
        Section(
            "reversals",
            "Where unpadded suffix decoding loses",
            _there([report_bars.reversal_chart(report)]),
            "No cell: unpadded suffix decoding (suf@32) is slower than no speculation (van) nowhere, or "
            "one of the two was not measured.",
            "output_tok_per_s of suf@32 over that of van in the same rounds",
        ),
        Section(
            "curves",
            "Throughput against K",
            list(report_curves.curves(report)),
            "No arm with a K has a trial that went well.",
            "mean output_tok_per_s of ok trials; intervals are of the ratio to the fastest K inside rounds",
        ),
        Section(
            "price",
            "The price of one fixed K",
            _there([report_heat.price_chart(report)]),
            "It takes a model with two Ks and two corpora in which both may win.",
            "geometric mean over corpora of output_tok_per_s over that of the corpus's own best K",
        ),
        Section(
            "graphs",
            "FULL graphs and pads",
            _there([report_causes.graph_shares(report)]),
            "No trial has step counters: rows from a CSV have none, and a platform without CUDA graphs has "
            "no FULL share.",
            "full_share_decode; pad_tokens / draft_tokens",
        ),
        Section(
            "acceptance",
            "Acceptance length and step time",
            _there([report_causes.acceptance(report)]),
            "It takes acceptance_length of the padded arm and the step times of both it and van-v1.",
            "acceptance_length = (tokens - first tokens) / decode steps of requests; R = mean "
            "step_time_mean over that of van-v1",
        ),
        Section(
            "steady",
            "Steady window against the whole pass",
            _there([report_causes.steady(report)]),
            "No trial has a steady window: rows from a CSV have none, and a pass with few prompts is all "
            "start and tail.",
            "steady_output_tok_per_s over output_tok_per_s, means of ok trials",
        ),
        Section(
            "drift",
            "Drift of the sentinel",
            _there([report_causes.drift(report)]),
            "No cell was repeated through the night. sentinel in a sweep's YAML does that.",
            "output_tok_per_s of the rows with is_sentinel",
        ),
    ]


def _for_each_family(report: Report, draw: Callable[[Report], Figure | None]) -> list[Figure | None]:
    """One drawing for each family of arms, named for it where it is not the first."""
    found = []
    for name in report.families or (report.family,):
        others = tuple(other for other in report.families if other != name)
        figure = draw(report._replace(families=(name, *others)))
        if figure is not None and name != report.family:
            figure = figure._replace(name=f"{figure.name}-{name}")
        found.append(figure)
    return found


def _there(found: Iterable[Figure | None]) -> list[Figure]:
    """The drawings that are there, under names that a file and an element may have, none twice."""
    kept: dict[str, Figure] = {}
    for figure in found:
        if figure is not None:
            plain = re.sub(r"[^A-Za-z0-9_-]+", "-", figure.name)[:60]
            names = (plain, *(f"{plain}-{n}" for n in range(2, len(kept) + 3)))
            name = next(name for name in names if name not in kept)
            kept[name] = figure._replace(name=name, table=figure.table._replace(name=name))
    return list(kept.values())

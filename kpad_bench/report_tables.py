"""The parts of a report that are words: its headline, what limits it, and the tables without a drawing.

A ``Report`` in, sentences and ``Table``s out; works out no figure of its own, knows no HTML.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kpad_bench.bestrow import SUF, VAN
from kpad_bench.report_data import NO_K, ONE_K, ONE_TRIAL, Report, state
from kpad_bench.report_figure import Table
from kpad_bench.report_trials import RUN_FACTS
from kpad_bench.stats import ASSUMED_CV, Gain
from kpad_bench.tables import LEGEND, marks_of, numbered, people_see, printable

#: Rows of a table of failures; more are counted.
_MOST_ROWS = 1000
#: Characters of one failure's detail.
_MOST_DETAIL = 240
_OVER = {"better": f"over the better of {VAN} and {SUF}", "suf": f"over {SUF}", "van": f"over {VAN}"}
_FACTS = {
    "gpu_name": "GPU", "gpu_count": "GPUs", "cpu_model": "CPU", "vllm_version": "vLLM",
    "torch_version": "torch", "cuda_version": "CUDA", "arctic_version": "arctic-inference",
    "kpad_bench_version": "kpad-bench", "git_commit": "commit", "schema_version": "schema",
}  # fmt: skip


class Card(NamedTuple):
    """One figure of the headline: a name for programs, the figure, and what it is."""

    name: str
    figure: str
    text: str


def headline(report: Report) -> list[Card]:
    """What a reader should leave with: wins, what is established, gains, and how many trials are ok."""
    found = report.wins
    known = [row for row in report.mine if row["best_k"] is not None]
    sure = sum(bool(row["established"]) for row in known)
    beats = (
        f"cells in which {report.family} beats the better of {VAN} and {SUF}, of those where all three are ok"
    )
    if found.n_shown is not None:
        beats += f"; in {found.n_shown} both gains have an interval above zero"
    cards = [
        Card("wins", f"{found.n_won} of {found.n_cells}" if found.n_cells else "none", beats),
        Card("established", f"{sure} of {len(known)}", "best Ks established by measurement"),
    ]
    for base, text in _OVER.items():
        one = report.overall.get(base)
        if one is not None:
            cells = f"{one.n_cells} cell{'s' * (one.n_cells != 1)}"
            cards.append(
                Card(f"gain-{base}", f"{one.gain.pct:+.1f} %", f"geometric mean gain {text}, {cells}")
            )
            cards[-1] = cards[-1]._replace(
                text=f"{cards[-1].text}; {_over_units(one.gain, one.unit, one.n_units)}"
            )
    cards.append(Card("trials", f"{report.n_ok} of {report.n_trials}", "trials are ok"))
    return cards


def _over_units(gain: Gain, unit: str, n_units: int) -> str:
    if gain.low_pct is None or gain.high_pct is None:
        return f"one {unit.removesuffix('s') if unit == 'models' else 'corpus'}, no interval"
    return f"95 % over {n_units} {unit}: {gain.low_pct:+.1f} to {gain.high_pct:+.1f} %"


def limits(report: Report) -> list[str]:
    """What keeps the page from saying more, the gravest first."""
    states = [state(row) for row in report.mine]
    ours = [one for one in states if one != NO_K]
    texts = [f"Left out, it could not be read: {printable(text)}" for text in report.unread]
    texts += [f"Left out, its trials are not alike: {printable(text)}" for text in report.refused]
    if not report.n_ok:
        texts.append(
            "No trial went well: there is no throughput to show. The reasons are below, under Failures."
        )
    elif not report.families:
        texts.append("No arm with a K was measured: there is no best K.")
    elif not ours:
        texts.append(f"No K of {report.family} may win in any cell: the best-K table says why.")
    if ours and all(one == ONE_TRIAL for one in ours):
        texts.append(
            "One trial per cell and K: nothing is established, every best K is only the highest of single "
            f"figures. Ties are judged by an assumed variation between runs of {100 * ASSUMED_CV:g} %."
        )
    elif ours and all(one == ONE_K for one in ours):
        texts.append("One K per cell was measured: there was nothing to choose from.")
    texts += _missing(report) if ours else []
    versions = {row["schema_version"] for row in report.runs if row["schema_version"]}
    if len(versions) > 1:
        texts.append(
            f"Rows of schema versions {', '.join(sorted(versions))}: what older rows lack is shown as -."
        )
    return texts


def _missing(report: Report) -> Iterator[str]:
    lacking = [base for base in (VAN, SUF) if all(row[f"{base}_tok_per_s"] is None for row in report.mine)]
    if lacking:
        yield (
            f"{' and '.join(lacking)} not measured beside {report.family}: a gain over the better of {VAN} "
            f"and {SUF} cannot be stated."
        )
    elif (n := report.wins.n_cells) < len(report.mine):
        yield (
            f"Gains over the better of {VAN} and {SUF} rest on {n} of {len(report.mine)} cells: in the "
            "others one of the three was not measured or is not ok."
        )


def best_table(report: Report) -> Table | None:
    """The best-K table with its footnotes; None without a row."""
    rows = report.best
    if not rows:
        return None
    views = people_see(rows, is_wide=True)
    marks = marks_of(len(rows), report.notes)
    body = [
        [
            printable(row["model"]),
            printable(row["corpus"]),
            *(view.show(row) for view in views),
            state(row),
            mark,
        ]
        for row, mark in zip(rows, marks, strict=True)
    ]
    titles = ["model", "corpus", *(view.title for view in views), "state", "notes"]
    words = {
        i for i, title in enumerate(titles) if title in ("model", "corpus", "arm", "sure", "state", "notes")
    }
    legend = ". ".join(f"{title}: {LEGEND[title]}" for title in titles if title in LEGEND)
    return Table(
        "best", "Best K by model and corpus", titles, body, frozenset(words),
        (f"{legend}. ~: the interval of a gain reaches zero.", *numbered(report.notes)),
    )  # fmt: skip


def failures_table(report: Report) -> Table | None:
    """Trials that do not count, by arm, K and reason; None where all are ok."""
    if not report.failures:
        return None
    shown = report.failures[:_MOST_ROWS]
    rows = [
        [
            printable(one.at.model), printable(one.at.corpus), one.at.label, one.status,
            printable(one.reason), f"{one.n} of {one.n_all}", printable(one.detail)[:_MOST_DETAIL] or "-",
        ]
        for one in shown
    ]  # fmt: skip
    more = len(report.failures) - len(shown)
    return Table(
        "failures", "Trials that do not count",
        ["model", "corpus", "arm", "status", "reason", "trials", "detail"],
        rows, frozenset({0, 1, 2, 3, 4, 6}), (f"{more} more lines are not shown.",) if more else (),
    )  # fmt: skip


def runs_table(report: Report) -> Table:
    """Every run, with the facts in which runs differ."""
    varying = [name for name in RUN_FACTS if len({row[name] for row in report.runs}) > 1]
    titles = ["sweep", "run", "started", "trials", "ok", *(_FACTS.get(name, name) for name in varying)]
    names = ("sweep", "run_id", "started", "trials", "ok", *varying)
    rows = [[_shown(row[name]) for name in names] for row in report.runs]
    return Table("runs", "Runs", titles, rows, frozenset({0, 1, 2, *range(5, len(titles))}))


def same_facts(report: Report) -> list[tuple[str, str]]:
    """The facts that all runs share; what no row states is left out."""
    found = []
    for name in RUN_FACTS:
        values = {row[name] for row in report.runs}
        if len(values) == 1 and (value := values.pop()) is not None:
            found.append((_FACTS.get(name, name), printable(value)))
    return found


def commands(report: Report) -> list[tuple[str, str]]:
    """What to run to get the page, its tables and its trials again: (what, command line)."""
    paths = shlex.join(report.paths)
    families = ",".join(report.families)
    found = [
        ("this page and its drawings", f"kpad-bench report {paths} --out report.html --figures figures"),
        ("the tables as Markdown", f"kpad-bench report {paths} --out report.html --markdown report.md"),
    ]
    if families:
        reduce = shlex.join(
            ["kpad-bench", "reduce", *report.paths, "--candidates", families, "--format", "csv"]
        )
        found.append(("the best-K table as data", reduce))
    sweeps = dict.fromkeys(row["sweep"] for row in report.runs if row["sweep"])
    found += [
        (
            f"the trials of {printable(sweep)}",
            shlex.join(["kpad-bench", "sweep", "--config", sweep, "--fresh"]),
        )
        for sweep in list(sweeps)[:5]
    ]
    return found


def title_of(report: Report) -> str:
    """One line that names what the page is of."""
    models = dict.fromkeys(row["model"] for row in report.best)
    corpora = dict.fromkeys(row["corpus"] for row in report.best)
    if not models:
        return "kpad-bench report"
    return f"kpad-bench: best K of {_count(list(models), 'models')} on {_count(list(corpora), 'corpora')}"


def when(report: Report) -> str:
    """From when to when the trials are, and of how many runs."""
    times = sorted(row["started"] for row in report.runs if row["started"])
    n = f"{len(report.runs)} run{'s' * (len(report.runs) != 1)}"
    if not times:
        return f"{n}, no time stated"
    return f"{n}, {times[0]}" if times[0] == times[-1] else f"{n}, {times[0]} to {times[-1]}"


def _count(names: Sequence[str], many: str) -> str:
    return printable(names[0]) if len(names) == 1 else f"{len(names)} {many}"


def _shown(value: object) -> str:
    return "-" if value is None else printable(value)

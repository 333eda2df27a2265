"""The best-K table as a text file for the textfile collector of Prometheus' node_exporter.

The state of the last measurements, as gauges in base units (seconds, ratios from 0 to 1). What is null has no
sample: a missing series is "not measured", never zero. Knows no servers; decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from kpad_bench.disk import as_host_error, write_whole
from kpad_bench.errors import UsageError
from kpad_bench.pooling import COLUMNS, plain_rows
from kpad_bench.reduce import best_k, load_rows
from kpad_bench.schema import BEST_K, STATUSES, TRIALS, names

PREFIX = "kpad_bench"
#: node_exporter reads no other file of its folder.
SUFFIX = ".prom"
Labels = tuple[tuple[str, str], ...]
_STARTED = tuple(column for column in TRIALS if column.name == "started_at")


class Family(NamedTuple):
    """One metric: its name without the prefix, its help, and its samples."""

    name: str
    help: str
    samples: Sequence[tuple[Labels, float]]


#: From one row of the table: name, help, the column, and by what it is divided.
_OF_ROW = (
    ("best_k", "Draft length with the highest mean throughput.", "best_k", 1),
    ("pick_k", "Draft length to run: the smallest that is not shown to be worse.", "pick_k", 1),
    ("established", "1 where the best draft length is established by measurement, else 0.", "established", 1),
    ("output_tokens_per_second", "Throughput of the best draft length.", "output_tok_per_s", 1),
    ("output_tokens_per_second_low", "Lower end of its 95 % interval.", "ci_low", 1),
    ("output_tokens_per_second_high", "Upper end of its 95 % interval.", "ci_high", 1),
    ("margin_ratio", "Lead of the best draft length over the next best.", "margin_pct", 100),
    ("regret_ratio", "What pick_k may lose against the best.", "regret_pct", 100),
    ("acceptance_length", "Output tokens per request and decode step.", "acceptance_length", 1),
    ("rounds", "Complete rounds (nights, where several are pooled) behind the decision.", "n_rounds", 1),
)
_GAINS = (("van", "vs_van_pct"), ("suf", "vs_suf_pct"), ("best", "vs_best_baseline_pct"))


def export(
    paths: Sequence[Path],
    candidates: Sequence[str],
    allow_mixed: Collection[str],
    say: Callable[[str], None],
) -> str:
    """The text of the file. Raises UsageError and DataError as ``reduce`` does."""
    rows = load_rows(paths, (*COLUMNS, *_STARTED))
    for note in rows.attrs["notes"]:
        say(note)
    table = best_k(rows, candidates, frozenset(allow_mixed))
    bare = pd.DataFrame({name: table[name] for name in names(BEST_K)})  # without the notes
    return render([*of_table(plain_rows(bare)), *of_trials(rows)])


def write(text: str, out: Path) -> None:
    """Put the file in place in one step: the collector never sees half of it.

    Raises UsageError for a name that node_exporter would pass over, HostError where it cannot be written.
    """
    if out.suffix != SUFFIX:
        raise UsageError(f"--out: {out}: node_exporter reads {SUFFIX} files alone; name it so")
    with as_host_error(out.parent):
        write_whole(out, text.encode())


def of_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[Family]:
    """The metrics of a best-K table, one sample for each row that knows the value."""
    about = [((*_cell(row), ("arm", str(row["arm"]))), row) for row in rows]
    for name, text, column, by in _OF_ROW:
        yield Family(name, text, [(cell, row[column] / by) for cell, row in about if row[column] is not None])
    gains = [
        ((*cell, ("baseline", base)), row[column] / 100)
        for cell, row in about
        for base, column in _GAINS
        if row[column] is not None
    ]
    yield Family(
        "gain_ratio", "Gain of the best draft length over no speculation (van), over unpadded suffix "
        "decoding at K=32 (suf), and over the best baseline measured.", gains,
    )  # fmt: skip


def of_trials(rows: pd.DataFrame) -> Iterator[Family]:
    """How many trials ended how, and when the newest began."""
    names_of = [rows[name].astype(str) for name in ("model", "corpus", "status")]
    counts = Counter(zip(*names_of, strict=True))
    cells = sorted({(model, corpus) for model, corpus, _ in counts})
    samples = [
        ((("model", model), ("corpus", corpus), ("status", status)), counts[model, corpus, status])
        for model, corpus in cells
        for status in STATUSES
    ]
    yield Family("trials", "Trials of all arms by how they ended.", samples)
    newest: dict[tuple[str, str], float] = {}
    for model, corpus, when in zip(*names_of[:2], rows["started_at"], strict=True):
        if pd.notna(when):
            newest[model, corpus] = max(when.timestamp(), newest.get((model, corpus), 0.0))
    times = [
        ((("model", model), ("corpus", corpus)), newest[model, corpus])
        for model, corpus in cells
        if (model, corpus) in newest
    ]
    yield Family("newest_trial_timestamp_seconds", "When the newest trial began, Unix time.", times)


def _cell(row: Mapping[str, Any]) -> Labels:
    return (("model", str(row["model"])), ("corpus", str(row["corpus"])))


def render(families: Iterable[Family]) -> str:
    """Metrics in Prometheus' text format 0.0.4; those without a sample are left out."""
    lines = []
    for name, text, samples in families:
        if samples:
            lines += [f"# HELP {PREFIX}_{name} {_escaped(text)}", f"# TYPE {PREFIX}_{name} gauge"]
            lines += [f"{PREFIX}_{name}{{{_labels(labels)}}} {_number(value)}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Labels) -> str:
    quoted = ((name, _escaped(value).replace('"', r"\"")) for name, value in labels)
    return ",".join(f'{name}="{value}"' for name, value in quoted)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    value = float(value)
    return str(int(value)) if value.is_integer() and math.fabs(value) < 1e15 else repr(value)

"""Whether one cell of two nights may be compared, and in what else its trials differ.

Takes trial rows; knows no throughputs. A load that differs is refused, everything else that differs is a
cause to look at when the throughput changed. Works on whole columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import pandas as pd

from kpad_bench.errors import UsageError
from kpad_bench.pooling import plain_rows
from kpad_bench.rows import PLACE
from kpad_bench.schema import MUST_MATCH, TRIALS

#: model, corpus, arm, K (0: no speculation).
Key = tuple[str, str, str, int]
KEY = ("model", "corpus", "arm", "k")
#: Throughputs under different values of these are no measurements of one thing.
LOAD = (
    *("corpus_digest", "n_prompts", "concurrency", "max_tokens", "max_model_len", "temperature", "endpoint"),
    *("model_revision", "tensor_parallel", "cache_state"),
)
#: What may have changed the speed, the likeliest first.
_SETTINGS = (
    *MUST_MATCH,
    *("throttled", "attention_backend", "runner", "capture_sizes", "gpu_count"),
    *("vllm_commit", "torch_version", "cuda_version", "arctic_version"),
    *("kpad_bench_version", "git_commit", "isolation", "corpus_truncated", "seed"),
    *("suffix_max_tree_depth", "suffix_max_spec_factor", "suffix_min_token_prob"),
    *("suffix_max_cached_requests", "host", "kernel", "governor", "smt", "server_cpus", "client_cpus"),
    *("slot", "neighbours"),
)
#: Its values say nothing to people.
_IDENTITY = "cell_id"
_LISTS = ("capture_sizes", "neighbours")
_N_SHOWN = 3
_NONE = "none"
_N_BRIEF = 60


class _Measure(NamedTuple):
    """From which difference of means on a measured column is a cause."""

    least: float
    is_relative: bool


_MEASURES = {
    "full_share_decode": _Measure(0.01, is_relative=False),
    "num_gpu_blocks": _Measure(0.01, is_relative=True),
    "acceptance_length": _Measure(0.01, is_relative=True),
    "mean_batch": _Measure(0.02, is_relative=True),
    "gpu_clock_mhz_mean": _Measure(0.01, is_relative=True),
    "gpu_temperature_c_max": _Measure(5.0, is_relative=False),
    "chunk_merge_share": _Measure(0.01, is_relative=False),
    "client_cpu_share": _Measure(0.1, is_relative=False),
    "loop_share": _Measure(0.02, is_relative=False),
    "preemptions": _Measure(0.5, is_relative=False),
    "prefix_hits": _Measure(0.5, is_relative=False),
}
_READ = {*LOAD, *_SETTINGS, _IDENTITY, *_MEASURES}
#: The columns of the trials table that are looked at.
COLUMNS = tuple(column for column in TRIALS if column.name in _READ)


class Cause(NamedTuple):
    """A column in which the two nights differ, and its values on each."""

    column: str
    base: str
    new: str

    def __str__(self) -> str:
        if self.column == _IDENTITY:
            return "cell_id (flags or environment of the server, load or isolation)"
        return f"{self.column}: {_brief(self.base)} -> {_brief(self.new)}"


class Facts(NamedTuple):
    """What the trials of one cell say of how they were made."""

    #: Column -> its values as text, each with a place where it was read; null is no value.
    settings: dict[str, dict[str, str]]
    #: Column -> mean over trials.
    measures: dict[str, float]


def facts_of(trials: pd.DataFrame) -> dict[Key, Facts]:
    """The facts of every cell, from rows with a K of 0 where there is no speculation."""
    found: dict[Key, Facts] = {
        key: Facts({}, {}) for key in trials[list(KEY)].drop_duplicates().itertuples(index=False, name=None)
    }
    for name in (*LOAD, *_SETTINGS, _IDENTITY):
        if name not in trials or trials[name].isna().all():
            continue
        values = trials[name].map(tuple, na_action="ignore") if name in _LISTS else trials[name]
        columns = trials[[*KEY, PLACE]].assign(value=values).dropna(subset=["value"])
        distinct = columns.drop_duplicates([*KEY, "value"])
        for model, corpus, arm, k, place, value in distinct.itertuples(index=False, name=None):
            found[model, corpus, arm, k].settings.setdefault(name, {})[_text(value)] = place
    measured = [name for name in _MEASURES if name in trials and not trials[name].isna().all()]
    if measured:
        means = trials[[*KEY, *measured]].astype(dict.fromkeys(measured, "float64"))
        for row in plain_rows(means.groupby(list(KEY), sort=False).mean().reset_index()):
            mine = found[row["model"], row["corpus"], row["arm"], row["k"]].measures
            mine.update({name: row[name] for name in measured if row[name] is not None})
    return found


def refuse_other_loads(
    base: Mapping[Key, Facts], new: Mapping[Key, Facts], allowed: Collection[str]
) -> list[str]:
    """Raise UsageError where a cell of both nights had different loads; notes on what nobody can tell.

    ``allowed`` names columns in which they may differ.
    """
    wrong, unknown = [], set()
    for key in base.keys() & new.keys():
        for name in LOAD:
            one, other = base[key].settings.get(name, {}), new[key].settings.get(name, {})
            if bool(one) != bool(other):
                unknown.add(name)
            elif one.keys() != other.keys() and name not in allowed:
                wrong.append((key, name, f"{_shown(one)} and {_shown(other)}"))
    if wrong:
        wrong.sort(key=lambda item: (item[0], LOAD.index(item[1])))
        told = "; ".join(f"{label(key)}: {name} is {values}" for key, name, values in wrong[:_N_SHOWN])
        more = f"; and {len(wrong) - _N_SHOWN} more" if len(wrong) > _N_SHOWN else ""
        columns = ",".join(name for name in LOAD if name in {name for _, name, _ in wrong})
        raise UsageError(
            f"nights of different loads are not compared: {told}{more}. Compare nights of the same load, or "
            f"allow it by name: --allow-mixed {columns}"
        )
    known = [name for name in LOAD if name in unknown]
    return [f"known on one night only, not checked: {', '.join(known)}"] if known else []


def causes(base: Facts, new: Facts) -> list[Cause]:
    """In what the trials of one cell differ between the nights, the likeliest cause first."""
    is_recorded = "vllm_version" in base.settings and "vllm_version" in new.settings
    found = []
    for name in (*MUST_MATCH, *_MEASURES, *_SETTINGS[len(MUST_MATCH) :], *LOAD, _IDENTITY):
        if name in _MEASURES:
            one, other = base.measures.get(name), new.measures.get(name)
            if one is not None and other is not None and _differ(one, other, _MEASURES[name]):
                found.append(Cause(name, f"{one:.4g}", f"{other:.4g}"))
        else:
            values, others = base.settings.get(name, {}), new.settings.get(name, {})
            if is_recorded and name in MUST_MATCH:  # no driver is none
                values, others = values or {_NONE: ""}, others or {_NONE: ""}
            if values and others and values.keys() != others.keys():
                found.append(Cause(name, ", ".join(values), ", ".join(others)))
    return found


def label(key: Key) -> str:
    """A cell as people write it."""
    model, corpus, arm, k = key
    return f"{model} {corpus} {arm}@{k}" if k else f"{model} {corpus} {arm}"


def _differ(one: float, other: float, measure: _Measure) -> bool:
    scale = max(abs(one), abs(other)) if measure.is_relative else 1.0
    return abs(one - other) > measure.least * scale


def _brief(value: str) -> str:
    """Hashes by their beginning, lists without their end."""
    if len(value) >= 40 and not set(value) - set("0123456789abcdef"):
        return value[:12]
    return value if len(value) <= _N_BRIEF else f"{value[: _N_BRIEF - 3]}..."


def _shown(values: Mapping[str, str]) -> str:
    return ", ".join(f"{value} ({place})" for value, place in values.items())


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or _NONE
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)

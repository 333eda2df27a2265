"""How the server of an arm at K is started: as in a trial that went well, where a row tells.

Takes trial rows and reads, of the run that a row is from, the columns that only this needs. Chooses no K.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from kpad_bench.launchline import CPU, GPU, MODULE, SERVE, Line, Settings, measured_line, written_line
from kpad_bench.layout import NO_GRAPHS
from kpad_bench.rows import PLACE, read_rows
from kpad_bench.schema import OK, TRIALS

_READ = ("trial_id", "server_argv", "server_env", "server_cpus", "affinity_by", "gpu_name")
_COLUMNS = tuple(column for column in TRIALS if column.name in _READ)
#: Settings that a best K is the result of, and how people say them.
_CIRCUMSTANCES = {
    "concurrency": "{} requests at a time",
    "max_tokens": "at most {} tokens an answer",
    "temperature": "temperature {:g}",
    "cache_state": "suffix cache {}",
    "vllm_version": "vLLM {}",
    "gpu_name": "{}",
}


class Launch(NamedTuple):
    """How to start the server, and under which circumstances its K was measured."""

    line: Line
    launcher: str
    platform: str
    #: The trial that was measured with this line; None: the line was written from the configuration.
    trial_id: str | None
    circumstances: list[str]

    @property
    def argv(self) -> list[str]:
        """The command line."""
        return self.line.argv(self.launcher)

    @property
    def command(self) -> str:
        """Environment and command line as one line for a POSIX shell."""
        return self.line.command(self.launcher)


def find_launch(
    rows: pd.DataFrame,
    arm_at_k: tuple[str, int],
    ks: tuple[int, ...],
    platform: str | None,
    launcher: str | None,
) -> Launch:
    """How to start an arm at K (0: no speculation), from the trials of one model.

    The line is that of the latest trial that went well on ``platform`` (None: the one that was measured);
    without such a trial it is written from the shipped configuration, for the Ks that were compared.
    """
    arm, k = arm_at_k
    ok = rows[(rows["status"] == OK) & (rows["arm"] == arm) & (rows["k"].fillna(0) == k)]
    measured = _latest(ok)
    where = platform or (_platform(ok) if measured is None else measured[1])
    if measured is not None and where == measured[1]:
        line, trial_id = measured[0], measured[2]
    else:
        line, trial_id = written_line(str(ok["model"].iloc[0]), arm, k, _settings(ok, ks), where), None
        if measured is not None:
            elsewhere = f"the figures are of the {measured[1]}, the line is for the {where}: measure there"
            line = line._replace(notes=(*line.notes, elsewhere))
    default = MODULE if where == CPU else SERVE
    return Launch(line, launcher or default, where, trial_id, list(_circumstances(ok)))


def _latest(ok: pd.DataFrame) -> tuple[Line, str, str] | None:
    """The line of the latest of these trials, its platform, and the trial; None where no row holds one."""
    order = ok.assign(run_id=ok["run_id"].astype(str)).sort_values(["run_id", "round"], kind="stable")
    found = []
    for place, trials in (
        order.groupby("corpus", observed=True).tail(1).groupby(PLACE, observed=True, sort=False)
    ):
        if Path(str(place)).exists():  # else it is a line of a CSV
            found += _read_lines(Path(str(place)), list(trials["trial_id"]))
    if not found:
        return None
    latest = max(found, key=lambda one: list(order["trial_id"]).index(one[2]))
    line, platform, trial_id = latest
    if any(
        (other.model, other.flags, other.env) != (line.model, line.flags, line.env) for other, _, _ in found
    ):
        differ = f"servers of different corpora were not started alike: the line is that of {trial_id}"
        line = line._replace(notes=(*line.notes, differ))
    return line, platform, trial_id


def _read_lines(place: Path, trial_ids: list[str]) -> list[tuple[Line, str, str]]:
    """The lines of these trials of one run or file, with their platforms."""
    records: list[dict[str, Any]] = read_rows([place], _COLUMNS).table.to_pylist()
    found = []
    for record in (record for record in records if record["trial_id"] in trial_ids):
        line = measured_line(record["server_argv"] or [], record["server_env"] or [])
        if line is not None:
            line = line._replace(notes=(*line.notes, *_doubts(record)))
            found.append((line, CPU if record["gpu_name"] is None else GPU, str(record["trial_id"])))
    return found


def _doubts(record: dict[str, Any]) -> Iterator[str]:
    if record["affinity_by"]:
        by = record["affinity_by"]
        yield f"measured on CPUs {record['server_cpus']} alone, by {by}: the line does not pin"


def _platform(ok: pd.DataFrame) -> str:
    """Of rows without a command line: the CPU only where they say that they had no graphs."""
    return CPU if (ok["full_share_reason"] == NO_GRAPHS).any() else GPU


def _settings(ok: pd.DataFrame, ks: tuple[int, ...]) -> Settings:
    known = {
        name: int(ok[name].dropna().max()) if ok[name].notna().any() else None
        for name in ("concurrency", "max_model_len", "tensor_parallel")
    }
    return Settings(ks, **known)


def _circumstances(ok: pd.DataFrame) -> Iterator[str]:
    for name, text in _CIRCUMSTANCES.items():
        values = sorted({text.format(value) for value in ok[name].dropna().unique()})
        if values:
            yield " or ".join(values)

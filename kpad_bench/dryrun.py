"""``sweep --dry-run``: the plan as people and scripts read it. Starts nothing, needs no vLLM."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from kpad_bench.argv import MODEL_DIR
from kpad_bench.cells import Cell
from kpad_bench.config import Resolved
from kpad_bench.corpus import planned_digests
from kpad_bench.doubts import plan_doubts
from kpad_bench.dryrun_hosts import HostTime, host_times, measured_rows
from kpad_bench.errors import UsageError
from kpad_bench.launch import shown_argv, shown_env
from kpad_bench.models import models_dir
from kpad_bench.plan import Block, Plan, make_plan, planned_doubts


def describe(resolved: Resolved, cell_id: str | None, output_format: str, out: Path | None = None) -> str:
    """The text of a dry run: the whole plan, or one cell's argv and environment.

    ``out``: the results folder, whose earlier runs tell how long boots and passes take.
    """
    plan = make_plan(resolved, planned_digests(resolved.corpora))
    if cell_id is not None:
        record = _launch_record(resolved, plan, _find_cell(plan, cell_id))
        return json.dumps(record, indent=1) if output_format == "json" else _launch_text(record)
    rows = [] if out is None else measured_rows(out / resolved.config.sweep)
    hosts = [list(host_times(resolved, blocks, rows)) for blocks in _least_and_most(plan)]
    if output_format == "json":
        return json.dumps(_plan_record(resolved, plan) | _hosts_record(*hosts), indent=1)
    return _plan_text(resolved, plan, _hosts_text(*hosts))


def cell_record(cell: Cell) -> dict[str, Any]:
    """One cell as ``--format json`` prints it."""
    record = asdict(cell) | {"load": cell.load.model_dump()}
    return record | {"is_corpus_frozen": cell.corpus_digest is not None}


def _find_cell(plan: Plan, cell_id: str) -> Cell:
    cells = list(dict.fromkeys([*plan.cells, *(trial.cell for trial in plan.trials())]))
    found = [cell for cell in cells if cell.cell_id == cell_id]
    found = found or [cell for cell in cells if cell.cell_id.startswith(cell_id)]
    if len(found) == 1:
        return found[0]
    near = ", ".join(cell.cell_id for cell in (found or cells)[:5])
    what = "no such cell" if not found else f"{len(found)} cells begin like this"
    raise UsageError(f"--cell: {cell_id!r}: {what}; cells are listed by --dry-run, for example {near}")


def _launch_record(resolved: Resolved, plan: Plan, cell: Cell) -> dict[str, Any]:
    boot = next(boot for _, boot in plan.boots() if any(trial.cell == cell for trial in boot.trials))
    argv = [part.replace(MODEL_DIR, str(models_dir())) for part in boot.argv]
    cpus = resolved.config.cpus.server
    return cell_record(cell) | {
        "boot_id": boot.boot_id,
        "argv": (["taskset", "-c", cpus] if cpus else []) + shown_argv(argv),
        "env": shown_env(dict(boot.env)),
        "warnings": plan_doubts(
            resolved.arm_of(boot.arm, boot.arm_at_k), boot.k, resolved.config.server, cell.load.concurrency
        ),
    }


def _launch_text(record: dict[str, Any]) -> str:
    lines = [f"cell {record['cell_id']}", "", "environment, on top of PATH, HOME and the like:"]
    lines += [f"  {setting}" for setting in record["env"]]
    lines += ["", "argv ({python} and {socket} are filled at boot):", f"  {shlex.join(record['argv'])}"]
    return "\n".join(lines + [f"warning: {text}" for text in record["warnings"]])


class _Size(NamedTuple):
    """How much some blocks are."""

    trials: int
    boots: int
    boot_estimate_s: float


def _size(resolved: Resolved, blocks: Iterable[Block]) -> _Size:
    boots = [boot for block in blocks for boot in block.boots]
    seconds = sum(resolved.models[boot.model].boot_estimate_s for boot in boots)
    return _Size(sum(len(boot.trials) for boot in boots), len(boots), seconds)


def _sizes(resolved: Resolved, plan: Plan) -> tuple[_Size, _Size, _Size]:
    """Of the fewest rounds there may be, of the most, and of the sentinels, which are in neither."""
    rounds = [block for block in plan.blocks if not block.is_sentinel]
    certain = [block for block in rounds if block.round <= plan.design.least]
    sentinels = [block for block in plan.blocks if block.is_sentinel]
    return _size(resolved, certain), _size(resolved, rounds), _size(resolved, sentinels)


def _least_and_most(plan: Plan) -> tuple[list[Block], list[Block]]:
    """All blocks of the fewest rounds there may be, and of the most; sentinels are in both."""
    least = [block for block in plan.blocks if block.is_sentinel or block.round <= plan.design.least]
    return least, list(plan.blocks)


def _hosts_record(least: Sequence[HostTime], most: Sequence[HostTime]) -> dict[str, Any]:
    return {
        "hosts": [
            {**many._asdict(), "least": {"hours": few.hours, "gpu_hours": few.gpu_hours}}
            for few, many in zip(least, most, strict=True)
        ]
    }


def _hosts_text(least: Sequence[HostTime], most: Sequence[HostTime]) -> list[str]:
    return [
        f"{few.host} ({_basis(few.n_trials)}): {_span(few.hours, many.hours)} h"
        + (f", {_span(few.gpu_hours, many.gpu_hours)} GPU-hours" if many.gpu_hours else "")
        for few, many in zip(least, most, strict=True)
    ]


def _basis(n_trials: int) -> str:
    trials = "trial" if n_trials == 1 else "trials"
    return f"from {n_trials} measured {trials}" if n_trials else "nothing measured yet: estimates"


def _span(least: float, most: float) -> str:
    shown = [f"{hours:.1f}" if hours < 100 else f"{hours:.0f}" for hours in (least, most)]
    return shown[1] if shown[0] == shown[1] else " to ".join(shown)


def _plan_record(resolved: Resolved, plan: Plan) -> dict[str, Any]:
    """``rounds``, ``trials``, ``boots`` are those of the most rounds; ``least`` has them of the fewest."""
    least, most, sentinel = _sizes(resolved, plan)
    return {
        "sweep": plan.sweep,
        "plan_digest": plan.digest,
        "rounds": plan.design.most,
        "isolation": resolved.config.isolation,
        **most._asdict(),
        "least": {"rounds": plan.design.least, **least._asdict()},
        "sentinel": sentinel._asdict(),
        "warnings": planned_doubts(resolved, plan),
        "cells": [cell_record(cell) for cell in plan.cells],
        "order": [
            {
                "block_id": block.block_id,
                "boot_id": boot.boot_id,
                "is_sentinel": block.is_sentinel,
                "trials": [trial.trial_id for trial in boot.trials],
            }
            for block, boot in plan.boots()
        ],
    }


def _plan_text(resolved: Resolved, plan: Plan, hosts: Sequence[str]) -> str:
    lines = [
        f"{cell.cell_id}{'' if cell.corpus_digest else '  (corpus not frozen: digest null)'}"
        for cell in plan.cells
    ]
    trials = plan.trials()
    not_frozen = sorted({trial.cell.corpus for trial in trials if trial.cell.corpus_digest is None})
    lines += ["", _size_text(resolved, plan), *hosts]
    if not_frozen:
        lines.append(f"not frozen, a real sweep refuses them: {', '.join(not_frozen)}")
    return "\n".join(lines + [f"warning: {doubt}" for doubt in planned_doubts(resolved, plan)])


def _size_text(resolved: Resolved, plan: Plan) -> str:
    least, most, sentinel = _sizes(resolved, plan)
    hours = [f"{size.boot_estimate_s / 3600:.1f}" for size in (least, most)]
    n_cells, isolation = len(plan.cells), resolved.config.isolation
    if plan.design.is_adaptive:
        text = (
            f"{n_cells} cells, {plan.design.least} to {plan.design.most} rounds: between {least.trials} and "
            f"{most.trials} trials in between {least.boots} and {most.boots} boots (isolation {isolation}), "
            f"about {hours[0]} to {hours[1]} h of boots alone"
        )
    else:
        text = (
            f"{n_cells} cells per round x {plan.design.most} rounds: {most.trials} trials in {most.boots} "
            f"boots (isolation {isolation}), about {hours[1]} h of boots alone"
        )
    return text + (
        f"; and {sentinel.trials} sentinel trials in boots of their own" if sentinel.trials else ""
    )

"""``sweep --dry-run``: the plan as people and scripts read it. Starts nothing, needs no vLLM."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

from kpad_bench.argv import MODEL_DIR
from kpad_bench.config import Resolved
from kpad_bench.corpus import frozen_digest
from kpad_bench.doubts import plan_doubts
from kpad_bench.errors import UsageError
from kpad_bench.launch import shown_argv, shown_env
from kpad_bench.models import models_dir
from kpad_bench.plan import Cell, Plan, make_plan, planned_doubts


def describe(resolved: Resolved, cell_id: str | None, output_format: str) -> str:
    """The text of a dry run: the whole plan, or one cell's argv and environment."""
    digests = {corpus: frozen_digest(corpus) for corpus in resolved.config.corpora}
    plan = make_plan(resolved, digests)
    if cell_id is not None:
        record = _launch_record(resolved, plan, _find_cell(plan, cell_id))
        return json.dumps(record, indent=1) if output_format == "json" else _launch_text(record)
    return (
        json.dumps(_plan_record(resolved, plan), indent=1)
        if output_format == "json"
        else _plan_text(resolved, plan)
    )


def cell_record(cell: Cell) -> dict[str, Any]:
    """One cell as ``--format json`` prints it."""
    record = asdict(cell) | {"load": cell.load.model_dump()}
    return record | {"is_corpus_frozen": cell.corpus_digest is not None}


def _find_cell(plan: Plan, cell_id: str) -> Cell:
    found = [cell for cell in plan.cells if cell.cell_id == cell_id]
    found = found or [cell for cell in plan.cells if cell.cell_id.startswith(cell_id)]
    if len(found) == 1:
        return found[0]
    near = ", ".join(cell.cell_id for cell in (found or plan.cells)[:5])
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


def _plan_record(resolved: Resolved, plan: Plan) -> dict[str, Any]:
    boots = list(plan.boots())
    return {
        "sweep": plan.sweep,
        "plan_digest": plan.digest,
        "rounds": resolved.config.rounds,
        "isolation": resolved.config.isolation,
        "boots": len(boots),
        "trials": len(list(plan.trials())),
        "boot_estimate_s": sum(resolved.models[boot.model].boot_estimate_s for _, boot in boots),
        "warnings": planned_doubts(resolved, plan),
        "cells": [cell_record(cell) for cell in plan.cells],
        "order": [
            {"block_id": block.block_id, "boot_id": boot.boot_id, "trials": [t.trial_id for t in boot.trials]}
            for block, boot in boots
        ],
    }


def _plan_text(resolved: Resolved, plan: Plan) -> str:
    config = resolved.config
    n_boots, n_trials = len(list(plan.boots())), len(list(plan.trials()))
    hours = sum(resolved.models[boot.model].boot_estimate_s for _, boot in plan.boots()) / 3600
    lines = [
        f"{cell.cell_id}{'' if cell.corpus_digest else '  (corpus not frozen: digest null)'}"
        for cell in plan.cells
    ]
    not_frozen = sorted({cell.corpus for cell in plan.cells if cell.corpus_digest is None})
    lines += [
        "",
        f"{len(plan.cells)} cells per round x {config.rounds} rounds: {n_trials} trials in {n_boots} boots "
        f"(isolation {config.isolation}), about {hours:.1f} h of boots alone",
    ]
    if not_frozen:
        lines.append(f"not frozen, a real sweep refuses them: {', '.join(not_frozen)}")
    return "\n".join(lines + [f"warning: {doubt}" for doubt in planned_doubts(resolved, plan)])

"""What this host lacks for a sweep, before anything boots."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from kpad_bench import doctor_cpu, doctor_data, doctor_gpu, doctor_host, doctor_software
from kpad_bench.config import Resolved
from kpad_bench.corpus import planned_digests
from kpad_bench.doctor_finding import Finding, run
from kpad_bench.plan import make_plan

__all__ = ["Finding", "as_json", "as_text", "examine"]

_MARKS = {"ok": "ok     ", "warning": "warning", "failure": "FAILURE"}


def examine(resolved: Resolved, out: Path) -> list[Finding]:
    """Every line on this host for that sweep. Boots nothing; a check that breaks is a failure of its own."""
    software = doctor_software.Software.here()
    host = doctor_host.HostFacts.here()
    found = [
        *doctor_software.checks(resolved, software),
        *doctor_gpu.checks(resolved, lambda: doctor_gpu.Gpus.here(os.environ, software.torch_cuda)),
        *doctor_cpu.checks(resolved, doctor_cpu.CpuFacts.here()),
        *doctor_host.checks(resolved, out, host, _n_trials(resolved)),
        *doctor_data.checks(resolved, host.env),
    ]
    return run(found)


def _n_trials(resolved: Resolved) -> int:
    return len(list(make_plan(resolved, planned_digests(resolved.corpora)).trials()))


def as_text(found: Sequence[Finding]) -> str:
    """Lines for people: state, name, what is the case; the fix below it."""
    width = max((len(one.name) for one in found), default=0)
    lines = []
    for one in found:
        lines.append(f"{_MARKS[one.state]}  {one.name:<{width}}  {one.found}")
        if one.fix:
            lines.append(f"{'':<7}  {'':<{width}}  -> {one.fix}")
    n = {state: sum(one.state == state for one in found) for state in _MARKS}
    lines.append(f"{n['ok']} ok, {n['warning']} warnings, {n['failure']} failures")
    return "\n".join(lines)


def as_json(found: Sequence[Finding]) -> str:
    """A list of objects with ``name``, ``state``, ``found`` and ``fix``."""
    return json.dumps([asdict(one) for one in found], indent=1, ensure_ascii=False)

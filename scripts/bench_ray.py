#!/usr/bin/env python3
"""What the Ray executor costs over the local one: the same sweep of fake servers both ways, in one run.

    python scripts/bench_ray.py [--blocks 30] [--pairs 1]

Thirty blocks of a few seconds on one site: this host, and a cluster of one node of it. Passes take their
time by the fake's clock, so that what is left is boots, the executors, and what the machine does beside them.
Time is that of the whole command, start of Python and connection to the cluster included. Exit 5 above 5 %.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import fmean

from soak_lab import Lab, freeze

BOUND = 0.05
#: A step of the fake: with 24 tokens in three rounds of two requests, a pass of about two seconds.
STEP_S = 0.025


def timed(lab: Lab, *more: str) -> float:
    """Seconds of one whole command that must end well."""
    started = time.monotonic()
    process = lab.start("--fresh", *more)
    status = process.wait(timeout=1800)
    if status:
        raise SystemExit(f"{' '.join(more) or 'local'}: exit {status}\n{lab.errors()[-2000:]}")
    return time.monotonic() - started


def main() -> int:
    """Print seconds of both and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=1)
    options = parser.parse_args()
    from ray.cluster_utils import Cluster  # noqa: PLC0415 slow, and for a run alone

    with tempfile.TemporaryDirectory(prefix="br") as name:
        top = Path(name)
        (top / "corpora").mkdir()
        freeze(top / "corpora")
        with Lab(top / "lab", top / "corpora") as lab:
            lab.config |= {"rounds": options.blocks, "arms": ["kpad"], "isolation": "boot"}
            lab.tell(step_s=STEP_S)
            cluster = Cluster()
            try:
                cluster.add_node(num_cpus=1, node_name="bench", env_vars=lab.env)
                ray = ("--executor", "ray", "--ray-address", cluster.address)
                pairs = [(timed(lab), timed(lab, *ray)) for _ in range(options.pairs)]
            finally:
                cluster.shutdown()  # type: ignore[no-untyped-call]
    local_s, ray_s = (fmean(times) for times in zip(*pairs, strict=True))
    overhead = ray_s / local_s - 1
    print(
        f"{options.blocks} blocks: local {local_s:.1f} s, ray {ray_s:.1f} s, overhead {overhead:+.1%} "
        f"({options.pairs} pairs, local first)"
    )
    return 0 if overhead <= BOUND else 5


if __name__ == "__main__":
    raise SystemExit(main())

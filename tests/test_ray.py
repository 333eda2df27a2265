"""Sweeps on a real Ray cluster of this machine: three nodes, fake servers."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from conftest import CORPORA, Lab, until
from ray.cluster_utils import Cluster
from ray.util.queue import Queue

from kpad_bench.errors import HostError
from kpad_bench.raycluster import Asked
from kpad_bench.raylanes import RayLanes, Relay
from kpad_bench.reduce import best_k, load_rows

N_NODES = 3
#: Thirty servers, one after the other on two nodes of a busy machine.
RESUMED_S = 250


class Hosts:
    """A head and three nodes, which workers of this lab run on."""

    def __init__(self) -> None:
        # Six seconds: on a busy machine a living host misses more than a few.
        quick = {"health_check_period_ms": 300, "health_check_failure_threshold": 20}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick})
        self.nodes = [self.add(f"node-{number}") for number in range(N_NODES)]

    def add(self, name: str, **more: object):
        """One more node."""
        return self.cluster.add_node(num_cpus=1, node_name=name, resources={"bench": 1}, **more)

    @property
    def asked(self) -> Asked:
        """The nodes without the head."""
        return Asked(self.cluster.address, "bench")


@pytest.fixture
def hosts(lab: Lab) -> Iterator[Hosts]:
    """A cluster whose processes have the environment of the lab."""
    made = Hosts()
    try:
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()


def places(rows: list[dict]) -> dict[str, set[str]]:
    """Where the trials of each block were measured."""
    found = defaultdict(set)
    for row in rows:
        found[row["block_id"]].add(row["slot"])
    return found


def test_blocks_are_dealt_to_nodes_and_the_result_is_that_of_one_host(lab: Lab, hosts: Hosts):
    """Every trial once, no block split, and the same cells and best Ks as without a cluster."""
    lab.set(arms=["van", "kpad"], k=[4, 8], corpora=list(CORPORA), rounds=3, isolation="reset")
    lab.tell(({"k": 4}, {"step_s": 0.02}), ({"k": 8}, {"step_s": 0.002}))
    tables, cells = [], []
    for asked in (hosts.asked, None):
        assert lab.sweep(ray=asked, fresh=True) == 0
        rows = lab.rows()
        assert len(rows) == 18
        assert {row["status"] for row in rows} == {"ok"}
        cells.append({row["cell_id"] for row in rows})
        table = best_k(load_rows(lab.run_path()), allow_mixed=frozenset())
        tables.append(table[["model", "corpus", "arm", "best_k", "n_trials"]].to_dict("records"))
        if asked is not None:
            found = places(rows)
            assert all(len(nodes) == 1 for nodes in found.values())
            assert {name for nodes in found.values() for name in nodes} <= {"node-0", "node-1", "node-2"}
            (row, *_) = rows
            assert "OMP_NUM_THREADS=1" not in row["server_env"]
    assert cells[0] == cells[1]
    assert tables[0] == tables[1]


@pytest.mark.timeout(3 * RESUMED_S)  # sixty trials beside other tests; 70 s on a machine that is free
def test_a_lost_node_and_a_killed_driver_lose_nothing_that_was_finished(lab: Lab, hosts: Hosts):
    """Sixty trials in six blocks: a node dies, the driver dies, the same command goes on."""
    lab.set(arms=["van", "suf@8", "kpad"], k=[4, 6, 8], corpora=list(CORPORA), rounds=6, isolation="reset")
    ray_options = ("--executor", "ray", "--ray-address", hosts.asked.address, "--ray-resource", "bench")
    first = lab.command(*ray_options)
    until("trials are measured", lambda: len(finished(lab)) >= 6, RESUMED_S)
    hosts.cluster.remove_node(hosts.nodes[1], allow_graceful=False)
    lost = until(
        "the loss has rows", lambda: [r for r in finished(lab) if r["reason"] == "node_lost"], RESUMED_S
    )
    assert {row["slot"] for row in lost} == {"node-1"}
    assert "node-1" in lost[0]["detail"]
    before = until("a block is whole", lambda: rows if wholes(rows := ok_of(lab)) else None, RESUMED_S)
    first.kill()
    first.wait()
    until("servers of a dead driver are gone", lambda: lab.living() == {})
    second = lab.command(*ray_options)
    _, errors = second.communicate(timeout=RESUMED_S)
    assert second.returncode == 0, errors
    rows = lab.rows()
    assert len(rows) == len({row["trial_id"] for row in rows}) == 60
    assert {row["status"] for row in rows} == {"ok"}
    assert all(len(nodes) == 1 for nodes in places(rows).values())
    kept = {row["trial_id"]: row["started_at"] for row in rows}
    assert all(
        kept[row["trial_id"]] == row["started_at"] for row in before if row["block_id"] in wholes(before)
    )
    assert "node_lost" in {row["reason"] for row in lab.superseded()}


def finished(lab: Lab) -> list[dict]:
    """Rows so far; none before there is a run."""
    return lab.rows() if list(lab.out.glob("*/*/manifest.json")) else []


def wholes(rows: list[dict]) -> set[str]:
    """Blocks of which all ten trials are there."""
    return {block for block, n in Counter(row["block_id"] for row in rows).items() if n == 10}


def ok_of(lab: Lab) -> list[dict]:
    """Those that count."""
    return [row for row in finished(lab) if row["status"] == "ok"]


def test_what_a_host_lacks_is_told_before_anything_boots(lab: Lab, hosts: Hosts, frozen: Path):
    """Other prompts, no launcher: by the name of the host. Then a cluster without hosts of the class."""
    changed = lab.path / "changed"
    shutil.copytree(frozen, changed)
    (changed / f"{CORPORA[0]}.parquet").unlink()
    poor = hosts.add("node-poor", env_vars={"KPAD_BENCH_CORPORA": str(changed)})
    with pytest.raises(HostError, match=rf"node-poor: .*{CORPORA[0]}") as told:
        lab.sweep(ray=hosts.asked)
    assert "node-0" not in str(told.value)
    ray.shutdown()
    with pytest.raises(
        HostError, match=r"--ray-resource dgx: no living host has it; the cluster has .*bench"
    ):
        lab.sweep(ray=Asked(hosts.cluster.address, "dgx"))
    ray.shutdown()
    hosts.cluster.remove_node(poor)
    lab.config["define_models"]["tiny"]["tensor_parallel"] = 16
    lab.set(server={"platform": "cuda"})
    with pytest.raises(HostError, match=r"tensor_parallel 16.*multi-node backend.*--attach"):
        lab.sweep(ray=Asked(hosts.cluster.address, "bench"))
    assert lab.boots() == []


def test_a_sweep_goes_on_when_nobody_can_be_told(hosts: Hosts):
    """The queue of messages dies: said once on the driver's side, nothing on the host's."""
    ray.init(address=hosts.asked.address)
    told, notes = Queue(actor_options={"num_cpus": 0}), []
    lanes = RayLanes(ray, [], SimpleNamespace(progress=SimpleNamespace(note=notes.append)), None)
    lanes._told = told
    Relay(told).note("before")
    lanes._listen()
    ray.kill(told.actor)
    Relay(told).note("nobody hears this")
    lanes._listen()
    lanes._listen()
    assert notes[0] == "before"
    assert len(notes) == 2
    assert notes[1].startswith("warning: progress is no longer shown, blocks go on: ")


def test_without_a_cluster_the_way_to_one_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    """No address that answers: exit 4."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code, errors = lab.finish("--executor", "ray")
    assert code == 4
    assert "ray start --head" in errors
    assert "Traceback" not in errors

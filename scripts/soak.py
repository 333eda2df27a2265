"""Kill the harness at 200 seeded moments, resume it each time, count what was lost, doubled or left behind.

    python scripts/soak.py [--kills-per-phase 25] [--seed 1] [--jobs 2] [--limit-s 1200]

Sweeps on the fake vLLM, a process tree like vLLM's (``tests/fake_vllm``). Each is killed with SIGKILL once
in each phase (``soak_target.py`` says which there are, and what a moment is), in a seeded order and always by
the same command again; then it runs to its end. Half of the sweeps have one round and a boot for each trial,
half two rounds and servers that are kept. What must hold after every kill:

- a trial that was finished before it is still there, row and requests (in ``superseded/`` where a whole block
  is measured again), and counts once;
- no process of a server lives after 2 s;

and at the end the rows are those of a sweep that nobody disturbed. Prints one table; exit 0 when all of it
holds, 5 when not, 1 when it took too long.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from soak_lab import CORPORA, HERE, Lab, freeze
from soak_target import PHASES

#: No process of a killed harness's server may live longer.
ORPHAN_S = 2.0
#: How often a phase comes in one trial.
PER_TRIAL = {"drain": 2, "write": 6}
DESIGNS: tuple[dict[str, Any], ...] = (
    {"corpora": list(CORPORA), "isolation": "boot"},
    {"corpora": list(CORPORA), "isolation": "reset", "rounds": 2},
)
#: What is the same in every sweep of a design on the deterministic fake.
SAME = (
    *("status", "reason", "n_ok", "n_failed", "n_length_finish", "input_tokens", "output_tokens"),
    *("tokens_source", "tokens_reconciled", "cache_state", "acceptance_length", "n_drafts", "draft_tokens"),
    *("real_draft_tokens", "pad_tokens", "accepted_tokens", "accepted_per_position", "model", "isolation"),
    *(
        "corpus_digest",
        "n_prompts",
        "concurrency",
        "max_tokens",
        "temperature",
        "order_index",
        "boot_attempts",
    ),
)
SAME_REQUEST = ("prompt_sha256", "input_tokens", "output_tokens", "finish_reason", "status", "output_sha256")
Key = tuple[Any, ...]


class Reference(NamedTuple):
    """A sweep that nobody disturbed: its result, and how many calls each phase took."""

    result: dict[Key, Any]
    counts: dict[str, list[dict[str, int]]]


@dataclass
class Tally:
    """What one phase's kills came to."""

    kills: int = 0
    finished: int = 0
    lost: int = 0
    twice: int = 0
    orphans: int = 0
    slowest_s: float = 0.0
    moments: set[str] = field(default_factory=set)


def key(row: Mapping[str, Any]) -> Key:
    """A trial, in any sweep of its design."""
    return row["arm"], row["k"] or 0, row["corpus"], row["round"], row["repeat"]


def result(lab: Lab) -> dict[Key, Any]:
    """What a sweep came to, without times: trial -> columns, and its requests."""
    rows = {row["trial_id"]: row for row in lab.rows()}
    requests: dict[str, list[Any]] = {trial_id: [] for trial_id in rows}
    for one in lab.rows("requests"):
        requests[one["trial_id"]].append([one[name] for name in SAME_REQUEST])
    return {
        key(row): ({name: row[name] for name in SAME}, sorted(requests[trial_id]))
        for trial_id, row in rows.items()
    }


def target(**told: Any) -> tuple[str, ...]:
    """The command with an end in it."""
    return (str(HERE / "soak_target.py"), json.dumps(told), "--")


def make_reference(design: Mapping[str, Any], top: Path, name: str) -> Reference:
    """Run a design to its end in one go."""
    with Lab(top / name, top / "corpora") as lab:
        lab.config |= design
        counts = lab.path / "counts.json"
        code, errors = lab.finish(program=target(count=str(counts)))
        if code != 0:
            raise SystemExit(f"soak: an undisturbed sweep ended with {code}:\n{errors}")
        return Reference(result(lab), json.loads(counts.read_text()))


class Chain:
    """One sweep, killed once in each phase."""

    def __init__(self, number: int, seed: int, lab: Lab, reference: Reference) -> None:
        self.number, self.lab, self.reference = number, lab, reference
        # Where an interrupted block is measured again as a whole, finished trials may move to superseded/.
        self.may_move = lab.config.get("rounds", 1) > 1
        self.random = random.Random(f"{seed}.{number}")  # noqa: S311 a seed is what is wanted
        self.finished: dict[tuple[str, Any], int] = {}
        self.tallies: dict[str, Tally] = {}
        self.problems: list[str] = []

    def run(self) -> None:
        """All kills, and the end."""
        phases = [phase for phase in PHASES if phase != "compaction"]
        self.random.shuffle(phases)
        for phase in [*phases, "compaction"]:
            self._kill(phase)
        code, errors = self.lab.finish()
        if code != 0:
            self._problem(f"the last run ended with {code}: {errors[-300:]}")
        elif result(self.lab) != self.reference.result:
            self._problem("the result is not that of an undisturbed sweep")
        elif list((self.lab.run_path() or Path()).glob("trials/*.parquet")):
            self._problem("parts are left beside the compacted file")

    def _kill(self, phase: str) -> None:
        tally = self.tallies[phase] = Tally()
        moment, note = self._moment(phase), self.lab.path / "note.json"
        code, errors = self.lab.finish(program=target(phase=phase, **moment, note=str(note)))
        seconds = self.lab.seconds_until_empty(ORPHAN_S)
        if code != -9:
            self._problem(f"{phase} {moment}: not killed, ended with {code}: {errors[-300:]}")
            return
        tally.kills = 1
        where = json.loads(note.read_text())
        assert where["phase"] == phase
        tally.moments.add(where["where"])
        if seconds is None:
            living = {pid: command[:80] for pid, command in self.lab.living().items()}
            tally.orphans = len(living)
            self._problem(f"{phase}: lives after {ORPHAN_S:g} s: {living}")
        tally.slowest_s = ORPHAN_S if seconds is None else seconds
        self._look(phase, tally)

    def _moment(self, phase: str) -> dict[str, Any]:
        """Which time it comes to the phase, and which call in it: any, or one that asks the system."""
        counts = self.reference.counts[phase]
        n_left = len(self.reference.result) - sum(row["status"] == "ok" for row in self.lab.rows())
        # A later trial is reached only while enough are left for the phases that are still to come.
        n_trials = 2 if n_left >= 4 and phase not in ("plan", "compaction") else 1
        n_times = PER_TRIAL.get(phase, 1) * n_trials
        skip = self.random.randrange(n_times)
        count = counts[-1] if phase == "plan" else counts[skip]
        kind = self.random.choice(["any", "system"] if count["system"] else ["any"])
        return {"skip": skip, "kind": kind, "event": 1 + self.random.randrange(count[kind])}

    def _look(self, phase: str, tally: Tally) -> None:
        """What is on the disk now: nothing that was finished may be missing, or be there twice."""
        rows = [row for row in self.lab.rows() if row["status"] == "ok"]
        now = Counter((row["trial_id"], row["started_at"]) for row in rows)
        n_requests = Counter(one["trial_id"] for one in self.lab.rows("requests"))
        for row in rows:
            if n_requests[row["trial_id"]] != row["n_prompts"]:
                self._problem(f"{phase}: {row['trial_id']} has {n_requests[row['trial_id']]} requests")
        moved = {(row["trial_id"], row["started_at"]) for row in self.lab.superseded()}
        there = {*now, *(moved if self.may_move else ())}
        lost = [one for one in self.finished if one not in there]
        ids = Counter(row["trial_id"] for row in rows)
        twice = [trial_id for trial_id, count in ids.items() if count > 1]
        tally.lost, tally.twice, tally.finished = len(lost), len(twice), len(self.finished)
        if lost or twice:
            self._problem(f"{phase}: lost {lost}, twice {twice}")
        self.finished |= dict(now)

    def _problem(self, text: str) -> None:
        self.problems.append(f"sweep {self.number}: {text}")


def run_chain(number: int, seed: int, top: Path, references: Sequence[Reference]) -> Chain:
    """One sweep from its first kill to its end."""
    place = number % len(DESIGNS)
    with Lab(top / f"s{number}", top / "corpora") as lab:
        lab.config |= DESIGNS[place]
        chain = Chain(number, seed, lab, references[place])
        chain.run()
        return chain


def table(chains: Sequence[Chain]) -> str:
    """One line for each phase."""
    lines = [
        "| killed in | kills | different calls | trials finished before | lost | counted twice | orphans "
        "| until empty, at most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for phase in PHASES:
        some = [chain.tallies[phase] for chain in chains if phase in chain.tallies]
        sums = [sum(getattr(one, name) for one in some) for name in ("finished", "lost", "twice", "orphans")]
        moments = len(set().union(*(one.moments for one in some)))
        slowest = max((one.slowest_s for one in some), default=0.0)
        cells = [phase, sum(one.kills for one in some), moments, *sums, f"{slowest:.1f} s"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills-per-phase", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="sweeps beside each other")
    parser.add_argument("--limit-s", type=float, default=1200.0, help="no further sweep begins after it")
    return parser.parse_args()


def main() -> int:
    """Run the sweeps and judge them."""
    options, started = read_options(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        top = Path(name)
        (top / "corpora").mkdir()
        freeze(top / "corpora")
        references = [make_reference(design, top, f"u{place}") for place, design in enumerate(DESIGNS)]

        def one(number: int) -> Chain | None:
            if time.monotonic() - started > options.limit_s:
                return None
            return run_chain(number, options.seed, top, references)

        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(one, range(options.kills_per_phase)))
    chains = [chain for chain in found if chain is not None]
    problems = [problem for chain in chains for problem in chain.problems]
    n_kills = sum(tally.kills for chain in chains for tally in chain.tallies.values())
    print(table(chains))
    n_good = sum(not chain.problems for chain in chains)
    print(
        f"\n{n_kills} kills (seed {options.seed}) in {len(chains)} sweeps, "
        f"{time.monotonic() - started:.0f} s; {n_good} sweeps came to the result of an undisturbed one with "
        "nothing lost, doubled or left behind"
    )
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if len(chains) < len(found):
        sys.stderr.write(f"soak: not finished within {options.limit_s:g} s\n")
        return 1
    return 5 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What a sweep will do, in order: pure, and the same for the same inputs.

Config + corpus digests -> cells, and blocks of boots of trials. Never looks at a GPU, a file or a clock.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kpad_bench.argv import refusals, server_argv, server_env
from kpad_bench.cells import Cell, graph_sizes, make_cell, make_cells, safe_name, sentinel_variant, sha256_of
from kpad_bench.config import Resolved
from kpad_bench.design import Design, in_round, sentinel_places
from kpad_bench.doubts import plan_doubts
from kpad_bench.errors import UsageError

#: A trial's id is a file name, and the store leaves room for its suffixes.
MOST_ID_CHARS = 200


@dataclass(frozen=True, slots=True)
class Trial:
    """One pass of a cell's prompts. ``round`` of a sentinel: which of them it is."""

    trial_id: str
    cell: Cell
    round: int
    repeat: int
    order_index: int
    is_sentinel: bool = False


@dataclass(frozen=True, slots=True)
class Boot:
    """One server process's life: same model, arm and K, one trial or several."""

    boot_id: str
    model: str
    arm: str
    k: int | None
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    trials: tuple[Trial, ...]

    @property
    def arm_at_k(self) -> str:
        """The arm as the command line writes it."""
        return self.arm if self.k is None else f"{self.arm}@{self.k}"


@dataclass(frozen=True, slots=True)
class Block:
    """All arms and Ks of one comparison, measured next to each other; or one sentinel."""

    block_id: str
    round: int
    boots: tuple[Boot, ...]
    is_sentinel: bool = False

    def trials(self) -> list[Trial]:
        """Its trials in order; resident servers take turns."""
        found = [trial for boot in self.boots for trial in boot.trials]
        return sorted(found, key=lambda trial: trial.order_index)


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole sweep, with the blocks of the most rounds it may have."""

    sweep: str
    digest: str
    design: Design
    cells: tuple[Cell, ...]
    blocks: tuple[Block, ...]

    def boots(self) -> Iterator[tuple[Block, Boot]]:
        """Every boot in order, with its block."""
        return ((block, boot) for block in self.blocks for boot in block.boots)

    def trials(self) -> Iterator[Trial]:
        """Every trial in order."""
        return (trial for block in self.blocks for trial in block.trials())


def make_plan(resolved: Resolved, digests: Mapping[str, str | None]) -> Plan:
    """Order the sweep. ``digests``: corpus -> digest of its frozen prompts, None where not frozen."""
    _check_names(resolved)
    if refused := list(refusals(resolved)):
        raise UsageError("\n".join(refused))
    config = resolved.config
    cells = tuple(make_cells(resolved, digests))
    blocks = tuple(_blocks(resolved, cells, digests))
    _check_ids(blocks)
    order = [[boot.boot_id, *(trial.trial_id for trial in boot.trials)] for b in blocks for boot in b.boots]
    slots = [[slot.name, *slot.gpus] for slot in config.slots]  # trials with and without neighbours differ
    digest = sha256_of([config.rounds, order, *([slots] if slots else [])])
    return Plan(config.sweep, digest, config.rounds, cells, blocks)


def planned_doubts(resolved: Resolved, plan: Plan) -> list[str]:
    """What is doubtful about each server variant before anything has run, each said once."""
    found: dict[str, None] = {}
    for _, boot in plan.boots():
        arm = resolved.arm_of(boot.arm, boot.arm_at_k)
        width = max(trial.cell.load.concurrency for trial in boot.trials)
        texts = plan_doubts(arm, boot.k, resolved.config.server, width)
        found |= dict.fromkeys(f"{boot.arm}: {text}" for text in texts)
    return list(found)


def _check_names(resolved: Resolved) -> None:
    """Two models that are written alike in ids would share blocks."""
    names = [safe_name(model) for model in resolved.models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"models: {', '.join(twice)}: two models have this name; rename a folder or a tag")


def _check_ids(blocks: tuple[Block, ...]) -> None:
    """An id that is no file name would be found out after the first pass."""
    for trial in (trial for block in blocks for trial in block.trials()):
        if len(trial.trial_id) > MOST_ID_CHARS:
            raise UsageError(
                f"{trial.cell.model} on {trial.cell.corpus}, {trial.cell.arm_at_k}: names that make ids of "
                f"{len(trial.trial_id)} characters; {MOST_ID_CHARS} are allowed: choose shorter ones"
            )


def _blocks(
    resolved: Resolved, cells: tuple[Cell, ...], digests: Mapping[str, str | None]
) -> Iterator[Block]:
    """Blocks by round, then model (then corpus): never split; the sentinel between them."""
    config, order = resolved.config, itertools.count()
    is_shared = config.isolation != "boot"
    groups = [config.corpora] if is_shared else [(c,) for c in config.corpora]
    one_round = [(model, corpora) for model in config.models for corpora in groups]
    n_blocks = config.rounds.most * len(one_round)
    n_certain = config.rounds.least * len(one_round)
    times = 0 if config.sentinel is None else config.sentinel.times
    sentinels = iter(enumerate(sentinel_places(n_certain, n_blocks, times), start=1))
    turn, place = next(sentinels, (0, -1))
    for at in range(n_blocks + 1):
        if at == place:
            yield _sentinel(resolved, turn, order, digests)
            turn, place = next(sentinels, (0, -1))
        if at < n_blocks:
            number, (model, corpora) = at // len(one_round) + 1, one_round[at % len(one_round)]
            mine = [cell for cell in cells if cell.model == model and cell.corpus in corpora]
            where = safe_name(model) if is_shared else f"{safe_name(model)}.{corpora[0]}"
            yield _block(resolved, f"r{number}.{where}", number, mine, order)


def _block(resolved: Resolved, block_id: str, number: int, cells: list[Cell], order: Iterator[int]) -> Block:
    """Arms in seeded order, then balanced over rounds; so are the corpora that share a boot."""
    groups: dict[tuple[str, int | None], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.arm, cell.k), []).append(cell)
    kinds, seed = list(groups), f"{resolved.config.seed}:{cells[0].model}:{cells[0].corpus}"
    random.Random(seed).shuffle(kinds)  # noqa: S311 an order, not a secret
    passes = [
        [(cell, n) for cell in in_round(groups[kind], number) for n in range(1, resolved.config.repeats + 1)]
        for kind in in_round(kinds, number)
    ]
    places = [(boot, at) for boot, mine in enumerate(passes) for at in range(len(mine))]
    if resolved.config.isolation == "resident":  # all arms on one corpus, then all on the next
        places.sort(key=lambda place: place[::-1])
    turn = {place: next(order) for place in places}
    boots = [
        _boot(
            resolved,
            block_id,
            [
                Trial(f"{cell.cell_id}.r{number}.n{repeat}", cell, number, repeat, turn[boot, at])
                for at, (cell, repeat) in enumerate(mine)
            ],
        )
        for boot, mine in enumerate(passes)
    ]
    return Block(block_id, number, tuple(boots))


def _sentinel(
    resolved: Resolved, turn: int, order: Iterator[int], digests: Mapping[str, str | None]
) -> Block:
    """The sentinel's cell in a boot of its own, whatever the isolation of the sweep."""
    sentinel = resolved.config.sentinel
    assert sentinel is not None
    place, (variant,) = (sentinel.model, sentinel.corpus), sentinel_variant(resolved)
    cell = make_cell(resolved, place, variant, digests.get(sentinel.corpus), "boot")
    block_id = f"s{turn}.{safe_name(cell.model)}.{cell.corpus}"
    trial = Trial(f"{cell.cell_id}.s{turn}.n1", cell, turn, 1, next(order), is_sentinel=True)
    return Block(block_id, turn, (_boot(resolved, block_id, [trial]),), is_sentinel=True)


def _boot(resolved: Resolved, block_id: str, trials: Sequence[Trial]) -> Boot:
    first, config = trials[0].cell, resolved.config
    least = min(trial.cell.cell_id for trial in trials)  # not the first, which depends on the round
    boot_id = "b" + sha256_of([block_id, first.arm, first.k, least])[:12]
    entry, arm = resolved.models[first.model], resolved.arm_of(first.arm, first.arm_at_k)
    sizes = graph_sizes(resolved, first.model, first.k)
    argv = server_argv(boot_id, entry, arm, first.k, config.server, sizes)
    env = server_env(entry, arm, config.server)
    return Boot(boot_id, first.model, first.arm, first.k, argv, tuple(sorted(env.items())), tuple(trials))

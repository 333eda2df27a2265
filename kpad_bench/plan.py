"""What a sweep will do, in order: pure, and the same for the same inputs.

Config + corpus digests -> cells, and blocks of boots of trials. Never looks at a GPU, a file or a clock.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kpad_bench.argv import arm_env, refusals, server_argv, server_env, server_flags
from kpad_bench.capture import capture_sizes, common_ceiling
from kpad_bench.config import Load, Resolved, Server
from kpad_bench.doubts import plan_doubts
from kpad_bench.errors import UsageError

#: Part of every cell_id. Raise it when a change here can change a measured number.
IDENTITY_RULE = 1
#: A trial's id is a file name, and the store leaves room for its suffixes.
MOST_ID_CHARS = 200


@dataclass(frozen=True, slots=True)
class Cell:
    """Model x corpus x arm x K: what one number is about."""

    cell_id: str
    model: str
    corpus: str
    corpus_digest: str | None
    arm: str
    k: int | None
    load: Load

    @property
    def arm_at_k(self) -> str:
        """The arm as the command line writes it: ``kpad@8``, ``van``."""
        return self.arm if self.k is None else f"{self.arm}@{self.k}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One pass of a cell's prompts."""

    trial_id: str
    cell: Cell
    round: int
    repeat: int
    order_index: int


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
    """All arms and Ks of one comparison, measured next to each other."""

    block_id: str
    round: int
    boots: tuple[Boot, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole sweep."""

    sweep: str
    digest: str
    cells: tuple[Cell, ...]
    blocks: tuple[Block, ...]

    def boots(self) -> Iterator[tuple[Block, Boot]]:
        """Every boot in order, with its block."""
        return ((block, boot) for block in self.blocks for boot in block.boots)

    def trials(self) -> Iterator[Trial]:
        """Every trial in order."""
        return (trial for _, boot in self.boots() for trial in boot.trials)


def make_plan(resolved: Resolved, digests: Mapping[str, str | None]) -> Plan:
    """Order the sweep. ``digests``: corpus -> digest of its frozen prompts, None where not frozen."""
    _check_names(resolved)
    if refused := list(refusals(resolved)):
        raise UsageError("\n".join(refused))
    cells = tuple(_cells(resolved, digests))
    blocks = tuple(_blocks(resolved, cells))
    _check_ids(blocks)
    order = [[boot.boot_id, *(trial.trial_id for trial in boot.trials)] for b in blocks for boot in b.boots]
    return Plan(resolved.config.sweep, _sha256(order), cells, blocks)


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
    names = [_safe(model) for model in resolved.models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"models: {', '.join(twice)}: two models have this name; rename a folder or a tag")


def _check_ids(blocks: tuple[Block, ...]) -> None:
    """An id that is no file name would be found out after the first pass."""
    for trial in (trial for block in blocks for boot in block.boots for trial in boot.trials):
        if len(trial.trial_id) > MOST_ID_CHARS:
            raise UsageError(
                f"{trial.cell.model} on {trial.cell.corpus}, {trial.cell.arm_at_k}: names that make ids of "
                f"{len(trial.trial_id)} characters; {MOST_ID_CHARS} are allowed: choose shorter ones"
            )


def arm_variants(resolved: Resolved) -> list[tuple[str, str, int | None]]:
    """(spec as configured, arm name, K) of every server variant, in the config's order."""
    variants: list[tuple[str, str, int | None]] = []
    for spec, arm in resolved.arms.items():
        ks = resolved.config.k if arm.k == "sweep" else (arm.k,)
        variants += [(spec, spec.partition("@")[0], k) for k in ks]
    seen = [(name, k) for _, name, k in variants]
    twice = sorted({f"{name}@{k}" for name, k in seen if seen.count((name, k)) > 1})
    if twice:
        raise UsageError(f"arms: {', '.join(twice)} asked for twice; name each arm and K once")
    return variants


def _cells(resolved: Resolved, digests: Mapping[str, str | None]) -> Iterator[Cell]:
    config = resolved.config
    for model, entry in resolved.models.items():
        for corpus in config.corpora:
            load = config.load.resolve(corpus, entry.load_class)
            _check_room(config.server, load, f"{model} on {corpus}")
            for spec, arm, k in arm_variants(resolved):
                sizes = graph_sizes(resolved, model, k)
                identity = cell_identity(model, resolved, spec, k, sizes)
                identity |= {"corpus": corpus, "digest": digests.get(corpus), "load": load.model_dump()}
                suffix = _sha256({**identity, "isolation": config.isolation})[:10]
                label = arm if k is None else f"{arm}@{k}"
                cell_id = f"{_safe(model)}.{corpus}.{label}.{suffix}"
                yield Cell(cell_id, model, corpus, digests.get(corpus), arm, k, load)


def _check_room(server: Server, load: Load, where: str) -> None:
    if load.max_tokens >= server.max_model_len:
        raise UsageError(
            f"{where}: max_tokens {load.max_tokens} leaves no room for a prompt in max_model_len "
            f"{server.max_model_len}; lower max_tokens or raise server.max_model_len"
        )


def cell_identity(
    model: str, resolved: Resolved, spec: str, k: int | None, sizes: list[int] | None
) -> dict[str, Any]:
    """Everything of the server that can change the number; no path, port, timeout or CPU set."""
    entry, arm, server = resolved.models[model], resolved.arms[spec], resolved.config.server
    return {
        "rule": IDENTITY_RULE,
        "model": entry.hf_id or model,
        "revision": entry.revision,
        "flags": server_flags(entry, arm, k, server, sizes),
        "env": sorted({**server.env, **entry.env, **arm_env(arm)}.items()),
    }


def graph_sizes(resolved: Resolved, model: str, k: int | None) -> list[int] | None:
    """Capture sizes of one server variant; None where vLLM chooses them.

    One ceiling for all arms, from the widest decode step of any of them, so that admission steps do not
    go eager in one arm and not in another. Raises UsageError when a decode step would be trimmed.
    """
    config = resolved.config
    load_class = resolved.models[model].load_class
    concurrency = max(config.load.resolve(corpus, load_class).concurrency for corpus in config.corpora)
    ks = [found for _, _, found in arm_variants(resolved) if found is not None]
    _check_width(config.server, concurrency, max([0, *ks]), model)
    if config.server.capture_sizes == "vllm" or config.server.cudagraph_mode is None:
        return None
    return capture_sizes(k, concurrency, common_ceiling(concurrency, ks))


def _check_width(server: Server, concurrency: int, largest_k: int, where: str) -> None:
    if server.max_num_seqs is not None and server.max_num_seqs < concurrency:
        raise UsageError(
            f"{where}: server.max_num_seqs {server.max_num_seqs} is below the concurrency {concurrency}: "
            "requests would wait for a slot; raise it, or set it to null"
        )
    width = concurrency * (1 + largest_k)
    if server.max_num_batched_tokens is not None and server.max_num_batched_tokens < width:
        raise UsageError(
            f"{where}: server.max_num_batched_tokens {server.max_num_batched_tokens} is below a decode step "
            f"of {concurrency} x (1 + {largest_k}) = {width} tokens: drafts would be trimmed; raise it"
        )


def _blocks(resolved: Resolved, cells: tuple[Cell, ...]) -> Iterator[Block]:
    """Blocks by round, then model (then corpus): never split, arms in seeded order inside."""
    config, order = resolved.config, iter(range(10**9))
    for number in range(1, config.rounds + 1):
        for model in resolved.models:
            groups = [config.corpora] if config.isolation == "reset" else [(c,) for c in config.corpora]
            for corpora in groups:
                mine = [cell for cell in cells if cell.model == model and cell.corpus in corpora]
                where = _safe(model) if config.isolation == "reset" else f"{_safe(model)}.{corpora[0]}"
                block_id = f"r{number}.{where}"
                boots = tuple(
                    _boot(resolved, block_id, number, group, order)
                    for group in _arm_order(mine, config.seed, number)
                )
                yield Block(block_id, number, boots)


def _arm_order(cells: list[Cell], seed: int, number: int) -> list[list[Cell]]:
    """Cells grouped by server variant. Shuffled once per block kind, then rotated round by round, so
    that over the rounds every variant stands in every position as often as any other."""
    groups: dict[tuple[str, int | None], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.arm, cell.k), []).append(cell)
    kinds = list(groups)
    random.Random(f"{seed}:{cells[0].model}:{cells[0].corpus}").shuffle(kinds)  # noqa: S311 an order, not a secret
    turn = (number - 1) % len(kinds)
    return [groups[kind] for kind in kinds[turn:] + kinds[:turn]]


def _boot(resolved: Resolved, block_id: str, number: int, cells: list[Cell], order: Iterator[int]) -> Boot:
    first, config = cells[0], resolved.config
    boot_id = "b" + _sha256([block_id, first.arm, first.k, first.cell_id])[:12]
    spec = next(s for s, arm, k in arm_variants(resolved) if (arm, k) == (first.arm, first.k))
    entry, arm = resolved.models[first.model], resolved.arms[spec]
    turn = (number - 1) % len(cells)
    trials = tuple(
        Trial(f"{cell.cell_id}.r{number}.n{repeat}", cell, number, repeat, next(order))
        for cell in cells[turn:] + cells[:turn]
        for repeat in range(1, config.repeats + 1)
    )
    argv = server_argv(
        boot_id, entry, arm, first.k, config.server, graph_sizes(resolved, first.model, first.k)
    )
    env = server_env(entry, arm, config.server)
    return Boot(boot_id, first.model, first.arm, first.k, argv, tuple(sorted(env.items())), trials)


def _safe(name: str) -> str:
    """A model name as the beginning of an id: [A-Za-z0-9._-] only, and no dot first."""
    text = name.rstrip("/").rsplit("/", 1)[-1] if name.startswith(("/", ".", "~")) else name
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in text)
    return f"-{safe[1:]}" if safe[:1] in ("", ".") else safe


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

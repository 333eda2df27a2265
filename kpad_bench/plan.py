"""What a sweep will do, in order: pure, and the same for the same inputs.

Config + corpus digests -> cells, and blocks of boots of trials. Knows how a server's argv and
environment are written; never looks at a GPU, a file or a clock.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kpad_bench.config import VLLM_SUFFIX_DEFAULTS, Arm, Load, ModelEntry, Resolved, Server
from kpad_bench.errors import UsageError

#: Part of every cell_id. Raise it when a change here can change a measured number.
IDENTITY_RULE = 1
#: Stand-ins in an argv that only the boot can fill.
SOCKET, PORT, PYTHON, MODEL_DIR = "{socket}", "{port}", "{python}", "{models}"


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
    cells = tuple(_cells(resolved, digests))
    blocks = tuple(_blocks(resolved, cells))
    order = [[boot.boot_id, *(trial.trial_id for trial in boot.trials)] for b in blocks for boot in b.boots]
    return Plan(resolved.config.sweep, _sha256(order), cells, blocks)


def _check_names(resolved: Resolved) -> None:
    """Two models that are written alike in ids would share blocks."""
    names = [_safe(model) for model in resolved.models]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"models: {', '.join(twice)}: two models have this name; rename a folder or a tag")


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
                identity = cell_identity(model, entry, resolved.arms[spec], k, config.server)
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


def cell_identity(model: str, entry: ModelEntry, arm: Arm, k: int | None, server: Server) -> dict[str, Any]:
    """Everything of the server that can change the number; no path, port, timeout or CPU set."""
    return {
        "rule": IDENTITY_RULE,
        "model": entry.hf_id or model,
        "revision": entry.revision,
        "flags": server_flags(entry, arm, k, server),
        "env": sorted({**server.env, **entry.env, **arm_env(arm)}.items()),
    }


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
    argv = server_argv(boot_id, entry, arm, first.k, config.server)
    env = server_env(entry, arm, config.server)
    return Boot(boot_id, first.model, first.arm, first.k, argv, tuple(sorted(env.items())), trials)


def server_argv(boot_id: str, entry: ModelEntry, arm: Arm, k: int | None, server: Server) -> tuple[str, ...]:
    """The server's command line. ``{python}``, ``{models}`` and ``{socket}`` are filled at boot."""
    model = entry.hf_id or _local_model(entry.local or "")
    where = ("--uds", SOCKET) if server.port is None else ("--host", "127.0.0.1", "--port", PORT)
    revision = ("--revision", entry.revision) if entry.hf_id and entry.revision else ()
    return (
        *server.launcher, "--model", model, *revision,
        "--served-model-name", served_name(boot_id), *where,
        *server_flags(entry, arm, k, server),
    )  # fmt: skip


def served_name(boot_id: str) -> str:
    """The model name a boot answers to, so that an orphan with the same model is not mistaken for it."""
    return f"kpad-{boot_id}"


def server_flags(entry: ModelEntry, arm: Arm, k: int | None, server: Server) -> list[str]:
    """The flags that can change the number."""
    flags = [
        "--tensor-parallel-size",
        str(entry.tensor_parallel),
        "--max-model-len",
        str(server.max_model_len),
    ]
    flags += ["--generation-config", "vllm", "--seed", "0"]
    if server.gpu_memory_utilization is not None:
        flags += ["--gpu-memory-utilization", str(server.gpu_memory_utilization)]
    if server.max_num_seqs is not None:
        flags += ["--max-num-seqs", str(server.max_num_seqs)]
    if server.dtype is not None:
        flags += ["--dtype", server.dtype]
    if entry.trust_remote_code:
        flags.append("--trust-remote-code")
    mode = arm.cudagraph_mode or server.cudagraph_mode
    if mode is not None:
        flags += ["--compilation-config", _json({"cudagraph_mode": mode})]
    if arm.speculation == "suffix":
        flags += [
            "--speculative-config",
            _json({"method": "suffix", "num_speculative_tokens": k, **arm.suffix}),
        ]
    return [*flags, *server.extra_args, *entry.extra_args, *entry.optional_args, *arm.extra_args]


def arm_env(arm: Arm) -> dict[str, str]:
    """Variables that make the arm what it is."""
    return {**arm.env, **({"VLLM_SUFFIX_PAD_UNIFORM": "1"} if arm.pad else {})}


def server_env(entry: ModelEntry, arm: Arm, server: Server) -> dict[str, str]:
    """What the harness sets on top of the few variables a server inherits."""
    fixed = {
        "VLLM_PLUGINS": "kpad",
        "ARCTIC_INFERENCE_ENABLED": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TZ": "UTC",
    }
    offline = {"HF_HUB_OFFLINE": "1"} if entry.local else {}
    return {**fixed, **offline, **server.env, **entry.env, **arm_env(arm)}


def suffix_settings(arm: Arm) -> dict[str, float | int | None]:
    """Suffix tree settings in force, as columns of the trials table; all None without speculation."""
    merged = {**VLLM_SUFFIX_DEFAULTS, **arm.suffix}
    none = arm.speculation == "none"
    return {
        name.replace("suffix_decoding_", "suffix_"): None if none else value for name, value in merged.items()
    }


def plan_warnings(arm: Arm, k: int | None) -> list[str]:
    """Doubts that hold before anything ran."""
    depth = int({**VLLM_SUFFIX_DEFAULTS, **arm.suffix}["suffix_decoding_max_tree_depth"])
    if k is None or k <= depth // 2:
        return []
    return [
        f"k {k}: a tree of depth {depth} caps drafts near {depth // 2} tokens when match and draft share it"
    ]


def _local_model(local: str) -> str:
    return local if local.startswith("/") else f"{MODEL_DIR}/{local}"


def _safe(name: str) -> str:
    """A model name as part of an id: [A-Za-z0-9._-] only."""
    text = name.rstrip("/").rsplit("/", 1)[-1] if name.startswith(("/", ".", "~")) else name
    return "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in text)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

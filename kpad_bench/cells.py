"""What is measured: cells, the server variants behind them, and the identity of each. Pure.

A cell's id is a hash of everything that can change its number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kpad_bench.argv import arm_env, server_flags
from kpad_bench.capture import capture_sizes, common_ceiling
from kpad_bench.config import Load, Resolved, Server
from kpad_bench.errors import UsageError

#: Part of every cell_id. Raise it when a change here can change a measured number.
IDENTITY_RULE = 1


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


class Variant(NamedTuple):
    """A server variant: the arm as configured, its name, its K."""

    spec: str
    arm: str
    k: int | None


def arm_variants(resolved: Resolved) -> list[Variant]:
    """Every server variant of the sweep, in the config's order; without the sentinel's."""
    variants: list[Variant] = []
    for spec in resolved.config.arms:
        arm = resolved.arms[spec]
        ks = resolved.config.k if arm.k == "sweep" else (arm.k,)
        variants += [Variant(spec, spec.partition("@")[0], k) for k in ks]
    seen = [(name, k) for _, name, k in variants]
    twice = sorted({f"{name}@{k}" for name, k in seen if seen.count((name, k)) > 1})
    if twice:
        raise UsageError(f"arms: {', '.join(twice)} asked for twice; name each arm and K once")
    return variants


def sentinel_variant(resolved: Resolved) -> list[Variant]:
    """The sentinel's, where there is one."""
    if resolved.config.sentinel is None:
        return []
    spec = resolved.config.sentinel.arm
    k = resolved.arms[spec].k
    assert k != "sweep"  # refused by configfile
    return [Variant(spec, spec.partition("@")[0], k)]


def make_cells(resolved: Resolved, digests: Mapping[str, str | None]) -> Iterator[Cell]:
    """Every cell of the sweep, in the config's order; without the sentinel's.

    ``digests``: corpus -> digest of its frozen prompts, None where not frozen.
    """
    config = resolved.config
    for model in config.models:
        for corpus in config.corpora:
            for variant in arm_variants(resolved):
                yield make_cell(resolved, (model, corpus), variant, digests.get(corpus), config.isolation)


def make_cell(
    resolved: Resolved, place: tuple[str, str], variant: Variant, digest: str | None, isolation: str
) -> Cell:
    """The cell of one variant at a place: (model, corpus)."""
    (model, corpus), (spec, arm, k) = place, variant
    load = resolved.config.load.resolve(corpus, resolved.models[model].load_class)
    _check_room(resolved.config.server, load, f"{model} on {corpus}")
    identity = cell_identity(model, resolved, spec, k, graph_sizes(resolved, model, k))
    identity |= {"corpus": corpus, "digest": digest, "load": load.model_dump(), "isolation": isolation}
    label = arm if k is None else f"{arm}@{k}"
    cell_id = f"{safe_name(model)}.{corpus}.{label}.{sha256_of(identity)[:10]}"
    return Cell(cell_id, model, corpus, digest, arm, k, load)


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
    concurrency = max(config.load.resolve(corpus, load_class).concurrency for corpus in resolved.corpora)
    variants = [*arm_variants(resolved), *sentinel_variant(resolved)]
    ks = sorted({variant.k for variant in variants if variant.k is not None})
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


def safe_name(name: str) -> str:
    """A model name as the beginning of an id: [A-Za-z0-9._-] only, and no dot first."""
    text = name.rstrip("/").rsplit("/", 1)[-1] if name.startswith(("/", ".", "~")) else name
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in text)
    return f"-{safe[1:]}" if safe[:1] in ("", ".") else safe


def sha256_of(value: Any) -> str:
    """Hex digest of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

"""What a verification boots and asks: pure, from its options and the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpad_bench.cells import arm_variants
from kpad_bench.config import Load, Resolved
from kpad_bench.configfile import find_config, load_sweep
from kpad_bench.errors import UsageError

#: A check of equality needs no long pass: the published one compared 32 texts.
N_PROMPTS, MAX_TOKENS = 32, 256
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"


@dataclass(frozen=True)
class Asked:
    """What ``verify`` is asked for; None is what the configuration says."""

    config: str
    model: str | None = None
    corpus: str | None = None
    arms: tuple[str, ...] = ("kpad",)
    k: tuple[int, ...] | None = None
    n_prompts: int | None = None
    max_tokens: int | None = None
    concurrency: int | None = None
    strict: bool = False
    #: Answers at temperature 1 to each of a few prompts, for the frequency of tokens; 0 leaves it out.
    samples: int = 0
    #: Folder of logs and answers; answers that lie there are not asked for again.
    out: Path | None = None


@dataclass(frozen=True)
class Pass:
    """One boot and the order in which it is asked."""

    name: str
    spec: str
    arm: str
    k: int | None
    is_reversed: bool = False


def resolve(asked: Asked) -> Resolved:
    """The configuration with one model, one corpus, the padded arms, and the unpadded ones beside them."""
    given: dict[str, Any] = {"load.temperature": 0, "arms": list(asked.arms), "sentinel": None}
    given |= {} if asked.k is None else {"k": list(asked.k)}
    given |= {} if asked.concurrency is None else {"load.concurrency": asked.concurrency}
    given |= {} if asked.model is None else {"models": [asked.model]}
    given |= {} if asked.corpus is None else {"corpora": [asked.corpus]}
    given |= {f"server.env.{BATCH_INVARIANT}": "1"} if asked.strict else {}
    path = find_config(asked.config)
    padded = load_sweep(path, given)
    if asked.strict and padded.config.server.platform == "cpu":
        raise UsageError(
            f"--strict: {BATCH_INVARIANT}=1 needs kernels of a GPU; on a CPU use server.dtype float32, "
            "which is exact by itself"
        )
    if asked.samples and padded.config.server.platform == "cpu":
        raise UsageError(
            "--samples: vLLM's CPU build samples wrong tokens with speculation, padded or not; "
            "test frequencies on a GPU"
        )
    unpadded = [spec for spec, arm in padded.arms.items() if not arm.pad]
    if unpadded:
        raise UsageError(f"--arm: {', '.join(unpadded)}: not padded; name padded arms, like kpad or kfill@8")
    largest_k = max(k for _, _, k in arm_variants(padded) if k is not None)
    given["models"], given["corpora"] = padded.config.models[:1], padded.config.corpora[:1]
    given["arms"] = ["van", f"suf@{largest_k}", *padded.arms]
    return load_sweep(path, given)


def load_of(resolved: Resolved, asked: Asked) -> Load:
    """Greedy, and no longer than a check needs unless more is asked for."""
    entry = resolved.models[resolved.config.models[0]]
    configured = resolved.config.load.resolve(resolved.config.corpora[0], entry.load_class)
    return configured.model_copy(
        update={
            "temperature": 0.0,
            "n_prompts": asked.n_prompts or min(configured.n_prompts, N_PROMPTS),
            "max_tokens": asked.max_tokens or min(configured.max_tokens, MAX_TOKENS),
            "concurrency": asked.concurrency or configured.concurrency,
        }
    )


def passes_of(resolved: Resolved) -> tuple[Pass, ...]:
    """No speculation, unpadded at the largest K, the padded arms, and unpadded again in reverse order."""
    found = [
        Pass(arm if k is None else f"{arm}@{k}", spec, arm, k) for spec, arm, k in arm_variants(resolved)
    ]
    suf = found[1]
    return (*found, Pass(f"{suf.name} again", suf.spec, suf.arm, suf.k, is_reversed=True))


def must_be_exact(resolved: Resolved) -> bool:
    """float32 on the CPU, or batch-invariant kernels: the shape of a batch does not change a result."""
    server = resolved.config.server
    is_plain = server.platform == "cpu" and server.dtype == "float32"
    return is_plain or server.env.get(BATCH_INVARIANT) == "1"

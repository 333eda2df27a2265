"""``kpad-bench verify``: is padded output the same as unpadded output, beside the noise floor?

Boots one server per arm, one after the other, asks each the same prompts greedily, and compares. The
first unpadded arm is booted a second time and asked in reverse order: what it then differs by from
itself, and no speculation from it, is the noise that padding is held against.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kpad_bench.answers import Answered, doubts, greedy_answers, load, padding_of, save
from kpad_bench.config import Load, Resolved
from kpad_bench.configfile import find_config, load_sweep
from kpad_bench.corpus import FrozenCorpus, open_frozen
from kpad_bench.drive import run
from kpad_bench.equality import (
    ALPHA,
    Comparison,
    Judgement,
    Rule,
    Slip,
    compare,
    judge,
    near_tie_limit,
    slips,
)
from kpad_bench.errors import HostError, ServerError, UsageError
from kpad_bench.launch import Launch, pinned
from kpad_bench.models import models_dir
from kpad_bench.plan import Cell, arm_variants, cell_identity, served_name, server_argv, server_env
from kpad_bench.prompt import Prompt
from kpad_bench.reading import read, unfit_prompts
from kpad_bench.server import Server, boot
from kpad_bench.sweep import cpu_sets, expected_vllm, terminable, utc_now
from kpad_bench.trial import DEATH_S, TRY_S, target_of
from kpad_bench.verify_report import PaddedArm, Report, floor_doubts

#: A check of equality needs no long pass: the published one compared 32 texts.
N_PROMPTS, MAX_TOKENS = 32, 256
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
NOT_DONE = (
    "the frequency of tokens at temperature 1 (on a CPU build it would be wrong: speculation there "
    "samples wrong tokens)",
)


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


@dataclass(frozen=True)
class Job:
    """Everything that the passes share."""

    resolved: Resolved
    corpus: FrozenCorpus
    load: Load
    vllm_version: str | None
    out: Path
    say: Callable[[str], None]
    cpus: frozenset[int] | None = None
    passes: tuple[Pass, ...] = field(default=())

    @property
    def model(self) -> str:
        """The one model."""
        return self.resolved.config.models[0]

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts that every arm answers."""
        return self.corpus.measured[: self.load.n_prompts]


def run_verify(asked: Asked, say: Callable[[str], None]) -> Report:
    """Boot every arm, ask, compare. Raises HostError for a server that does not boot or dies."""
    resolved = resolve(asked)
    corpus = open_frozen(resolved.config.corpora[0])
    version = expected_vllm(resolved, None)
    server_cpus, client_cpus = cpu_sets(resolved.config.cpus, None)
    out = asked.out or Path("results") / "verify" / utc_now().strftime("%Y%m%dT%H%M%SZ")
    job = Job(resolved, corpus, load_of(resolved, asked), version, out, say, server_cpus, passes_of(resolved))
    if not job.prompts:
        raise HostError(f"corpus {corpus.name}: no prompt to measure with; freeze another one")
    say(f"{len(job.passes)} boots; logs and answers go to {out}")
    with pinned(client_cpus), terminable():
        answered = [answer(job, one) for one in job.passes]
    return report(job, answered)


def resolve(asked: Asked) -> Resolved:
    """The configuration with one model, one corpus, the padded arms, and the unpadded ones beside them."""
    given: dict[str, Any] = {"load.temperature": 0, "arms": list(asked.arms)}
    given |= {} if asked.k is None else {"k": list(asked.k)}
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


def answer(job: Job, one: Pass) -> Answered:
    """One boot's answers, or those it gave before under the same identity."""
    path = job.out / "answers" / f"{one.name.replace(' ', '-')}.json"
    identity = identity_of(job, one)
    before = load(path, identity)
    if before is not None:
        job.say(f"kept    {one.name}: {path}")
        return before
    job.say(f"boot    {job.model} {one.name}")
    try:
        answered = _ask(job, one, identity)
    except ServerError as error:
        log = f" (log: {error.log_path})" if error.log_path else ""
        raise HostError(f"{one.name}: {error.cause}: {error.detail}{log}") from error
    save(answered, path)
    return answered


def identity_of(job: Job, one: Pass) -> str:
    """Hash of everything that may change the answers."""
    config, entry = job.resolved.config, job.resolved.models[job.model]
    record = cell_identity(job.model, entry, job.resolved.arms[one.spec], one.k, config.server) | {
        "digest": job.corpus.digest,
        "load": job.load.model_dump(),
        "vllm": job.vllm_version,
        "order": one.is_reversed,
    }
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _ask(job: Job, one: Pass, identity: str) -> Answered:
    server = boot(launch_of(job, one, identity))
    try:
        _check_room(job, one, server)
        prompts = job.prompts[::-1] if one.is_reversed else job.prompts
        before = read(server)
        answers = run(greedy_answers(target_of(server), prompts, job.load.max_tokens, job.load.concurrency))
        padding = padding_of(before, read(server))
    except ServerError as error:
        is_gone = _is_gone(server, error)
        raise (server.death() if is_gone else server.error(error.cause, error.detail)) from error
    finally:
        server.stop()
    log = str(server.launch.log_path)
    return Answered(one.name, identity, answers, padding, server.boot_s, log, job.vllm_version)


def _is_gone(server: Server, error: ServerError) -> bool:
    """Whether the server or its engine died. Only a plain refusal is not waited for: dying takes a moment."""
    deadline = time.monotonic() + (0 if " answered 4" in error.detail else DEATH_S)
    while True:
        health = None if server.poll() is not None else server.endpoint.health()
        is_known = server.poll() is not None or health == 503
        if is_known or time.monotonic() >= deadline:
            return is_known or health is None
        time.sleep(TRY_S)


def launch_of(job: Job, one: Pass, identity: str) -> Launch:
    """What ``server.boot`` needs."""
    config, entry = job.resolved.config, job.resolved.models[job.model]
    arm, boot_id = job.resolved.arms[one.spec], f"v{identity[:12]}"
    return Launch(
        argv=server_argv(boot_id, entry, arm, one.k, config.server),
        env=server_env(entry, arm, config.server),
        served_name=served_name(boot_id),
        log_path=job.out / "logs" / f"{one.name.replace(' ', '-')}.log",
        models_dir=models_dir(),
        boot_timeout_s=entry.boot_timeout_s,
        cpus=job.cpus,
        port=config.server.port,
        optional_args=entry.optional_args,
    )


def _check_room(job: Job, one: Pass, server: Server) -> None:
    cell = Cell(one.name, job.model, job.corpus.name, job.corpus.digest, one.arm, one.k, job.load)
    largest_k = max(other.k or 0 for other in job.passes)
    room = job.resolved.config.server.max_model_len
    too_long = unfit_prompts(server, job.prompts, cell, largest_k, room)
    if too_long:
        raise UsageError(f"{job.corpus.name}: {too_long}")


def report(job: Job, answered: Sequence[Answered]) -> Report:
    """Compare every arm with the unpadded one and with no speculation, and judge the padded ones."""
    van, suf, *padded, again = answered
    floor = (_compare(suf, van), _compare(suf, again))
    dtype = job.resolved.config.server.dtype
    rule = Rule(near_tie_limit(floor, dtype), must_be_exact(job.resolved), ALPHA / len(padded))
    n_floor_slips = max(len(list(slips(one.answers))) for one in (van, suf, again))
    n_workers = job.resolved.models[job.model].tensor_parallel
    arms = []
    for one, done in zip(job.passes[2:], padded, strict=False):
        own = tuple(slips(done.answers))
        counted: Sequence[Slip] = own if len(own) > n_floor_slips else ()
        against = _compare(suf, done)
        judgement = judge(against, counted, floor, rule)
        reasons = dict(doubts(done.padding, one.k, n_workers)) | dict(judgement.reasons)
        arms.append(PaddedArm(done, against, _compare(van, done), own, Judgement(reasons, judgement.p_value)))
    warnings = tuple(floor_doubts(floor, rule, n_floor_slips, (van, suf, again)))
    return Report(_what(job, dtype), rule, floor, (van, suf, again), tuple(arms), warnings, NOT_DONE)


def _compare(base: Answered, other: Answered) -> Comparison:
    return compare(base.name, base.answers, other.name, other.answers)


def must_be_exact(resolved: Resolved) -> bool:
    """float32 on the CPU, or batch-invariant kernels: the shape of a batch does not change a result."""
    server = resolved.config.server
    is_plain = server.platform == "cpu" and server.dtype == "float32"
    return is_plain or server.env.get(BATCH_INVARIANT) == "1"


def _what(job: Job, dtype: str | None) -> Mapping[str, Any]:
    return {
        "model": job.model,
        "corpus": job.corpus.name,
        "corpus_digest": job.corpus.digest,
        "vllm_version": job.vllm_version,
        "platform": job.resolved.config.server.platform,
        "dtype": dtype,
        "n_prompts": len(job.prompts),
        "max_tokens": job.load.max_tokens,
        "concurrency": job.load.concurrency,
    }

"""``kpad-bench verify``: is padded output the same as unpadded output, beside the noise floor?

Boots one server per arm, one after the other, asks each the same prompts greedily, and compares. The
first unpadded arm is booted a second time and asked in reverse order: what it then differs by from
itself, and no speculation from it, is the noise that padding is held against.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kpad_bench.answers import (
    Answered,
    doubts,
    greedy_answers,
    kept_answers,
    padding_of,
    sampled_answers,
    save,
)
from kpad_bench.argv import refusals, served_name, server_argv, server_env
from kpad_bench.cells import Cell, cell_identity, graph_sizes
from kpad_bench.config import Load, Resolved
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
from kpad_bench.frequency import Frequencies, frequencies, is_different, least
from kpad_bench.host import cpu_sets, expected_vllm, terminable, utc_now
from kpad_bench.launch import Launch, pinned
from kpad_bench.models import models_dir
from kpad_bench.prompt import Prompt
from kpad_bench.reading import read, unfit_prompts
from kpad_bench.server import Server, boot
from kpad_bench.trial import DEATH_S, TRY_S, target_of
from kpad_bench.verify_plan import Asked, Pass, load_of, must_be_exact, passes_of, resolve
from kpad_bench.verify_report import PaddedArm, Report, floor_doubts

NO_FREQUENCIES = "the frequency of tokens at temperature 1; on a GPU: --samples 2000"
FLOOR_DIFFERS = "unpadded arms draw tokens with different frequencies: that test says nothing here"


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
    n_samples: int = 0

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
    if refused := list(refusals(resolved)):
        raise UsageError("\n".join(refused))
    corpus = open_frozen(resolved.config.corpora[0])
    version = expected_vllm(resolved, None)
    server_cpus, client_cpus = cpu_sets(resolved.config.cpus, None)
    out = asked.out or Path("results") / "verify" / utc_now().strftime("%Y%m%dT%H%M%SZ")
    load, passes = load_of(resolved, asked), passes_of(resolved)
    job = Job(resolved, corpus, load, version, out, say, server_cpus, passes, asked.samples)
    if not job.prompts:
        raise HostError(f"corpus {corpus.name}: no prompt to measure with; freeze another one")
    say(f"{len(job.passes)} servers, one after the other; logs and answers go to {out}")
    with pinned(client_cpus), terminable():
        answered = [answer(job, one) for one in job.passes]
    return report(job, answered)


def answer(job: Job, one: Pass) -> Answered:
    """One boot's answers, or those it gave before under the same identity."""
    path = job.out / "answers" / f"{one.name.replace(' ', '-')}.json"
    identity = identity_of(job, one)
    before = kept_answers(path, identity)
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
    sizes = graph_sizes(job.resolved, job.model, one.k)
    record = cell_identity(job.model, job.resolved, one.spec, one.k, sizes) | {
        "digest": job.corpus.digest,
        "load": job.load.model_dump(),
        "vllm": job.vllm_version,
        "order": one.is_reversed,
        "samples": job.n_samples,
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
        samples = run(sampled_answers(target_of(server), job.prompts, job.n_samples, job.load.concurrency))
    except ServerError as error:
        is_gone = _is_gone(server, error)
        raise (server.death() if is_gone else server.error(error.cause, error.detail)) from error
    finally:
        server.stop()
    log = str(server.launch.log_path)
    return Answered(one.name, identity, answers, padding, server.boot_s, log, job.vllm_version, samples)


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
        argv=server_argv(
            boot_id, entry, arm, one.k, config.server, graph_sizes(job.resolved, job.model, one.k)
        ),
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
    floor_differs = any(
        is_different(frequencies(suf.samples, one.samples, rule.alpha), rule.alpha) for one in (van, again)
    )
    n_workers = job.resolved.models[job.model].tensor_parallel
    arms = []
    for one, done in zip(job.passes[2:], padded, strict=False):
        own = tuple(slips(done.answers))
        counted: Sequence[Slip] = own if len(own) > n_floor_slips else ()
        against = _compare(suf, done)
        judgement = judge(against, counted, floor, rule)
        drawn = tuple(frequencies(suf.samples, done.samples, rule.alpha))
        reasons = dict(doubts(done.padding, one.k, n_workers)) | dict(judgement.reasons)
        reasons |= {} if floor_differs else dict(_frequency_doubts(drawn, rule))
        judgement = Judgement(reasons, judgement.p_value)
        arms.append(PaddedArm(done, against, _compare(van, done), own, judgement, drawn))
    warnings = tuple(floor_doubts(floor, rule, n_floor_slips, (van, suf, again)))
    warnings += (FLOOR_DIFFERS,) if floor_differs else ()
    not_done = () if job.n_samples else (NO_FREQUENCIES,)
    return Report(_what(job, dtype), rule, floor, (van, suf, again), tuple(arms), warnings, not_done)


def _frequency_doubts(drawn: Sequence[Frequencies], rule: Rule) -> Iterator[tuple[str, str]]:
    if is_different(drawn, rule.alpha):
        worst = least(drawn)
        yield (
            "frequencies_differ",
            f"at temperature 1 tokens at position {worst.position} of {worst.prompt_id} are drawn with other "
            f"frequencies (chi-square p = {worst.p_value:.2g}, {len(drawn)} tests share {rule.alpha:.2g})",
        )


def _compare(base: Answered, other: Answered) -> Comparison:
    return compare(base.name, base.answers, other.name, other.answers)


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

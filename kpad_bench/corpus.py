"""Prompt sets: frozen once, digested, checked whenever they are opened.

A lock that lies beside the manifests is a pin: a frozen set with another digest is not that corpus,
and a sweep refuses it. Everything here returns data; the command line says it.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kpad_bench import corpus_mix, corpus_pins, corpus_rules, corpus_store
from kpad_bench.configfile import cache_dir
from kpad_bench.corpus_manifest import Manifest, corpus_names, load_manifest
from kpad_bench.corpus_rules import MEASURED, PRIMING, WARMUP, Sample
from kpad_bench.corpus_sources import Say, Source
from kpad_bench.corpus_store import FORMAT_VERSION, Lock, LockedBudget, LockedTokenizer
from kpad_bench.corpus_tokens import Counter as TokenCounter
from kpad_bench.corpus_tokens import Limits, TokenizerFiles
from kpad_bench.errors import HostError, UsageError
from kpad_bench.prompt import Placed, Prompt


@dataclass(frozen=True, slots=True)
class FrozenCorpus:
    """A frozen set, checked against its lock and its pin when it was opened."""

    name: str
    digest: str
    prompts: tuple[Placed, ...]
    lock: Lock
    #: prompts left out because another corpus of the same sweep measures them
    n_elsewhere: int = 0

    @property
    def measured(self) -> tuple[Prompt, ...]:
        """Prompts of single-corpus cells, in rank order: the first n of them are the sample of n."""
        return self.with_role(MEASURED)

    @property
    def warmup(self) -> tuple[Prompt, ...]:
        """Prompts to warm a server up with; none of them is measured, in this corpus or another."""
        return self.with_role(WARMUP)

    @property
    def priming(self) -> tuple[Prompt, ...]:
        """Prompts to fill a suffix cache with before a pass; none of them is measured either."""
        return self.with_role(PRIMING)

    def with_role(self, role: str) -> tuple[Prompt, ...]:
        """Prompts kept for one use, in rank order."""
        return tuple(one.prompt for one in self.prompts if one.role == role)


class Problem(NamedTuple):
    """One thing that ``verify`` found; as a text, what is wrong and the way out."""

    name: str
    what: str

    def __str__(self) -> str:
        return self.what


class Listed(NamedTuple):
    """One line of the list of corpora. ``state``: frozen, not frozen or mismatch (then ``what`` says why)."""

    name: str
    state: str
    rows: int | None
    digest: str | None
    source: str
    gated: bool
    what: str


def corpora_dir() -> Path:
    """Where frozen sets live: $KPAD_BENCH_CORPORA, else ``corpora`` in the user's cache folder."""
    explicit = os.environ.get("KPAD_BENCH_CORPORA")
    return Path(explicit) if explicit else cache_dir() / "corpora"


def freeze(
    name: str,
    source: Path | None = None,
    out: Path | None = None,
    *,
    lenient: bool = False,
    tokenizers: Sequence[TokenizerFiles] = (),
    say: Say = lambda line: None,
) -> Lock:
    """Write the prompts of a corpus and their lock into ``out``; the same rows give the same lock.

    ``source``: a file or folder of rows in place of the pinned source. ``lenient``: of a file that is cut
    take the whole rows, and record it. ``tokenizers``: drop what is too long by any of them; by bytes where
    there is none. ``say`` gets lines of progress. Raises DataError for rows that are damaged or of another
    schema, HostError when the source cannot be had on this host.
    """
    folder = out or corpora_dir()
    manifest = load_manifest(name)
    if manifest.rule == "mix":
        if source is not None or tokenizers or lenient:
            raise UsageError(
                f"corpus {name}: made of frozen corpora, takes no --source, --tokenizer or --lenient"
            )
        return freeze_mix(manifest, folder)
    counters = [TokenCounter(files) for files in tokenizers]
    limits = Limits(manifest.budget, counters)
    rows = Source(manifest, source, lenient, say)
    sample = corpus_rules.sample(manifest, rows.rows(), limits.fits)
    hashes = rows.file_hashes()
    prompts = [one.prompt for one in sample.prompts]
    longest = limits.longest(prompts)
    named = {
        one.name: LockedTokenizer(sha256=one.sha256, longest_tokens=longest[one.name]) for one in counters
    }
    budget = corpus_mix.locked_budget(manifest.budget, prompts, named)
    n_whole = sum(cut.n_whole for cut in rows.cuts) if rows.cuts else None
    lock = _lock(manifest, sample, budget, truncated=bool(rows.cuts), truncated_after_rows=n_whole)
    corpus_store.write(folder, lock, sample.prompts, hashes)
    return lock


def freeze_mix(manifest: Manifest, folder: Path) -> Lock:
    """Prompts that the members keep for mixes, by weight. A missing member is an error, never made up for."""
    missing = [name for name in sorted(manifest.members) if frozen_digest(name, folder) is None]
    if missing:
        others = [
            other.name
            for other in map(load_manifest, corpus_names())
            if other.rule == "mix" and not set(missing) & set(other.members)
        ]
        instead = f"; mixes without it: {', '.join(others)}" if others else ""
        raise HostError(
            f"corpus {manifest.name} cannot be frozen yet: profile {manifest.profile} needs "
            f"{', '.join(missing)} frozen in {folder}; first: kpad-bench corpora freeze {missing[0]}{instead}"
        )
    opened = {name: open_frozen(name, folder) for name in sorted(manifest.members)}
    locks = {name: one.lock for name, one in opened.items()}
    sample = corpus_mix.mixed(manifest, locks, {name: one.prompts for name, one in opened.items()})
    tokenizers = corpus_mix.common_tokenizers(locks)
    budget = corpus_mix.locked_budget(manifest.budget, [one.prompt for one in sample.prompts], tokenizers)
    cut = [lock.truncated_after_rows or 0 for lock in locks.values() if lock.truncated]
    lock = _lock(
        manifest,
        sample,
        budget,
        truncated=bool(cut),
        truncated_after_rows=sum(cut) if cut else None,
        members={name: lock.digest for name, lock in locks.items()},
    )
    corpus_store.write(folder, lock, sample.prompts, {})
    return lock


def _lock(manifest: Manifest, sample: Sample, budget: LockedBudget, **origin: Any) -> Lock:
    return Lock(
        format_version=FORMAT_VERSION,
        name=manifest.name,
        digest=corpus_store.digest_of(sample.prompts),
        rows=len(sample.prompts),
        roles=dict(sorted(Counter(one.role for one in sample.prompts).items())),
        read=sample.n_read,
        dropped=sample.dropped,
        surrogate_rows=sample.n_surrogate_rows,
        source_rows_sha256=sample.rows_sha256,
        rule=manifest.rule,
        seed=manifest.seed,
        template_sha256=manifest.template_sha256,
        budget=budget,
        profile=manifest.profile,
        weights=manifest.members,
        **{"members": {}, **origin},
    )


def open_frozen(name: str, folder: Path | None = None) -> FrozenCorpus:
    """A frozen set, verified. Raises HostError when it is missing, changed, stale or not the pinned one."""
    where = folder or corpora_dir()
    manifest = load_manifest(name)
    lock = _lock_in(name, where)
    if lock is None:
        raise HostError(f"corpus {name} is not frozen in {where}; first: kpad-bench corpora freeze {name}")
    _check_is_current(manifest, lock, where)
    prompts = corpus_store.read_prompts(name, where, lock)
    fault = corpus_pins.pin_fault(lock)
    if fault:
        raise HostError(fault)
    return FrozenCorpus(name, lock.digest, prompts, lock)


def _check_is_current(manifest: Manifest, lock: Lock, folder: Path) -> None:
    """Raise HostError when a set was made by another manifest, or of members that are others now."""
    name, budget = manifest.name, manifest.budget
    made_by = (lock.name, lock.rule, lock.seed, lock.template_sha256, lock.profile, lock.weights)
    is_made = made_by == (
        name, manifest.rule, manifest.seed, manifest.template_sha256, manifest.profile, manifest.members
    )  # fmt: skip
    limits = (lock.budget.prompt_tokens, lock.budget.limit_tokens, lock.budget.limit_bytes)
    if not is_made or limits != (budget.prompt_tokens, budget.limit_tokens, budget.limit_bytes):
        raise HostError(
            f"corpus {name}: frozen by another manifest (rule, seed, template, budget or weights); "
            f"freeze it again: kpad-bench corpora freeze {name}"
        )
    for member, digest in lock.members.items():
        now = frozen_digest(member, folder)
        if now != digest:
            what = "not frozen any more" if now is None else f"frozen with digest {now} now"
            raise HostError(
                f"corpus {name}: made of {member} with digest {digest}, which is {what}; freeze "
                f"{member if now is None else name} again: kpad-bench corpora freeze "
                f"{member if now is None else name}"
            )


def open_together(names: Sequence[str], folder: Path | None = None) -> dict[str, FrozenCorpus]:
    """The frozen sets of one sweep: no text is measured in two of them (twins of a mix, to be measured primed or warm, aside).

    A set that leaves a prompt to another one is another set: its digest is over what remains.
    """
    opened = {name: open_frozen(name, folder) for name in names}
    cold = {name: one.measured for name, one in opened.items() if load_manifest(name).cache_state == "cold"}
    for name, once in corpus_mix.without_repeats(cold).items() if len(cold) > 1 else ():
        n_elsewhere = len(cold[name]) - len(once)
        if n_elsewhere:
            ids = {prompt.prompt_id for prompt in once}
            kept = tuple(
                one for one in opened[name].prompts if one.role != MEASURED or one.prompt.prompt_id in ids
            )
            opened[name] = dataclasses.replace(
                opened[name], prompts=kept, digest=corpus_store.digest_of(kept), n_elsewhere=n_elsewhere
            )
    return opened


def planned_digests(names: Sequence[str], folder: Path | None = None) -> dict[str, str | None]:
    """What ``open_together`` will give these corpora as digests; None for those not frozen."""
    digests = {name: frozen_digest(name, folder) for name in names}
    frozen = [name for name, digest in digests.items() if digest is not None]
    if len(frozen) < 2:
        return digests
    return digests | {name: one.digest for name, one in open_together(frozen, folder).items()}


def _lock_in(name: str, folder: Path) -> Lock | None:
    """None without prompts: the folder of the pins holds locks alone."""
    if not corpus_store.prompts_path(name, folder).is_file():
        return None
    return corpus_store.read_lock(name, folder)


def frozen_digest(name: str, folder: Path | None = None) -> str | None:
    """The digest for planning, from the lock alone; None when the corpus is not frozen."""
    load_manifest(name)
    lock = _lock_in(name, folder or corpora_dir())
    return lock.digest if lock else None


def verify(names: Iterable[str], folder: Path | None = None) -> list[Problem]:
    """What is wrong with these frozen sets (with all that are frozen, when no name is given).

    Raises HostError when no name is given and nothing is frozen: a check of nothing did not hold.
    """
    where = folder or corpora_dir()
    wanted = list(names) or [
        name for name in corpus_names() if corpus_store.prompts_path(name, where).is_file()
    ]
    if not wanted:
        raise HostError(f"no corpus is frozen in {where}; first: kpad-bench corpora freeze humaneval")
    problems: list[Problem] = []
    for name in wanted:
        try:
            open_frozen(name, where)
        except HostError as error:
            problems.append(Problem(name, str(error)))
    return problems


def list_corpora(folder: Path | None = None) -> list[Listed]:
    """Every corpus with its state in the folder of frozen sets."""
    return [_listed(name, folder or corpora_dir()) for name in corpus_names()]


def _listed(name: str, folder: Path) -> Listed:
    manifest = load_manifest(name)
    origin: dict[str, Any] = {"source": manifest.origin, "gated": manifest.gated}
    if not corpus_store.prompts_path(name, folder).is_file():
        return Listed(name, "not frozen", None, None, what="", **origin)
    try:
        corpus = open_frozen(name, folder)
    except HostError as error:
        return Listed(name, "mismatch", None, None, what=str(error), **origin)
    return Listed(name, "frozen", len(corpus.prompts), corpus.digest, what="", **origin)

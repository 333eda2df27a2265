"""Prompt sets: frozen once, digested, checked whenever they are opened.

A lock that lies beside the manifests is a pin: a frozen set with another digest is not that corpus,
and a sweep refuses it. Everything here returns data; the command line says it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kpad_bench import corpus_files, corpus_rules, corpus_store
from kpad_bench.configfile import cache_dir, data_dir, read_yaml, validate
from kpad_bench.corpus_rules import MEASURED, MIX, PRIMING, WARMUP, Manifest, Sample
from kpad_bench.corpus_store import FORMAT_VERSION, Lock
from kpad_bench.errors import DataError, HostError, UsageError
from kpad_bench.prompt import Placed, Prompt


@dataclass(frozen=True, slots=True)
class FrozenCorpus:
    """A frozen set, checked against its lock and its pin when it was opened."""

    name: str
    digest: str
    prompts: tuple[Placed, ...]

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


def corpus_names() -> list[str]:
    """Every corpus that has a manifest."""
    return sorted(path.stem for path in data_dir("corpora").glob("*.yaml"))


def load_manifest(name: str) -> Manifest:
    """The manifest of a corpus. Raises UsageError with the allowed names."""
    if name not in corpus_names():
        raise UsageError(f"corpus {name!r}: no such corpus; allowed: {', '.join(corpus_names())}")
    path = data_dir("corpora") / f"{name}.yaml"
    manifest: Manifest = validate(Manifest, read_yaml(path), str(path))
    if manifest.name != name:
        raise UsageError(f"{path}: name: {manifest.name!r}: must be the name of the file, {name!r}")
    return manifest


def freeze(name: str, source: Path | None = None, out: Path | None = None) -> Lock:
    """Write the prompts of a corpus and their lock into ``out``; the same rows give the same lock.

    ``source``: a file or folder of rows in place of the pinned source. ``doubts`` says what is to be
    said about the result. Raises DataError for rows that are damaged or of another schema, HostError
    when the source cannot be had on this host.
    """
    folder = out or corpora_dir()
    manifest = load_manifest(name)
    if manifest.rule == "mix":
        if source is not None:
            raise UsageError(f"corpus {name}: made of frozen corpora, takes no --source")
        return freeze_mix(manifest, folder)
    files = _local_files(manifest, source)
    sample = corpus_rules.sample(manifest, _file_rows(files) if files else _hub_rows(manifest))
    return _write(manifest, sample, folder, files=_checked_hashes(manifest, files))


def _local_files(manifest: Manifest, source: Path | None) -> list[Path]:
    if source is not None:
        return corpus_files.source_files(source)
    if (package := manifest.package) is None:
        return []
    path = corpus_files.package_file(package.distribution, package.file)
    found = corpus_files.file_sha256(path)
    if found != package.sha256:
        raise HostError(
            f"{path}: sha256 {found}, pinned is {package.sha256}: not the file of the pinned release; "
            f"install {package.distribution} again, or give the rows with --source FILE"
        )
    return [path]


def _file_rows(files: list[Path]) -> Iterator[tuple[str, corpus_files.Row]]:
    for path in files:
        for number, row in enumerate(corpus_files.read_rows(path), start=1):
            yield f"{path}: row {number}", row


def _hub_rows(manifest: Manifest) -> Iterator[tuple[str, corpus_files.Row]]:
    for source in manifest.sources:
        if not source.splits:
            raise HostError(f"corpus {manifest.name}: {manifest.how_to_get}")
        rows = corpus_files.hub_rows(source.hub_id, source.revision, source.config, source.splits)
        for number, row in enumerate(rows, start=1):
            yield f"{source.hub_id}: row {number}", row


def _checked_hashes(manifest: Manifest, files: list[Path]) -> dict[str, str]:
    """File name -> sha256. Raises DataError when a file bears a pinned name and not its hash."""
    pins = {Path(source.file).name: source for source in manifest.sources if source.file and source.sha256}
    hashes = {path.name: corpus_files.file_sha256(path) for path in files}
    for path in files:
        pin = pins.get(path.name)
        if pin is not None and hashes[path.name] != pin.sha256:
            raise DataError(
                f"{path}: sha256 {hashes[path.name]}, pinned is {pin.sha256}: not the pinned file; "
                f"download it again from {pin.hub_id} at revision {pin.revision}"
            )
    return hashes


def freeze_mix(manifest: Manifest, folder: Path) -> Lock:
    """Prompts that the members keep for mixes, by weight. A missing member is an error, never made up for."""
    missing = [name for name in sorted(manifest.members) if frozen_digest(name, folder) is None]
    if missing:
        raise HostError(
            f"corpus {manifest.name} cannot be frozen yet: profile {manifest.profile} needs "
            f"{', '.join(missing)} frozen in {folder}; first: kpad-bench corpora freeze {missing[0]}"
        )
    opened = {name: open_frozen(name, folder) for name in sorted(manifest.members)}
    kept: list[Placed] = []
    n_read = 0
    for theirs, ours in ((MIX, MEASURED), (WARMUP, WARMUP), (PRIMING, PRIMING)):
        pools = {name: one.with_role(theirs) for name, one in opened.items()}
        chosen = corpus_rules.interleave(pools, manifest.members, lambda prompt: prompt.prompt_id)
        if ours == MEASURED and not chosen:
            sizes = ", ".join(f"{name} {len(pool)}" for name, pool in pools.items())
            raise HostError(
                f"corpus {manifest.name} cannot be frozen: too few prompts for one round of profile "
                f"{manifest.profile}; there are {sizes}"
            )
        kept += [Placed(prompt, ours, prompt.prompt_id, prompt.sha256) for prompt in chosen]
        n_read += sum(map(len, pools.values()))
    digests = {name: one.digest for name, one in opened.items()}
    sample = Sample(
        prompts=tuple(kept),
        n_read=n_read,
        dropped={"over_weight": n_read - len(kept)} if n_read > len(kept) else {},
        n_surrogate_rows=0,
        rows_sha256=hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest(),
    )
    return _write(manifest, sample, folder, members=digests)


def _write(manifest: Manifest, sample: Sample, folder: Path, **origin: dict[str, str]) -> Lock:
    lock = Lock(
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
        members=origin.get("members", {}),
    )
    corpus_store.write(folder, lock, sample.prompts, origin.get("files", {}))
    return lock


def doubts(lock: Lock) -> list[str]:
    """What a reader should know about a frozen set: not the pinned one, rows missing, text repaired."""
    manifest = load_manifest(lock.name)
    found = [fault for fault in [_pin_fault(lock)] if fault]
    if manifest.expected_rows not in (None, lock.read):
        found.append(
            f"corpus {lock.name}: {lock.read} rows read, the pinned source has {manifest.expected_rows}"
        )
    if lock.surrogate_rows:
        found.append(f"corpus {lock.name}: lone surrogates became U+FFFD in {lock.surrogate_rows} rows")
    return found


def _pin_fault(lock: Lock) -> str:
    pin = corpus_store.read_lock(lock.name, data_dir("corpora"))
    if pin is None or pin.digest == lock.digest:
        return ""
    return (
        f"corpus {lock.name}: frozen with digest {lock.digest}, pinned is {pin.digest}: other prompts than "
        f"the pinned set. Freeze it from the pinned source; or, to adopt these prompts, copy their lock over "
        f"{corpus_store.lock_path(lock.name, data_dir('corpora'))}: earlier rows then no longer compare"
    )


def open_frozen(name: str, folder: Path | None = None) -> FrozenCorpus:
    """A frozen set, verified. Raises HostError when it is missing, changed, stale or not the pinned one."""
    where = folder or corpora_dir()
    manifest = load_manifest(name)
    lock = _lock_in(name, where)
    if lock is None:
        raise HostError(f"corpus {name} is not frozen in {where}; first: kpad-bench corpora freeze {name}")
    expected = (name, manifest.rule, manifest.seed, manifest.template_sha256)
    if (lock.name, lock.rule, lock.seed, lock.template_sha256) != expected:
        raise HostError(
            f"corpus {name}: frozen by another manifest (rule, seed or template); freeze it again: "
            f"kpad-bench corpora freeze {name}"
        )
    prompts = corpus_store.read_prompts(name, where, lock)
    fault = _pin_fault(lock)
    if fault:
        raise HostError(fault)
    return FrozenCorpus(name, lock.digest, prompts)


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

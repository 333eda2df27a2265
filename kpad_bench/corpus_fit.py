"""Whether frozen sets fit a sweep: their prompts are short enough for its models, by their locks alone.

A lock names tokenizers that counted every prompt. A model whose tokenizer it does not name is refused
unless the prompts are so short that any tokenizer does: nothing is frozen anew behind anybody's back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from kpad_bench.config import ModelEntry, Resolved
from kpad_bench.configfile import load_models, pinned_models
from kpad_bench.corpus import FrozenCorpus
from kpad_bench.corpus_hub import is_offline
from kpad_bench.corpus_manifest import load_manifest
from kpad_bench.corpus_store import Lock
from kpad_bench.corpus_tokens import (
    CONFIG_FILE,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    TokenizerFiles,
    read_tokenizer,
)
from kpad_bench.errors import HostError, KpadError, UsageError
from kpad_bench.models import models_dir

_FILES = [TOKENIZER_FILE, CONFIG_FILE, TEMPLATE_FILE]


def named_tokenizers(names: Sequence[str]) -> list[TokenizerFiles]:
    """The tokenizers of these models (tags of models.yaml, hub ids or folders), fetched where need be."""
    found = [read_tokenizer(_label(name), entry_folder(name, _entry(name), may_fetch=True)) for name in names]
    labels = [one.name for one in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UsageError(f"--tokenizer: {', '.join(twice)}: two of this name; give each once")
    return found


def _label(name: str) -> str:
    """A folder goes by its last part: a lock holds no path of one host."""
    return Path(os.path.expanduser(name)).resolve().name if _is_path(name) else name


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~"))


def _entry(name: str) -> ModelEntry:
    models = pinned_models(load_models())
    if name in models:
        return models[name]
    if _is_path(name):
        return ModelEntry(local=str(Path(os.path.expanduser(name)).resolve()), family="local")
    if name.count("/") == 1:
        return pinned_models({name: ModelEntry(hf_id=name, family=name)})[name]
    raise UsageError(
        f"--tokenizer: {name!r}: no such model; allowed: {', '.join(sorted(models))}, a hub id (org/name) or "
        "a local path (./folder)"
    )


def entry_folder(name: str, entry: ModelEntry, may_fetch: bool = False) -> Path:
    """The folder with the tokenizer of a model. Raises HostError when it is not on this host."""
    if entry.local is not None:
        folder = models_dir() / entry.local
        if not folder.is_dir():
            way = (
                "give a folder that is there" if _is_path(name) else f"first: kpad-bench models fetch {name}"
            )
            raise HostError(f"tokenizer {name}: no model in {folder}; {way}")
        return folder
    try:
        import huggingface_hub  # noqa: PLC0415 only for models of the hub

        return Path(
            huggingface_hub.snapshot_download(
                str(entry.hf_id),
                revision=entry.revision,
                allow_patterns=_FILES,
                token=os.environ.get("HF_TOKEN") or False,
                local_files_only=not may_fetch or is_offline(),
            )
        )
    except Exception as error:  # hub and http client each raise their own families
        raise HostError(
            f"tokenizer {name}: {entry.hf_id}: not on this host and cannot be fetched "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); fetch it where the hub can be "
            "used (for a gated model accept its terms and set HF_TOKEN), or give the folder of the model"
        ) from error


def check_fit(resolved: Resolved, corpora: Iterable[FrozenCorpus]) -> None:
    """Raise HostError for a model for which a frozen set may hold prompts that are too long.

    Raises UsageError for the twin of a mix that would be measured in another state than its manifest says.
    """
    opened = list(corpora)
    loads = [(one.name, entry.load_class) for one in opened for entry in resolved.models.values()]
    for name, load_class in loads:
        load, state = resolved.config.load.resolve(name, load_class), load_manifest(name).cache_state
        if (state == "warm" and not load.warm) or (state == "primed" and (load.warm or not load.n_primed)):
            setting = "warm to true" if state == "warm" else "n_primed to a number of prompts, without warm"
            raise UsageError(
                f"corpus {name} is there to be measured {state}: set load.by_corpus.{name}.{setting}, or "
                "measure the mix it is made like"
            )
    faults = [
        fault
        for tag, entry in resolved.models.items()
        for fault in _faults(tag, entry, [one.lock for one in opened])
    ]
    if faults:
        raise HostError("\n".join(faults))


def _faults(tag: str, entry: ModelEntry, locks: Iterable[Lock]) -> Iterable[str]:
    long = [lock for lock in locks if lock.budget.longest_bytes > lock.budget.limit_bytes]
    if not long:  # short enough for any tokenizer
        return
    label = _label(tag)
    try:
        sha256 = read_tokenizer(label, entry_folder(tag, entry)).sha256
    except KpadError:
        sha256 = None  # not on this host: its name stands for it, and the server counts once more
    for lock in long:
        budget, locked = lock.budget, lock.budget.tokenizers
        is_named = label in locked if sha256 is None else sha256 in {one.sha256 for one in locked.values()}
        if not is_named:
            have = ", ".join(locked) or "none"
            options = " ".join(f"--tokenizer {one}" for one in [*locked, tag])
            again = f"freeze it again: kpad-bench corpora freeze {lock.name} {options}"
            if lock.members:
                again = f"freeze its members ({', '.join(lock.members)}) again with {options}, and then it"
            yield (
                f"corpus {lock.name}: its lock does not name the tokenizer of {tag} (it names {have}), and "
                f"its longest prompt has {budget.longest_bytes} bytes, more than the {budget.limit_bytes} "
                f"that fit any tokenizer; {again}"
            )

"""What the hub cache of this host holds: the snapshot of a model, and whether it is whole.

Reads the layout of ``huggingface_hub`` (models--org--name/refs, snapshots) and imports nothing of it, so
that a check before a boot costs nothing. Never asks the hub.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kpad_bench.config import ModelEntry, Resolved
from kpad_bench.configfile import cache_dir
from kpad_bench.disk import write_whole
from kpad_bench.model_lock import DEFAULT_REVISION, is_commit

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_INDEX = ".index.json"
#: How many names of missing files a message holds.
_SHOWN = 3


class Snapshot(NamedTuple):
    """One commit of a model in the cache. ``fault``: what is missing of it; empty where it is whole."""

    commit: str | None
    folder: Path | None
    fault: str


def server_environment(resolved: Resolved, entry: ModelEntry) -> dict[str, str]:
    """The variables that say where a server of this model finds files: this process's, then the config's."""
    return {**os.environ, **resolved.config.server.env, **entry.env}


def hub_cache(env: Mapping[str, str]) -> Path:
    """The hub cache of a process with these variables (huggingface_hub/constants.py)."""
    if env.get("HF_HUB_CACHE"):
        return Path(env["HF_HUB_CACHE"]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    return Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def model_folder(hub_id: str, cache: Path) -> Path:
    """The folder of all commits of a model."""
    return cache / f"models--{hub_id.replace('/', '--')}"


def find_snapshot(entry: ModelEntry, cache: Path) -> Snapshot:
    """What the cache holds of a model of the hub, at its revision."""
    folder = model_folder(str(entry.hf_id), cache)
    revision = entry.revision or DEFAULT_REVISION
    commit = revision if is_commit(revision) else _commit_of(folder / "refs" / revision)
    if commit is None:
        return Snapshot(None, None, "nothing of it is there")
    snapshot = folder / "snapshots" / commit
    if not snapshot.is_dir():
        return Snapshot(commit, None, "nothing of it is there")
    return Snapshot(commit, snapshot, _fault(str(entry.hf_id), commit, snapshot))


def _commit_of(ref: Path) -> str | None:
    try:
        return ref.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):  # ValueError: a revision that is no file name
        return None


def _fault(hub_id: str, commit: str, snapshot: Path) -> str:
    sizes = known_sizes(hub_id, commit)
    bad = list(_not_whole(snapshot, sizes) if sizes else _unlisted(snapshot))
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return f"missing or cut: {', '.join(bad[:_SHOWN])}{more}" if bad else ""


def _not_whole(snapshot: Path, sizes: Mapping[str, int]) -> Iterator[str]:
    for name, size in sizes.items():
        if size_of(snapshot / name) != size:
            yield name


def _unlisted(snapshot: Path) -> Iterator[str]:
    """Missing files of a snapshot that others fetched, by what the model's own index names."""
    if not (snapshot / "config.json").is_file():
        yield "config.json"
    indices = list(snapshot.glob(f"*{_INDEX}"))
    for index in indices:
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            yield index.name
            continue
        yield from (name for name in sorted(map(str, shards)) if not (snapshot / name).is_file())
    if not indices and not any(path.suffix in _WEIGHTS and path.is_file() for path in snapshot.iterdir()):
        yield "weights"


def size_of(path: Path) -> int | None:
    """Bytes of a file, None where it is not there (a link to a blob that is gone is not)."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def known_sizes(hub_id: str, commit: str) -> dict[str, int]:
    """File -> bytes of what was chosen of a commit when it was fetched; empty where that is not known."""
    try:
        data = json.loads(_sizes_path(hub_id, commit).read_text(encoding="utf-8"))
        return {str(name): int(size) for name, size in data.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def remember_sizes(hub_id: str, commit: str, sizes: Mapping[str, int]) -> None:
    """Keep what a whole snapshot consists of; a commit never changes."""
    path = _sizes_path(hub_id, commit)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(dict(sizes), indent=0).encode())


def _sizes_path(hub_id: str, commit: str) -> Path:
    return cache_dir() / "model_files" / f"{hub_id.replace('/', '--')}@{commit}.json"


def missing_models(resolved: Resolved) -> dict[str, str]:
    """Tag -> what is missing, for every model of the hub that is not whole on this host."""
    found = {}
    for tag, entry in resolved.models.items():
        if entry.hf_id is None:
            continue
        cache = hub_cache(server_environment(resolved, entry))
        snapshot = find_snapshot(entry, cache)
        if snapshot.fault:
            where = entry.revision or "any commit (its revision is not pinned)"
            found[tag] = (
                f"model {tag}: {entry.hf_id} at {where} is not whole in the hub cache {cache} "
                f"({snapshot.fault}), and servers are started offline; first: kpad-bench models prefetch "
                f"--model {tag}"
            )
    return found

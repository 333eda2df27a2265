"""The lock of models: which commit a name without a pinned revision was found to be.

``models prefetch`` writes it once and everything afterwards means that commit, so that a branch of the
hub that moves cannot change what a cell is. Knows one file; asks nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from kpad_bench.disk import write_whole
from kpad_bench.errors import UsageError

FILE = "models.lock.yaml"
#: What the hub means by no revision.
DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HEAD = (
    "# Commits of the hub that `kpad-bench models prefetch` found for models without a pinned revision.\n"
    "# Every command takes them from here; `models prefetch --update` looks them up anew. To pin one for\n"
    "# everybody, write it into models.yaml as the model's revision.\n"
)


def is_commit(revision: str | None) -> bool:
    """Whether a revision can never mean anything else: 40 hexadecimal digits."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def key(hub_id: str, revision: str | None) -> str:
    """How the lock calls a model: ``org/name@main``."""
    return f"{hub_id}@{revision or DEFAULT_REVISION}"


def read(path: Path) -> dict[str, str]:
    """Key -> commit; empty where there is no lock. Raises UsageError for a file that is none."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]}); {_WAY}") from None
    commits = data.get("commits") if isinstance(data, dict) else None
    if not isinstance(commits, dict):
        raise UsageError(f"{path}: expected the key 'commits' with a mapping; {_WAY}")
    wrong = next((name for name, commit in commits.items() if not is_commit(str(commit))), None)
    if wrong is not None:
        raise UsageError(f"{path}: commits.{wrong}: {commits[wrong]!r}: must be 40 hex digits; {_WAY}")
    return {str(name): str(commit) for name, commit in commits.items()}


def write(path: Path, commits: Mapping[str, str]) -> None:
    """Put the lock in place, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = yaml.safe_dump({"commits": dict(commits)}, sort_keys=True)
    write_whole(path, (_HEAD + body).encode())


_WAY = "mend it, or remove it and run `kpad-bench models prefetch` again"

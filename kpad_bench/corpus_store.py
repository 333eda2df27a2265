"""Frozen prompts and their lock on disk. Knows neither manifests nor where rows come from.

``NAME.parquet`` holds the prompts, ``NAME.lock.json`` what they are without their text. The digest is
over the content, not over the bytes of the Parquet file, so another pyarrow gives the same one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from kpad_bench.config import Frozen
from kpad_bench.errors import HostError
from kpad_bench.prompt import Placed, Prompt, prompt_sha256

#: Bumped when a lock or the columns of the prompts change.
FORMAT_VERSION = 2
#: Bumped when the same prompts get another digest: rows before and after then no longer compare.
_DIGEST_RULE = 1
_SCHEMA = pa.schema(
    [("rank", pa.int64())]
    + [
        (name, pa.string())
        for name in ("prompt_id", "role", "prompt", "system", "prompt_sha256", "original_sha256", "row_key")
    ]
)


class LockedTokenizer(Frozen):
    """A tokenizer that counted every prompt: hash of it and its template, and tokens of the longest."""

    sha256: str
    longest_tokens: int


class LockedBudget(Frozen):
    """How long prompts are and might be.

    By every tokenizer named each has at most ``limit_tokens``; where none is named, at most ``limit_bytes``.
    """

    prompt_tokens: int
    largest_k: int
    limit_tokens: int
    limit_bytes: int
    longest_bytes: int
    tokenizers: dict[str, LockedTokenizer]


class Lock(Frozen):
    """What a frozen set is, without its text: the same bytes for the same rows, in whatever order.

    ``rows + sum(dropped.values()) == read``; ``surrogate_rows`` had lone surrogates replaced.
    ``truncated``: made of the whole rows of files that were cut; ``truncated_after_rows`` of them came
    before the cuts. ``members`` is the digest of each corpus a mix was made of, ``profile`` the name of
    its weights.
    """

    format_version: int
    name: str
    digest: str
    rows: int
    roles: dict[str, int]
    read: int
    dropped: dict[str, int]
    surrogate_rows: int
    source_rows_sha256: str
    rule: str
    seed: int
    template_sha256: str
    truncated: bool
    truncated_after_rows: int | None
    budget: LockedBudget
    profile: str | None
    weights: dict[str, int]
    members: dict[str, str]


def lock_path(name: str, folder: Path) -> Path:
    """Where the lock of a frozen set is."""
    return folder / f"{name}.lock.json"


def prompts_path(name: str, folder: Path) -> Path:
    """Where the prompts of a frozen set are."""
    return folder / f"{name}.parquet"


def digest_of(prompts: Iterable[Placed]) -> str:
    """sha256 over id, role and text hash of every prompt, in rank order."""
    total = hashlib.sha256(f"kpad-bench corpus {_DIGEST_RULE}\n".encode())
    for one in prompts:
        total.update(f"{one.prompt.prompt_id}\t{one.role}\t{one.prompt.sha256}\n".encode())
    return total.hexdigest()


def read_lock(name: str, folder: Path) -> Lock | None:
    """The lock in this folder; None when there is none. Raises HostError when it is no lock."""
    return read_lock_file(lock_path(name, folder), name)


def read_lock_file(path: Path, name: str) -> Lock | None:
    """The lock in this file; None when there is none. Raises HostError when it is no lock."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data["format_version"] if isinstance(data, dict) else None
        if version == FORMAT_VERSION:
            return Lock.model_validate(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, ValidationError) as error:
        raise HostError(
            f"{path}: not a lock ({' '.join(str(error).split())[:200]}); {_again(name)}"
        ) from None
    raise HostError(
        f"{path}: format_version {version!r}, this version reads {FORMAT_VERSION}; {_again(name)}"
    )


def write(folder: Path, lock: Lock, prompts: Sequence[Placed], source_files: Mapping[str, str]) -> None:
    """Write both files, each whole or not at all. ``source_files``: name -> sha256, kept as a remark."""
    table = _table(prompts).replace_schema_metadata({"source_files": json.dumps(source_files)})
    text = json.dumps(lock.model_dump(), indent=2, sort_keys=True) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Plain pages with checksums: the sets are small, and damage shows as damage.
        _replace(
            prompts_path(lock.name, folder),
            lambda path: pq.write_table(table, path, compression="none", write_page_checksum=True),
        )
        _replace(lock_path(lock.name, folder), lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise HostError(
            f"{folder}: cannot be written ({error.strerror or error}); give --out a folder you may write to"
        ) from error


def read_prompts(name: str, folder: Path, lock: Lock) -> tuple[Placed, ...]:
    """The prompts in rank order, checked against the lock. Raises HostError naming what changed."""
    path = prompts_path(name, folder)
    try:
        rows = _rows_of(path)
    except FileNotFoundError:
        raise HostError(
            f"corpus {name} is not frozen in {folder}; first: kpad-bench corpora freeze {name}"
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        what = " ".join(str(error).split())[:200]
        raise HostError(f"corpus {name}: {path}: damaged ({what}); {_again(name)}") from None
    prompts = tuple(_placed(row) for row in rows)
    changed = [
        one for one, row in zip(prompts, rows, strict=True) if one.prompt.sha256 != row["prompt_sha256"]
    ]
    if changed:
        raise HostError(
            f"corpus {name}: {path}: the text of {len(changed)} prompts was changed after freezing, first "
            f"{changed[0].prompt.prompt_id}; {_again(name)}"
        )
    found = digest_of(prompts)
    if found != lock.digest or [row["rank"] for row in rows] != list(range(lock.rows)):
        raise HostError(
            f"corpus {name}: {path}: digest {found}, {len(rows)} rows; its lock says {lock.digest}, "
            f"{lock.rows} rows; {_again(name)}"
        )
    return prompts


def _rows_of(path: Path) -> list[dict[str, Any]]:
    # Not pq.read_table: it imports pandas, half a second and 60 MB in the process that measures.
    with (  # by descriptor: see arrow.read_table
        path.open("rb") as source,
        pq.ParquetFile(f"/proc/self/fd/{source.fileno()}", page_checksum_verification=True) as file,
    ):
        if not file.schema_arrow.equals(_SCHEMA):
            raise ValueError(f"columns {', '.join(file.schema_arrow.names)}")
        rows: list[dict[str, Any]] = file.read().to_pylist()
        return rows


def _again(name: str) -> str:
    return f"freeze it again: kpad-bench corpora freeze {name}"


def _placed(row: Mapping[str, Any]) -> Placed:
    text, system = row["prompt"] or "", row["system"]
    prompt = Prompt(row["prompt_id"], text, system, prompt_sha256(text, system))
    return Placed(prompt, row["role"], row["row_key"], row["original_sha256"])


def _table(prompts: Iterable[Placed]) -> pa.Table:
    rows = [
        {
            "rank": rank,
            "prompt_id": one.prompt.prompt_id,
            "role": one.role,
            "prompt": one.prompt.text,
            "system": one.prompt.system,
            "prompt_sha256": one.prompt.sha256,
            "original_sha256": one.original_sha256,
            "row_key": one.row_key,
        }
        for rank, one in enumerate(prompts)
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _replace(path: Path, write_to: Callable[[Path], Any]) -> None:
    """Write beside the target, then move into place: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_to(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

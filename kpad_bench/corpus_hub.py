"""Rows from the hub at a pinned revision. A token comes from HF_TOKEN, never from a file.

``datasets`` and ``huggingface_hub`` take seconds to import and are imported when something is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from kpad_bench.corpus_manifest import HubSource, Manifest
from kpad_bench.errors import HostError


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids to ask the hub; what its cache holds may still be read."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def require_access(manifest: Manifest) -> None:
    """Raise HostError, with the page and the variable, where a gated set is asked for without a token."""
    if manifest.gated and not os.environ.get("HF_TOKEN") and not is_offline():
        page = manifest.sources[0].page
        raise HostError(
            f"corpus {manifest.name} is gated: accept the terms at {page}, set HF_TOKEN to a token of that "
            f"account and freeze again; or {manifest.how_to_get}"
        )


def split_rows(manifest: Manifest, source: HubSource) -> Iterator[dict[str, Any]]:
    """The rows of the splits of a data set, through ``datasets`` and its cache."""
    for split in source.splits:
        try:
            import datasets  # noqa: PLC0415 takes seconds

            rows = datasets.load_dataset(
                source.hub_id, source.config, split=split, revision=source.revision, token=_token()
            )
        except Exception as error:  # datasets, hub and http client each raise their own families
            raise _not_had(manifest, source, f"split {split}", error) from error
        yield from cast(Iterator[dict[str, Any]], rows)


def fetched_file(manifest: Manifest, source: HubSource) -> Path:
    """One file of a data set, downloaded once into the cache of ``huggingface_hub``."""
    if source.file is None:
        raise HostError(f"corpus {manifest.name}: {manifest.how_to_get}")
    try:
        import huggingface_hub  # noqa: PLC0415 see above

        return Path(
            huggingface_hub.hf_hub_download(
                source.hub_id,
                source.file,
                repo_type="dataset",
                revision=source.revision,
                token=_token(),
                local_files_only=is_offline(),
            )
        )
    except Exception as error:  # hub and http client each raise their own families
        raise _not_had(manifest, source, source.file, error) from error


def _token() -> str | bool:
    return os.environ.get("HF_TOKEN") or False


def _not_had(manifest: Manifest, source: HubSource, what: str, error: Exception) -> HostError:
    why = "HF_HUB_OFFLINE is set and its cache does not hold it" if is_offline() else "the hub cannot be used"
    said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return HostError(
        f"corpus {manifest.name}: {source.hub_id} at {source.revision}, {what}: {why} ({said}); "
        f"{manifest.how_to_get}"
    )

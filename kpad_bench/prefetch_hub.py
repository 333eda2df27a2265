"""What the hub says of a model, and its files: asked and fetched through ``huggingface_hub``.

The library is imported when something is asked. Its token is HF_TOKEN alone, its endpoint HF_ENDPOINT.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import sys
from pathlib import Path
from typing import NamedTuple

from kpad_bench.errors import HostError
from kpad_bench.hubcache import model_folder, size_of

PUBLIC_HUB = "https://huggingface.co"
#: Beside safetensors these are the same weights once more, or weights of another program.
DUPLICATES = (
    "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.onnx_data", "*.gguf", "*.ot",
    "*.tflite", "original/*", "metal/*",
)  # fmt: skip
_TRUE = {"1", "ON", "YES", "TRUE"}


class File(NamedTuple):
    """One file of a commit. ``sha256``: of those in large file storage."""

    size: int
    sha256: str | None


class Listing(NamedTuple):
    """A commit of a model, and its files that a server needs."""

    commit: str
    files: dict[str, File]
    ignored: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """File -> bytes."""
        return {name: file.size for name, file in self.files.items()}


class Refused(HostError):
    """The hub does not give a model to this host, or this host has no room for it."""


class Broken(HostError):
    """A download ended before it was whole: the same command goes on with it."""


def offline_variable() -> str | None:
    """The variable, with its value, that forbids to ask the hub; None where it may be asked."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").strip().upper() in _TRUE:
            return f"{name}={os.environ[name].strip()}"
    return None


def page(hub_id: str) -> str:
    """Where people read about a model and accept its terms."""
    return f"{os.environ.get('HF_ENDPOINT') or PUBLIC_HUB}/{hub_id}"


class Hub:
    """A hub that can be asked. Raises HostError where the library is missing."""

    def __init__(self) -> None:
        if not sys.stderr.isatty():
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        try:
            import huggingface_hub  # noqa: PLC0415 slow, and for this alone
            from huggingface_hub import errors  # noqa: PLC0415
        except ImportError as error:
            raise HostError(
                f"models prefetch: the Python package {error.name} is not installed: "
                "pip install huggingface_hub"
            ) from None
        self._library, self._errors = huggingface_hub, errors
        self._token = os.environ.get("HF_TOKEN") or False
        self._endpoint = os.environ.get("HF_ENDPOINT") or None

    def look_up(self, hub_id: str, revision: str | None) -> Listing:
        """The commit of a revision, whether this account may have it, and its files. Raises Refused."""
        api = self._library.HfApi(endpoint=self._endpoint, token=self._token)
        try:
            api.auth_check(hub_id)
            found = api.model_info(hub_id, revision=revision, files_metadata=True)
        except Exception as error:  # hub and http client each raise their own families
            raise Refused(self._why(hub_id, revision, error)) from error
        siblings = found.siblings or []
        has_safetensors = any(one.rfilename.endswith(".safetensors") for one in siblings)
        ignored = DUPLICATES if has_safetensors else ("original/*",)
        files = {
            one.rfilename: File(one.size or 0, None if one.lfs is None else one.lfs.sha256)
            for one in siblings
            if not any(fnmatch.fnmatch(one.rfilename, pattern) for pattern in ignored)
        }
        return Listing(str(found.sha), files, ignored)

    def fetch(self, hub_id: str, listing: Listing, cache: Path) -> None:
        """Download what is missing of a commit. Raises Broken, or Refused where the disk is full."""
        try:
            folder = self._library.snapshot_download(
                hub_id,
                revision=listing.commit,
                cache_dir=cache,
                ignore_patterns=list(listing.ignored),
                token=self._token,
                endpoint=self._endpoint,
            )
            self._mend(hub_id, listing, Path(folder), cache)
        except Exception as error:  # see above
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Refused(f"no space left in {cache} ({said}); make room and run this again") from error
            raise Broken(f"the download ended early ({said}); run this again, it goes on there") from error
        # The listing of all files would make the library call a snapshot incomplete that leaves some out.
        (model_folder(hub_id, cache) / "trees" / f"{listing.commit}.json").unlink(missing_ok=True)

    def _mend(self, hub_id: str, listing: Listing, folder: Path, cache: Path) -> None:
        """Fetch files of another size again: the library takes a file that is there for whole."""
        for name in wrong_sizes(listing, folder):
            self._library.hf_hub_download(
                hub_id,
                name,
                revision=listing.commit,
                cache_dir=cache,
                force_download=True,
                token=self._token,
                endpoint=self._endpoint,
            )

    def _why(self, hub_id: str, revision: str | None, error: Exception) -> str:
        """What the hub's refusal means, and the way out."""
        errors = self._errors
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        token = "HF_TOKEN is set, to another account or without rights" if self._token else "set HF_TOKEN"
        if isinstance(error, errors.GatedRepoError):
            way = (
                "accept its terms with the account of HF_TOKEN" if self._token else f"accept them and {token}"
            )
            return f"gated: {way}: {page(hub_id)}"
        if isinstance(error, errors.RepositoryNotFoundError):
            return f"no such model on the hub, or a private one ({token}): {page(hub_id)}"
        if isinstance(error, errors.RevisionNotFoundError):
            return f"revision {revision!r} is not on the hub; correct it in models.yaml: {page(hub_id)}"
        return f"the hub cannot be used ({said}); check the network and HF_ENDPOINT"


def wrong_sizes(listing: Listing, folder: Path) -> list[str]:
    """Files that are there with another size than the hub says."""
    found = {name: size_of(folder / name) for name in listing.files}
    return [name for name, file in listing.files.items() if found[name] not in (None, file.size)]


def bytes_to_fetch(hub_id: str, listing: Listing, cache: Path) -> int:
    """What a download of this commit will add to the disk. A file that was begun counts whole: some
    versions of the library begin it anew."""
    folder = model_folder(hub_id, cache)
    snapshot, blobs = folder / "snapshots" / listing.commit, folder / "blobs"
    missing = [
        file
        for name, file in listing.files.items()
        if size_of(snapshot / name) != file.size
        and not (file.sha256 and size_of(blobs / file.sha256) == file.size)
    ]
    return sum(file.size for file in missing)

"""Where results lie: a folder of this machine, or behind a URL such as s3://bucket/prefix.

A place behind a URL is a ``UPath`` of universal_pathlib, which goes by the names of ``pathlib.Path``, so
most code need not know. What differs stands here: an object appears whole by itself, folders do not
exist, moving is copying, and an object may be created by one writer alone. Endpoint and keys come from
the environment, as fsspec's file systems read them (for S3: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, ...).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from kpad_bench.errors import HostError, UsageError

_URL = re.compile(r"^(?P<scheme>[a-z][a-z0-9+.-]+)://", re.ASCII)
#: Objects fetched in one go: their bytes are in memory together.
_AT_ONCE = 500


def place(text: str | Path) -> Path:
    """A path of this machine, or a place behind a URL with the methods of one; a place is itself.

    Raises UsageError for a URL whose file system is not known or not installed.
    """
    if not isinstance(text, str):
        return text
    url = _URL.match(text)
    if url is None:
        return Path(text)
    scheme = url["scheme"]
    try:
        import fsspec  # noqa: PLC0415 slow, and for URLs alone
        from upath import UPath  # noqa: PLC0415

        fsspec.get_filesystem_class(scheme)
        # Others write too, so no listing is kept; and one request an object, without asking for its size.
        options: dict[str, Any] = {"max_concurrency": 1} if scheme in ("s3", "s3a") else {}
        return cast(Path, UPath(text.rstrip("/"), use_listings_cache=False, **options))
    except ImportError as error:
        raise UsageError(
            f"{text}: {scheme}:// needs a package that is not installed ({error}); "
            "for S3: pip install 'kpad-bench[s3]'"
        ) from error
    except ValueError as error:
        raise UsageError(f"{text}: {error}; give a folder, or a URL such as s3://bucket/prefix") from error


def is_remote(path: Path) -> bool:
    """Whether a path lies behind a URL."""
    return not isinstance(path, Path)


@contextmanager
def as_storage_error(path: Path) -> Iterator[None]:
    """Turn what a storage refuses (credentials, bucket, rights) into a HostError with the way out."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not _is_of_storage(error):
            raise
        raise HostError(
            f"{path}: {_first_line(error)}; check that the bucket exists and may be written to, and the "
            "credentials and endpoint in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
            "AWS_ENDPOINT_URL)"
        ) from error


def check_writable(folder: Path) -> None:
    """Raise HostError, with the way out, unless objects can be put there and removed again."""
    probe = folder / f".probe-{uuid.uuid4().hex}"
    with as_storage_error(folder):
        put(probe, b"")
        remove(probe)


def put(path: Path, data: bytes) -> None:
    """Put an object in place; readers see the old one or the new one, never a part."""
    _fs(path).pipe_file(_key(path), data)


def create(path: Path, data: bytes) -> bool:
    """Put an object where there is none; False where there is one, whoever was faster."""
    try:
        _fs(path).pipe_file(_key(path), data, mode="create")
    except FileExistsError:
        return False
    return True


def replace(path: Path, data: bytes, tag: str) -> str | None:
    """Put an object in the place of the one with this tag; its new tag, None for another by now."""
    fs, key = _fs(path), _key(path)
    try:
        fs.pipe_file(key, data, IfMatch=tag)
    except OSError as error:
        if "pre-condition" not in str(error) and not isinstance(error, FileNotFoundError):
            raise
        return None
    found = look(path)
    return None if found is None else found[0]


def look(path: Path) -> tuple[str, datetime] | None:
    """Tag of an object and when it was put there, by the storage's clock; None where there is none."""
    try:
        info = _fs(path).info(_key(path))
    except FileNotFoundError:
        return None
    return str(info["ETag"]), info["LastModified"]


def move(source: Path, target: Path) -> None:
    """Copy an object, or all under a prefix, and remove it after that."""
    fs = _fs(source)
    if fs.isfile(_key(source)):
        fs.copy(_key(source), _key(target))
        fs.rm_file(_key(source))
        return
    for key in fs.find(_key(source)):
        fs.copy(key, f"{_key(target)}{key.removeprefix(_key(source))}")
        fs.rm_file(key)


def remove(path: Path) -> None:
    """Remove an object; one that is not there is removed already."""
    _fs(path).rm_file(_key(path))


def children(folder: Path, suffix: str) -> list[Path]:
    """The objects right under a prefix whose names end so, by name; what a listing shows now."""
    try:
        found = _fs(folder).ls(_key(folder), detail=False)
    except FileNotFoundError:
        return []
    names = sorted(key.rpartition("/")[2] for key in found)
    return [folder / name for name in names if name.endswith(suffix) and not name.startswith(".")]


def reader(path: Path) -> BinaryIO:
    """A file to read from at any place; behind a URL it fetches what is asked for and nothing more."""
    if is_remote(path):
        return cast(BinaryIO, _fs(path).open(_key(path), "rb", cache_type="none"))
    return path.open("rb")


def read_all(paths: Sequence[Path]) -> Iterator[tuple[Path, bytes]]:
    """The objects in their order, many at a time."""
    for start in range(0, len(paths), _AT_ONCE):
        some = paths[start : start + _AT_ONCE]
        found: dict[str, bytes] = _fs(some[0]).cat([_key(path) for path in some])
        for path in some:
            yield path, found[_key(path)]


def _fs(path: Path) -> Any:
    return cast(Any, path).fs


def _key(path: Path) -> str:
    return str(cast(Any, path).path)


def _is_of_storage(error: Exception) -> bool:
    """Whether it is an error of the S3 client's own, which are no OSErrors."""
    return type(error).__module__.partition(".")[0] in ("botocore", "aiobotocore", "aiohttp")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

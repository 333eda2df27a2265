"""Files and objects put in place whole or not at all, and what a full or read-only disk is called."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kpad_bench import storage
from kpad_bench.errors import HostError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG)


def write_whole(path: Path, data: bytes, check: Callable[[Path], None] | None = None) -> None:
    """Put a file in place in one step and on disk for good; ``check`` sees it before and may raise."""
    temporary = path.with_name(f".{path.name}.tmp")
    if storage.is_remote(path):
        _put_whole(path, data, temporary, check)
        return
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else a power cut may lose the new name
    finally:
        os.close(folder)


def _put_whole(path: Path, data: bytes, temporary: Path, check: Callable[[Path], None] | None) -> None:
    """The same behind a URL, where an object appears whole by itself."""
    if check is None:
        storage.put(path, data)
        return
    storage.put(temporary, data)
    try:
        check(temporary)
        storage.put(path, data)
    finally:
        storage.remove(temporary)


def move(source: Path, target: Path) -> None:
    """A file or a folder to another place of the same storage; what is at the target is replaced."""
    if storage.is_remote(source):
        storage.move(source, target)
    else:
        os.replace(source, target)


@contextmanager
def as_host_error(folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk, or what a storage refuses, into a HostError that says the way out."""
    if storage.is_remote(folder):
        with storage.as_storage_error(folder):
            yield
        return
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in _NO_ROOM:
            raise HostError(
                f"{where}: no space left on the disk. Free some (df -h {folder}) and run the same command "
                "again: it goes on after the last trial that was saved"
            ) from error
        if error.errno in _NO_WRITE:
            raise HostError(f"{where}: cannot be written: {error.strerror}. Choose another --out") from error
        raise


def free_name(path: Path) -> Path:
    """The path, or the first of ``path.2``, ``path.3``, ... that is not there."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free

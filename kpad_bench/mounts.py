"""Which file system a path lies on, by /proc/self/mountinfo (proc(5)). Knows nothing of what lies there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

#: File systems of other machines, or of the host of a virtual machine.
_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "virtiofs"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "orangefs", "pvfs2", "ocfs2", "gfs2"),
        *("wekafs", "panfs", "vastnfs", "quobyte", "moosefs", "daos"),
    )
)
#: FUSE that keeps its files on a disk of this host.
_LOCAL_FUSE = frozenset(("fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs", "fuse.gocryptfs"))
_IN_MEMORY = frozenset(("tmpfs", "ramfs", "rootfs"))
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One mounted file system."""

    point: str
    kind: str
    source: str
    options: frozenset[str]

    @property
    def is_network(self) -> bool:
        """Whether its files are on another machine; FUSE counts, unless it is known to be local."""
        is_fuse = self.kind.startswith("fuse") and self.kind not in _LOCAL_FUSE
        return self.kind in _NETWORK or is_fuse

    @property
    def is_in_memory(self) -> bool:
        """Whether its files are gone after a reboot."""
        return self.kind in _IN_MEMORY

    @property
    def is_of_container(self) -> bool:
        """Whether its files are gone with a container."""
        return self.kind in ("overlay", "aufs", "fuse.fuse-overlayfs")

    def __str__(self) -> str:
        return f"{self.kind} at {self.point}"


def read_mounts(proc: Path = Path("/proc/self")) -> list[Mount]:
    """What is mounted, in order; empty where the system does not tell."""
    try:
        text = (proc / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return [mount for line in text.splitlines() if (mount := _mount(line)) is not None]


def mount_of(path: Path, mounts: list[Mount]) -> Mount | None:
    """The file system of a path, which need not be there yet; of two at one place the later one."""
    real = os.path.realpath(path)
    found = None
    for one in mounts:
        holds = real == one.point or real.startswith(one.point.rstrip("/") + "/")
        if holds and (found is None or len(one.point) >= len(found.point)):
            found = one
    return found


def _mount(line: str) -> Mount | None:
    before, _, after = line.partition(" - ")
    place, kind = before.split(), after.split()
    if len(place) < 6 or len(kind) < 2:
        return None
    return Mount(_plain(place[4]), kind[0], _plain(kind[1]), frozenset(place[5].split(",")))


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)

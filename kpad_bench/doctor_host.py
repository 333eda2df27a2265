"""Doctor on the rest of the host: disk, caches, limits, clock, shared memory, sockets, variables, locks."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kpad_bench import storage
from kpad_bench.config import Resolved
from kpad_bench.configfile import cache_dir
from kpad_bench.doctor_finding import Check, Finding, failure, ok, warning
from kpad_bench.hubcache import hub_cache
from kpad_bench.launch import runtime_dir, socket_in
from kpad_bench.locks import read_owner
from kpad_bench.mounts import Mount, mount_of, read_mounts

#: Sockets and files of a client beside those of its requests.
FILES_BESIDE = 256
#: vLLM's processes share tensors there.
LEAST_SHM_GB = 1.0
_TIME_ERROR = 5  # adjtimex(2): TIME_ERROR, the clock is not synchronized
#: A run writes about so much for a trial: rows, requests, snapshots, its share of a log.
TRIAL_GB = 0.003


@dataclass(frozen=True)
class HostFacts:
    """This host as these checks see it. ``free_gb``: of a folder that is there; tests give their own."""

    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    mounts: tuple[Mount, ...] = ()
    n_files: int = 1024
    n_processes: int = -1
    shm_gb: float | None = None
    clock_state: int | None = None
    free_gb: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def here(cls) -> HostFacts:
        """As it is now."""
        shm = shutil.disk_usage("/dev/shm").total / 1e9 if Path("/dev/shm").is_dir() else None  # noqa: S108
        return cls(
            mounts=tuple(read_mounts()),
            n_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            n_processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
            shm_gb=shm,
            clock_state=clock_state(),
        )

    def free(self, folder: Path) -> float:
        """GB free where a folder is, or will be."""
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        given = self.free_gb.get(str(folder))
        return shutil.disk_usage(there).free / 1e9 if given is None else given


def clock_state() -> int | None:
    """What adjtimex(2) says of the clock; None where it cannot be asked."""
    buffer = ctypes.create_string_buffer(512)  # a struct timex of zeros changes nothing
    state = ctypes.CDLL(None).adjtimex(buffer)
    return None if state < 0 else int(state)


def checks(resolved: Resolved, out: Path, here: HostFacts, n_trials: int) -> list[Check]:
    """All of this subject; ``n_trials``: of the plan."""
    return [
        Check("disk", lambda: _disk(resolved, out, here, n_trials)),
        Check("caches", lambda: _caches(resolved, here)),
        Check("limits", lambda: _limits(resolved, here)),
        Check("shared memory", lambda: _shm(here)),
        Check("clock", lambda: _clock(here)),
        Check("socket", _socket),
        Check("variables", lambda: _variables(here)),
        Check("other harness", lambda: _others(out)),
    ]


def _disk(resolved: Resolved, out: Path, here: HostFacts, n_trials: int) -> Iterator[Finding]:
    if storage.is_remote(out):
        storage.check_writable(out)
        yield ok("disk", f"{out} can be written to")
        return
    least, needed = resolved.config.thresholds.low_disk_gb, n_trials * TRIAL_GB
    free = here.free(out)
    found = f"{free:.0f} GB free at {out}; {n_trials} trials take about {needed:.1f} GB"
    if free < least:
        yield failure("disk", found, f"make room: a sweep stops below thresholds.low_disk_gb, {least:g} GB")
    elif free < least + needed:
        yield warning("disk", found, f"make room, or it stops on the way at {least:g} GB")
    else:
        yield ok("disk", found)
    mount = mount_of(out, list(here.mounts))
    if mount is not None and mount.is_network:
        yield warning("results folder", f"{out} is on {mount}", "fine for rows; keep caches on a local disk")


def _caches(resolved: Resolved, here: HostFacts) -> Iterator[Finding]:
    """Weights and compile caches lie on a disk of this host: a boot that waits for a network is no boot."""
    home = Path(here.env.get("HOME", "~")).expanduser()
    own = {**here.env, **resolved.config.server.env}
    folders = {
        "HF hub (HF_HUB_CACHE)": hub_cache(own),
        "vLLM (VLLM_CACHE_ROOT)": Path(own.get("VLLM_CACHE_ROOT", home / ".cache" / "vllm")),
        "Triton (TRITON_CACHE_DIR)": Path(own.get("TRITON_CACHE_DIR", home / ".triton" / "cache")),
        "DeepGEMM (DG_JIT_CACHE_DIR)": Path(
            own.get("DG_JIT_CACHE_DIR", home / ".cache" / "vllm" / "deep_gemm")
        ),
        "FlashInfer (FLASHINFER_WORKSPACE_BASE)": Path(own.get("FLASHINFER_WORKSPACE_BASE", home)) / ".cache",
        "kpad-bench (KPAD_BENCH_CACHE)": cache_dir(),
    }
    bad = False
    for name, folder in folders.items():
        mount = mount_of(folder, list(here.mounts))
        if mount is not None and mount.is_network:
            bad = True
            variable = name.partition("(")[2].rstrip(")")
            yield warning("caches", f"{name}: {folder} is on {mount}", f"set {variable} to a local disk")
    if not bad:
        yield ok("caches", f"{len(folders)} caches on local disks")


def _limits(resolved: Resolved, here: HostFacts) -> Iterator[Finding]:
    wanted = 2 * resolved.config.load.highest_concurrency() + FILES_BESIDE
    found = f"{here.n_files} open files (ulimit -n), about {wanted} are needed"
    if 0 <= here.n_files < wanted:
        yield failure("open files", found, f"ulimit -n {max(4096, wanted)}, or LimitNOFILE in the unit")
    else:
        yield ok("open files", found)
    if 0 <= here.n_processes < 4096:
        yield warning("processes", f"{here.n_processes} (ulimit -u)", "ulimit -u 65536: vLLM starts threads")


def _shm(here: HostFacts) -> Iterator[Finding]:
    if here.shm_gb is None or here.shm_gb < LEAST_SHM_GB:
        found = "no /dev/shm" if here.shm_gb is None else f"only {here.shm_gb:.2f} GB"
        yield warning(
            "shared memory", found, "mount more (docker run --shm-size=16g): vLLM's processes share it"
        )
    else:
        yield ok("shared memory", f"{here.shm_gb:.0f} GB")


def _clock(here: HostFacts) -> Iterator[Finding]:
    if here.clock_state is None:
        yield warning("clock", "the kernel does not say whether it is set by NTP", "check it: timedatectl")
    elif here.clock_state == _TIME_ERROR:
        yield warning(
            "clock",
            "not synchronised",
            "systemctl start systemd-timesyncd, or chrony: names of runs are times",
        )
    else:
        yield ok("clock", "synchronised")


def _socket() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryDirectory(prefix="kpad-", dir=runtime_dir()) as folder:
            yield ok("socket", f"{socket_in(Path(folder)).parent.parent} takes sockets of servers")
    except OSError as error:
        yield failure(
            "socket", f"{error.filename}: {error.strerror}", "set TMPDIR to a folder that can be written to"
        )


def _variables(here: HostFacts) -> Iterator[Finding]:
    """What a server would see of this shell is built anew; what a person starts by hand is not."""
    told = False
    plugins = here.env.get("VLLM_PLUGINS")
    if plugins is not None and (not plugins.strip() or " " in plugins):
        told = True
        yield warning(
            "variables",
            f"VLLM_PLUGINS={plugins!r} in this shell loads no plugin; sweeps set it themselves",
            "unset it, or write names with commas and no spaces: VLLM_PLUGINS=kpad",
        )
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_SUFFIX_PAD_UNIFORM"):
        if name in here.env:
            told = True
            yield warning(
                "variables",
                f"{name}={here.env[name]} in this shell; sweeps set it for each arm",
                "unset it before starting servers by hand",
            )
    if not told:
        yield ok("variables", "none in this shell that misleads a server started by hand")


def _others(out: Path) -> Iterator[Finding]:
    owner = None if storage.is_remote(out) else read_owner(out / ".lock")
    if owner is not None and owner.is_alive and owner.pid != os.getpid():
        yield failure("other harness", f"{out} is in use by {owner}", "let it end or stop it")
    else:
        yield ok("other harness", "none on this results folder")

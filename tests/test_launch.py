"""How a server is started: argv, environment, CPU set, port and socket path."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kpad_bench import launch
from kpad_bench.errors import HostError
from kpad_bench.launch import (
    Launch,
    free_port,
    pinned,
    runtime_dir,
    shown_argv,
    shown_env,
    socket_in,
    without_secrets,
)


def make(*argv: str, **more: Any) -> Launch:
    return Launch(argv, more.pop("env", {}), "kpad-b1", Path("b1.log"), Path("/models"), 10, **more)


def test_stand_ins_are_filled() -> None:
    """{python}, {models}, {socket} and {port} become what they stand for, inside a word too."""
    made = make("{python}", "--model", "{models}/tiny", "--uds", "{socket}", "--port={port}")
    filled = made.filled_argv(Path("/run/s"), 81)
    assert filled == (sys.executable, "--model", "/models/tiny", "--uds", "/run/s", "--port=81")


def test_a_relative_program_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers start in another folder; a name that is looked up on the PATH stays as it is."""
    monkeypatch.chdir(tmp_path)
    assert make("./serve").filled_argv(None, None) == (str(tmp_path / "serve"),)
    assert make("vllm", "serve").filled_argv(None, None) == ("vllm", "serve")


def test_optional_flags_depend_on_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag that the installed vLLM does not have is left out, others stay."""
    monkeypatch.setattr(launch, "is_flag_known", lambda flag: flag == "--known")
    made = make("vllm", "--known", "--new", "--other", optional_args=("--known", "--new"))
    assert made.filled_argv(None, None) == ("vllm", "--known", "--other")


def test_the_environment_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few variables are inherited, what the plan sets wins, everything else is not there."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    env = make("vllm", env={"LANG": "C", "VLLM_PLUGINS": "kpad"}).full_env()
    assert (env["HF_TOKEN"], env["LANG"], env["VLLM_PLUGINS"]) == ("hf_x", "C", "kpad")
    assert "VLLM_USE_V2_MODEL_RUNNER" not in env


def test_secrets_are_not_shown() -> None:
    """Values of secret variables and flags are stars, in both spellings and at any depth."""
    assert shown_env({"HF_TOKEN": "x", "A": "1=2"}) == ["A=1=2", "HF_TOKEN=***"]
    assert shown_argv(["vllm", "--api-key", "x", "--hf-token=x", "--k", "1"]) == [
        "vllm", "--api-key", "***", "--hf-token=***", "--k", "1",
    ]  # fmt: skip
    assert shown_argv(["--api_key", "x", "y", "--hf_token=x", "--proxy", "http://u:p@h/"]) == [
        "--api_key", "***", "***", "--hf_token=***", "--proxy", "http://***@h/",
    ]  # fmt: skip
    assert shown_env({"HTTPS_PROXY": "http://u:p@h:1/a@b"}) == ["HTTPS_PROXY=http://***@h:1/a@b"]
    config = {
        "max_tokens": 8,
        "server": {"env": {"MY_SECRET": "x", "B": "2"}, "extra_args": ["--api-key", "x"]},
        "k": [4, 8],
    }
    shown = {"env": {"MY_SECRET": "***", "B": "2"}, "extra_args": ["--api-key", "***"]}
    assert without_secrets(config) == {"max_tokens": 8, "server": shown, "k": [4, 8]}


def test_cpu_sets_go_through_taskset_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None leaves the affinity alone; without taskset the call of the system is used, and named."""
    assert make("vllm").affinity() == (None, [])
    made = make("vllm", cpus=frozenset({0, 1, 3}))
    by, prefix = made.affinity()
    if by == "taskset":
        assert prefix[1:] == ["-c", "0-1,3"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert made.affinity() == ("sched_setaffinity", [])


def test_pinned_moves_all_threads_and_gives_back() -> None:
    """Threads that run already move too; afterwards the process may use what it could before."""
    before = os.sched_getaffinity(0)
    one = {min(before)}
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        ready.wait()
        with pinned(one):
            assert os.sched_getaffinity(0) == one
            assert os.sched_getaffinity(thread.native_id or 0) == one
        assert os.sched_getaffinity(thread.native_id or 0) == before
    finally:
        done.set()
        thread.join()
    with pinned(None):
        assert os.sched_getaffinity(0) == before


def test_ports() -> None:
    """A free port is given as asked, 0 gives any, a taken one is told with the way out."""
    assert free_port(0) > 0
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(HostError, match=f"server.port: {port}: .* set it to null"):
            free_port(port)


def test_socket_paths_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the system takes is told before a server fails; unusable runtime folders are passed by."""
    assert socket_in(Path("/run/user/0/kpad-x")) == Path("/run/user/0/kpad-x/s")
    with pytest.raises(HostError, match="shorter TMPDIR"):
        socket_in(Path("/" + "x" * 106))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == str(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert runtime_dir() is None

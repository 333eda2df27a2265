"""Starting and asking a fake from a test: blocking, bounded by deadlines, cleaned up whatever happens."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

#: What a config names as its launcher.
LAUNCHER = (sys.executable, str(Path(__file__).parent / "__main__.py"))
DEADLINE_S = 20.0
USAGE = {"include_usage": True, "continuous_usage_stats": True}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def spec(k: int) -> list[str]:
    """The flag for K."""
    return ["--speculative-config", json.dumps({"method": "suffix", "num_speculative_tokens": k})]


def wait_for(what: str, check: Callable[[], Any]) -> Any:
    """Poll until the check gives something true; its value."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not in {DEADLINE_S} s: {what}")


def group_members(pgid: int) -> dict[int, str]:
    """pid -> command line of the living processes of a group; zombies are gone."""
    members = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == pgid and state not in "ZX":
                members[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return members


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket, or over TCP for a (host, port)."""

    def __init__(self, address: str | tuple[str, int], timeout_s: float = DEADLINE_S) -> None:
        super().__init__("x", timeout=timeout_s)
        self.address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX if isinstance(self.address, str) else socket.AF_INET)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.address)


class Fake:
    """One fake server, in a session of its own."""

    def __init__(self, folder: Path, flags: list[str], env: dict[str, str], *, on_tcp: bool = False) -> None:
        self.log_path = folder / f"log-{len(list(folder.iterdir()))}"
        self.address: str | tuple[str, int] = str(folder / "s")
        where = ["--host", "127.0.0.1", "--port", "0"] if on_tcp else ["--uds", str(self.address)]
        argv = [*LAUNCHER, "--model", "/models/tiny", "--served-model-name=kpad-b1", *where, *flags]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=env, start_new_session=True)

    def log(self) -> str:
        return self.log_path.read_text()

    def ready(self) -> Fake:
        """Wait for the line of a finished boot; take the port from the log."""
        wait_for(
            "startup complete",
            lambda: "Application startup complete." in self.log() or self.process.poll() is not None,
        )
        assert self.process.poll() is None, self.log()
        if port := re.search(r"Starting vLLM server on http://127\.0\.0\.1:(\d+)", self.log()):
            self.address = ("127.0.0.1", int(port[1]))
        return self

    def ask(
        self, path: str, body: dict[str, Any] | None = None, timeout_s: float = DEADLINE_S
    ) -> tuple[int, str]:
        """(status, text) of a GET, or of a POST when there is a body."""
        connection = Connection(self.address, timeout_s)
        try:
            connection.request(
                "GET" if body is None else "POST", path, None if body is None else json.dumps(body)
            )
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def stream(self, prompt: str, max_tokens: int = 40, path: str = CHAT, **more: Any) -> list[Any]:
        """Events of one stream; the last one is the text [DONE]."""
        status, text = self.ask(path, {**question(prompt, max_tokens, path), **more})
        assert status == 200, text
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        return [event if event == "[DONE]" else json.loads(event) for event in events]

    def status(self) -> list[dict[str, Any]]:
        """The plugin's answers."""
        code, text = self.ask("/collective_rpc", {"method": "kpad_status"})
        assert code == 200, text
        results: list[dict[str, Any]] = json.loads(text)["results"]
        return results

    def counters(self) -> dict[str, float]:
        """Series of /metrics without labels (the last one of a name wins)."""
        lines = self.ask("/metrics")[1].splitlines()
        return {re.split(r"[{ ]", row)[0]: float(row.split()[-1]) for row in lines if not row.startswith("#")}

    def core_pid(self) -> int:
        return next(pid for pid, title in group_members(self.process.pid).items() if "EngineCore" in title)

    def kill_group(self) -> None:
        """End all, and wait until nothing is left."""
        if group_members(self.process.pid):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        wait_for("group empty", lambda: not group_members(self.process.pid))

    def forget_socket(self) -> None:
        """Remove the stale socket, which like vLLM's outlives its process and fails the next boot."""
        Path(str(self.address)).unlink(missing_ok=True)


def question(prompt: str, max_tokens: int, path: str = CHAT) -> dict[str, Any]:
    """A streaming request."""
    text: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    body = {"model": "kpad-b1", "max_tokens": max_tokens, "stream": True, "stream_options": USAGE}
    return body | (text if path == CHAT else {"prompt": prompt})


def text_of(events: list[Any]) -> str:
    """The text of a chat."""
    return "".join(event["choices"][0]["delta"]["content"] for event in events[:-1] if event["choices"])


class Boots:
    """Starts fakes, all over one socket path, and kills every one of them on leaving the ``with``."""

    def __init__(self) -> None:
        self.fakes: list[Fake] = []
        # A socket path has at most 107 bytes: pytest's own folders may be longer.
        self.folder = tempfile.TemporaryDirectory(prefix="fv")
        self.path = Path(self.folder.name)

    def __enter__(self) -> Boots:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fake in self.fakes:
            fake.kill_group()
        self.folder.cleanup()

    def __call__(
        self,
        *flags: str,
        script: dict[str, Any] | None = None,
        pads: bool = False,
        plugins: str = "kpad",
        on_tcp: bool = False,
        **env: str,
    ) -> Fake:
        """Start one and wait until it answers. ``script``: a whole script, or only its default."""
        return self.start(*flags, script=script, pads=pads, plugins=plugins, on_tcp=on_tcp, **env).ready()

    def start(
        self,
        *flags: str,
        script: dict[str, Any] | None = None,
        pads: bool = False,
        plugins: str = "kpad",
        on_tcp: bool = False,
        **env: str,
    ) -> Fake:
        """Start one without waiting. A script stays for the boots after it that bring none."""
        base = {"PATH": os.environ["PATH"], "VLLM_PLUGINS": plugins, "VLLM_SERVER_DEV_MODE": "1"}
        env = base | {"VLLM_SUFFIX_PAD_UNIFORM": "1" if pads else "0"} | env
        script_path = self.path / "script.json"
        if script is not None:
            script_path.write_text(json.dumps(script if "rules" in script else {"default": script}))
        if script_path.exists():
            env["FAKE_VLLM_SCRIPT"] = str(script_path)
        self.fakes.append(Fake(self.path, list(flags), env, on_tcp=on_tcp))
        return self.fakes[-1]

"""The faults of ``fault_matrix.py``: how each is made, and what is looked at afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fault_tools import JUMPING_CLOCK, Tmpfs, stranger_on
from soak_lab import DEADLINE_S, FAKE, POLL_S, Lab

#: The first boot of a run; its second attempt, on the same command again, is well.
FIRST: Mapping[str, Any] = {"argv": "kpad-", "boot": 1}
NOTHING = "nothing"
ORPHAN_S = 2.0
GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


class Outcome(NamedTuple):
    """The columns of the table, in the page's words."""

    detected_in: str
    reason: str
    left: str
    next_cell: str
    again: str


@dataclass(frozen=True)
class Fault:
    """One fault. ``told``: what the first fake does. ``config``: laid over the lab's, one level deep.

    ``act`` runs the command in another way than to its end; it gives the exit status, and may say what is
    left that is not ours. ``where``: where it is noticed, if neither row nor status tell. ``kept``: files
    that must be there in the end, and what the table calls them.
    """

    name: str
    told: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    act: Callable[[Lab], tuple[int, str]] | None = None
    where: str = ""
    kept: tuple[str, str] | None = None
    boot_timeout_s: float | None = None

    def run(self, lab: Lab) -> Outcome:
        """Make it, and say what came of it."""
        before = dict(lab.config)
        for name, value in self.config.items():
            old = lab.config.get(name)
            lab.config[name] = {**old, **value} if isinstance(old, dict) else value
        if self.boot_timeout_s is not None:
            lab.config["define_models"]["tiny"]["boot_timeout_s"] = self.boot_timeout_s
        lab.tell((FIRST, self.told))
        code, left = (lab.finish()[0], "") if self.act is None else self.act(lab)
        if lab.seconds_until_empty(ORPHAN_S) is None:
            left = ", ".join(lab.living().values())
        rows = sorted(lab.rows(), key=lambda row: row["order_index"])
        where, reason, next_cell = describe(code, rows, lab)
        lab.config = before
        again = self._again(lab)
        if self.kept is not None and list((lab.run_path() or Path()).glob(self.kept[0])):
            left = self.kept[1]
        return Outcome(self.where or where, reason, left or NOTHING, next_cell, again)

    def _again(self, lab: Lab) -> str:
        before = {row["trial_id"]: row["started_at"] for row in lab.rows() if row["status"] == "ok"}
        code = lab.finish()[0]
        rows = lab.rows()
        n_new = sum(before.get(row["trial_id"]) != row["started_at"] for row in rows)
        n_ok = sum(row["status"] == "ok" for row in rows)
        return f"measures {n_new}, {n_ok} of {len(rows)} ok, exit {code}"


def describe(code: int, rows: list[dict[str, Any]], lab: Lab) -> tuple[str, str, str]:
    """Where it was detected, the row's reason, and how the next cell went."""
    if code in ENDS:
        where = "before the first boot" if not lab.boots() else ENDS[code]
        return where, f"no row, exit {code}" if code > 0 else "no row", "not begun"
    if not rows:
        return "a bug", f"no row, exit {code}: {lab.errors()[-300:]}", "not begun"
    first, others = rows[0], rows[1:]
    reason = f"`{first['reason']}`" if first["reason"] else "none: ok"
    if first["status"] == "invalid":
        reason += ", invalid"
    if (first["boot_attempts"] or 1) > 1:
        reason += f", after {first['boot_attempts']} boots"
    return where_of(first, lab), reason, ", ".join(dict.fromkeys(row["status"] for row in others))


#: What ends a run without a row, by its exit status, and where that is noticed.
ENDS = {-signal.SIGKILL: "the next start", 130: "the signal", 2: "the configuration", 4: "the write of a row"}


def where_of(row: Mapping[str, Any], lab: Lab) -> str:
    """The part of a trial in which its end was noticed."""
    if row["boot_s"] is None or (row["boot_attempts"] or 1) > 1:
        return "boot"
    if row["status"] == "ok":
        return (
            "the row's warnings" if any(METRICS in text for text in row["warnings"] or ()) else "not noticed"
        )
    if any(one["trial_id"] == row["trial_id"] for one in lab.rows("requests")):
        return "pass" if row["status"] == "failed" else "verdict"
    return "warm-up"


METRICS = "/metrics was missing or cut"
CUT = "bytes of this log were cut out here"
#: Requests 3 and later are those of the pass: 1 and 2 are its warm-up.
STALLED = {"stall_after_tokens": 1, "fault_requests": [3, 4, 5, 6, 7, 8]}
QUICK = {"thresholds": {"stalled_s": 1.5}}
NO_WAIT = {"retry": {"gpu_busy": {"wait_s": 0}, "address_in_use": {"wait_s": 0}}}


def fails(text: str, status: int = 1) -> dict[str, Any]:
    """A boot that dies with this in its log."""
    return {"boot_fail": {"log": f"{text}\n{GENERIC}", "rc": status}}


def n_calls(lab: Lab) -> int:
    """Requests for tokens so far."""
    path = Path(f"{lab.script_path}.calls")
    return path.read_text().count('"prompt": "') if path.exists() else 0


def wait_for(check: Callable[[], bool]) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError("fault_matrix: the run did not come to the point")
        time.sleep(POLL_S)


def in_the_pass(number: int, *, of_boot: int = 1) -> Callable[[Lab], tuple[int, str]]:
    """Send a signal to the harness in the pass of a boot, which stalls there."""

    def act(lab: Lab) -> tuple[int, str]:
        lab.tell(({**FIRST, "boot": of_boot}, STALLED))
        process = lab.start()
        n_before = (of_boot - 1) * 8
        wait_for(lambda: n_calls(lab) >= n_before + 4)
        os.kill(process.pid, number)
        return process.wait(DEADLINE_S), ""

    return act


def truncated(lab: Lab) -> tuple[int, str]:
    """Power is cut in the second pass, and of the first trial's part the end is missing."""
    code, left = in_the_pass(signal.SIGKILL, of_boot=2)(lab)
    (part,) = (lab.run_path() or Path()).glob("trials/*.parquet")
    part.write_bytes(part.read_bytes()[:-40])
    return code, left


def full_disk(lab: Lab) -> tuple[int, str]:
    """The disk is full once the first trial has its row."""
    disk = Tmpfs(lab.out, 8192)
    lab.at_exit.append(disk.close)
    process = lab.start()
    wait_for(lambda: bool(list(lab.out.glob("*/*/trials/*.parquet"))))
    disk.fill()
    code = process.wait(DEADLINE_S)
    disk.make_room()
    return code, ""


def two_at_once(lab: Lab) -> tuple[int, str]:
    """A second harness on the folder of one that is in its pass; the first is ended then."""
    lab.tell((FIRST, STALLED))
    first = lab.start()
    wait_for(lambda: n_calls(lab) >= 4)
    code = lab.finish()[0]
    first.terminate()
    first.wait(DEADLINE_S)
    return code, ""


def taken_port(lab: Lab) -> tuple[int, str]:
    """Somebody else's server on the port of the configuration."""
    with stranger_on() as port:
        lab.config["server"] = {**lab.config["server"], "port": port}
        return lab.finish()[0], "the stranger, unharmed"


def flooded(lab: Lab) -> tuple[int, str]:
    """A server prints 16 MiB before it is ready; what is kept of it has the boot and the end."""
    lab.tell((FIRST, {"log_mib": 16}))
    code = lab.finish()[0]
    log = max((lab.run_path() or Path()).glob("logs/*.log"), key=lambda path: path.stat().st_size)
    text = log.read_text()
    has_ends = "Initializing a V1 LLM engine" in text and "startup complete" in text.rpartition(CUT)[2]
    is_kept = has_ends and text.count(CUT) == 1 and all(row["attention_backend"] for row in lab.rows())
    return code, "head and tail of its log" if is_kept and len(
        text
    ) < 7 * 2**20 else f"{len(text)} characters"


def stale_socket(lab: Lab) -> tuple[int, str]:
    """A socket file of a server that is gone, in the folder where servers get theirs."""
    folder = lab.runtime / "kpad-old"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "s"))
    return lab.finish()[0], "the stale file: not ours"


def orphan(lab: Lab) -> tuple[int, str]:
    """A server of the same model that nobody has ended."""
    folder = lab.runtime / "kpad-old"
    folder.mkdir()
    model = lab.config["define_models"]["tiny"]["local"]
    argv = [sys.executable, str(FAKE), "--model", model, "--served-model-name", "kpad-old"]
    with (lab.path / "orphan.log").open("wb") as log:
        server = subprocess.Popen([*argv, "--uds", str(folder / "s")], stdout=log, stderr=log)
    code = lab.finish()[0]
    assert server.poll() is None
    server.terminate()
    server.wait(DEADLINE_S)
    return code, "the orphan, unharmed"


def jumping_clock(lab: Lab) -> tuple[int, str]:
    """The wall clock jumps by hours and days."""
    return lab.finish(program=("-c", JUMPING_CLOCK))[0], ""


PLUGIN = (
    'File "/env/kpad_bench/padding/__init__.py", line 30, in register\nUnknownVllm: propose() has changed'
)
FAULTS = (
    Fault("kill -9 of the API process in a pass", {"die_after_requests": 6}),
    Fault("kill -9 of the API process in the warm-up", {"die_after_requests": 2}),
    Fault("kill -9 of the core: `/health` is 503, `/version` 200", {"die_core_after_requests": 6}),
    Fault("kill -9 of the core: `/health` stays 200", {"lose_core_after_requests": 6}, QUICK),
    Fault("kill -9 of the harness", act=in_the_pass(signal.SIGKILL)),
    Fault("SIGTERM to the harness", act=in_the_pass(signal.SIGTERM)),
    Fault("Ctrl-C", act=in_the_pass(signal.SIGINT)),
    Fault("a server that ignores SIGTERM", {"ignore_term": True}, where="teardown"),
    Fault("a boot that hangs", {"boot_hang": True}, boot_timeout_s=5.0),
    Fault("a `/health` that hangs", {"health_hang": True}, boot_timeout_s=5.0),
    Fault("503 in mid-run", {"unavailable_after_requests": 6}),
    Fault("a stranger under the address", {"wrong_model_name": "other"}),
    Fault("a stranger on the port", act=taken_port),
    Fault(
        "the address is taken at the first boot", fails("OSError: [Errno 98] Address already in use"), NO_WAIT
    ),
    Fault("a stale socket file", act=stale_socket, where="not met"),
    Fault("an orphan of the last cell with the same model", act=orphan, where="not met"),
    Fault(
        "its memory is still held at the first boot",
        fails("ValueError: Free memory on device cuda:0 (3.1/178.0 GiB) is less than desired GPU memory"),
        NO_WAIT,
    ),
    Fault("no room for the KV cache", fails("ValueError: No available memory for the cache blocks.")),
    Fault("all streams stall", STALLED, QUICK),
    Fault("one stream stalls", {**STALLED, "fault_requests": [5]}, QUICK),
    Fault("pings and no tokens", {**STALLED, "ping_s": 0.05}, QUICK),
    Fault(
        "every connection is reset",
        {**STALLED, "drop_connection_after_tokens": 3, "stall_after_tokens": None},
    ),
    Fault("`/metrics` is cut", {"cut_metrics": True}),
    Fault("a server floods its log", act=flooded, where="its keeper"),
    Fault("the disk fills up", act=full_disk),
    Fault("little disk is left", config={"thresholds": {"low_disk_gb": 1e9}}),
    Fault("a part is truncated", act=truncated, kept=("set_aside/*", "the part, in `set_aside/`")),
    Fault("the clock jumps", act=jumping_clock, where="not met"),
    Fault("a CPU set that does not exist", config={"cpus": {"server": "4000-4001"}}),
    Fault("the plugin cannot be imported", {"no_plugin": True}),
    Fault("the plugin refuses this vLLM", fails(PLUGIN)),
    Fault("a second harness on the results folder", act=two_at_once, where="the lock of the folder"),
)

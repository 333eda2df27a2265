"""One boot: command line, script, child, socket, log, signals, then the server until the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from fake_vllm import core, logs, script
from fake_vllm.options import Options, parse
from fake_vllm.script import Script

IGNORED_K = 4


def main(argv: Sequence[str]) -> None:
    """Run one server; ends only by a signal, or with the status of a boot that failed."""
    signal.alarm(core.LIFE_S)
    options = parse(argv)
    told = script.load(options)
    k = IGNORED_K if told.k_ignored and options.k is not None else options.k
    logs.banner(options)
    listener = bind(options)
    child = core.spawn()
    if told.core_cpus:
        os.sched_setaffinity(child.pid, told.core_cpus)
    obey_signals(child, told)
    logs.engine(options, k, child.pid)
    for text in told.boot_log:
        logs.say(text)
    logs.flood(told.log_mib)
    delay(told)
    if told.boot_fail is not None:
        logs.say(told.boot_fail.get("log", ""))
        leave(child, told, told.boot_fail.get("rc", 1))
    from fake_vllm.server import serve  # the slow import, after the log has begun

    serve(listener, options, told, k, child)


def bind(options: Options) -> socket.socket:
    """Bind, not listen: vLLM binds first, answers when the engine is up, and fails on a stale socket file."""
    listener = socket.socket(socket.AF_UNIX if options.uds else socket.AF_INET)
    if not options.uds:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(options.uds or (options.host, options.port))
    except OSError as error:
        logs.say(f"Traceback (most recent call last):\nOSError: [Errno {error.errno}] {error.strerror}")
        raise SystemExit(1) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """As vLLM's log writes it; tells the port when port 0 was asked for."""
    name = listener.getsockname()
    return f"unix:{name}" if isinstance(name, str) else f"http://{name[0]}:{name[1]}"


def obey_signals(child: subprocess.Popen[bytes], told: Script) -> None:
    """SIGTERM and SIGINT end the API and, unless told otherwise, the core. Open streams are cut."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        logs.stopping(child.pid)
        if not told.ignore_term:
            leave(child, told, 0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def delay(told: Script) -> None:
    """Boot slowly, or never: then with a line of log every now and again."""
    time.sleep(told.boot_delay_s)
    n_lines = 0
    while told.boot_hang:
        n_lines += 1
        logs.api("shm_broadcast.py:733", f"No available shared memory broadcast block found, {n_lines} times")
        time.sleep(0.2)


def leave(child: subprocess.Popen[bytes], told: Script, status: int) -> NoReturn:
    """Exit at once; the core goes too unless the script leaves it behind."""
    if not told.leave_core:
        child.kill()
        child.wait()
    os._exit(status)

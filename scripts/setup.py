#!/usr/bin/env python3
"""Makes .venv: the pinned requirements, this project (editable), and a proof that they import.

Run by ``make setup``. As root on a Debian it installs Chromium too, in which tests open reports. Needs
Python 3.11 with the standard library alone, since nothing is installed yet, and knows nothing of
``kpad_bench``. Does nothing when nothing changed since the last time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
#: Written empty before the first package and filled after the last: an empty one is an interrupted set-up.
STAMP = VENV / "kpad-setup.json"
LOG = VENV / "kpad-setup.log"
REQUIREMENTS = ROOT / "requirements"
OLDEST = (3, 11)
#: Programs of the browser that tests drive, and Debian's packages of them.
BROWSER, BROWSER_PACKAGES = ("chromium", "chromedriver"), ("chromium", "chromium-driver")
#: Most seconds of one step of apt: a mirror that does not answer must not hold up a set-up.
APT_LIMIT = "240"

#: A failed step's output holds the left text: the right one is the way out. First match wins.
ADVICE = (
    (
        "No matching distribution found for torch",
        "The CPU build of torch is not on PyPI. Set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index\n"
        "(https://download.pytorch.org/whl/cpu) and run make setup again. If it is set already, that index\n"
        "has no build of this torch for this Python: try another one, make setup PYTHON=python3.11.",
    ),
    (
        "Failed to build",
        "A package that comes as source did not compile. It needs a C++20 compiler (g++ 10 or newer) and\n"
        "Python's headers: on Debian or Ubuntu, apt-get install build-essential python3-dev.",
    ),
    (
        "No matching distribution found",
        "The index that pip asks has no such release for this Python. Try make setup PYTHON=python3.11, and\n"
        "see pip config list for where pip looks.",
    ),
    ("No space left on device", "The disk is full. The environment takes about 4 GB, pip's cache 1 GB more."),
    (
        "ensurepip",
        "This Python cannot make virtual environments. On Debian or Ubuntu: apt-get install python3-venv.",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "Set PIP_CERT to your organisation's certificate bundle."),
    (
        "Connection",
        "The package index could not be reached. Check the network (pip config list), then run make setup.",
    ),
)


class SetupError(Exception):
    """Set-up cannot go on; the text says why, and the way out."""


def main() -> int:
    if sys.version_info < OLDEST:
        print(f"setup: Python 3.11 or newer is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return 1
    wanted = wanted_stamp()
    if read_stamp() == wanted:
        install_browser()
        return 0
    started = time.monotonic()
    try:
        with only_one():
            prepare_venv(wanted)
            install()
            install_browser()
            STAMP.write_text(json.dumps(wanted, indent=1) + "\n")
    except (SetupError, OSError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; make setup starts over", file=sys.stderr)
        return 130
    print(f"setup: .venv is ready after {time.monotonic() - started:.0f} s")
    return 0


def wanted_stamp() -> dict[str, str]:
    """What the environment depends on: the Python, the place (scripts hold absolute paths) and the inputs."""
    digest = hashlib.sha256()
    for path in (*sorted(REQUIREMENTS.glob("*.txt")), ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return {"python": sys.version, "path": str(VENV), "inputs": digest.hexdigest()}


def read_stamp() -> dict[str, str] | None:
    """The stamp of the last complete set-up; None when there is none."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Refuses to run beside another set-up of the same checkout. The lock goes with the process."""
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(
                "another make setup is at work in this checkout; wait until it has ended"
            ) from None
        yield


def prepare_venv(wanted: dict[str, str]) -> None:
    """Keeps a whole environment of the same Python and place; makes a new one in every other case."""
    if VENV.exists() and not STAMP.exists():
        raise SetupError(f"{VENV} was not made by make setup. Move it away or remove it, then run make setup")
    stamp = read_stamp()
    if stamp and all(stamp.get(key) == wanted[key] for key in ("python", "path")):
        STAMP.write_text("")
        return
    if VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    STAMP.write_text("")
    run("making .venv", [sys.executable, "-m", "venv", str(VENV)])


def install() -> None:
    """Installs in the order that the one source build needs: its tools and torch come before it."""
    python = str(VENV / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--no-deps", "--no-input", "--progress-bar", "off"]
    files = {name: ["-r", str(REQUIREMENTS / f"{name}.txt")] for name in ("build", "cpu", "dev", "source")}
    run("installing pip and build tools", [*pip, *files["build"]])
    run("installing the pinned requirements (2 to 4 minutes)", [*pip, *files["cpu"], *files["dev"]])
    run("building arctic-inference (up to a minute)", [*pip, "--no-build-isolation", *files["source"]])
    run("installing kpad-bench", [*pip, "--no-build-isolation", "--editable", str(ROOT)])
    run("checking that it all imports", [python, str(ROOT / "scripts" / "check_env.py")])


def install_browser() -> None:
    """Chromium and its driver, where they are missing and can be installed: by root, with apt.

    Without them the tests of reports are skipped (with CI=true they fail); nothing else needs them.
    """
    is_there = all(shutil.which(name) for name in BROWSER)
    if is_there or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "timeout", APT_LIMIT, "apt-get", "-q"]
    try:
        run("looking for Chromium, for the tests of reports", [*apt, "update"])
        run("installing it", [*apt, "install", "-y", "--no-install-recommends", *BROWSER_PACKAGES])
    except SetupError as error:
        print(
            f"setup: {error}\nsetup: tests that open a report in a browser will be skipped", file=sys.stderr
        )


def run(what: str, argv: list[str]) -> None:
    """Runs one step with its whole output in the log; a failure shows the last lines and the way out."""
    print(f"setup: {what} ...", flush=True)
    started = time.monotonic()
    tail: deque[str] = deque(maxlen=200)
    with (
        LOG.open("a") as log,
        subprocess.Popen(
            argv,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            log.write(line)
            if "is ignored: it is neither a file nor a directory" not in line:
                tail.append(line.rstrip())
    if child.returncode:
        raise SetupError(failure(what, child.returncode, tail))
    print(f"setup:   {time.monotonic() - started:.0f} s", flush=True)


def environment() -> dict[str, str]:
    """The environment of every step: the new .venv first, so that cmake finds its Python and its tools."""
    inherited = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET")
    }
    path = f"{VENV / 'bin'}{os.pathsep}{inherited.get('PATH', os.defpath)}"
    return {**inherited, "VIRTUAL_ENV": str(VENV), "PATH": path}


def failure(what: str, status: int, tail: deque[str]) -> str:
    """The message for a failed step."""
    output = "\n".join(tail)
    advice = next((text for sign, text in ADVICE if sign in output), "Mend that, then run make setup again.")
    errors = [line for line in tail if "error" in line.lower()]
    shown = "\n".join(f"  {line[:200]}" for line in (errors or list(tail))[-15:])
    return f"{what} failed (exit {status}):\n{shown}\n\n{advice}\nThe whole output is in {LOG}"


if __name__ == "__main__":
    sys.exit(main())

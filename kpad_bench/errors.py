"""Errors by whose fault they are, and the exit code each kind ends in.

Knows nothing of the rest of the package. ``cli`` maps these to exit codes; anything else is a bug
and keeps its traceback (exit 1).
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_TRIALS_FAILED = 3
EXIT_HOST = 4
EXIT_CHECK_FAILED = 5
EXIT_INTERRUPTED = 130


class KpadError(Exception):
    """An expected error: one message for people, one exit code for scripts."""

    exit_code = EXIT_BUG


class UsageError(KpadError):
    """The user asked for something that does not exist or cannot be: names, Ks, YAML, pooling."""

    exit_code = EXIT_USAGE


class HostError(KpadError):
    """This host is not ready: vLLM or a model folder missing, address in use, corpus not frozen."""

    exit_code = EXIT_HOST


class GpuNotReleased(HostError):
    """A server is gone and the memory of its GPUs is not back: nothing else may be measured on them."""

    cause = "gpu_not_released"


class CheckFailed(KpadError):
    """A check that was asked for did not hold (``corpora verify`` and its like)."""

    exit_code = EXIT_CHECK_FAILED


class DataError(UsageError):
    """A file of rows, prompts or counters is not what it must be."""


class ServerError(KpadError):
    """A server did not boot, or died. ``sweep`` turns it into a row; it never ends a sweep.

    ``cause`` is one of the classes of ``kpad_bench.bootlog``; ``detail`` is the line that shows it.
    """

    def __init__(
        self,
        cause: str,
        detail: str,
        *,
        argv: tuple[str, ...] = (),
        returncode: int | None = None,
        log_path: str | None = None,
        log_tail: str = "",
    ) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail
        self.argv = argv
        self.returncode = returncode
        self.log_path = log_path
        self.log_tail = log_tail
        #: attempts at the same boot before, and how many boots there were in all (0: it was spared)
        self.earlier: tuple[str, ...] = ()
        self.n_boots: int | None = None

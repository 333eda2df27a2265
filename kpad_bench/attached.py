"""A server that somebody else runs: asked and driven, never started or stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kpad_bench.control import Endpoint
from kpad_bench.errors import HostError, ServerError, UsageError
from kpad_bench.launch import without_login


@dataclass
class AttachedServer:
    """A server somebody else runs: no log, no processes, no plugin marker to be had from us."""

    endpoint: Endpoint
    argv: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    affinity_by: str | None = None
    boot_s: float | None = None
    earlier: tuple[str, ...] = ()
    n_boots: int | None = None
    is_dead: bool = False
    is_attached: bool = True

    def poll(self) -> int | None:
        """Its exit status is not ours to know."""
        return None

    def log_text(self) -> str:
        """Its log is not ours to read."""
        return ""

    def death(self) -> ServerError:
        """What can be said when it stops answering."""
        return ServerError("server_died", f"{without_login(self.endpoint.base_url)} no longer answers")

    def cpu_seconds(self) -> tuple[float, float] | None:
        """Unknown."""
        return None

    def affinity(self) -> None:
        """Unknown."""

    def stop(self) -> None:
        """Left running."""


def attach(url: str) -> AttachedServer:
    """The server at ``url``, by the first name it serves.

    Raises UsageError for what is no URL, HostError when nobody answers.
    """
    shown, parts = without_login(url), urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--attach: {shown!r}: not a URL; write it like http://127.0.0.1:8000")
    endpoint = Endpoint("", url.rstrip("/"))
    names = endpoint.model_names()
    if not names:
        raise HostError(
            f"--attach: {shown}: no server answers /v1/models there; start it, or leave --attach out"
        )
    return AttachedServer(Endpoint(names[0], url.rstrip("/")))

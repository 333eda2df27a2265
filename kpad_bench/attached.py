"""A server that somebody else runs: asked and driven, never started or stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpad_bench.control import Endpoint
from kpad_bench.errors import HostError, ServerError


@dataclass
class AttachedServer:
    """A server somebody else runs: no log, no processes, no plugin marker to be had from us."""

    endpoint: Endpoint
    argv: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    affinity_by: str | None = None
    boot_s: float | None = None
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
        return ServerError("server_died", f"{self.endpoint.base_url} no longer answers")

    def cpu_seconds(self) -> tuple[float, float] | None:
        """Unknown."""
        return None

    def cpus(self) -> str | None:
        """Unknown."""
        return None

    def stop(self) -> None:
        """Left running."""


def attach(url: str) -> AttachedServer:
    """The server at ``url``, by the first name it serves. Raises HostError when nobody answers."""
    endpoint = Endpoint("", url.rstrip("/"))
    names = endpoint.model_names()
    if not names:
        raise HostError(
            f"--attach: {url}: no server answers /v1/models there; start it, or leave --attach out"
        )
    return AttachedServer(Endpoint(names[0], url.rstrip("/")))

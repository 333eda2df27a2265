"""A real S3 API server (moto's) on loopback, which notes what it is asked for."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import s3fs
from moto.server import ThreadedMotoServer

REGION = "us-east-1"


class Asked(NamedTuple):
    """One request: its method, the key it is about, and how many bytes the answer has."""

    method: str
    key: str
    n_bytes: int


class S3:
    """A running server. ``env`` is what a client needs to reach it."""

    def __init__(self, server: ThreadedMotoServer, asked: list[Asked]) -> None:
        host, port = server.get_host_and_port()
        self.env = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_DEFAULT_REGION": REGION,
        }
        self.asked = asked

    def bucket(self) -> str:
        """A new, empty bucket."""
        name = f"b-{uuid.uuid4().hex}"
        self.files().mkdir(name)
        return name

    def files(self) -> Any:
        """A client of its own, which sees what others wrote."""
        return s3fs.S3FileSystem(
            key=self.env["AWS_ACCESS_KEY_ID"], secret=self.env["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=self.env["AWS_ENDPOINT_URL"], use_listings_cache=False, skip_instance_cache=True,
        )  # fmt: skip


@contextmanager
def running() -> Iterator[S3]:
    """The server, until this ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server, asked = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False), []
    server.start()
    assert server._server is not None
    app = server._server.app

    def counting(environ: dict[str, Any], start_response: Any) -> Any:
        def noting(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
            is_body = environ["REQUEST_METHOD"] == "GET" and status.startswith("2")
            asked.append(Asked(environ["REQUEST_METHOD"], environ["PATH_INFO"], size if is_body else 0))
            return start_response(status, headers, *more)

        return app(environ, noting)

    server._server.app = counting
    try:
        yield S3(server, asked)
    finally:
        server.stop()

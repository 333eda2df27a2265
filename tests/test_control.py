"""What a server answers outside a pass; whatever is not an answer is None."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from fake_vllm.client import Boots, spec

from kpad_bench.attached import attach
from kpad_bench.control import Endpoint
from kpad_bench.errors import HostError


def endpoint(fake_address: object) -> Endpoint:
    return Endpoint("kpad-b1", socket_path=Path(str(fake_address)))


def test_answers_of_a_server() -> None:
    """Health, names, counters, workers, lengths and emptied caches, over a Unix socket and over TCP."""
    with Boots() as boots:
        fake = boots(*spec(4), pads=True)
        mine = endpoint(fake.address)
        assert mine.health() == 200
        assert mine.model_names() == ["kpad-b1"]
        assert "vllm:generation_tokens_total" in (mine.metrics() or "")
        (status,) = mine.worker_call("kpad_status") or []
        assert (status["marker"], status["k"], status["pads"]) == ("kpad/1", 4, True)
        assert mine.worker_call("kpad_unknown") is None
        assert mine.reset_prefix_cache() is True
        assert mine.prompt_tokens([{"role": "user", "content": "one two three"}]) == 8
        one, two, again = mine.token_ids("one two one", 5) or []
        assert one == again != two
        host, port = boots(on_tcp=True).address
        over_tcp = attach(f"http://{host}:{port}/")
        assert over_tcp.endpoint.served_name == "kpad-b1"
        assert over_tcp.endpoint.health() == 200


def test_nobody_there(tmp_path: Path) -> None:
    """No socket, or no listener: None and empty lists, and --attach says so."""
    for nobody in (endpoint(tmp_path / "s"), Endpoint("x", "http://127.0.0.1:9")):
        assert nobody.health() is None
        assert nobody.metrics() is None
        assert nobody.model_names() == []
        assert nobody.worker_call("kpad_status") is None
        assert nobody.reset_prefix_cache() is False
        assert nobody.prompt_tokens([]) is None
        assert nobody.token_ids("one", 5) is None
    with pytest.raises(HostError, match="no server answers"):
        attach("http://127.0.0.1:9")


@contextmanager
def answering(body: bytes) -> Iterator[Endpoint]:
    """A server that says the same to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Endpoint("x", f"http://127.0.0.1:{server.server_address[1]}/prefix")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"not json", b"[]", b"null", b"{}", b'{"data": null}', b'{"data": [1]}', b'{"data": 7}',
        b'{"results": [null]}', b'{"results": 3}', b'{"count": "many"}', b'{"tokens": ["a"]}',
        b'{"tokens": 3}',
    ],
)  # fmt: skip
def test_answers_of_another_kind(body: bytes) -> None:
    """Whatever JSON or text comes, there is no answer in it and no exception."""
    with answering(body) as odd:
        assert odd.health() == 200
        assert odd.model_names() == []
        assert odd.worker_call("kpad_status") is None
        assert odd.prompt_tokens([]) is None
        assert odd.token_ids("one", 5) is None

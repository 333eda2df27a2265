"""What any vLLM server answers to the harness outside a measured pass: health, metrics, workers.

Plain HTTP over a Unix socket or TCP, one request at a time. A missing answer is None, never a zero.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NO_ANSWER = (OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens (``socket_path`` wins over the URL) and the model name it goes by."""

    served_name: str
    base_url: str = "http://localhost"
    socket_path: Path | None = None

    def get(self, path: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
        """(HTTP status, body). Raises OSError or http.client.HTTPException when nobody answers."""
        return self._request("GET", path, None, timeout_s)

    def post(self, path: str, body: Any, timeout_s: float = 60.0) -> tuple[int, bytes]:
        """(HTTP status, body) of a JSON post."""
        return self._request("POST", path, json.dumps(body).encode(), timeout_s)

    def _request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        connection = self._connection(timeout_s)
        try:
            target = urlsplit(self.base_url).path.rstrip("/") + path
            connection.request(method, target, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.socket_path is not None:
            return _UnixConnection(str(self.socket_path), timeout_s)
        url = urlsplit(self.base_url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        return kind(url.hostname or "localhost", url.port, timeout=timeout_s)

    def answer(self, path: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        """The JSON of a GET (``body`` None) or POST that answered 200; None otherwise."""
        try:
            status, data = self.get(path) if body is None else self.post(path, body, timeout_s)
            return json.loads(data) if status == 200 and data.strip() else None
        except NO_ANSWER:
            return None

    def health(self) -> int | None:
        """HTTP status of ``/health``; None when nobody answers."""
        try:
            return self.get("/health", 5)[0]
        except NO_ANSWER:
            return None

    def model_names(self) -> list[str]:
        """Names that ``/v1/models`` lists; none when it does not answer."""
        found = self.answer("/v1/models")
        entries = found.get("data") if isinstance(found, dict) else None
        cards = entries if isinstance(entries, list) else []
        return [str(card["id"]) for card in cards if isinstance(card, dict) and "id" in card]

    def metrics(self) -> str | None:
        """The text of ``/metrics``; None when it cannot be had."""
        try:
            status, body = self.get("/metrics")
        except NO_ANSWER:
            return None
        return body.decode("utf-8", "replace") if status == 200 else None

    def worker_call(self, method: str) -> list[dict[str, Any]] | None:
        """What every worker answers to a method of the plugin; None when it is not there."""
        found = self.answer("/collective_rpc", {"method": method})
        results = found.get("results") if isinstance(found, dict) else None
        if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
            return None
        return results

    def reset_prefix_cache(self) -> bool:
        """Ask for an empty prefix cache. 0.25.1 answers 200 either way: prefix_hits is the proof."""
        try:
            return self.post("/reset_prefix_cache", {})[0] == 200
        except NO_ANSWER:
            return False

    def prompt_tokens(self, messages: list[dict[str, str]]) -> int | None:
        """Tokens of a templated prompt by the server's own tokenizer; None when it cannot tell.

        Without a chat template, of the text that ``/v1/completions`` gets in its place.
        """
        plain = {"model": self.served_name, "prompt": "\n\n".join(one["content"] for one in messages)}
        templated = {"model": self.served_name, "messages": messages}
        found = self.answer("/tokenize", templated) or self.answer("/tokenize", plain)
        count = found.get("count") if isinstance(found, dict) else None
        return count if isinstance(count, int) else None

    def token_ids(self, text: str, timeout_s: float) -> list[int] | None:
        """A text as the server's tokenizer cuts it, without special tokens; None when it cannot tell."""
        body = {"model": self.served_name, "prompt": text, "add_special_tokens": False}
        found = self.answer("/tokenize", body, timeout_s)
        ids = found.get("tokens") if isinstance(found, dict) else None
        return ids if isinstance(ids, list) and all(isinstance(one, int) for one in ids) else None


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect; on failure ``close`` closes the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

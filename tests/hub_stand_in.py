"""A hub on 127.0.0.1 that the real ``huggingface_hub`` talks to: models, commits, gates, cut answers."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT, LATER = "a" * 40, "b" * 40


class Hub:
    """What is on the hub, and what was asked. Start with ``with``."""

    def __init__(self) -> None:
        #: hub id -> commit -> file -> bytes
        self.models: dict[str, dict[str, dict[str, bytes]]] = {}
        #: hub id -> commit that main means
        self.main: dict[str, str] = {}
        #: hub ids with terms, and the tokens that have accepted them
        self.gated: dict[str, set[str]] = {}
        #: file names whose answers end after so many bytes
        self.cut: dict[str, int] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815 the library's name

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, hub_id: str, files: dict[str, bytes], commit: str = COMMIT) -> None:
        """Put a commit there; main is the newest."""
        self.models.setdefault(hub_id, {})[commit] = files
        self.main[hub_id] = commit

    def downloads(self) -> list[str]:
        """Files whose bytes were asked for, in order."""
        return [
            line.rpartition("/")[2] for line in self.asked if line.startswith("GET") and "/resolve/" in line
        ]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """One request."""
        path = urlsplit(request.path).path.strip("/")
        self.asked.append(f"{request.command} {path}")
        parts = path.split("/")
        is_api = parts[:2] == ["api", "models"]
        hub_id, rest = ("/".join(parts[2:4]), parts[4:]) if is_api else ("/".join(parts[:2]), parts[2:])
        if hub_id not in self.models:
            return self._refuse(request, 404, "RepoNotFound")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        is_open = token in self.gated.get(hub_id, {token})
        if not is_open and (rest == ["auth-check"] or not is_api):
            return self._refuse(request, 403 if token else 401, "GatedRepo")
        if rest == ["auth-check"]:
            return self._send(request, b"{}")
        commit = {"main": self.main[hub_id]}.get(rest[1], rest[1]) if len(rest) > 1 else self.main[hub_id]
        if commit not in self.models[hub_id]:
            return self._refuse(request, 404, "RevisionNotFound")
        files = self.models[hub_id][commit]
        if is_api:
            body = self._tree(files) if rest[:1] == ["tree"] else self._info(hub_id, commit, files)
            return self._send(request, json.dumps(body).encode())
        return self._file(request, commit, "/".join(rest[2:]), files)

    def _info(self, hub_id: str, commit: str, files: dict[str, bytes]) -> dict[str, object]:
        siblings = [
            {"rfilename": name, "size": len(data), "blobId": "0" * 40} | self._lfs(name, data)
            for name, data in files.items()
        ]
        return {"id": hub_id, "sha": commit, "siblings": siblings, "tags": [], "private": False}

    def _tree(self, files: dict[str, bytes]) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
            | ({"lfs": {"oid": sha(data), "size": len(data), "pointerSize": 130}} if is_large(name) else {})
            for name, data in files.items()
        ]

    def _lfs(self, name: str, data: bytes) -> dict[str, object]:
        return {"lfs": {"sha256": sha(data), "size": len(data), "pointerSize": 130}} if is_large(name) else {}

    def _file(self, request: BaseHTTPRequestHandler, commit: str, name: str, files: dict[str, bytes]) -> None:
        data = files[name]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{sha(data)}"', "Accept-Ranges": "bytes"}
        asked = request.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        end = self.cut.get(name) if request.command == "GET" else None
        self._send(request, data[start:], headers, 206 if asked else 200, end)

    def _send(self, request, body, headers=None, status=200, end=None) -> None:
        request.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body[:end])
        if end is not None:
            request.close_connection = True

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        self._send(request, b'{"error": "refused"}', {"X-Error-Code": code}, status)


def is_large(name: str) -> bool:
    """Whether the hub keeps such a file in large file storage."""
    return name.endswith((".safetensors", ".bin", ".pth"))


def sha(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()

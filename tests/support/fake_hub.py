"""A small Hugging Face hub on loopback: the routes that its client uses, and the ways in which a hub fails.

GET  /api/models/ORG/NAME[/revision/REV]      what there is, and the model card's header
GET  /api/models/ORG/NAME/tree/COMMIT         sizes and ids of the files
HEAD, GET /ORG/NAME/resolve/REV/FILE          headers with id, size and commit; bytes, with ranges
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeHub", "Repository", "fake_hub"]


WEIGHTS = (".gguf", ".safetensors")


@dataclass(slots=True, kw_only=True)
class Repository:
    """Files by path. ``branches`` are further revisions; each has all files."""

    files: dict[str, bytes]
    card: dict[str, Any] | None = None
    branches: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    token: str | None = None
    """Who gives it may read a gated or private repository."""

    def commits(self) -> dict[str, dict[str, bytes]]:
        """Files by revision: branches, and the commits they are at."""
        named = {"main": self.files, **self.branches}
        return named | {commit_of(files): files for files in named.values()}


def commit_of(files: Mapping[str, bytes]) -> str:
    """The commit of a state of the files: it changes when they do."""
    digest = hashlib.sha1()
    for name, content in sorted(files.items()):
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()


@dataclass(slots=True)
class FakeHub:
    """What it holds, what it was asked, and how it fails."""

    repositories: dict[str, Repository]
    url: str = ""
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    """(method, path, range, authorization) in order."""
    break_after: int | None = None
    """The next download of a .gguf or .safetensors file ends after so many bytes, once."""
    wrong_size: int = 0
    """Files are said to be so many bytes longer than they are."""
    status: int | None = None
    """Everything is answered with this."""
    damage: str | None = None
    """Files with this ending arrive with their last byte changed."""
    damage_first_part: bool = False
    """The download that ends early has its first byte changed."""
    odd_ids: bool = False
    """Ids of files are no hashes, as a mirror may have them."""
    storage: str | None = None
    """Another server that files with weights are read from, as from the hub's storage: its address."""

    def downloads(self) -> list[str]:
        """The files that were read, in order, ranges and all."""
        return [
            path.split("/resolve/")[1].split("/", 1)[1] for method, path, *_ in self.requests if _is_read(method, path)
        ]

    def id_of(self, name: str, content: bytes) -> str:
        """The id of a file: of weights the SHA-256, of others what git has."""
        if self.odd_ids:
            return f"made-{len(content)}"
        return hashlib.sha256(content).hexdigest() if name.endswith(WEIGHTS) else git_id(content)


def git_id(content: bytes) -> str:
    """As ``git hash-object`` says."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _is_read(method: str, path: str) -> bool:
    return method == "GET" and "/resolve/" in path


@contextmanager
def fake_hub(repositories: Mapping[str, Repository]) -> Iterator[FakeHub]:
    """Runs a hub until the block ends."""
    hub = FakeHub(dict(repositories))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        pass

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        path = self.path.split("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range"), self.headers.get("Authorization")))
        if self.hub.status is not None:
            self._fail(self.hub.status, "")
            return
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            self._with_files(match[1], match[2] or "main", self._info)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._with_files(match[1], match[2], self._tree)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._with_files(match[1], match[2], lambda repo, files: self._file(repo, files, match[3]))
        else:
            self._fail(404, "")

    def _with_files(self, name: str, revision: str, answer: Any) -> None:
        repository = self.hub.repositories.get(name)
        known = repository is not None and (
            repository.token is not None and self.headers.get("Authorization") == f"Bearer {repository.token}"
        )
        if repository is None or (repository.private and not known):
            self._fail(401, "RepoNotFound")
        elif revision not in repository.commits():
            self._fail(404, "RevisionNotFound")
        elif repository.gated and not known and "/resolve/" in self.path:
            self._fail(403, "GatedRepo")
        else:
            answer(repository, repository.commits()[revision])

    def _info(self, repository: Repository, files: Mapping[str, bytes]) -> None:
        self._json(
            {
                "id": "ignored/ignored",
                "sha": commit_of(files),
                "siblings": [{"rfilename": name} for name in files],
                "cardData": repository.card,
            }
        )

    def _tree(self, _repository: Repository, files: Mapping[str, bytes]) -> None:
        entries = [
            {
                "type": "file",
                "path": name,
                "size": self._size(content),
                "oid": git_id(content),
                **self._stored(name, content),
            }
            for name, content in files.items()
        ]
        self._json(entries)

    def _stored(self, name: str, content: bytes) -> dict[str, Any]:
        if not name.endswith(WEIGHTS):
            return {}
        return {"lfs": {"oid": self.hub.id_of(name, content), "size": self._size(content), "pointerSize": 130}}

    def _file(self, _repository: Repository, files: Mapping[str, bytes], name: str) -> None:
        if name not in files:
            self._fail(404, "EntryNotFound")
            return
        content = files[name]
        linked = self.hub.storage is not None and name.endswith(WEIGHTS)
        begin = 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            begin = int(match[1])
        self.send_response(302 if linked else 206 if begin else 200)
        self.send_header("ETag", f'"{self.hub.id_of(name, content)}"')
        if linked:
            self.send_header("Location", f"{self.hub.storage}{self.path}")
            self.send_header("X-Linked-Etag", f'"{self.hub.id_of(name, content)}"')
        self.send_header("X-Repo-Commit", commit_of(files))
        self.send_header("X-Linked-Size", str(self._size(content)))
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", "0" if linked else str(len(content) - begin))
        self.end_headers()
        if self.command == "GET" and not linked:
            self._body(name, content[begin:])

    def _body(self, name: str, content: bytes) -> None:
        after = self.hub.break_after
        if self.hub.damage and name.endswith(self.hub.damage):
            content = content[:-1] + bytes([content[-1] ^ 1])
        if after is not None and name.endswith(WEIGHTS):
            self.hub.break_after = None
            if self.hub.damage_first_part:
                content = bytes([content[0] ^ 1]) + content[1:]
            self.wfile.write(content[:after])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(content)

    def _size(self, content: bytes) -> int:
        return len(content) + self.hub.wrong_size

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

"""A loopback stand-in for the Hugging Face hub and for a plain web server, with faults on demand.

Speaks what the real client asks: HEAD and GET /ORG/REPO/resolve/REV/FILE with the hub's headers, a redirect to a
"CDN" on another host name (localhost, so that credentials must not follow), ranges, a repository's files two ways.
`/files/NAME` and `/moved/NAME` are a plain server. A thread of the test's own process; stopped by the context manager.
"""

import hashlib
import json
import re
import socket
import struct
import threading
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import unquote, urlsplit

from tests.loopback import LoopbackServer, QuietHandler

COMMIT = "a" * 40
PATIENCE_S = 30.0
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<revision>[^/]+)")
_TREE = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came, in the order of arrival."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A repository's answer to everything. `error_code` is the hub's X-Error-Code."""

    status: int
    error_code: str | None = None


class HubStandIn(LoopbackServer):
    """`with HubStandIn() as hub: hub.add("org/repo", "x.gguf", content); ... hub.url`."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.plain: dict[str, bytes] = {}
        self.refusals: dict[str, Refusal] = {}
        self.asked: list[Asked] = []
        self.stated_sha256: str | None = None
        """The hub's statement about every file instead of the truth."""
        self.cut_once_after: int | None = None
        """The next body ends after this many bytes."""
        self.wants_reset = False
        """The cut is a TCP reset instead of a close."""
        self.failures: list[int] = []
        """Statuses of the next answers to GETs of plain files and CDN files."""
        self.ignores_ranges = False
        self.hides_length = False
        self.gate_after: int | None = None
        """Bodies pause after this many bytes until `gate` is set."""
        self.gate = threading.Event()
        self.at_gate = threading.Event()
        self.n_body_bytes = 0
        super().__init__(type("Handler", (_Handler,), {"hub": self}))

    @property
    def cdn_url(self) -> str:
        return f"http://localhost:{self.port}/cdn"

    def add(self, repo: str, file: str, content: bytes) -> None:
        self.repos.setdefault(repo, {})[file] = content

    def body_requests(self) -> list[Asked]:
        """The requests that were for the bytes of a file."""
        return [asked for asked in self.asked if asked.method == "GET" and asked.path.startswith(("/cdn/", "/files/"))]

    def content_of(self, path: str) -> bytes | None:
        """The bytes at a plain or CDN path."""
        if path.startswith("/files/"):
            return self.plain.get(path.removeprefix("/files/"))
        repo, _, file = path.removeprefix("/cdn/").partition("//")
        return self.repos.get(repo, {}).get(file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        super().__exit__(kind, error, trace)


class _Handler(QuietHandler):
    hub: HubStandIn

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(Asked(self.command, path, self.headers["Range"], self.headers["Authorization"]))
        if match := _INFO.fullmatch(path):
            self._info(match["repo"], match["revision"])
        elif match := _TREE.fullmatch(path):
            self._tree(match["repo"])
        elif path.startswith("/moved/"):
            self.answer(302, {"Location": f"/files/{path.removeprefix('/moved/')}"})
        elif path.startswith(("/files/", "/cdn/")):
            self._bytes(self.hub.content_of(path))
        elif match := _RESOLVE.fullmatch(path):
            self._resolve(match["repo"], match["revision"], match["file"])
        else:
            self.answer(404)

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        if self._is_refused(repo) or self._is_unknown(revision):
            return
        content = self.hub.repos[repo].get(file)
        if content is None:
            self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        sha256 = self.hub.stated_sha256 or hashlib.sha256(content).hexdigest()
        linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256}"', "X-Repo-Commit": COMMIT}
        self.answer(302, {"Location": f"{self.hub.cdn_url}/{repo}//{file}?signature=secret", **linked})

    def _info(self, repo: str, revision: str) -> None:
        if self._is_refused(repo) or self._is_unknown(revision):
            return
        siblings = [{"rfilename": file} for file in self.hub.repos[repo]]
        info = {"id": repo, "sha": COMMIT, "siblings": siblings}
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def _tree(self, repo: str) -> None:
        if self._is_refused(repo):
            return
        files = [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}  # noqa: S324 - git's own digest, which is no proof here either
            for file, content in self.hub.repos[repo].items()
        ]
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(files).encode())

    def _is_refused(self, repo: str) -> bool:
        refusal = self.hub.refusals.get(repo) or (None if repo in self.hub.repos else Refusal(404, "RepoNotFound"))
        if refusal is None:
            return False
        self.answer(refusal.status, {"X-Error-Code": refusal.error_code} if refusal.error_code else {})
        return True

    def _is_unknown(self, revision: str) -> bool:
        if revision in ("main", COMMIT):
            return False
        self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        return True

    def _bytes(self, content: bytes | None) -> None:
        if self.hub.failures:
            self.answer(self.hub.failures.pop(0))
            return
        if content is None:
            self.answer(404)
            return
        match = None if self.hub.ignores_ranges else _RANGE.fullmatch(self.headers["Range"] or "")
        start = int(match[1]) if match else 0
        if match and start >= len(content):
            self.answer(416, {"Content-Range": f"bytes */{len(content)}"})
            return
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if not self.hub.hides_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self._body(content[start:])

    def _body(self, content: bytes) -> None:
        cut, self.hub.cut_once_after = self.hub.cut_once_after, None
        if self.hub.gate_after is not None:
            self._send(content[: self.hub.gate_after])
            self.hub.at_gate.set()
            self.hub.gate.wait(PATIENCE_S)
            content = content[self.hub.gate_after :]
        self._send(content if cut is None else content[:cut])
        if cut is not None and self.hub.wants_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _send(self, content: bytes) -> None:
        self.wfile.write(content)
        self.hub.n_body_bytes += len(content)

"""A hub on a local socket that speaks as much of the Hugging Face Hub's HTTP as a download needs: metadata, byte ranges, gates, and
connections that break."""

import hashlib
import http.server
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

SHA = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(i * 7 % 251 for i in range(3_000)) * 1000


@dataclass
class Repo:
    """`files`: content by name; `sizes`: what the hub says instead of the truth."""

    files: dict[str, bytes]
    gated: bool = False
    sizes: dict[str, int] = field(default_factory=dict[str, int])


class Hub:
    """What there is, what was asked for, and how connections behave."""

    def __init__(self) -> None:
        self.url = ""
        self.repos: dict[str, Repo] = {
            "org/tiny": Repo({
                "config.json": b'{"architectures": ["X"]}', "model.safetensors": WEIGHTS, "tokenizer.json": b"{}",
                "pytorch_model.bin": b"old", "onnx/model.onnx": b"other",
            }),
            "org/gated": Repo({"config.json": b"{}"}, gated=True),
            "org/huge": Repo({"config.json": b"{}", "model.safetensors": b"x"}, sizes={"model.safetensors": 1 << 60}),
        }  # fmt: skip
        self.asked: Counter[str] = Counter()
        """GETs by file."""
        self.ranges: list[int] = []
        """Where requests for weights began."""
        self.tokens: set[str] = set()
        self.break_after: list[int] = []
        """For the next requests for weights: after how many bytes each connection breaks."""
        self.hold: threading.Event | None = None
        """Weights stop in their middle until it is set."""
        self.status = 0
        """Answer everything with it."""


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
        pass

    def do_HEAD(self) -> None:
        self._serve(head=True)

    def do_GET(self) -> None:
        self._serve(head=False)

    def _serve(self, *, head: bool) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        if token := self.headers.get("authorization"):
            hub.tokens.add(token)
        if hub.status:
            self._say(hub.status, {"error": "down"})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+)|/(auth-check)|/tree/.*)?", path):
            self._model(*match.groups())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(match[1], match[3], head=head)
        else:
            self._say(404, {"error": "no route"})

    def _model(self, name: str, revision: str | None, check: str | None) -> None:
        repo = self.hub.repos.get(name)
        if repo is None:
            self._say(401, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})
        elif revision not in {None, "main", SHA}:
            self._say(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
        elif check and repo.gated and self.headers.get("authorization") != "Bearer hf_good":
            self._say(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif "/tree/" in self.path:
            self._say(200, [
                {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha256(c).hexdigest()} for n, c in repo.files.items()
            ])  # fmt: skip
        else:
            siblings = [{"rfilename": n, "size": repo.sizes.get(n, len(c))} for n, c in repo.files.items()]
            self._say(200, {
                "id": name, "modelId": name, "sha": SHA, "siblings": siblings, "private": False, "downloads": 0, "likes": 0,
                "tags": [], "gated": "auto" if repo.gated else False,
            })  # fmt: skip

    def _file(self, name: str, file: str, *, head: bool) -> None:
        hub, repo = self.hub, self.hub.repos[name]
        if file not in repo.files:
            self._say(404, {"error": "no file"}, {"X-Error-Code": "EntryNotFound"})
            return
        if repo.gated and self.headers.get("authorization") != "Bearer hf_good":
            self._say(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
            return
        content = repo.files[file]
        start = int(m[1]) if (m := re.match(r"bytes=(\d+)-", self.headers.get("range", ""))) else 0
        etag = hashlib.sha256(content).hexdigest()[: 64 if file.endswith(".safetensors") else 40]
        self.send_response(206 if start else 200)
        for key, value in {
            "ETag": f'"{etag}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes", "Content-Length": str(len(content) - start),
            **({"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}),
        }.items():  # fmt: skip
            self.send_header(key, value)
        self.end_headers()
        if head:
            return
        hub.asked[file] += 1
        body, weights = content[start:], file.endswith(".safetensors")
        if weights:
            hub.ranges.append(start)
        if weights and hub.break_after:
            self.wfile.write(body[: hub.break_after.pop(0)])
            self.close_connection = True
            return
        if weights and hub.hold is not None:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            hub.hold.wait(60)
            body = body[len(body) // 2 :]
        try:
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True

    def _say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def hub() -> Iterator[Hub]:
    """One that answers until the end of the context."""
    made = Hub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": made}))
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield made
    finally:
        if made.hold is not None:
            made.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()

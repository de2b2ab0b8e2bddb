"""Stand-in for the Hugging Face hub: repositories in memory behind part of its HTTP API."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

REPO = r"(?P<kind>models|datasets)/(?P<name>[\w.-]+/[\w.-]+)"
SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `repos`: files by path, of each repository by kind and name."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: dict[str, Any] = {}
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = (
                f"{asked['organization']}/{asked['name']}"
                if "organization" in asked
                else asked["name"]
            )
            kind = asked.get("type") or "model"
            self.server.repos.setdefault((f"{kind}s", name), {})
            # older versions of huggingface_hub send `private`
            self.server.private[name] = asked.get("visibility") == "private" or asked.get("private")
            self.answer({"url": f"{self.server.url}/{name}", "name": name})
        elif self.path == "/api/validate-yaml":
            header = json.loads(body)["content"].split("---\n")[1]
            errors = [] if isinstance(yaml.safe_load(header), dict) else [{"message": "not YAML"}]
            self.answer({"errors": errors, "warnings": []})
        elif found := re.fullmatch(rf"/api/{REPO}/preupload/main.*", self.path):
            files = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for one in json.loads(body)["files"]]  # fmt: skip
            self.answer({"files": files})
        elif found := re.fullmatch(rf"/api/{REPO}/commit/main.*", self.path):
            repo = self.server.repos[found["kind"], found["name"]]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    assert line["value"]["encoding"] == "base64"
                    repo[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer(
                {"commitUrl": f"{self.server.url}/{found['name']}/commit/{SHA}", "commitOid": SHA}
            )
        else:
            self.answer({"error": "unknown"}, 404)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if found := re.fullmatch(rf"/api/{REPO}(/revision/\w+|/tree/\w+)?", path):
            repo = self.server.repos.get((found["kind"], found["name"]))
            if repo is None:
                self.answer({"error": "Repository not found"}, 404, "RepoNotFound")
            elif "/tree/" in path:
                self.answer([{"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                             for name, data in repo.items()])  # fmt: skip
            else:
                siblings = [{"rfilename": name} for name in repo]
                self.answer(
                    {"id": found["name"], "sha": SHA, "siblings": siblings, "private": False}
                )
        elif found := re.fullmatch(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/\w+/(.+)", path):
            kind = "datasets" if found[1] else "models"
            data = self.server.repos[kind, found[2]].get(found[3])
            if data is None:
                self.answer({"error": "Entry not found"}, 404, "EntryNotFound")
            else:
                self.send(data, {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": SHA})
        else:
            self.answer({"error": "unknown"}, 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, value: Any, status: int = 200, code: str = "") -> None:
        headers = {"Content-Type": "application/json"} | ({"X-Error-Code": code} if code else {})
        self.send(json.dumps(value).encode(), headers, status)

    def send(self, data: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve an empty hub."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.shutdown()

"""An HTTP server on loopback that misbehaves: the n-th fault applies to the n-th request."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import HANG_TIMEOUT_SECONDS


@dataclass
class File:
    """A served file, with the faults of its next responses."""

    data: bytes
    etag: str = '"one"'
    modified: str = "Sat, 01 Feb 2025 00:00:00 GMT"
    ranges: bool = True
    end: str = "length"
    """How the end of a body is marked: its length, chunks, or not (the connection closes)."""
    headers: tuple[tuple[str, str], ...] = ()
    """Additional headers, which replace those of the same name."""
    heeds_if_range: bool = True
    faults: list["Fault"] = field(default_factory=list)


@dataclass(frozen=True)
class Fault:
    """What is wrong with one response."""

    status: int = 0
    """Status of a response without a body, which has `headers`; 0 for a normal response."""
    headers: tuple[tuple[str, str], ...] = ()
    send: int | None = None
    """Number of bytes of the body after which the connection breaks off."""
    stall: bool = False
    """Whether the server sends nothing more instead of breaking off."""
    lie: int = 0
    """Bytes by which the Content-Length is too large; negative if it is too small."""
    then: Callable[[], None] | None = None
    """Function that is called after the response."""


class Server:
    """The served files, and the path, Range and If-Range of each request."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.files: dict[str, File] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.closing = threading.Event()
        self.sent = threading.Event()
        """Set when a stall begins."""

    def publish(self, name: str, data: bytes, sha256: str | None = None, **more: Any) -> File:
        """Serve a file as Lichess does, with a line in the list of hashes."""
        file = self.files[f"/standard/{name}"] = File(data, **more)
        sums = self.files.setdefault("/standard/sha256sums.txt", File(b"", etag="", modified=""))
        sums.data += f"{sha256 or hashlib.sha256(data).hexdigest()}  {name}\n".encode()
        return file

    def ranges(self, name: str) -> list[str | None]:
        """Return the Range of each request for a file."""
        return [wanted for path, wanted, _ in self.asked if path.endswith(name)]


@contextmanager
def serving() -> Iterator[Server]:
    """Serve on a free port of loopback during the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            server.asked.append((path, self.headers["Range"], self.headers["If-Range"]))
            if (file := server.files.get(path)) is None:
                self.send_error(404)
                return
            fault = file.faults.pop(0) if file.faults else Fault()
            if fault.status:
                self.send_response(fault.status)
                for name, value in fault.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.answer(file, fault)
            if fault.then:
                fault.then()

        def answer(self, file: File, fault: Fault) -> None:
            asked = self.headers["Range"] or "" if file.ranges else ""
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
            is_same = self.headers["If-Range"] in (None, file.etag, file.modified)
            wanted = wanted if is_same or not file.heeds_if_range else None
            begin = int(wanted[1]) if wanted else 0
            end = int(wanted[2]) + 1 if wanted and wanted[2] else len(file.data)
            if begin >= len(file.data) and wanted:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(file.data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = file.data[begin:end]
            self.send_response(206 if wanted else 200)
            part = f"bytes {begin}-{begin + len(body) - 1}/{len(file.data)}"
            said = {"Content-Range": part} if wanted else {}
            versions = {"ETag": file.etag, "Last-Modified": file.modified}
            said |= {name: value for name, value in versions.items() if value}
            said |= {"Content-Length": str(len(body) + fault.lie)} if file.end == "length" else {}
            said |= {"Transfer-Encoding": "chunked"} if file.end == "chunked" else {}
            for name, value in (said | dict(file.headers)).items():
                self.send_header(name, value)
            self.end_headers()
            broken = fault.send is not None or bool(fault.lie)
            self.close_connection = self.close_connection or broken or file.end == "nothing"
            sent = body[: fault.send] if fault.send is not None else body[: len(body) + fault.lie]
            if file.end == "chunked":
                chunk = b"%x\r\n%s\r\n" % (len(sent), sent) if sent else b""
                self.wfile.write(chunk + b"0\r\n\r\n" * (not broken))
            else:
                self.wfile.write(sent)
            self.wfile.flush()
            if fault.stall:
                server.sent.set()
                server.closing.wait(HANG_TIMEOUT_SECONDS)

        def log_message(self, *_: object) -> None:
            return

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            return  # clients that disconnect are part of the tests

    http = Quiet(("127.0.0.1", 0), Handler)
    server = Server(http.server_address[1])
    thread = threading.Thread(
        target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        http.shutdown()
        http.server_close()

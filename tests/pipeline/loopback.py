"""An HTTP server on loopback that misbehaves: the n-th request for a file meets its n-th fault."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import LONG


@dataclass
class File:
    """A file to serve, and how."""

    data: bytes
    etag: str = '"one"'
    modified: str = "Sat, 01 Feb 2025 00:00:00 GMT"
    ranges: bool = True
    end: str = "length"
    """How the end of a body is marked: `length`, `chunked`, or `nothing`: the connection closes."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers; they replace those of the same name."""
    obeys_if_range: bool = True
    faults: list["Fault"] = field(default_factory=list)
    """What goes wrong in the next answers, one for each."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with one answer."""

    status: int = 0
    """Status of an answer without a body; 0 for a usual answer."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of an answer without a body."""
    send: int | None = None
    """Number of bytes of the body to send before the connection is closed."""
    stall: bool = False
    """Whether to keep the connection open instead, without sending more."""
    lie: int = 0
    """Number to add to the Content-Length."""
    then: Callable[[], None] | None = None
    """Function to call after the answer."""


class Server:
    """The files of a running server, and the requests that it has received."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.files: dict[str, File] = {}
        self.requests: list[tuple[str, str | None, str | None]] = []
        """Path, Range and If-Range of each request."""
        self.closing = threading.Event()
        self.sent = threading.Event()
        """Set when a stall begins."""

    def publish(self, name: str, data: bytes, sha256: str | None = None, **more: Any) -> File:
        """Serve a file as Lichess does, with its line in the list of hashes."""
        file = self.files[f"/standard/{name}"] = File(data, **more)
        sums = self.files.setdefault("/standard/sha256sums.txt", File(b"", etag="", modified=""))
        sums.data += f"{sha256 or hashlib.sha256(data).hexdigest()}  {name}\n".encode()
        return file

    def ranges(self, name: str) -> list[str | None]:
        """Return the Range of each request for a file."""
        return [byte_range for path, byte_range, _ in self.requests if path.endswith(name)]


@contextmanager
def serving() -> Iterator[Server]:
    """Serve on a free port of loopback until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            server.requests.append((path, self.headers["Range"], self.headers["If-Range"]))
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
            header = self.headers["Range"] or "" if file.ranges else ""
            byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", header)
            is_same = self.headers["If-Range"] in (None, file.etag, file.modified)
            byte_range = byte_range if is_same or not file.obeys_if_range else None
            begin = int(byte_range[1]) if byte_range else 0
            end = int(byte_range[2]) + 1 if byte_range and byte_range[2] else len(file.data)
            if begin >= len(file.data) and byte_range:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(file.data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = file.data[begin:end]
            self.send_response(206 if byte_range else 200)
            part = f"bytes {begin}-{begin + len(body) - 1}/{len(file.data)}"
            headers = {"Content-Range": part} if byte_range else {}
            versions = {"ETag": file.etag, "Last-Modified": file.modified}
            headers |= {name: value for name, value in versions.items() if value}
            if file.end == "length":
                headers["Content-Length"] = str(len(body) + fault.lie)
            elif file.end == "chunked":
                headers["Transfer-Encoding"] = "chunked"
            for name, value in (headers | dict(file.headers)).items():
                self.send_header(name, value)
            self.end_headers()
            is_broken = fault.send is not None or bool(fault.lie)
            self.close_connection = self.close_connection or is_broken or file.end == "nothing"
            sent = body[: fault.send] if fault.send is not None else body[: len(body) + fault.lie]
            if file.end == "chunked":
                chunk = b"%x\r\n%s\r\n" % (len(sent), sent) if sent else b""
                self.wfile.write(chunk + b"0\r\n\r\n" * (not is_broken))
            else:
                self.wfile.write(sent)
            self.wfile.flush()
            if fault.stall:
                server.sent.set()
                server.closing.wait(LONG)

        def log_message(self, *_: object) -> None:
            return

    class QuietServer(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            return  # the tests' clients disconnect on purpose

    http = QuietServer(("127.0.0.1", 0), Handler)
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

"""A lying web server: one whole version of the file is read, or an error says why not."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pipeline.errors import FetchError, SourceChangedError
from pipeline.storage import http
from pipeline.storage.http import WebFile
from tests.pipeline.loopback import Fault, File, Server, serving

OLD = random.Random(1).randbytes(400_000)
NEW = OLD[:100_000] + random.Random(2).randbytes(300_000)
"""Another version of the same size, with the same beginning."""
PROOFS: dict[str, dict[str, Any]] = {
    "a strong etag": {},
    "a weak etag": {"etag": 'W/"one"'},
    "a time": {"etag": ""},
    "nothing": {"etag": "", "modified": ""},
    "an etag that is ignored": {"heeds_if_range": False},
    "no ranges": {"ranges": False},
}


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(http, "wait_unless_stopped", lambda seconds, stop: None)
    monkeypatch.setattr(http, "ATTEMPTS", 3)
    monkeypatch.setattr(http, "STALL_SECONDS", 10.0)
    running.asked.clear()
    return running


def read(server: Server) -> bytes:
    file = WebFile(f"{server.url}/a.pgn")
    try:
        return b"".join(iter(lambda: file.read(1 << 16), b""))
    finally:
        file.close()


def replaced_by(server: Server, file: File) -> Callable[[], None]:
    return lambda: server.files.update({"/a.pgn": file})


@pytest.mark.parametrize(
    ("proof", "send"), [*((proof, 250_000) for proof in PROOFS), ("a strong etag", 1)]
)
def test_two_versions_are_never_joined(server: Server, proof: str, send: int) -> None:
    new = File(NEW, **({"etag": '"two"'} | PROOFS[proof]))
    fault = Fault(send=send, then=replaced_by(server, new))
    server.files["/a.pgn"] = File(OLD, **PROOFS[proof], faults=[fault])
    with pytest.raises(SourceChangedError, match=r"replaced by another version|no strong ETag"):
        read(server)


@pytest.mark.parametrize("end", ["length", "chunked"])
def test_a_broken_stream_is_resumed_only_with_proof(server: Server, end: str) -> None:
    faults = [Fault(send=200_000), Fault(send=50_000)]
    server.files["/a.pgn"] = File(OLD, end=end, faults=list(faults))
    assert read(server) == OLD
    assert server.ranges("/a.pgn") == [None, "bytes=200000-", "bytes=250000-"]
    for proof in ("a weak etag", "a time", "nothing", "no ranges"):
        server.files["/a.pgn"] = File(OLD, end=end, **PROOFS[proof], faults=list(faults))
        with pytest.raises(SourceChangedError, match=r"cannot resume it|no strong ETag"):
            read(server)
    faults = [Fault(send=1)] + [Fault(send=0)] * 3
    server.files["/a.pgn"] = File(OLD, end=end, faults=faults)
    with pytest.raises(FetchError, match="gave up at byte 1 after 3 failed attempts"):
        read(server)


def test_a_part_whose_answer_does_not_repeat_the_etag_is_not_taken(server: Server) -> None:
    file = server.files["/a.pgn"] = File(OLD, heeds_if_range=False)
    file.faults += [Fault(send=300_000, then=lambda: setattr(file, "etag", ""))]
    with pytest.raises(SourceChangedError):
        read(server)


@pytest.mark.parametrize("send", [None, 0, 200_000, 400_000])
def test_a_body_whose_end_is_not_marked_is_refused(server: Server, send: int | None) -> None:
    server.files["/a.pgn"] = File(OLD, end="nothing", faults=[Fault(send=send)])
    with pytest.raises(FetchError, match="a broken connection would go unnoticed"):
        read(server)


LIES: dict[str, File] = {
    "a range of 5,000 digits": File(OLD, headers=(("Content-Range", "bytes 0-9/" + "9" * 5000),)),
    "a length of 5,000 digits": File(OLD, headers=(("Content-Length", "9" * 5000),)),
    "a length below zero": File(OLD, headers=(("Content-Length", "-5"),)),
    "a header of 100 kB": File(OLD, headers=(("X-A", "a" * 100_000),)),
    "a part nobody asked for": File(OLD, faults=[Fault(status=206)] * 9),
    "waits that are none": File(
        OLD, faults=[Fault(status=503, headers=(("Retry-After", "9" * 5000),))] * 9
    ),
    "a wait of long ago": File(
        OLD, faults=[Fault(status=503, headers=(("Retry-After", "Mon, 01 Jan 0001 00:00:00 GMT"),))]
    ),
    "status 204": File(OLD, faults=[Fault(status=204)]),
    "status 416": File(OLD, faults=[Fault(status=416)]),
}
LOCATIONS = ("", "http://[::1", "http://", "file:///etc/passwd", "data:,x", "http://a:99999999/")
LOCATIONS += ("http://" + "a" * 300 + "/", "http://a..b/", "http://%zz/", "\x7f", "/a.pgn")
LIES |= {
    f"a redirect to {target[:20]!r}": File(
        OLD, faults=[Fault(status=302, headers=(("Location", target),) if target else ())] * 20
    )
    for target in LOCATIONS
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_end_in_the_file_or_in_one_line(server: Server, lie: str) -> None:
    for begin in (0, 1000):
        faults = [Fault(send=begin)] * (begin > 0) + list(LIES[lie].faults)
        server.files["/a.pgn"] = replace(LIES[lie], faults=faults)
        try:
            found = "" if read(server) == OLD else "another\nfile"
        except FetchError as error:
            found = str(error)
        assert "\n" not in found

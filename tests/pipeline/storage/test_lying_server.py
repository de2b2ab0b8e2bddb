"""A web server that lies: what is read is one version of the file, whole, or an error says why
not."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pipeline.errors import ChangedError, FetchError
from pipeline.storage import http
from pipeline.storage.http import WebFile
from tests.pipeline.loopback import Fault, File, Server, serving

OLD = random.Random(1).randbytes(400_000)
NEW = OLD[:100_000] + random.Random(2).randbytes(300_000)
"""Another version of the same size, with the same beginning."""
PROOFS: dict[str, dict[str, str]] = {
    "weak etag": {"etag": 'W/"one"', "modified": ""},
    "weak etag and a time": {"etag": 'W/"one"'},
    "nothing": {"etag": "", "modified": ""},
    "a time": {"etag": ""},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http, "rest", lambda seconds, stop: None)
    monkeypatch.setattr(http, "ATTEMPTS", 3)
    monkeypatch.setattr(http, "STALL_SECONDS", 10.0)
    with serving() as running:
        yield running


def read(server: Server) -> bytes:
    file = WebFile(f"{server.url}/a.pgn")
    try:
        return b"".join(iter(lambda: file.read(1 << 16), b""))
    finally:
        file.close()


def outcome(server: Server) -> str:
    """Return "the file", or the error."""
    try:
        return "the file" if read(server) == OLD else "another file"
    except FetchError as error:
        return str(error)


def replaced_by(server: Server, file: File) -> Callable[[], None]:
    def replace_file() -> None:
        server.files["/a.pgn"] = file

    return replace_file


@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize("send", [1, 50_000, 250_000])
def test_without_proof_two_versions_are_never_joined(server: Server, proof: str, send: int) -> None:
    new = File(NEW, **PROOFS[proof])
    server.files["/a.pgn"] = File(
        OLD, **PROOFS[proof], faults=[Fault(send=send, then=replaced_by(server, new))]
    )
    if send > 100_000:
        with pytest.raises(ChangedError, match="was replaced by another version"):
            read(server)
    else:
        assert read(server) == NEW, "its beginning is the same, so it is the new version as a whole"


@pytest.mark.parametrize("proof", PROOFS)
def test_without_proof_a_broken_stream_begins_again_and_ends_with_the_file(
    server: Server, proof: str
) -> None:
    faults = [Fault(send=300_000), Fault(send=100), Fault(send=350_000)]
    server.files["/a.pgn"] = File(OLD, **PROOFS[proof], faults=faults)
    assert read(server) == OLD
    assert server.ranges("/a.pgn") == [None] * 4


def test_a_part_whose_answer_does_not_repeat_the_validator_is_not_taken(server: Server) -> None:
    file = File(OLD, faults=[Fault(send=300_000)])
    file.faults[0] = replace(file.faults[0], then=lambda: setattr(file, "etag", ""))
    server.files["/a.pgn"] = file
    file.heeds_if_range = False
    assert read(server) == OLD
    assert server.ranges("/a.pgn") == [None, "bytes=300000-", None]


def test_a_server_that_ignores_if_range_is_noticed(server: Server) -> None:
    new = File(NEW, etag='"two"', heeds_if_range=False)
    server.files["/a.pgn"] = File(OLD, faults=[Fault(send=300_000, then=replaced_by(server, new))])
    with pytest.raises(ChangedError):
        read(server)


@pytest.mark.parametrize("send", [None, 0, 200_000, 400_000])
def test_a_body_whose_end_is_not_marked_is_refused(server: Server, send: int | None) -> None:
    server.files["/a.pgn"] = File(OLD, end="nothing", faults=[Fault(send=send)])
    with pytest.raises(FetchError, match="a broken connection would go unnoticed"):
        read(server)


def test_a_chunked_body_that_is_cut_is_continued(server: Server) -> None:
    faults = [Fault(send=200_000), Fault(send=50_000)]
    server.files["/a.pgn"] = File(OLD, end="chunked", faults=faults)
    assert read(server) == OLD
    server.files["/a.pgn"] = File(OLD, end="chunked", etag="", faults=[Fault(send=200_000)])
    assert read(server) == OLD
    server.files["/a.pgn"] = File(OLD, end="chunked", faults=[Fault(send=1)] + [Fault(send=0)] * 3)
    with pytest.raises(FetchError, match="given up at byte 1 after 3 tries"):
        read(server)


LIES: dict[str, File] = {
    "a range of 5,000 digits": File(OLD, headers=(("Content-Range", "bytes 0-9/" + "9" * 5000),)),
    "a range of words": File(OLD, headers=(("Content-Range", "bytes all/all"),)),
    "a length of 5,000 digits": File(OLD, headers=(("Content-Length", "9" * 5000),)),
    "a length below zero": File(OLD, headers=(("Content-Length", "-5"),)),
    "a length of words": File(OLD, headers=(("Content-Length", "many"),)),
    "a header of 100 kB": File(OLD, headers=(("X-A", "a" * 100_000),)),
    "200 headers": File(OLD, headers=tuple((f"X-{number}", "a") for number in range(200))),
    "a date that is none": File(OLD, etag="", modified="Mon, 99 Foo 9999 99:99:99 GMT"),
    "a time zone that is none": File(OLD, etag="", modified="Mon, 01 Jan 0001 00:00:00 +9999"),
    "a part nobody asked for": File(OLD, faults=[Fault(status=206)] * 9),
    "waits that are none": File(
        OLD, faults=[Fault(status=503, headers=(("Retry-After", "9" * 5000),))] * 9
    ),
    "a wait of long ago": File(
        OLD, faults=[Fault(status=503, headers=(("Retry-After", "Mon, 01 Jan 0001 00:00:00 GMT"),))]
    ),
    "status 999": File(OLD, faults=[Fault(status=999)]),
    "status 204": File(OLD, faults=[Fault(status=204)]),
    "status 416": File(OLD, faults=[Fault(status=416)]),
    "a redirect without an address": File(OLD, faults=[Fault(status=302)]),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("begin", [0, 1000])
def test_lies_end_in_the_file_or_in_one_line(server: Server, lie: str, begin: int) -> None:
    lying = replace(LIES[lie], faults=[Fault(send=begin)] * (begin > 0) + list(LIES[lie].faults))
    server.files["/a.pgn"] = lying
    found = outcome(server)
    assert found != "another file"
    assert "\n" not in found


LOCATIONS = [
    "http://[::1",
    "http://[::1]x/",
    "http://",
    "//",
    "http://\udcff/",
    "ftp://a/b",
    "file:///etc/passwd",
    "data:,x",
]
LOCATIONS += [
    "javascript:1",
    "http://a:99999999/",
    "http://" + "a" * 300 + "/",
    "http://a..b/",
    "http://%zz/",
    "\x7f",
]


@pytest.mark.parametrize("target", LOCATIONS)
def test_a_redirect_to_an_address_that_is_none_is_said(server: Server, target: str) -> None:
    text = target.encode("utf-8", "surrogateescape").decode("latin-1")
    server.files["/a.pgn"] = File(
        OLD, faults=[Fault(status=302, headers=(("Location", text),))] * 3
    )
    found = outcome(server)
    assert "\n" not in found
    assert any(
        word in found
        for word in ("leads nowhere", "given up at byte 0", "no such file", "the file")
    )

"""Fetch from a server that breaks connections, stalls, sends wrong data and replaces files."""

import hashlib
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import requests
from filelock import FileLock

from pipeline.dumps import fetch as module
from pipeline.dumps.fetch import MONTH_PREFIX, FetchConfig, fetch, parse_months
from pipeline.errors import ConfigError, FetchError, Stopped
from pipeline.storage import http
from pipeline.storage.stores import hash_file
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline.loopback import Fault, File, Server, serving
from tests.waiting import HANG_TIMEOUT_SECONDS, until

NAME = f"{MONTH_PREFIX}2013-01.pgn.zst"
DATA = random.Random(5).randbytes(300_000)
OTHER_DATA = random.Random(6).randbytes(310_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Server:
    shared_server.files.clear()
    shared_server.asked.clear()
    return shared_server


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the seconds of each wait instead of waiting."""
    seconds: list[float] = []
    monkeypatch.setattr(http, "STALL_SECONDS", HANG_TIMEOUT_SECONDS)
    monkeypatch.setattr(http, "wait_unless_stopped", lambda wait, stop: seconds.append(wait))
    return seconds


def fetch_month(server: Server, out: Path, **options: Any) -> dict[str, Any]:
    return fetch(["2013-01"], out, FetchConfig(base=f"{server.url}/standard"), **options)


def fetch_without_hash(server: Server, out: Path) -> dict[str, Any]:
    return fetch([f"{server.url}/a.pgn"], out)


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_month_is_fetched_and_verified_once(server: Server, tmp_path: Path) -> None:
    server.publish(NAME, DATA)
    found = fetch_month(server, tmp_path)
    entry = {"bytes": len(DATA), "sha256": SHA256, "verified": True, "fetched": True}
    assert found["files"] == {NAME: entry}
    assert (tmp_path / NAME).read_bytes() == DATA
    assert list_files(tmp_path) == [NAME]
    again = fetch_month(server, tmp_path)
    assert again["files"][NAME] == entry | {"fetched": False}
    assert again["fetched"] == 0
    assert len(server.ranges(NAME)) == 1
    (tmp_path / NAME).write_bytes(OTHER_DATA)
    with pytest.raises(FetchError, match="exists and differs from the published file"):
        fetch_month(server, tmp_path)
    with pytest.raises(Stopped):
        hash_file(tmp_path / NAME, lambda: True)
    assert (tmp_path / NAME).read_bytes() == OTHER_DATA


def test_a_broken_or_stalled_connection_is_resumed_at_its_byte(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=100_000), Fault(send=0), Fault(send=50_000), Fault(send=1)]
    ticks = []
    assert fetch_month(server, tmp_path, progress=ticks.append)["fetched"] == len(DATA)
    assert (tmp_path / NAME).read_bytes() == DATA
    starts = (100_000, 100_000, 150_000, 150_001)
    assert server.ranges(NAME) == [None, *(f"bytes={start}-" for start in starts)]
    etags = [if_range for path, _, if_range in server.asked if path.endswith(NAME)]
    assert etags[1:] == ['"one"'] * 4
    assert ticks[-1].done == ticks[-1].total == len(DATA)
    file.faults += [Fault(send=100_000, stall=True)]
    monkeypatch.setattr(http, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(http, "MAX_ATTEMPTS", 1000)  # a busy machine may stall it more than once
    fetch_month(server, tmp_path / "stalled")
    assert (tmp_path / "stalled" / NAME).read_bytes() == DATA


def test_after_six_failed_attempts_a_fetch_fails_and_keeps_the_bytes_received(
    server: Server, tmp_path: Path, waits: list[float]
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=100_000), *[Fault(send=0)] * 6]
    with pytest.raises(
        FetchError, match="gave up at byte 100,000 after 6 failed attempts in a row"
    ):
        fetch_month(server, tmp_path)
    assert waits == [0.0, 2.0, 4.0, 8.0, 16.0]
    assert list_files(tmp_path) == [f"{NAME}.part", f"{NAME}.part.json"]
    assert fetch_month(server, tmp_path)["fetched"] == len(DATA) - 100_000
    assert (tmp_path / NAME).read_bytes() == DATA
    assert list_files(tmp_path) == [NAME]


def test_retry_after_is_obeyed_up_to_a_limit(
    server: Server, tmp_path: Path, waits: list[float]
) -> None:
    file = server.publish(NAME, DATA)
    date = formatdate(time.time() + 100, usegmt=True)
    for status, header in ((429, "7"), (503, date), (503, "soon"), (502, None)):
        headers = (("Retry-After", header),) if header else ()
        file.faults.append(Fault(status=status, headers=headers))
    fetch_month(server, tmp_path)
    assert waits[0] == 7.0
    assert 0 < waits[1] <= 100
    assert waits[2:] == [4.0, 8.0]
    file.faults += [Fault(status=429, headers=(("Retry-After", "86400"),))]
    with pytest.raises(
        FetchError, match=r"answered 429 and asks to wait .* seconds: try again later"
    ):
        fetch_month(server, tmp_path / "elsewhere")
    assert len(waits) == 4


def test_a_fetch_can_be_stopped_while_it_waits(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=1000), Fault(status=503, headers=(("Retry-After", "200"),))]
    with pytest.raises(Stopped):
        fetch_month(server, tmp_path, stop=lambda: len(server.ranges(NAME)) > 1)
    assert fetch_month(server, tmp_path)["fetched"] == len(DATA) - 1000


def test_without_ranges_or_a_strong_etag_a_fetch_starts_again_up_to_three_times(
    server: Server, tmp_path: Path
) -> None:
    cases: tuple[dict[str, Any], ...] = ({"ranges": False}, {"etag": 'W/"one"'}, {"etag": ""})
    for number, options in enumerate(cases):
        file = server.publish(NAME, DATA, **options)
        file.faults += [Fault(send=200_000), Fault(send=100_000)] * (1 + (number == 0))
        fetch_month(server, tmp_path / str(number))
        assert (tmp_path / str(number) / NAME).read_bytes() == DATA
    file.faults += [Fault(send=200_000)] * 3
    with pytest.raises(
        FetchError, match=r"broke off at byte 200,000 and cannot be resumed, .* no strong ETag"
    ):
        fetch_month(server, tmp_path / "broken")


def test_a_wrong_length_or_hash_is_noticed(server: Server, tmp_path: Path) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(lie=5000)]
    fetch_month(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == DATA
    file.faults += [Fault(lie=-5000)]
    with pytest.raises(FetchError, match=r"not the published .*: the download was deleted"):
        fetch_month(server, tmp_path / "short")
    assert list_files(tmp_path / "short") == []
    server.publish(f"{MONTH_PREFIX}2013-02.pgn.zst", DATA, sha256="0" * 64)
    with pytest.raises(FetchError, match=f"has the SHA-256 {SHA256}, not the published 0000"):
        fetch(["2013-02"], tmp_path, FetchConfig(base=f"{server.url}/standard"))
    assert list_files(tmp_path) == [NAME, "short"]


def test_a_file_that_was_replaced_on_the_server_is_fetched_from_the_start(
    server: Server, tmp_path: Path
) -> None:
    replacement = File(OTHER_DATA, etag='"two"')
    server.files["/a.pgn"] = File(DATA, faults=[Fault(send=100_000), Fault(status=404)])
    with pytest.raises(FetchError, match="404"):
        fetch_without_hash(server, tmp_path)
    assert (tmp_path / "a.pgn.part").stat().st_size == 100_000
    server.files["/a.pgn"] = replacement
    assert fetch_without_hash(server, tmp_path)["files"]["a.pgn"]["verified"] is False
    assert (tmp_path / "a.pgn").read_bytes() == OTHER_DATA
    fault = Fault(send=100_000, then=lambda: server.files.update({"/a.pgn": replacement}))
    server.files["/a.pgn"] = File(DATA, faults=[fault])
    fetch_without_hash(server, tmp_path / "while")
    assert (tmp_path / "while" / "a.pgn").read_bytes() == OTHER_DATA


def test_a_damaged_part_or_one_of_an_unknown_version_is_not_continued(
    server: Server, tmp_path: Path
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=200_000), Fault(status=404)]
    with pytest.raises(FetchError, match="404"):
        fetch_month(server, tmp_path)
    (tmp_path / f"{NAME}.part").write_bytes(DATA[:100_000] + bytes(50_000))
    fetch_month(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == DATA
    server.files["/a.pgn"] = File(DATA, etag="", modified="")
    part, state = tmp_path / "a.pgn.part", tmp_path / "a.pgn.part.json"
    without_version = {"url": f"{server.url}/a.pgn", "sha256": "", "version": {}}
    for text in ("", "{}", '{"url": 1}', json.dumps(without_version)):
        part.write_bytes(OTHER_DATA[:5000])
        state.write_text(text)
        fetch_without_hash(server, tmp_path)
        assert (tmp_path / "a.pgn").read_bytes() == DATA
        (tmp_path / "a.pgn").unlink()
    part.write_bytes(b"what a browser has so far")
    with pytest.raises(FetchError, match=r"\.part was not written by this program: move it away"):
        fetch_without_hash(server, tmp_path)
    assert part.read_bytes() == b"what a browser has so far"


@pytest.mark.parametrize(
    ("url", "target", "is_refused"),
    [
        ("https://a/x", "http://b/x", True),
        ("https://a/x", "ftp://b/x", True),
        ("https://a/x", "../y", False),
        ("http://a/x", "//b/x", False),
    ],
)
def test_a_redirect_that_drops_encryption_is_not_followed(
    url: str, target: str, is_refused: bool
) -> None:
    response = requests.Response()
    response.url, response.status_code, response.headers["Location"] = url, 302, target
    (hook,) = http._make_session().hooks["response"]
    with pytest.raises(FetchError, match="unencrypted") if is_refused else nullcontext():
        hook(response)


def test_a_url_is_verified_by_the_given_hash_and_never_shown_with_its_query(
    server: Server, tmp_path: Path
) -> None:
    server.files["/b%20c.pgn"] = File(DATA)
    found = fetch([f"{server.url}/b%20c.pgn?secret=1"], tmp_path, FetchConfig(sha256=SHA256))
    assert found["files"]["b c.pgn"]["verified"]
    for url, problem in (
        (f"{server.url}/nothing.pgn?secret=1", "answered 404: there is no such file"),
        ("http://me:secret@127.0.0.1:9/x.pgn", r"gave up at byte 0 .*\(Connection refused\)"),
    ):
        with pytest.raises(FetchError, match=problem) as raised:
            fetch([url], tmp_path)
        assert "secret" not in str(raised.value)


INVALID_TARGETS = "2013-13 2012-12 2013-06..2013-01 x ftp://me:secret@a/b?secret ..2013-01 9999-01 "


@pytest.mark.parametrize(
    "target", [*INVALID_TARGETS.split(), "http://[me:secret@a", "http://a/.x", "me//secret@"]
)
def test_invalid_months_and_urls_are_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"month|is not a valid URL|file name") as raised:
        fetch([target], tmp_path)
    assert "secret" not in str(raised.value)


def test_unpublished_months_are_named_before_anything_is_fetched(
    server: Server, tmp_path: Path
) -> None:
    server.publish(NAME, DATA)
    config = FetchConfig(base=f"{server.url}/standard")
    with pytest.raises(FetchError, match=r"does not publish .*2013-02.pgn.zst.*2013-01.pgn.zst"):
        fetch(["2013-01..2013-02"], tmp_path, config)
    assert list_files(tmp_path) == []
    assert parse_months("2013-11..2014-02") == ["2013-11", "2013-12", "2014-01", "2014-02"]
    server.files["/standard/sha256sums.txt"].data = b"<html>"
    with pytest.raises(FetchError, match="is not a list of hashes"):
        fetch(["2013-01"], tmp_path, config)


def test_a_full_disk_and_another_fetch_are_reported(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.publish(NAME, DATA)
    lock = FileLock(tmp_path / f".{NAME}.lock")
    with lock, pytest.raises(FetchError, match="another fetch is writing"):
        fetch_month(server, tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(FetchError, match="1,000 bytes free, but 300,000 more are needed"):
        fetch_month(server, tmp_path)


def test_a_killed_fetch_is_continued_by_the_same_command(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=200_000, stall=True)]
    command = [sys.executable, "-m", "pipeline", "fetch", "2013-01", "--json"]
    command += ["--out", str(tmp_path), "--base", f"{server.url}/standard"]
    part = tmp_path / f"{NAME}.part"
    with forked.Popen(command, cwd=REPOSITORY) as killed:
        assert server.sent.wait(HANG_TIMEOUT_SECONDS)
        until(lambda: part.exists() and part.stat().st_size > 0)
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    received = part.stat().st_size

    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_directory", interrupt)  # called after the file was renamed
        with pytest.raises(KeyboardInterrupt):
            fetch_month(server, tmp_path)
    assert server.ranges(NAME)[-1] == f"bytes={received}-"
    assert list_files(tmp_path) == [NAME, f"{NAME}.part.json"]
    assert fetch_month(server, tmp_path)["fetched"] == 0
    assert (tmp_path / NAME).read_bytes() == DATA
    assert list_files(tmp_path) == [NAME]

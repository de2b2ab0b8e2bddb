"""Fetching from a real server that breaks connections, stalls, lies, redirects, refuses and
replaces the file meanwhile."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import requests
from filelock import FileLock
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse

from pipeline.dumps import fetch as module
from pipeline.dumps.fetch import STEM, FetchConfig, fetch, parse_months
from pipeline.errors import ChangedError, ConfigError, FetchError, Stopped
from pipeline.storage import http
from pipeline.storage.http import WebFile
from tests.conftest import REPOSITORY
from tests.pipeline.loopback import Fault, File, Server, serving
from tests.waiting import LONG, until

NAME = f"{STEM}2013-01.pgn.zst"
DATA = random.Random(5).randbytes(300_000)
OTHER = random.Random(6).randbytes(310_000)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with a wait that does not slow the tests down."""
    monkeypatch.setattr(http, "BACKOFF", 0.01)
    monkeypatch.setattr(http, "STALL_SECONDS", LONG)


@contextmanager
def tries(count: int) -> Iterator[None]:
    """Give a server up after so many requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "ATTEMPTS", count)
        yield


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note the waits instead of waiting."""
    found: list[float] = []
    monkeypatch.setattr(http, "BACKOFF", 1.0)
    monkeypatch.setattr(http, "rest", lambda seconds, stop: found.append(seconds))
    return found


def config(server: Server, **more: Any) -> FetchConfig:
    return FetchConfig(base=f"{server.url}/standard", **more)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_month_is_fetched_and_verified_once(server: Server, tmp_path: Path) -> None:
    server.publish(NAME, DATA)
    said = fetch(["2013-01"], tmp_path, config(server))
    digest = hashlib.sha256(DATA).hexdigest()
    assert said["files"] == {
        NAME: {"bytes": len(DATA), "sha256": digest, "verified": True, "fetched": True}
    }
    assert (tmp_path / NAME).read_bytes() == DATA
    assert names(tmp_path) == [NAME]
    asked = len(server.ranges(NAME))
    again = fetch(["2013-01"], tmp_path, config(server))
    assert again["files"][NAME] == said["files"][NAME] | {"fetched": False}
    assert again["fetched"] == 0
    assert len(server.ranges(NAME)) == asked


def test_a_connection_that_breaks_goes_on_from_its_byte(server: Server, tmp_path: Path) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=100_000), Fault(send=0), Fault(send=50_000), Fault(send=1)]
    ticks = []
    said = fetch(["2013-01"], tmp_path, config(server), progress=ticks.append)
    assert (tmp_path / NAME).read_bytes() == DATA
    assert said["fetched"] == len(DATA)
    assert server.ranges(NAME) == [
        None,
        "bytes=100000-",
        "bytes=100000-",
        "bytes=150000-",
        "bytes=150001-",
    ]
    assert [since for path, _, since in server.asked if path.endswith(NAME)][1:] == ['"one"'] * 4
    assert ticks[-1].done == ticks[-1].total == len(DATA)
    assert ticks[-1].values["breaks"] == 4


def test_a_connection_that_stalls_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=100_000, stall=True)]
    ticks = []
    monkeypatch.setattr(http, "STALL_SECONDS", 1.0)
    with tries(1000):  # a busy machine may stall it more than once
        fetch(["2013-01"], tmp_path, config(server), progress=ticks.append)
    assert (tmp_path / NAME).read_bytes() == DATA
    assert ticks[-1].values["breaks"] >= 1


def test_a_server_that_never_gives_more_is_given_up_and_what_came_is_kept(
    server: Server, tmp_path: Path, waits: list[float]
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=100_000), *[Fault(send=0)] * 4]
    with (
        tries(4),
        pytest.raises(FetchError, match="given up at byte 100,000 after 4 tries in a row"),
    ):
        fetch(["2013-01"], tmp_path, config(server))
    assert waits == [0.0, 2.0, 4.0]
    assert names(tmp_path) == [f"{NAME}.part", f"{NAME}.part.json"]
    assert fetch(["2013-01"], tmp_path, config(server))["fetched"] == len(DATA) - 100_000
    assert (tmp_path / NAME).read_bytes() == DATA
    assert names(tmp_path) == [NAME]


def test_later_means_later(server: Server, tmp_path: Path, waits: list[float]) -> None:
    file = server.publish(NAME, DATA)
    date = formatdate(time.time() + 100, usegmt=True)
    for status, header in ((429, "7"), (503, date), (503, "soon"), (502, None)):
        file.faults.append(
            Fault(status=status, headers=(("Retry-After", header),) if header else ())
        )
    fetch(["2013-01"], tmp_path, config(server))
    assert (tmp_path / NAME).read_bytes() == DATA
    assert waits[0] == 7.0
    assert 0 < waits[1] <= 100
    assert waits[2:] == [4.0, 8.0]
    file.faults += [Fault(status=429, headers=(("Retry-After", "86400"),))]
    with pytest.raises(FetchError, match=r"answered 429 and asks for .* seconds: try again then"):
        fetch(["2013-01"], tmp_path / "elsewhere", config(server))
    assert len(waits) == 4


def test_a_stop_is_heard_while_waiting(server: Server, tmp_path: Path) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=1000), Fault(status=503, headers=(("Retry-After", "200"),))]
    with pytest.raises(Stopped):
        fetch(["2013-01"], tmp_path, config(server), stop=lambda: len(server.ranges(NAME)) > 1)
    assert fetch(["2013-01"], tmp_path, config(server))["fetched"] == len(DATA) - 1000


@pytest.mark.parametrize(
    ("etag", "modified"), [('"one"', ""), ('W/"one"', "Sat, 01 Feb 2025 00:00:00 GMT"), ("", "")]
)
def test_ranges_that_are_ignored_join_nothing_twice(
    server: Server, tmp_path: Path, etag: str, modified: str
) -> None:
    file = server.publish(NAME, DATA, ranges=False, etag=etag, modified=modified)
    file.faults += [Fault(send=200_000), Fault(send=100_000), Fault(send=250_000)]
    fetch(["2013-01"], tmp_path, config(server))
    assert (tmp_path / NAME).read_bytes() == DATA


def test_a_length_that_is_too_long_is_seen_through(server: Server, tmp_path: Path) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(lie=5000)]
    fetch(["2013-01"], tmp_path, config(server))
    assert (tmp_path / NAME).read_bytes() == DATA
    file.ranges, file.faults = False, [Fault(lie=5000)] * 20
    with tries(3), pytest.raises(FetchError, match="given up at byte 300,000"):
        fetch([f"{server.url}/standard/{NAME}"], tmp_path / "b", config(server))


def test_a_length_that_is_too_short_and_a_wrong_hash_leave_nothing(
    server: Server, tmp_path: Path
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(lie=-5000)]
    with pytest.raises(FetchError, match=r"not the published .*: it was not kept"):
        fetch(["2013-01"], tmp_path, config(server))
    assert names(tmp_path) == []
    server.publish(f"{STEM}2013-02.pgn.zst", DATA, sha256="0" * 64)
    with pytest.raises(
        FetchError,
        match=f"has the sha256 {hashlib.sha256(DATA).hexdigest()}, not the published 0000",
    ):
        fetch(["2013-02"], tmp_path, config(server))
    assert names(tmp_path) == []


def test_a_file_replaced_between_two_runs_is_begun_again(server: Server, tmp_path: Path) -> None:
    address = f"{server.url}/a.pgn"  # no hash tells, only what the server says
    server.files["/a.pgn"] = File(DATA, faults=[Fault(send=100_000), Fault(status=503)])
    with tries(1), pytest.raises(FetchError):
        fetch([address], tmp_path, config(server))
    assert (tmp_path / "a.pgn.part").stat().st_size == 100_000
    server.files["/a.pgn"] = File(OTHER, etag='"two"')
    assert fetch([address], tmp_path, config(server))["files"]["a.pgn"]["verified"] is False
    assert (tmp_path / "a.pgn").read_bytes() == OTHER


def test_a_file_replaced_while_it_is_read_is_begun_again(server: Server, tmp_path: Path) -> None:
    def replaced() -> None:
        server.files["/a.pgn"] = File(OTHER, etag='"two"')

    server.files["/a.pgn"] = File(DATA, faults=[Fault(send=100_000, then=replaced)])
    fetch([f"{server.url}/a.pgn"], tmp_path, config(server))
    assert (tmp_path / "a.pgn").read_bytes() == OTHER
    server.files["/a.pgn"] = File(DATA, faults=[Fault(send=100_000, then=replaced)])
    reading = WebFile(f"{server.url}/a.pgn")
    with pytest.raises(ChangedError, match="was replaced"):
        list(iter(lambda: reading.read(1 << 20), b""))


def test_what_is_here_of_an_unknown_version_is_not_joined(server: Server, tmp_path: Path) -> None:
    server.files["/a.pgn"] = File(DATA, etag="", modified="")
    (tmp_path / "a.pgn.part").write_bytes(OTHER[:5000])
    for state in (
        "",
        "{}",
        '{"url": 1}',
        json.dumps({"url": f"{server.url}/a.pgn", "sha256": "", "version": {}}),
    ):
        (tmp_path / "a.pgn.part.json").write_text(state)
        fetch([f"{server.url}/a.pgn"], tmp_path, config(server))
        assert (tmp_path / "a.pgn").read_bytes() == DATA
        (tmp_path / "a.pgn").rename(tmp_path / "a.pgn.part")


@pytest.mark.parametrize("synced", [0, 900_000, 1_500_000])
def test_what_was_not_synchronised_before_a_power_cut_is_fetched_again(
    server: Server, tmp_path: Path, synced: int
) -> None:
    """The system keeps the length of a file and loses what it had not written; a URL has no
    published hash."""
    data = random.Random(9).randbytes(2_000_000)
    server.files["/a.pgn"] = File(data, faults=[Fault(send=1_500_000), Fault(status=503)])
    with tries(1), pytest.raises(FetchError):
        fetch([f"{server.url}/a.pgn"], tmp_path, config(server))
    part, state = tmp_path / "a.pgn.part", tmp_path / "a.pgn.part.json"
    assert part.read_bytes() == data[:1_500_000]
    notes = json.loads(state.read_text())
    assert notes["synced"] == 1_500_000
    part.write_bytes(data[:synced] + b"\0" * (1_600_000 - synced))
    state.write_text(json.dumps(notes | {"synced": synced}))
    found = fetch([f"{server.url}/a.pgn"], tmp_path, config(server))
    assert (tmp_path / "a.pgn").read_bytes() == data
    assert names(tmp_path) == ["a.pgn"]
    assert found["fetched"] == len(data) - synced
    assert server.ranges("/a.pgn")[-1] == (f"bytes={synced}-" if synced else None)


def test_a_part_of_another_program_is_left(server: Server, tmp_path: Path) -> None:
    server.publish(NAME, DATA)
    (tmp_path / f"{NAME}.part").write_bytes(b"what a browser has so far")
    with pytest.raises(FetchError, match=r"\.part belongs to another program: move it away"):
        fetch(["2013-01"], tmp_path, config(server))
    assert (tmp_path / f"{NAME}.part").read_bytes() == b"what a browser has so far"


class Hops(HTTPAdapter):
    """Answers addresses as a table says, a redirect or a body, and notes what it is asked."""

    def __init__(self, table: dict[str, str | bytes]) -> None:
        super().__init__()
        self.table, self.asked = table, list[str]()

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        url = str(request.url)
        self.asked.append(url)
        found, answer = self.table[url], requests.Response()
        answer.url, answer.request, answer.status_code = (
            url,
            request,
            302 if isinstance(found, str) else 200,
        )
        body = b"" if isinstance(found, str) else found
        answer.headers["Content-Length"] = str(len(body))
        if isinstance(found, str):
            answer.headers["Location"] = found
        answer.raw = HTTPResponse(
            io.BytesIO(body), headers=dict(answer.headers), preload_content=False
        )
        return answer


@pytest.mark.parametrize(
    ("table", "asked", "refused"),
    [
        (
            {"https://a/x": "http://b/x", "http://b/x": "https://c/x", "https://c/x": b"body"},
            1,
            "without encryption",
        ),
        (
            {"https://a/x": "https://b/x", "https://b/x": "http://c/x", "http://c/x": b"body"},
            2,
            "without encryption",
        ),
        ({"http://a/x": "https://b/x", "https://b/x": "//c/y", "https://c/y": b"body"}, 3, ""),
        ({"http://a/x": "https://b/x", "https://b/x": "http://a/x"}, 2, "without encryption"),
        ({"https://a/x": "../y z", "https://a/y%20z": b"body"}, 2, ""),
        ({"https://a/x": "ftp://b/x"}, 1, "without encryption"),
        ({"http://a/x": "file:///etc/passwd"}, 1, "leads nowhere"),
        ({"https://a/x": "https://a/x"}, http.REDIRECTS + 1, "leads nowhere: over 10 redirects"),
    ],
)
def test_each_redirect_is_looked_at_before_it_is_followed(
    table: dict[str, str | bytes], asked: int, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops, session = Hops(table), http._session()
    session.mount("https://", hops)
    session.mount("http://", hops)
    monkeypatch.setattr(http, "_session", lambda: session)
    file = WebFile(next(iter(table)))
    if refused:
        with pytest.raises(FetchError, match=refused):
            file.read(100)
    else:
        assert file.read(100) == b"body"
    assert len(hops.asked) == asked


def test_a_file_that_is_here_and_is_another_is_left(server: Server, tmp_path: Path) -> None:
    server.publish(NAME, DATA)
    (tmp_path / NAME).write_bytes(OTHER)
    with pytest.raises(FetchError, match="is here and differs from the published file"):
        fetch(["2013-01"], tmp_path, config(server))
    assert (tmp_path / NAME).read_bytes() == OTHER


def test_urls_have_the_hash_that_is_said_and_no_query_in_their_name(
    server: Server, tmp_path: Path
) -> None:
    server.files["/b%20c.pgn"] = File(DATA)
    address = f"{server.url}/b%20c.pgn?secret=1"
    said = fetch([address], tmp_path, config(server, sha256=hashlib.sha256(DATA).hexdigest()))
    assert said["files"]["b c.pgn"]["verified"]
    with pytest.raises(FetchError, match=r"answers 404: there is no such file") as told:
        fetch([f"{server.url}/nothing.pgn?secret=1"], tmp_path, config(server))
    assert "secret" not in str(told.value)
    with (
        tries(2),
        pytest.raises(
            FetchError, match=r"given up at byte 0 after 2 tries in a row \(Connection refused\)"
        ),
    ):
        fetch(["http://127.0.0.1:9/x.pgn"], tmp_path, FetchConfig())


WORDS = "2013-13 2012-12 2013-06..2013-01 2013 x ftp://a/b 2013-01.. ..2013-01 9999-01 http://[/a"


@pytest.mark.parametrize("word", WORDS.split())
def test_words_that_are_nothing_are_refused(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"month|is not a valid address"):
        fetch([word], tmp_path)


def test_months_that_are_not_published_are_named_before_anything_is_fetched(
    server: Server, tmp_path: Path
) -> None:
    server.publish(NAME, DATA)
    with pytest.raises(FetchError, match=r"does not publish .*2013-02.pgn.zst.*2013-01.pgn.zst"):
        fetch(["2013-01..2013-02"], tmp_path, config(server))
    assert names(tmp_path) == []
    assert parse_months("2013-11..2014-02") == ["2013-11", "2013-12", "2014-01", "2014-02"]
    server.files["/standard/sha256sums.txt"].data = b"<html>"
    with pytest.raises(FetchError, match="is no list of hashes"):
        fetch(["2013-01"], tmp_path, config(server))


def test_a_full_disk_and_another_fetch_are_said(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.publish(NAME, DATA)
    with (
        FileLock(tmp_path / f".{NAME}.lock"),
        pytest.raises(FetchError, match="another fetch is writing"),
    ):
        fetch(["2013-01"], tmp_path, config(server))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(FetchError, match="1,000 bytes free, and 300,000 are left to fetch"):
        fetch(["2013-01"], tmp_path, config(server))


def test_a_fetch_that_is_killed_is_continued_by_the_same_command(
    server: Server, tmp_path: Path
) -> None:
    file = server.publish(NAME, DATA)
    file.faults += [Fault(send=200_000, stall=True)]
    script = (
        "from pipeline.dumps import fetch; fetch.SYNC_BYTES = 1; from pipeline.cli.main "
        "import main; main()"
    )
    command = [sys.executable, "-c", script, "fetch", "2013-01", "--json"]
    command += ["--out", str(tmp_path), "--base", f"{server.url}/standard"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as killed:
        assert server.sent.wait(LONG)
        state = tmp_path / f"{NAME}.part.json"
        until(lambda: state.exists() and json.loads(state.read_text())["synced"])
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    came = json.loads(state.read_text())["synced"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fetched"] == len(DATA) - came
    assert server.ranges(NAME)[-1] == f"bytes={came}-"
    assert (tmp_path / NAME).read_bytes() == DATA
    assert names(tmp_path) == [NAME]


def test_notes_of_a_fetch_that_was_killed_at_its_end_are_deleted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.publish(NAME, DATA)

    def die(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(module, "sync_directory", die)  # called when the file has its name
        with pytest.raises(KeyboardInterrupt):
            fetch(["2013-01"], tmp_path, config(server))
    assert names(tmp_path) == [NAME, f"{NAME}.part.json"]
    assert fetch(["2013-01"], tmp_path, config(server))["fetched"] == 0
    assert names(tmp_path) == [NAME]

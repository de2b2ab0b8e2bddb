"""What befalls an ingest besides kills: a stop, a full disk, two at once, a dump replaced, clocks
that lie."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import DatasetError, IngestError, Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets
from tests.pipeline.ingest.begun import FINISHED, STOPPED, begin
from tests.waiting import until

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2)
YEAR = 365.25 * 86400


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of 3 MB, three chunks."""
    path = tmp_path_factory.mktemp("faults") / "games.pgn"
    games = "".join(datasets.random_game(seed) for seed in range(100))
    path.write_text(games * 8)
    return path


@pytest.fixture(scope="module")
def undisturbed(dump: Path) -> dict[str, str]:
    """Give the bytes of an undisturbed run."""
    ingest([str(dump)], dump.parent / "undisturbed", CONFIG, workers=1)
    return datasets.content(dump.parent / "undisturbed")


def stop_after(chunks: int) -> Callable[[], bool]:
    """Ask an ingest to stop when so many chunks are done."""
    left = iter(range(chunks - 1, -1, -1))
    return lambda: next(left, 0) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_stops_it_and_what_was_done_is_kept(
    workers: int, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out, hold = tmp_path / "out", tmp_path / "hold"
    hold.touch()
    process = begin(dump, out, CONFIG, workers, hold=hold)
    until(lambda: list(out.glob(".building/parts/[0-9]*.json")))
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == STOPPED
    assert list(out.glob(".building/parts/[0-9]*.json"))
    assert not (out / "manifest.json").exists()
    assert not list(out.rglob("*.tmp"))
    ingest([str(dump)], out, CONFIG, workers=1)
    assert datasets.content(out) == undisturbed


def test_one_that_is_frozen_keeps_others_out_and_its_death_lets_them_in(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out, hold = tmp_path / "out", tmp_path / "hold"
    for last_word, ended in ((signal.SIGCONT, FINISHED), (signal.SIGKILL, -signal.SIGKILL)):
        shutil.rmtree(out, ignore_errors=True)
        hold.touch()
        process = begin(dump, out, CONFIG, hold=hold)
        until(lambda: list(out.glob(".building/parts/[0-9]*.json")))
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(IngestError, match="another ingest is writing"):
            ingest([str(dump)], out, CONFIG, workers=1)
        hold.unlink()
        os.kill(process.pid, last_word)
        assert process.wait() == ended
        ingest([str(dump)], out, CONFIG, workers=1)
        assert datasets.content(out) == undisturbed


@pytest.mark.parametrize("years", [50, -50])
def test_clocks_that_lie_change_nothing(
    years: int, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    copy = tmp_path / dump.name
    shutil.copy(dump, copy)
    then = time.time() + years * YEAR
    os.utime(copy, (then, then))
    with pytest.raises(Stopped):
        ingest([str(copy)], out, CONFIG, workers=1, stop=stop_after(2))
    for number, path in enumerate(sorted(out.rglob("*"))):
        os.utime(path, (then + number * YEAR, then - number * YEAR))
    assert len(list(out.glob(".building/parts/[0-9]*.json"))) == 2
    ingest([str(copy)], out, CONFIG, workers=1)
    assert datasets.content(out) == undisturbed
    os.utime(out / "manifest.json", (then, then))
    ingest([str(copy)], out, CONFIG, workers=1)
    assert datasets.content(out) == undisturbed


@pytest.mark.parametrize("finished", [False, True])
def test_a_dump_replaced_under_the_same_name_size_and_time_is_noticed(
    finished: bool, dump: Path, tmp_path: Path
) -> None:
    out, copy = tmp_path / "out", tmp_path / dump.name
    shutil.copy2(dump, copy)
    if finished:
        ingest([str(copy)], out, CONFIG, workers=1)
    else:
        with pytest.raises(Stopped):
            ingest([str(copy)], out, CONFIG, workers=1, stop=stop_after(1))
    before, stat = datasets.content(out), copy.stat()
    copy.write_bytes(copy.read_bytes().replace(b"Rated Rapid", b"Rated Blitz", 1))
    os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (copy.stat().st_size, copy.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    with pytest.raises(
        DatasetError,
        match="which are other dumps than those named now, or have changed"
        if finished
        else "the dump has changed",
    ):
        ingest([str(copy)], out, CONFIG, workers=1)
    assert datasets.content(out) == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_is_really_full(
    workers: int, dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this user may mount no small disk")
    try:
        with pytest.raises(
            IngestError, match=r"No space left on device.*what was finished is kept"
        ):
            ingest([str(dump)], disk / "out", CONFIG, workers=workers)
        assert not (disk / "out" / "manifest.json").exists()
        assert not list(disk.rglob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        ingest([str(dump)], disk / "out", CONFIG, workers=workers)
        assert datasets.content(disk / "out") == undisturbed
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)

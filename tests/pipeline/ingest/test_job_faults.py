"""What befalls an ingest besides kills: a stop, a full disk, two at once, a dump replaced, clocks
that lie."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pipeline.errors import IngestError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from tests.pipeline import datasets
from tests.pipeline.ingest.begun import STOPPED, begin
from tests.waiting import until

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2)


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

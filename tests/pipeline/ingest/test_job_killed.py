"""An ingest whose workers and drivers are killed, or whose disk is full: the same bytes.

tests/pipeline/storage/test_job_folder.py kills it at every file operation.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline.errors import IngestError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.validation.verify import compare_files
from tests import forked
from tests.conftest import REPOSITORY
from tests.pipeline import datasets
from tests.processes import list_workers
from tests.waiting import LONG

CONFIG = IngestConfig(chunk_mib=1, test_share=0.2)
KILLS = int(os.environ.get("FIANCHETTO_TESTS_KILLS", "40"))


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dump of 5 MB whose first MiB is nearly all comment, so that its shards are small."""
    path = tmp_path_factory.mktemp("kill") / "games.pgn"
    games = [datasets.random_game(seed) for seed in range(40)]
    wordy = games[0].replace("{ ", "{ " + "word " * 4000, 50)
    path.write_text(wordy + "".join("".join(games[at:] + games[:at]) for at in range(30)))
    return path


@pytest.fixture(scope="module")
def undisturbed(dump: Path) -> dict[str, str]:
    """Return the hashes of the files of an undisturbed run."""
    out = dump.parent / "undisturbed"
    ingest([str(dump)], out, CONFIG, workers=1)
    assert compare_files(out) == []
    return datasets.content(out)


def begin(dump: Path, out: Path, workers: int) -> forked.Popen:
    """Start the command that ingests the dump."""
    options = ["--set", "chunk_mib=1", "--set", "test_share=0.2", "--workers", str(workers)]
    words = [sys.executable, "-m", "pipeline", "ingest", str(dump), "--out", str(out), *options]
    return forked.Popen(words, cwd=REPOSITORY, stderr=subprocess.DEVNULL)


def kill(process: forked.Popen) -> bool:
    """Kill an ingest and return whether that ended it; its workers end too."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    # a zombie keeps its process id until it is waited for
    os.kill(process.pid, signal.SIGKILL)
    ended = process.wait()
    _, alive = psutil.wait_procs(below, timeout=LONG)
    assert alive == [], "a worker has outlived its driver"
    return ended == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_drivers_and_workers_killed_at_random_moments(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    began = time.monotonic()
    ingest([str(dump)], tmp_path / "whole", CONFIG, workers=2)
    seconds = time.monotonic() - began
    chance, kills, made = random.Random(11), 0, 0
    while kills < KILLS:
        out = tmp_path / str(made)
        process = begin(dump, out, workers=1 + kills % 2)
        time.sleep(chance.uniform(0.02, 0.8) * seconds)
        if pool := list_workers(process.pid):
            victim = chance.choice(pool)
            victim.kill()
            gone, _ = psutil.wait_procs([victim], 30)
            kills += len(gone)
            time.sleep(chance.uniform(0, 0.5) * seconds)
        kills += (by_us := kill(process))
        # every file with its final name, in the build or beside it, is complete
        found = {
            name.removeprefix(".building/"): digest
            for name, digest in datasets.content(out).items()
            if "/parts/" not in name and not name.endswith(".tmp") and name != "job.json"
        }
        assert found.items() <= undisturbed.items()
        if not by_us:
            assert datasets.content(out) == undisturbed
            made += 1
    ingest([str(dump)], tmp_path / str(made), CONFIG, workers=1)
    assert datasets.content(tmp_path / str(made)) == undisturbed


def test_a_killed_worker_changes_nothing(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill_one(_: object) -> None:
        if not killed:
            killed.append(list_workers()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    ingest([str(dump)], tmp_path / "out", CONFIG, workers=2, progress=kill_one)
    assert killed
    assert datasets.content(tmp_path / "out") == undisturbed


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to name open files")
def test_a_chunk_whose_file_does_not_reach_the_disk_is_not_done(
    dump: Path, undisturbed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are synchronised while others are written: the note waits for all of them."""
    real = os.fsync

    def full(descriptor: int) -> None:
        if "train-00001" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(IngestError, match="No space left on device"):
            ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    parts = tmp_path / "out" / ".building" / "parts"
    assert (parts / "00000.json").exists()
    assert not (parts / "00001.json").exists()
    ingest([str(dump)], tmp_path / "out", CONFIG, workers=1)
    assert datasets.content(tmp_path / "out") == undisturbed
